"""Who works when: plain, sequential and overlapped decoding, round by round, on a clock.

Drafter and target are two workers. **Sequential**: the drafter guesses a block, the target checks it, and each waits
for the other. **Overlapped**: the drafter guesses the next block while the target checks what was guessed before. It
builds on guesses that nobody has judged yet, so a refusal costs more: all that was built on it is thrown away.

An overlapped round has one of two modes. With no block waiting (*pre-verify*) the target works on the token after the
text, which the drafter's first guess is then held against. With a block waiting (*post-verify*) it checks that block.
Nothing is added after a block that was kept whole: the place is the next block's. In PEARL only pre-verify judges the
new block's first guess; `overlapped.py` does so in every round, as the row of logits is there anyway. Here are both.

Every guess is kept with the same chance whenever those before it were. Times are in target passes over one row; while
both work, each takes `interference` times as long: 1 where each has a processor of its own, 2 where they take turns on
one. A round ends when both are done.

Source: Liu et al. 2024, PEARL (arXiv 2408.11850).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from minispec.theory import PassCosts, check_chance_and_length

PRE, POST = "pre-verify", "post-verify"
SCHEDULES = ("plain", "sequential", "pearl", "overlapped")
MOST_TOKENS = 10**7


class Round(NamedTuple):
    """What one pass of the target comes with.

    n_guess guesses are made and n_reread tokens read along; the pass has so many rows; n_new tokens are written, and
    n_lost guesses thrown away that nobody judged.
    """

    mode: str
    n_guess: int
    n_reread: int
    rows: int
    n_new: int
    n_lost: int


class Span(NamedTuple):
    """A worker, "target" or "draft", at work on a round, from start to end."""

    worker: str
    round: int
    start: float
    end: float


def n_kept(rng: Any, accept: float, n: int) -> int:
    """Of n guesses in a row, how many are kept before the first that is not."""
    kept = rng.random(n) < accept
    return n if kept.all() else int(kept.argmin())


# --- schedules: what happens, without a clock ------------------------------------------------------


def sequential(rng: Any, accept: float, n_draft: int) -> Iterator[Round]:
    """Guess, then check: every round adds a token of the target's own."""
    n_reread = 0  # after a block that was kept whole, the draft has yet to read its own last guess
    while True:
        kept = n_kept(rng, accept, n_draft)
        yield Round("sequential", n_draft, n_reread, n_draft + 1, kept + 1, max(n_draft - kept - 1, 0))
        n_reread = int(kept == n_draft)


def overlapped(rng: Any, accept: float, n_draft: int, pearl: bool = False) -> Iterator[Round]:
    """Guess the next block while the last is checked. pearl: its first guess is judged at once in pre-verify alone."""
    n_waiting = 0
    while True:
        at_once = 1 if not pearl or n_waiting == 0 else 0
        n_judged = n_waiting + at_once
        kept = n_kept(rng, accept, n_judged)
        refused = kept < n_judged
        n_lost = n_waiting + n_draft - kept - 1 if refused else 0
        yield Round(POST if n_waiting else PRE, n_draft, 0, n_judged, kept + refused, n_lost)
        n_waiting = 0 if refused else n_draft - at_once


def rounds_of(schedule: str, rng: Any, accept: float, n_draft: int) -> Iterator[Round]:
    """The rounds of a schedule, without end; with no guesses, each is plain decoding."""
    if schedule == "plain" or n_draft == 0:
        return repeat(Round("plain", 0, 0, 1, 1, 0))
    if schedule == "sequential":
        return sequential(rng, accept, n_draft)
    return overlapped(rng, accept, n_draft, pearl=schedule == "pearl")


# --- the clock -------------------------------------------------------------------------------------


def side_by_side(one: float, other: float, interference: float) -> tuple[float, float]:
    """When two jobs end that begin together: while both run, each takes `interference` times as long."""
    both = interference * min(one, other)
    return both + max(one - other, 0.0), both + max(other - one, 0.0)


def time_round(number: int, this: Round, began: float, costs: PassCosts, interference: float) -> list[Span]:
    """The drafter's and the target's span of a round."""
    first = costs.first if this.n_guess else 0.0
    draft = first + this.n_guess * costs.guess + this.n_reread * costs.reread
    target = costs.curve(this.rows)
    if this.mode in (PRE, POST):
        ends = side_by_side(draft, target, interference)
        return [Span("draft", number, began, began + ends[0]), Span("target", number, began, began + ends[1])]
    guessed = began + draft
    return [Span("draft", number, began, guessed), Span("target", number, guessed, guessed + target)]


@dataclass(frozen=True)
class Run:
    """The rounds of one run and their spans, two a round: the drafter's, which may be empty, and the target's."""

    schedule: str
    rounds: tuple[Round, ...]
    spans: tuple[Span, ...]

    @cached_property
    def n_new(self) -> int:
        """Tokens written."""
        return sum(this.n_new for this in self.rounds)

    @cached_property
    def n_lost(self) -> int:
        """Guesses thrown away that nobody judged."""
        return sum(this.n_lost for this in self.rounds)

    @property
    def seconds(self) -> float:
        """How long it took, in target passes over one row."""
        return max(span.end for span in self.spans[-2:]) if self.spans else 0.0

    @property
    def speedup(self) -> float:
        """Tokens in the time of a target pass over one row: speed over that of plain decoding."""
        return self.n_new / self.seconds if self.spans else math.nan


def simulate_schedule(
    schedule: str,
    accept: float,
    n_draft: int,
    costs: PassCosts,
    *,
    interference: float = 1.0,
    n_tokens: int = 10_000,
    seed: int = 0,
) -> Run:
    """Let rounds follow each other until n_tokens are written, or a few more by the last.

    interference: 1 for a processor each, 2 for one that they share.
    Raises ValueError for an unknown schedule, and for numbers that are out of their limits.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule is called {schedule!r}: choose one of {', '.join(SCHEDULES)}")
    check_chance_and_length(accept, n_draft)
    check_interference(interference)
    if not 0 <= n_tokens <= MOST_TOKENS:
        raise ValueError(f"n_tokens is {n_tokens}: give 0 to {MOST_TOKENS}")
    rounds: list[Round] = []
    spans: list[Span] = []
    n_new, now = 0, 0.0
    for this in rounds_of(schedule, np.random.default_rng(seed), accept, n_draft):
        if n_new >= n_tokens:
            break
        spans += time_round(len(rounds), this, now, costs, interference)
        now = max(span.end for span in spans[-2:])
        rounds.append(this)
        n_new += this.n_new
    return Run(schedule, tuple(rounds), tuple(spans))


# --- what comes out on average ---------------------------------------------------------------------


def check_interference(interference: float) -> None:
    """Raise ValueError unless it is a number of 1 or more."""
    if not 1 <= interference < math.inf:
        raise ValueError(f"the interference is {interference}: give 1 (a processor each) or more (2: they share one)")


def overlapped_speedup(accept: float, n_draft: int, costs: PassCosts, interference: float = 1.0) -> float:
    """What "overlapped" comes to in the long run.

    With a for the chance and k for the length: a round of pre-verify is followed by one of post-verify with chance a,
    one of post-verify by another with chance a^k. So of 1 - a^k + a rounds 1 - a^k are the one and a the other. They
    write (1 - a^k) + a (1 + a + ... + a^(k - 1)) tokens, which is 1 + a + ... + a^(k - 1).

    Raises: ValueError as simulate_schedule. Supposes: guesses are kept independently, with one chance.
    """
    check_chance_and_length(accept, n_draft)
    check_interference(interference)
    if n_draft == 0:
        return 1.0
    n_pre, n_post = 1 - accept**n_draft, accept
    tokens = sum(accept**place for place in range(n_draft))
    draft = costs.first + n_draft * costs.guess
    pre, post = (max(side_by_side(draft, costs.curve(rows), interference)) for rows in (1, n_draft))
    return tokens / (n_pre * pre + n_post * post)


def best_overlapped(accept: float, costs: PassCosts, interference: float = 1.0, most: int = 64) -> tuple[int, float]:
    """The draft length from 0 to `most` with the highest speed-up, the shortest of equals, and that speed-up."""
    speeds = [overlapped_speedup(accept, n_draft, costs, interference) for n_draft in range(most + 1)]
    best = speeds.index(max(speeds))
    return best, speeds[best]
