"""Is the text exact, on this machine, with this pair? The checks behind `minispec verify`.

A check is a row of trials, each with a generator of its own made of seed, name and number, so that every failure can
be seen again. The trials themselves are in verify_texts, verify_bits, verify_laws, verify_dice and verify_known.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from tqdm import tqdm

from minispec.session import Pair
from minispec.settings import Settings
from minispec.verify_bits import same_bits
from minispec.verify_cases import Counts, Mismatch, Rng
from minispec.verify_dice import FALSE_ALARM, THROWS, bound, fair_dice
from minispec.verify_known import GOLDEN, golden, known_outputs, why_not_golden, why_not_known
from minispec.verify_laws import same_law
from minispec.verify_texts import same_text


@dataclass(frozen=True)
class Check:
    """The result of one check; seed is that of the trial that failed, for running it again."""

    name: str
    passed: bool
    detail: str
    seconds: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Plan:
    """A check to be run: n_trials times `trial`, which counts what it compared.

    report says what passed, with the sums of those counts to be filled in, {trials} and {odds}; a sum of 0 is no pass.
    again: whether there are more cases to try than n_trials.
    """

    name: str
    trial: Callable[[Pair, Rng], Counts]
    n_trials: int
    report: str
    again: bool = True


# --- running ---------------------------------------------------------------------------------------


def run_checks(
    plans: Sequence[Plan], pair: Pair, seed: int, seconds: float | None = None, quiet: bool = False
) -> Iterator[Check]:
    """One check after another; with `seconds`, those that can be tried again share that time."""
    share = None if seconds is None else seconds / max(sum(plan.again for plan in plans), 1)
    for plan in plans:
        yield run_check(plan, pair, seed, share if plan.again else None, quiet)


def run_check(plan: Plan, pair: Pair, seed: int, seconds: float | None = None, quiet: bool = False) -> Check:
    """The trials of `seed`, then, while there is time left of `seconds`, those of seed + 1 and further."""
    began, counts = time.perf_counter(), Counter[str]()
    with tqdm(total=None if seconds else plan.n_trials, desc=plan.name, leave=False, disable=quiet or None) as bar:
        for trials in count(1):
            own_seed, number = seed + (trials - 1) // plan.n_trials, (trials - 1) % plan.n_trials
            try:
                counts.update(plan.trial(pair, np.random.default_rng([own_seed, *plan.name.encode(), number])))
            except Exception as error:  # whatever a broken loop raises is a finding
                kind = "" if isinstance(error, Mismatch | ValueError) else f"{type(error).__name__}: "
                detail = f"trial {number + 1} of seed {own_seed}: {kind}{error}"
                return Check(plan.name, False, detail, time.perf_counter() - began, own_seed)
            bar.update()
            if trials >= plan.n_trials and time.perf_counter() - began >= (seconds or 0):
                break
    took = time.perf_counter() - began
    for what, number in counts.items():
        if not number:
            return Check(plan.name, False, f"nothing to compare: no {what} in {trials} trials", took, seed)
    return Check(plan.name, True, plan.report.format(**counts, trials=trials, odds=trials * FALSE_ALARM), took)


# --- all of them -----------------------------------------------------------------------------------


def plan_checks(
    pair: Pair, settings: Settings, hashes: Mapping[str, str], only: Collection[str], quick: bool = False
) -> tuple[list[Plan], dict[str, str]]:
    """The checks of a pair, among those named in `only`; and by name why others of them cannot be made."""
    large = pair.target.n_vocab > 10_000  # a law over all of it takes seconds
    law, n_laws = partial(same_law, top_k=500 if quick and large else 0), 2 if quick else 3 if large else 12
    many = 6 if quick else 24
    sampled = partial(same_text, sampled=True)
    known = {name: digest for name, digest in hashes.items() if name in GOLDEN}
    texts = "{trials} texts, {tokens:,} tokens, {guesses:,} guesses: ids and finish as in plain decoding"
    laws = "{trials} contexts, {probabilities:,} probabilities: the loop's law is the target's within 1e-12"
    n_texts = 8_000 if quick else 40_000
    within = f"{bound(n_texts):.3f} and {bound(THROWS * n_texts):.3f}"
    odds = "{texts:,} texts, {throws:,} throws: frequencies within " + within
    odds += " of what they should be (false alarms below {odds:.0e})"
    bits = "{trials} texts in {passes:,} passes, {rows:,} rows: logits and cache as of one pass"
    plans = [
        Plan("greedy", same_text, many, texts),
        Plan("gumbel", sampled, many, texts),
        Plan("bits", same_bits, 8 if quick else 48, bits),
        Plan("law", law, n_laws, laws),
        Plan("dice", partial(fair_dice, n_texts=n_texts), 1, odds),
        Plan("golden", partial(golden, hashes=known), 1, f"logits of {' and '.join(known)} as known", False),
        Plan("known outputs", partial(known_outputs, settings=settings), 1, "{texts} texts as known", False),
    ]
    left_out = {"golden": why_not_golden(pair, settings), "known outputs": why_not_known(settings, quick)}
    reasons = {name: reason for name, reason in left_out.items() if reason is not None and name in only}
    return [plan for plan in plans if plan.name in only and plan.name not in reasons], reasons
