"""What a sweep counts and times, and the rates that follow: counts add up, rates do not.

Guesses are counted by their place in a round. A guess is judged if the ones before it were kept; what stands after
the first refused one, or after a stop, is unknown and neither kept nor refused. So the chance of a place is kept over
judged there, and the product of chances is what a longer draft would find: the Kaplan-Meier estimate of how long
guesses survive. All counts follow from the settings, bit for bit; seconds are measurements, and stay apart.

Source: Kaplan, Meier 1958; Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), for the speed-up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, TypeVar

from minispec.protocols import Step
from minispec.trace import Run

Sums = TypeVar("Sums", "Counts", "Seconds")


@dataclass(frozen=True)
class Counts:
    """Whole numbers of some texts. `Counts()` is none at all, and the order of a sum does not matter.

    tokens are those written; sampled, plain decoding may have written more or fewer, plain_tokens. judged and kept
    have an entry for each place of a round: guesses judged there, and of these the ones kept.
    passes are the target's; rounds those of them that checked at least one guess. later[i] are passes over i guesses,
    less the first of each text, which reads the prompt; later_plain the same of plain decoding. different are texts
    that had to be those of plain decoding and are not: 0, or something is broken.
    """

    texts: int = 0
    tokens: int = 0
    plain_tokens: int = 0
    passes: int = 0
    rounds: int = 0
    drafted: int = 0
    different: int = 0
    judged: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    later_plain: int = 0

    def __add__(self, other: Counts) -> Counts:
        return added(self, other)


@dataclass(frozen=True)
class Seconds:
    """Times of the same texts: whole ones, plain and speculative; those in the drafter and in the target's passes.

    later_draft[i] and later_target[i] are of rounds with i guesses, less the first of each text, and later_plain of
    plain decoding's passes likewise: what the costs of a guess and of a pass come from.
    """

    plain: float = 0.0
    speculative: float = 0.0
    draft: float = 0.0
    target: float = 0.0
    later_draft: tuple[float, ...] = ()
    later_target: tuple[float, ...] = ()
    later_plain: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return added(self, other)


def added(one: Sums, other: Sums) -> Sums:
    """Field by field; of two tuples the shorter one goes on with zeros."""

    def both(a: Any, b: Any) -> Any:
        return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0)) if isinstance(a, tuple) else a + b

    return type(one)(*(both(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)))


# --- a run to counts -------------------------------------------------------------------------------


def count_run(run: Run, plain: Run, determined: bool) -> Counts:
    """The counts of one text, and of its plain twin; `determined` says that both must be the same text."""
    most = max((len(step.drafted) for step in run.steps), default=0)
    return Counts(
        texts=1,
        tokens=len(run.ids),
        plain_tokens=len(plain.ids),
        passes=run.passes,
        rounds=sum(1 for step in run.steps if step.drafted),
        drafted=run.drafted,
        different=int(determined and (run.ids, run.finish) != (plain.ids, plain.finish)),
        judged=tuple(sum(place < n_judged(step) for step in run.steps) for place in range(most)),
        kept=tuple(sum(place < step.n_accepted for step in run.steps) for place in range(most)),
        later=tuple(sum(1 for step in run.steps[1:] if len(step.drafted) == n) for n in range(most + 1)),
        later_plain=len(plain.steps[1:]),
    )


def n_judged(step: Step) -> int:
    """Guesses of a round that were judged: those kept, and the refused one if the text went on to replace it."""
    refused = not step.at_end and len(step.committed) > step.n_accepted
    return step.n_accepted + refused


def time_run(run: Run, plain: Run) -> Seconds:
    """The seconds of one text and of its plain twin."""
    most = max((len(step.drafted) for step in run.steps), default=0)

    def by_guesses(name: str) -> tuple[float, ...]:
        return tuple(
            sum(getattr(step, name) for step in run.steps[1:] if len(step.drafted) == n) for n in range(most + 1)
        )

    return Seconds(
        plain=plain.seconds,
        speculative=run.seconds,
        draft=sum(step.draft_seconds for step in run.steps),
        target=sum(step.target_seconds for step in run.steps),
        later_draft=by_guesses("draft_seconds"),
        later_target=by_guesses("target_seconds"),
        later_plain=sum(step.target_seconds for step in plain.steps[1:]),
    )


# --- counts to rates -------------------------------------------------------------------------------


def ratio(part: float, whole: float) -> float | None:
    """part / whole, or None where there is no whole."""
    return part / whole if whole else None


def accept_by_place(counts: Counts) -> list[float | None]:
    """The chance that a guess at each place is kept, given that all before it were; None where none was judged."""
    return [ratio(kept, judged) for kept, judged in zip(counts.kept, counts.judged, strict=True)]


def expected_tokens(accept: Iterable[float | None]) -> float:
    """Tokens of a whole round: one, and each guess with the chance that it and all before it are kept.

    It ends at a place where nothing was judged: no round came as far.
    """
    expected = survive = 1.0
    for chance in accept:
        if chance is None:
            break
        survive *= chance
        expected += survive
    return expected


def measured_speedup(counts: Counts, seconds: Seconds) -> float | None:
    """Tokens a second over those of plain decoding; None without any."""
    if not (counts.tokens and counts.plain_tokens and seconds.speculative and seconds.plain):
        return None
    return (counts.tokens / seconds.speculative) / (counts.plain_tokens / seconds.plain)


def predicted_speedup(counts: Counts, seconds: Seconds, k: int) -> float | None:
    """E / (k c + v): expected tokens over the cost of a round of k guesses, in passes of one row.

    c is the drafter's time a guess and v the target's for k + 1 rows, both as measured in these very texts after
    their first pass. None where no such round was. The reading of the prompt, the last and shorter rounds, and what is
    spent outside the models are left out; the measured speed-up has them.
    """
    if len(counts.later) <= k or not counts.later[k] or not counts.later_plain or not seconds.later_plain:
        return None
    one_row = seconds.later_plain / counts.later_plain
    n_guesses = sum(n * rounds for n, rounds in enumerate(counts.later))
    guess = sum(seconds.later_draft) / n_guesses / one_row if n_guesses else 0.0
    verify = seconds.later_target[k] / counts.later[k] / one_row
    return expected_tokens(accept_by_place(counts)) / (k * guess + verify)
