"""Predicted against measured: the speed-up of a scripted pair for accept rates and draft lengths, beside two formulas.

The textbook's E / (k c + 1) takes a check of k + 1 rows for as dear as a pass of one; the other takes what checks were
measured to cost, E / (k c + v(k + 1)). A scripted pair agrees with a chosen chance, at its full cost, so that what is
left between formula and clock is the formula's own.

Everything is taken in turn: a plain token, a few rounds of one draft length, a plain token, a check and a guess alone,
and the same with the next length. All is counted in plain tokens just before and after, as memory may be faster a
second later. The first round of a text, which reads the prompt, is left out.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import fmean
from typing import Any

from tqdm import tqdm

from minispec.bench_machine import seconds_of
from minispec.bench_scripts import PROMPT, Script, agreeing, changing_text, scripted_text
from minispec.costs import Costs, measure_costs, passes_of
from minispec.draft_length import AutoLength
from minispec.drafters import SmallModelDrafter
from minispec.model import GPT2
from minispec.plain import generate
from minispec.protocols import Step
from minispec.sampling import Sampling
from minispec.settings import AUTO
from minispec.speculative import Dice, speculate
from minispec.theory import PassCosts, Textbook, expected_tokens, speedup

TURN = 4.0  # plain tokens' time of rounds, before it is the next draft length's turn
CLOSE = 0.10  # a prediction is good that is within this share of what was measured


@dataclass(frozen=True)
class Predicted:
    """A draft length at an accept rate: the speed-up over plain decoding, and what two formulas said of it.

    expected_tokens are the formula's a round, tokens_per_pass those of this script. error is by_costs over measured,
    less one. For AUTO there is no formula: of_best_fixed is its speed-up over the best fixed length's (0 included).
    """

    accept: str
    num_draft_tokens: int | str
    tokens_per_pass: float
    measured: float
    expected_tokens: float | None = None
    textbook: float | None = None
    by_costs: float | None = None
    error: float | None = None
    of_best_fixed: float | None = None


@dataclass
class Prices:
    """What checks and guesses cost in plain tokens just before, as measured between the rounds of one script."""

    reread: float
    checks: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    guesses: list[float] = field(default_factory=list)
    first = 0.0  # what a first guess costs more: all guesses of a scripted draft cost the same

    @property
    def guess(self) -> float:
        """The price of a guess."""
        return fmean(self.guesses)

    def curve(self, rows: int) -> float:
        """The price of a pass over so many rows, of those that were checked."""
        return fmean(self.checks[rows])


@dataclass
class Way:
    """One way to write a text: tokens and passes after its first round, and their price in plain tokens."""

    steps: Iterator[Step]
    tokens: int = 0
    passes: int = 0
    price: float = 0.0
    ended: bool = False

    def write(self, before: float, plain: Callable[[], float]) -> float:
        """Some rounds, after a plain token that took `before` seconds; the seconds of the one after them."""
        began, n, seconds = time.perf_counter(), self.tokens, 0.0
        while seconds < TURN * before and not self.ended:
            step = next(self.steps, None)
            if step is None:
                self.ended = True
            else:
                self.tokens += len(step.committed)
                self.passes += 1
            seconds = time.perf_counter() - began
        after = plain()
        if self.tokens > n:
            self.price += 2 * seconds / (before + after)
        return after


def guesses_of(draft: GPT2) -> Callable[[], object]:
    """A function that makes a guess: a pass over one row, and the choice of a token."""
    one_pass, greedy, dice = passes_of(draft), Sampling(), Dice(0)
    return lambda: dice.draw(greedy.probs(one_pass(1)[-1]))


def plain_tokens(target: GPT2, n: int) -> Callable[[], float]:
    """A function that writes a token plainly, of one text after another, and says how many seconds it took."""

    def steps() -> Iterator[Step]:
        while True:
            text = generate(target, [1] * PROMPT, max_new_tokens=n, sampling=Sampling())
            next(text)
            yield from text

    endless = steps()
    next(endless)

    def one() -> float:
        return seconds_of(lambda: next(endless))

    return one


def measure_predictions(
    target: GPT2, draft: GPT2, rates: Sequence[float], lengths: Sequence[int], n: int, quiet: bool
) -> list[Predicted]:
    """All rates by all lengths and AUTO; of several rates, also a text that goes from the highest to the lowest.

    target and draft are a scripted pair, of any accept rate. n tokens a script.
    """
    room = (target.n_ctx - PROMPT) // 4  # for two rounds in each half of a text
    if max(lengths) >= room:
        raise ValueError(f"a draft length of {max(lengths)} is too long to be measured here: give less than {room}")
    written = [scripted_text(rate, lengths, n, target.n_ctx) for rate in rates]
    if len(rates) > 1:
        written.append(changing_text(max(rates), min(rates), lengths, n, target.n_ctx))
    first, plain = measure_costs(target, SmallModelDrafter(draft)), plain_tokens(target, n)
    check, guess = passes_of(target), guesses_of(draft)
    found = []
    for script in tqdm(written, desc="predictions", leave=False, disable=quiet or None):
        ways = ways_to_write(target, draft, lengths, script, first)
        prices = Prices(first.reread)
        while not all(way.ended for way in ways.values()):
            for key, way in ways.items():
                if way.ended:
                    continue
                after = way.write(plain(), plain)
                if isinstance(key, int):
                    prices.checks[key + 1].append(seconds_of(lambda k=key: check(k + 1)) / after)  # type: ignore[misc]
                    prices.guesses.append(seconds_of(guess) / after)
        found += [row_of(script, key, way, prices) for key, way in ways.items()]
    return with_best(found)


def ways_to_write(
    target: GPT2, draft: GPT2, lengths: Sequence[int], script: Script, costs: Costs
) -> dict[int | str, Way]:
    """The texts with each draft length, and with the one that chooses itself, after their first rounds."""
    drafters = [SmallModelDrafter(agreeing(draft, target, agree)) for agree in (script.agree, *script.others)]

    def way(n_draft: Any) -> Way:
        options: dict[str, Any] = {"max_new_tokens": script.n, "n_draft": n_draft, "sampling": Sampling()}
        texts = [speculate(target, drafter, [1] * PROMPT, **options) for drafter in drafters]
        for text in texts:
            next(text)
        return Way(chain.from_iterable(texts))

    ways: dict[int | str, Way] = {length: way(length) for length in lengths}
    return ways | {AUTO: way(AutoLength(costs))}


def row_of(script: Script, key: int | str, way: Way, prices: PassCosts) -> Predicted:
    """What was measured of a way to write, beside what was predicted for its rate."""
    measured, a_pass = way.tokens / way.price, way.tokens / way.passes
    if isinstance(key, str) or script.rate is None:
        return Predicted(script.name, key, a_pass, measured)
    textbook, by_costs = speedup(script.rate, key, Textbook(prices.guess)), speedup(script.rate, key, prices)
    expected = expected_tokens(script.rate, key)
    return Predicted(script.name, key, a_pass, measured, expected, textbook, by_costs, by_costs / measured - 1)


def with_best(found: Sequence[Predicted]) -> list[Predicted]:
    """The same rows, those of AUTO with their share of the best fixed length at the same rate."""
    best: dict[str, float] = {}
    for row in found:
        if row.num_draft_tokens != AUTO:
            best[row.accept] = max(best.get(row.accept, 1.0), row.measured)  # 1: plain decoding is a length, too
    rows = []
    for row in found:
        is_auto = row.num_draft_tokens == AUTO
        rows.append(replace(row, of_best_fixed=row.measured / best[row.accept]) if is_auto else row)
    return rows


def summary(rows: Sequence[Predicted]) -> list[str]:
    """Notes: how many predictions were close, and what AUTO reached."""
    errors = [row.error for row in rows if row.error is not None]
    shares = [row.of_best_fixed for row in rows if row.of_best_fixed is not None]
    close = sum(abs(error) <= CLOSE for error in errors)
    notes = [f"the formula with measured costs is within {CLOSE:.0%} of the clock in {close} of {len(errors)} cases"]
    least = math.floor(100 * min(shares)) / 100
    reached = f"auto reaches {least:.2f} or more of the best fixed draft length, plain decoding included"
    return [*notes, reached]
