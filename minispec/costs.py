"""What guessing and checking cost on this machine: the prices that decide how far to draft.

All prices are in units of one plain pass of the target, so they are ratios of neighbouring timings and outlive a change
of memory's speed. Measuring takes some seconds with GPT-2 medium; `kept_costs.py` keeps what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from minispec.drafters.models import models_of

if TYPE_CHECKING:
    from minispec.protocols import Drafter

ROWS = (2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16)  # that are timed; what lies between is a straight line
CONTEXT = 64  # tokens before the pass, as far as the context window goes
LENGTH = 4  # guesses that are timed together
REREAD = 16  # tokens that are read at once, against one
TURNS = 5
AT_LEAST = 0.004  # seconds: what takes less is done several times over and timed as one
HIGH = 1e6  # a price that cannot be


@dataclass(frozen=True)
class Costs:
    """Prices in units of one pass of the target over one row, which takes pass_seconds.

    guess: a further guess of the drafter; first: what the first of a round costs beyond that, which is nearly all where
    one pass makes several. check: a pass over so many rows, check[rows]; check[0] is 0, check[1] is 1.
    reread: each token beyond one that the drafter has yet to read before it guesses. beside: a tree's further guess
    of a level.
    """

    guess: float
    check: tuple[float, ...]
    reread: float
    pass_seconds: float
    first: float = 0.0
    beside: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be prices."""
        prices = {"guess": self.guess, "reread": self.reread, "pass_seconds": self.pass_seconds}
        prices |= {"first": self.first, "beside": self.beside}
        for name, price in prices.items():
            if not 0 <= price < HIGH or (name == "pass_seconds" and price == 0):
                raise ValueError(f"{name} is {price}: give a number from 0 to {HIGH:g}")
        rising = all(one <= other for one, other in pairwise(self.check))
        if len(self.check) < 2 or not rising or self.check[:2] != (0, 1) or not self.check[-1] < HIGH:
            raise ValueError(
                f"check is {self.check!r:.80}: give prices of 0, 1, 2, ... rows that begin with 0, 1 and rise"
            )

    def curve(self, rows: int) -> float:
        """v(rows), beyond the last that was measured by the slope of its end."""
        last = len(self.check) - 1
        if rows <= last:
            return self.check[rows]
        return self.check[last] + (rows - last) * (self.check[last] - self.check[last - 1])

    def of_batch(self, n_text: int) -> Costs:
        """The prices of a text among n_text that share their passes, in units of a plain pass of them all."""
        one, most = self.curve(n_text), len(self.check)
        check = (0.0, *(self.curve(n_text * rows) / one for rows in range(1, most)))
        guess = (self.guess + (n_text - 1) * self.reread) / one
        first, beside = self.first / one, n_text * self.beside / one
        return Costs(guess, check, n_text * self.reread / one, self.pass_seconds * one, first, beside)


# --- measuring -----------------------------------------------------------------------------------


def measure_costs(target: Any, drafter: Drafter | None, turns: int = TURNS, rows: Sequence[int] = ROWS) -> Costs:
    """Time passes of a model and guesses of a drafter, each right after a pass of one row; medians of ratios.

    Without a drafter, guesses cost nothing.
    """
    from minispec.bench_machine import mean_seconds

    context = min(CONTEXT, target.n_ctx // 2)
    window = min([target.n_ctx, *(model.n_ctx for model in models_of(drafter))])
    rows = [n for n in rows if context + n <= target.n_ctx]
    one_pass = passes_of(target)
    seconds = partial(mean_seconds, at_least=AT_LEAST)
    ones: list[float] = []
    checks: list[list[float]] = [[] for _ in rows]
    guesses: list[list[float]] = [[], [], []]
    for _ in range(turns + 1):
        for n, ratios in zip(rows, checks, strict=True):
            ones.append(seconds(lambda: one_pass(1)))
            ratios.append(seconds(lambda n=n: one_pass(n)) / ones[-1])  # type: ignore[misc]
        if drafter is not None and window > 1:  # else it never guesses
            ones.append(seconds(lambda: one_pass(1)))
            ids = some_ids(target)[:window]
            for ratios, guess_seconds in zip(guesses, draft_seconds(target, drafter, ids, seconds), strict=True):
                ratios.append(guess_seconds / ones[-1])
    ones = ones or [seconds(lambda: one_pass(1))]  # where the window holds no more
    known = {0: 0.0, 1: 1.0} | {n: median(ratios[1:]) for n, ratios in zip(rows, checks, strict=True)}
    guess, reread, first = (max(median(ratios[1:]), 0.0) if ratios else 0.0 for ratios in guesses)
    return Costs(guess, tuple(between(known)), reread, median(ones), first)


def measure_beside(target: Any, chain: Drafter, wide: Drafter, turns: int = TURNS) -> float:
    """The price of a further guess of a level: of a wide tree over the chain that is as deep, for each guess more."""
    from minispec.bench_machine import mean_seconds
    from minispec.sampling import Sampling
    from minispec.speculative import Dice

    window = min(model.n_ctx for model in (target, *models_of(wide)))
    ids, cache = some_ids(target)[:window], target.new_cache()
    context = min(CONTEXT, len(ids) // 2)
    if not context:
        return 0.0
    target.forward(ids[:context], cache, n_logits=0)
    cache.length = context - 1  # as at a round's beginning
    ways = [partial(one.start(cache).draft, ids[:context], LENGTH, Sampling(), Dice(0)) for one in (chain, wide)]
    short, long = (way() for way in ways)
    further, one_pass = len(long.tokens) - len(short.tokens), passes_of(target)
    if further < 1:
        return 0.0
    works: list[Callable[[], object]] = [lambda: one_pass(1), *ways]
    prices = []
    for _ in range(turns):
        one, chain_seconds, wide_seconds = (mean_seconds(work, at_least=AT_LEAST) for work in works)
        prices.append((wide_seconds - chain_seconds) / one / further)
    return max(median(prices), 0.0)


def some_ids(model: Any) -> list[int]:
    """As many tokens as a context window holds, no matter which."""
    return [i * 7919 % model.n_vocab for i in range(model.n_ctx)]


def passes_of(model: Any) -> Callable[[int], Any]:
    """A function that runs a pass over so many rows, always after the same tokens, and returns its logits."""
    context, ids, cache = min(CONTEXT, model.n_ctx // 2), some_ids(model), model.new_cache()
    if context:
        model.forward(ids[:context], cache, n_logits=0)

    def one_pass(n: int) -> Any:
        logits = model.forward(ids[context : context + n], cache)
        cache.truncate(context)
        return logits

    return one_pass


def draft_seconds(
    target: Any, drafter: Drafter, ids: Sequence[int], seconds: Callable[[Callable[[], object]], float]
) -> tuple[float, float, float]:
    """Seconds of a further guess, of each further token to read, and of what a first guess costs beyond a further one.

    ids: as many as fit the context windows.

    A drafter that finds nothing to guess costs what its search does, which is next to nothing.
    """
    from minispec.sampling import Sampling
    from minispec.speculative import Dice

    cache, greedy, dice = target.new_cache(), Sampling(), Dice(0)
    drafting = drafter.start(cache)
    context = min(CONTEXT, len(ids) // 2)
    target.forward(ids[: context + REREAD], cache, n_logits=0)
    length, further_ids = min(LENGTH, len(ids) - context), min(REREAD, len(ids) - context)

    def draft(n_read: int, n_draft: int) -> None:
        """Guess after the context and n_read further tokens, which are no longer known when it begins."""
        for n_ids, n_guess in ((context, 1), (context + n_read, n_draft)):
            cache.length = max(n_ids - 1, 0)  # the rows of all ids stay where they are
            drafting.draft(ids[:n_ids], n_guess, greedy, dice)

    draft(0, 1)
    one = seconds(lambda: draft(0, 1))  # two drafts of one guess
    more = seconds(lambda: draft(0, 1 + length))
    further = seconds(lambda: draft(further_ids, 1))
    guess = (more - one) / length
    return guess, max(further - one, 0.0) / max(further_ids - 1, 1), one / 2 - max(guess, 0.0)


def between(known: dict[int, float]) -> list[float]:
    """Values at 0, 1, 2 ... from those at some of these places, and never falling.

    What disturbs a measurement makes it dearer, so a price above that of more rows comes down to it.
    """
    import numpy as np

    places = range(max(known) + 1)
    values = np.interp(places, list(known), list(known.values()))
    values[1:] = np.maximum(values[1:], 1.0)
    return [float(value) for value in np.minimum.accumulate(values[::-1])[::-1]]
