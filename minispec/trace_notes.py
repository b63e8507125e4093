"""Why each token of a run is there: notes that are taken while it is written, and what they come to.

The loop is not touched, nor are its choices. It is given dice that note their throws, a sampler that notes what it is
asked by the drafter, and a judge that hands on, word for word, what the real one says. After each step these notes are
made into a `Round`, while the clock of the run stands still: what is written is what is written without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.gumbel import Gumbel
from minispec.protocols import Draft, Probs, Sampler, Step, depths
from minispec.sampling import Sampling
from minispec.speculative import Dice, Judge, judge, judge_block, residual
from minispec.trace import token_kinds
from minispec.trace_reasons import Guess, Law, Own, Round, Top, top_of


class Coins:
    """A generator that remembers its last number."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.last = 0.0

    def random(self) -> float:
        """A uniform number below 1."""
        self.last = self.rng.random()
        return self.last


@dataclass(frozen=True)
class Accept:
    """A coin: what it was thrown for, how it fell, and the verdict."""

    target_prob: float
    draft_prob: float
    coin: float
    kept: bool

    @property
    def chance(self) -> float:
        """min(1, target / draft), as `Dice.accept` has it."""
        if self.target_prob <= 0:
            return 0.0
        return 1.0 if self.draft_prob <= self.target_prob else float(self.target_prob / self.draft_prob)


class NotedDice(Dice):
    """The dice of a seed; `accepts` and `draws` are what they were asked."""

    def __init__(self, seed: int) -> None:
        """Raises ValueError as Dice."""
        super().__init__(seed)
        self.coins = Coins(self.rng)
        self.rng = self.coins  # type: ignore[assignment]  # all that Dice asks of it is a number
        self.accepts: list[Accept] = []
        self.draws: list[tuple[int, Probs, float]] = []

    def accept(self, target_prob: Any, draft_prob: Any) -> bool:
        """As Dice."""
        kept = super().accept(target_prob, draft_prob)
        self.accepts.append(Accept(float(target_prob), float(draft_prob), self.coins.last, kept))
        return kept

    def draw(self, probs: Probs) -> int:
        """As Dice."""
        token = super().draw(probs)
        self.draws.append((token, probs, self.coins.last))
        return token


class NotedSampler:
    """A sampler whose laws have one token in them; `asked` are these, each with the logits it was made of."""

    def __init__(self, sampling: Sampler) -> None:
        self.sampling = sampling
        self.temperature = getattr(sampling, "temperature", None)  # for drafters that guess otherwise when greedy
        self.asked: list[tuple[Probs, NDArray[Any], int]] = []

    def probs(self, logits: NDArray[Any], position: int) -> Probs:
        """As the sampler."""
        probs = self.sampling.probs(logits, position)
        self.asked.append((probs, logits.copy(), position))  # a copy: whoever asks may go on to write there
        return probs


class Notes:
    """Notes of one text. Give `speculate` or `generate` its `sampling`, `choices` and, if it drafts, `judge`."""

    def __init__(self, sampling: Sampler, seed: int, rule: Judge = judge) -> None:
        self.law_of_loop, self.rule = sampling, rule
        self.choices = NotedDice(seed)
        self.before_pick = before_pick(sampling)
        self.sampling = sampling if self.before_pick is None else NotedSampler(sampling)
        self.seen: tuple[Draft, NDArray[Any], int] | None = None

    def judge(
        self, draft: Draft, logits: NDArray[Any], position: int, sampling: Sampler, choices: NotedDice
    ) -> Iterator[tuple[int, int]]:
        """What the rule says, with a look at what it is given."""
        self.seen = draft, logits, position
        choices.accepts.clear()
        choices.draws.clear()
        yield from self.rule(draft, logits, position, self.law_of_loop, choices)

    def round_of(self, step: Step) -> Round:
        """The step that has just been made, with its reasons; the notes are blank again."""
        guesses = self._guesses(step) if self.seen is not None else ()
        own = self._own(step) if len(step.committed) > step.n_accepted else None
        self.seen = None
        self.choices.accepts.clear()
        self.choices.draws.clear()
        if isinstance(self.sampling, NotedSampler):
            self.sampling.asked.clear()
        return Round(step, guesses, own)

    # --- of a draft --------------------------------------------------------------------------------

    def _guesses(self, step: Step) -> tuple[Guess, ...]:
        assert self.seen is not None
        draft, _, _ = self.seen
        parents, verdicts, told = parents_of(draft), self._verdicts(draft, step), []
        for i, (token, parent, depth) in enumerate(zip(draft.tokens, parents, depths(parents), strict=True)):
            draft_probs = draft.probs[i]
            drawn_from = self._law(draft_probs, *self._logits_of(draft_probs))
            fate = "kept" if i in step.path else "refused" if i in verdicts else "lost"
            about: dict[str, Any] = {}
            if i in verdicts:
                elder, met = verdicts[i]
                about = met | self._judged(i, int(parent), depth, elder)
            told.append(Guess(int(token), int(parent), depth, fate, float(draft_probs[token]), drawn_from, **about))
        return tuple(told)

    def _judged(self, guess: int, parent: int, depth: int, elder: list[int]) -> dict[str, Any]:
        """The law that a guess was judged by, which its elder siblings, refused, have left; what it comes to."""
        assert self.seen is not None
        draft, logits, position = self.seen
        row, place = logits[1 + parent], position + depth - 1
        target_probs = self.law_of_loop.probs(row, place)
        for sibling in elder:
            target_probs = residual(target_probs, draft.probs[sibling])
        about: dict[str, Any] = {
            "target_prob": float(target_probs[draft.tokens[guess]]),
            "target": self._law(target_probs, row, place),
        }
        if self.rule is judge:
            about["residual"] = Law(what_replaces(target_probs, draft.probs[guess]))
            about["overlap"] = float(np.minimum(target_probs, draft.probs[guess]).sum())
        return about

    def _verdicts(self, draft: Draft, step: Step) -> dict[int, tuple[list[int], dict[str, Any]]]:
        """Of each guess that was judged: its elder siblings, which were refused, and the coin that it met."""
        accepts = self.choices.accepts
        if self.rule is judge:
            return walk(draft, accepts)
        n_guess = len(draft.tokens)
        if self.rule is judge_block:  # from the longest beginning down
            met = {n_guess - 1 - i: {"chance": accept.chance, "coin": accept.coin} for i, accept in enumerate(accepts)}
            n_kept = n_guess - len(accepts) + 1 if accepts and accepts[-1].kept else 0
            ended = range(step.n_accepted, n_kept)  # kept by the rule, but the text had ended
            return {i: ([], met.get(i, {})) for i in range(n_guess) if i not in ended}
        reached = {-1, *step.path}  # a rule of somebody's own: what it looked at, without coins
        if len(step.committed) == step.n_accepted:  # the text ended with the last that was kept
            reached.discard(step.path[-1])
        return {i: ([], {}) for i, parent in enumerate(parents_of(draft)) if parent in reached}

    # --- of the target's own token -----------------------------------------------------------------

    def _own(self, step: Step) -> Own:
        token, kind = token_kinds(step)[-1]
        drawn, probs, coin = self.choices.draws[-1]
        assert drawn == token, (drawn, token)
        if self.seen is None:
            where = self._logits_of(probs)
        else:
            _, logits, position = self.seen
            where = logits[1 + step.path[-1] if step.path else 0], position + step.n_accepted
        return Own(token, kind, float(probs[token]), self._law(probs, *where), coin)

    def _logits_of(self, probs: Probs) -> tuple[NDArray[Any] | None, int]:
        """The logits that a law was made of, where the sampler was asked for it."""
        asked = self.sampling.asked if isinstance(self.sampling, NotedSampler) else []
        return next(((logits, position) for law, logits, position in asked if law is probs), (None, 0))

    def _law(self, probs: Probs, logits: NDArray[Any] | None, position: int) -> Law:
        if self.before_pick is None or logits is None:
            return Law(top_of(probs))
        return Law(top_of(probs), top_of(self.before_pick.probs(logits, position)))


def parents_of(draft: Draft) -> Sequence[int]:
    """Which guess each guess follows, -1 for none, in a chain as in a tree."""
    return range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents


def walk(draft: Draft, accepts: list[Accept]) -> dict[int, tuple[list[int], dict[str, Any]]]:
    """The guesses that `judge` has thrown these coins for, in its order: elder siblings, chance and coin of each."""
    verdicts: dict[int, tuple[list[int], dict[str, Any]]] = {}
    guess, thrown = -1, iter(accepts)
    while True:
        elder: list[int] = []
        for child in draft.children(guess):
            accept = next(thrown, None)
            if accept is None:  # the text ended before
                return verdicts
            assert accept.draft_prob == float(draft.probs[child][draft.tokens[child]])
            verdicts[child] = list(elder), {"chance": accept.chance, "coin": accept.coin}
            if accept.kept:
                guess = child
                break
            elder.append(child)
        else:
            return verdicts


def before_pick(sampling: Sampler) -> Sampler | None:
    """What has a model's probabilities where the sampler's laws have one token in them; None where they have more."""
    if isinstance(sampling, Gumbel):
        return sampling.sampling
    if isinstance(sampling, Sampling) and sampling.temperature == 0:
        return Sampling(temperature=1.0)
    return None


def what_replaces(target_probs: Probs, draft_probs: Probs) -> Top:
    """The top of the residual; nothing where the target has nowhere more than the draft, whose guesses are all kept."""
    return top_of(residual(target_probs, draft_probs)) if (target_probs > draft_probs).any() else ()
