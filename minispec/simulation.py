"""The rule of speculative decoding as an experiment: one place of a text, millions of trials, against the law p.

A trial draws a guess from draft_probs, keeps it or replaces it, and writes one token. `simulate` counts tokens
written and guesses kept, and gives them as an `Outcome`.

The same seed gives the same counts on any backend and with any number of threads: see `trials`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
from tqdm import tqdm

from minispec import trials as plain_trials
from minispec.rules import RULES, Plan, exact
from minispec.simulation_outcome import Outcome
from minispec.text import check_count
from minispec.trials import Floats, Ints, cumulate, make_guide, make_key

MOST_TOKENS = 1 << 16
MOST_TRIALS = 10**12  # hours; more would find no smaller errors than a float's own
SUM_TOLERANCE = 1e-6  # how far from one a sum may be by rounding


def check_probs(name: str, probs: Any) -> Floats:
    """Probabilities [n] as floats, rescaled so that they sum to one.

    Raises ValueError for none or too many, for NaN, infinite or negative ones, and where the sum is off by more than
    SUM_TOLERANCE.
    """
    values = np.asarray(probs, dtype=np.float64)
    if values.ndim != 1 or not 1 <= len(values) <= MOST_TOKENS:
        found = "empty" if not values.size else f"of shape {values.shape}"
        raise ValueError(f"{name} is {found}: give a list of 1 to {MOST_TOKENS} probabilities")
    for fault, word in ((~np.isfinite(values), "no finite number"), (values < 0, "negative")):
        if fault.any():
            place = int(fault.argmax())
            raise ValueError(f"{name} has {values[place]} at place {place}, which is {word}: give 0 to 1")
    total = math.fsum(values)
    if abs(total - 1) > SUM_TOLERANCE:
        raise ValueError(f"{name} sums to {total:.8g}: rescale it to 1 (within {SUM_TOLERANCE:g})")
    return values / total


def check_pair(
    target_probs: Any, draft_probs: Any, names: tuple[str, str] = ("target_probs", "draft_probs")
) -> tuple[Floats, Floats]:
    """Both laws, checked. Raises ValueError as `check_probs`, and where they have not the same number of tokens."""
    target, draft = check_probs(names[0], target_probs), check_probs(names[1], draft_probs)
    if len(target) != len(draft):
        raise ValueError(
            f"{names[0]} has {len(target)} tokens and {names[1]} {len(draft)}: both need one probability a token"
        )
    return target, draft


def simulate(
    target_probs: Any,
    draft_probs: Any,
    *,
    trials: int,
    rule: str = "right",
    seed: int = 0,
    backend: str = "numba",
    threads: int = 1,
    quiet: bool = True,
) -> Outcome:
    """Make so many trials of a rule on two laws [n].

    Progress goes to standard error unless quiet, or where there is no terminal.
    Raises ValueError for laws that are none (see `check_pair`), an unknown rule, and counts out of their limits.
    """
    target, draft = check_pair(target_probs, draft_probs)
    if rule not in RULES:
        raise ValueError(f"no rule is called {rule!r}: choose one of {', '.join(RULES)}")
    for name, value in (("seed", seed), ("trials", trials), ("threads", threads)):
        check_count(name, value)
    if not 1 <= trials <= MOST_TRIALS:
        raise ValueError(f"trials is {trials}: give 1 to {MOST_TRIALS}")
    if threads < 1:
        raise ValueError(f"threads is {threads}: give 1 or more")
    plan = RULES[rule].plan(target, draft)
    loop = choose_loop(backend)
    counts, kept, seconds = run_trials(plan, int(trials), int(seed), loop, int(threads), rule, quiet)
    made_by = "numpy" if loop is plain_trials else "numba"
    return Outcome(rule, target, draft, exact(plan), counts, kept, int(trials), int(seed), seconds, made_by)


def choose_loop(backend: str) -> Any:
    """The module whose `count_trials` a backend takes. Raises ValueError for an unknown one."""
    if backend not in ("numba", "numpy"):
        raise ValueError(f"backend is {backend!r}: choose numba or numpy")
    if backend == "numpy":
        return plain_trials
    if find_spec("numba") is None:
        warnings.warn("Numba is not installed: going on with NumPy, which is slower", RuntimeWarning, stacklevel=1)
        return plain_trials
    from minispec.kernels.compilation import JIT

    if not JIT:  # the loop as plain Python would take hours
        return plain_trials
    from minispec import trials_numba

    return trials_numba


def run_trials(
    plan: Plan, trials: int, seed: int, loop: Any, threads: int, name: str, quiet: bool
) -> tuple[Ints, int, float]:
    """Make the trials in pieces, on so many threads: counts [n] of tokens, of kept guesses, and the seconds it took."""
    key = make_key(seed)
    sums = np.stack([cumulate(probs) for probs in (plan.guess_probs, plan.replace_probs, plan.target_probs)])
    guides = np.stack([make_guide(row) for row in sums])

    def piece(first: int) -> tuple[Ints, int, int]:
        counts, end = np.zeros(len(plan.accept), np.int64), min(first + loop.PIECE, trials)
        kept = loop.count_trials(key, first, end, plan.coin, sums, guides, plan.accept, counts)
        return counts, int(kept), end - first

    all_counts, all_kept, _ = piece(trials)  # none yet, but the loop is compiled from here on
    began = time.perf_counter()
    bar = tqdm(total=trials, desc=name, unit=" trials", unit_scale=True, leave=False, disable=quiet or None)
    with bar, ThreadPoolExecutor(threads) as pool:
        for counts, kept, n in in_turn(pool, piece, range(0, trials, loop.PIECE), 2 * threads):
            all_counts += counts
            all_kept += kept
            bar.update(n)
    return all_counts, all_kept, time.perf_counter() - began


def in_turn(pool: ThreadPoolExecutor, work: Callable[[int], Any], items: range, ahead: int) -> Iterator[Any]:
    """The results of work on these items, in order; only a few are under way, so an interrupt waits for those alone."""
    waiting: deque[Future[Any]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
