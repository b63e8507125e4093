"""A draft length that chooses itself: guess as far as it pays, by what was kept so far and what things cost.

A guess pays while the tokens that it is expected to save, at the speed that is reached at the best length, cost more
than itself and the longer check. Three things are learned on the way:

- *The chance that a guess is kept.* Three memories, of some 8, 48 and 300 guesses, foretell each judged guess; who
  foretells well is listened to, so a change of the text is noticed within a few guesses and a steady one is known
  precisely. Guesses after the first refused one were not judged: of them nothing is known, and nothing is learned.
- *How places and certainty differ.* The fourth guess may be kept less often than the first; and a guess of which the
  drafter itself was not sure less often than others, so it may end the draft. It is never taken back: to throw a guess
  away for what it is would change the law of what is written.
- *What speculation has lost against plain decoding*, by the same prices: when that is more than a pass and 2 % of the
  text, a guess is only tried now and then, at longer and longer intervals, until some are kept again.

Nothing here looks at a clock: the same costs and the same guesses give the same lengths.

Source: the economic rule is Leviathan et al. 2023 (arXiv 2211.17192), section 3.5, with a measured price of a check
and one guess at a time; the mixture of memories is fixed share, Herbster and Warmuth 1998.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minispec.costs import Costs

MOST = 15  # guesses a round, so 16 rows a check
MEMORIES = (8.0, 48.0, 300.0)  # guesses until half is forgotten
STEADY = slice(1, 2)  # the memory that has to agree before guessing is given up
SHARE = 0.02  # of trust that is dealt out anew at each guess
FIRST = (2.0, 0.6)  # what a text begins with: as if so many guesses had been judged, and this share kept
PLACES = 32.0  # judged guesses at a place until its own share counts as much as the common one
PLACE_MEMORY = 64.0
UNSURE = (0.9, 0.75, 0.5, 0.25, 0.1, 0.03, 0.01)  # bounds between classes of 1 - surety
CLASS = 8.0  # guesses expected to be kept until a class of certainty counts as much as all together
CLASS_MEMORY = 200.0
ALLOWED = (1.0, 0.02)  # what may be lost against plain decoding: passes, and a share of the text
CREDIT = 3.0  # passes of earlier gain that may be lost again
LONGEST_TRIAL = 8
TINY, NEVER = 1e-100, 1e100


@dataclass(frozen=True)
class AutoLength:
    """The draft length that pays best at these prices. Give it to `speculate` as n_draft.

    Compared with the best fixed length, and with plain decoding, it loses a few per cent at most over a hundred tokens
    or more; a text of ten has ended before much is known of it. Raises ValueError for fewer than one guess.
    """

    costs: Costs
    most: int = MOST

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most is {self.most}: give 1 or more, or n_draft=0 for plain decoding")

    def start(self) -> AutoGuide:
        """Begin a text that nothing is known of."""
        return AutoGuide(self.costs, self.most)


class AutoGuide:
    """What is known of one text, and how far to guess in it."""

    def __init__(self, costs: Costs, most: int) -> None:
        self.most_guesses = most
        self.prices = Prices(costs, most)
        self.chances = Chances(most)
        self.classes = Classes()
        self.budget = Budget()
        self.unread = 1  # tokens that the drafter has not read: more after plain passes

    def most(self) -> int:
        """The most guesses of the next round: all that there may be, a few to try, or none."""
        self.kept = self.chances.by_place()
        best, self.needed = self.prices.plan(self.kept)  # how far, and what it takes to go on from each place
        pays = best > 0 or self.chances.steady > self.prices.least
        self.reach, self.trial = 1.0, 0
        self.sure: list[int] = []  # the classes of this round's guesses
        spare = self.budget.spare
        if pays and spare >= 0:
            return self.most_guesses
        if self.budget.is_time and self.prices.round(1, self.unread) - 1 <= spare:
            self.trial = min(self.budget.trial, self.most_guesses)
        return self.trial

    def go_on(self, surety: Callable[[], float]) -> bool:
        """Whether to guess on, after a guess of which the drafter is so sure (its own probability)."""
        place = len(self.sure)
        self.sure.append(self.classes.of(surety()))
        self.reach *= min(1.0, self.kept[place] * self.classes.factor(self.sure[-1]))
        if self.trial:
            return place + 1 < self.trial
        return place + 1 < self.most_guesses and self.reach > self.needed[place + 1]

    def learn(self, n_guess: int, n_accepted: int, n_judged: int) -> None:
        """Of n_guess guesses the first n_judged were judged, and the first n_accepted of these kept."""
        for place in range(n_judged):
            kept = place < n_accepted
            if place < len(self.sure):
                self.classes.learn(self.sure[place], float(self.kept[place]), kept)
            self.chances.learn(place, kept)
        lost = self.prices.round(n_guess, self.unread) - (n_accepted + 1)
        self.budget.learn(lost, n_accepted + 1, n_guess, n_accepted, self.trial)
        # After a draft that was kept whole, its own last guess is among what the drafter has yet to read.
        self.unread = self.unread + 1 if not n_guess else 2 if n_accepted == n_guess else 1


class Prices:
    """What rounds cost, and which is best for given chances."""

    def __init__(self, costs: Costs, most: int) -> None:
        self.costs = costs
        lengths = np.arange(most + 1)
        check = np.array([costs.curve(rows) for rows in range(1, most + 2)])
        self.reread = np.where(lengths > 0, costs.reread, 0.0)
        # of_round [most + 1]: by the number of guesses
        self.of_round = lengths * costs.guess + np.where(lengths > 0, costs.first, 0.0) + check
        further = self.of_round - self.of_round[:, None]  # [from, to]
        self.further = np.where(np.tri(most + 1, dtype=bool), NEVER, further)  # to a place that is not further
        self.reach = np.ones(most + 1)  # room to work in: the chance that so many guesses are kept
        self.least = self.of_round[1] - 1  # the chance at which a single guess pays

    def round(self, n_guess: int, unread: int) -> float:
        """The price of a round in passes."""
        return float(self.of_round[n_guess]) + (self.costs.reread * (unread - 1) if n_guess else 0.0)

    def plan(self, kept: NDArray[np.float64]) -> tuple[int, NDArray[np.float64]]:
        """The best number of guesses for chances kept [most] by place, and what it takes to guess on.

        needed [most + 1]: with i guesses made, another pays where the chance that all of them are kept is above
        needed[i]: then for some end of the draft, the further tokens at the best speed save more than they cost.
        """
        np.multiply.accumulate(kept, out=self.reach[1:])
        tokens = self.reach.cumsum()  # expected of a round, [most + 1]
        speeds = tokens / (self.of_round + self.reread * self.reach)  # read along after a draft that was kept whole
        best = int(speeds.argmax())
        gained = (tokens - tokens[:, None]) / np.maximum(self.reach, TINY)[:, None]  # [from, to]
        needed = speeds[best] * self.further / np.maximum(gained, TINY)
        return best, needed.min(axis=1)


class Chances:
    """The chance that a guess is kept, given that those before it were."""

    def __init__(self, most: int) -> None:
        n = len(MEMORIES)
        self.memory = [0.5 ** (1 / memory) for memory in MEMORIES]
        self.judged, self.kept, self.trust = [FIRST[0]] * n, [FIRST[0] * FIRST[1]] * n, [1 / n] * n
        self.place_memory = 0.5 ** (1 / PLACE_MEMORY)
        self.at_place = np.zeros((2, most))  # judged and kept

    @property
    def common(self) -> float:
        """The chance at any place, as the memories see it that have foretold best."""
        return sum(t * k / n for t, k, n in zip(self.trust, self.kept, self.judged, strict=True))

    @property
    def steady(self) -> float:
        """The chance as memories see it that do not take a few refused guesses for a change."""
        return max(k / n for k, n in zip(self.kept[STEADY], self.judged[STEADY], strict=True))

    def by_place(self) -> NDArray[np.float64]:
        """The chances by place [most]."""
        judged, kept = self.at_place
        chances: NDArray[np.float64] = (kept + PLACES * self.common) / (judged + PLACES)
        return chances

    def learn(self, place: int, kept: bool) -> None:
        """A guess at this place was judged."""
        for i, memory in enumerate(self.memory):
            foretold = self.kept[i] / self.judged[i]
            self.trust[i] *= foretold if kept else 1 - foretold
            self.judged[i] = self.judged[i] * memory + 1
            self.kept[i] = self.kept[i] * memory + kept
        total = sum(self.trust)
        n = len(self.trust)
        self.trust = [(1 - SHARE) * trust / total + SHARE / n if total else 1 / n for trust in self.trust]
        self.at_place *= self.place_memory
        self.at_place[0, place] += 1
        self.at_place[1, place] += kept


class Classes:
    """How a drafter's own certainty tells guesses apart: by class, guesses kept over guesses expected to be kept."""

    def __init__(self) -> None:
        self.memory = 0.5 ** (1 / CLASS_MEMORY)
        self.kept = [0.0] * (len(UNSURE) + 1)
        self.expected = [0.0] * (len(UNSURE) + 1)

    @staticmethod
    def of(surety: float) -> int:
        """The class of a guess."""
        return sum(1 - surety < bound for bound in UNSURE)

    def factor(self, one: int) -> float:
        """How much more, or less, likely than guesses in general one of this class is to be kept."""
        in_general = (CLASS + sum(self.kept)) / (CLASS + sum(self.expected))
        return (CLASS * in_general + self.kept[one]) / (CLASS + self.expected[one]) / in_general

    def learn(self, one: int, expected: float, kept: bool) -> None:
        """A guess of this class was judged."""
        self.kept[one] = self.kept[one] * self.memory + kept
        self.expected[one] = self.expected[one] * self.memory + expected


class Budget:
    """What speculation may lose against plain decoding, and when to try again after it was given up."""

    def __init__(self) -> None:
        self.lost = 0.0  # passes
        self.written = 0
        self.plain = 0  # rounds since the last guess
        self.wait = 1  # rounds between trials
        self.trial = 1  # guesses of the next trial

    @property
    def spare(self) -> float:
        """What may be lost yet, in passes."""
        return ALLOWED[0] + ALLOWED[1] * self.written - self.lost

    @property
    def is_time(self) -> bool:
        """Whether to try a guess again."""
        return self.plain >= self.wait or self.trial > 1

    def learn(self, lost: float, written: int, n_guess: int, n_accepted: int, trial: int) -> None:
        """A round cost `lost` passes more than plain decoding of what it has written."""
        self.written += written
        self.lost = max(self.lost + lost, -CREDIT)
        if not n_guess:
            self.plain += 1
            return
        self.plain = 0
        if not trial:
            self.wait, self.trial = 1, 1
        elif n_accepted == n_guess:
            self.wait, self.trial = 1, min(2 * n_guess, LONGEST_TRIAL)
        else:
            self.wait, self.trial = 1 if n_accepted else 2 * self.wait, 1
