"""The rule of speculative decoding as an experiment: one place of a text, millions of trials, against the law p.

A trial draws a guess from draft_probs, keeps it or replaces it, and writes one token. `simulate` counts tokens
written and guesses kept; an `Outcome` compares both with what the target's law and the overlap promise.

The same seed gives the same counts on any backend and with any number of threads: see `trials`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from tqdm import tqdm

from minispec import trials as plain_trials
from minispec.chi_square import ChiSquare, chi_square
from minispec.rules import RULES, Exact, Plan, exact
from minispec.text import check_count
from minispec.trials import Floats, Ints, cumulate, make_guide, make_key

MOST_TOKENS = 1 << 16
MOST_TRIALS = 10**12  # hours; more would find no smaller errors than a float's own
SUM_TOLERANCE = 1e-6  # how far from one a sum may be by rounding


@dataclass(frozen=True)
class Outcome:
    """What the trials of a rule gave: `counts` [n] of the tokens written, and how many of these are `kept` guesses.

    `exact` is what the rule does in the long run. Everything else is compared with the target: a broken rule's
    errors are its own, and z-scores say how many standard deviations of luck they are.
    """

    rule: str
    target_probs: Floats
    draft_probs: Floats
    exact: Exact
    counts: Ints
    kept: int
    trials: int
    seed: int
    seconds: float
    backend: str

    @property
    def frequencies(self) -> Floats:
        """[n], of the tokens written."""
        return self.counts / self.trials

    @property
    def errors(self) -> Floats:
        """[n], frequencies less the target's probabilities."""
        return self.frequencies - self.target_probs

    @cached_property
    def z_scores(self) -> Floats:
        """[n], errors in standard deviations; infinite where what cannot be was seen, or what must be was not."""
        return z_score(self.counts, self.target_probs, self.trials)

    @property
    def accept_rate(self) -> float:
        """Guesses kept of those made."""
        return self.kept / self.trials

    @property
    def overlap(self) -> float:
        """sum(min(p, q)): the rate at which the right rule keeps guesses; no rule that keeps the law can do better."""
        return overlap(self.target_probs, self.draft_probs)

    @property
    def accept_z(self) -> float:
        """The accept rate less the overlap, in standard deviations."""
        return float(z_score(np.array([self.kept]), np.array([self.overlap]), self.trials)[0])

    @cached_property
    def chi_square(self) -> ChiSquare:
        """Counts against the target's law."""
        return chi_square(self.counts, self.target_probs)

    @property
    def distance(self) -> float:
        """Total variation between frequencies and the target's law: half the sum of the errors' sizes."""
        return distance(self.frequencies, self.target_probs)

    @property
    def exact_distance(self) -> float:
        """The same for the rule's own law: what more trials would end at."""
        return distance(self.exact.probs, self.target_probs)

    @property
    def distance_by_luck(self) -> float:
        """The distance to expect of right draws, so many of them: each error is normal, near enough."""
        variances = self.target_probs * (1 - self.target_probs) / self.trials
        return math.fsum(np.sqrt(variances * 2 / math.pi)) / 2

    def as_json(self) -> dict[str, Any]:
        """All of it under the names of `--json`; null where a number would be infinite."""
        rule, chi = RULES[self.rule], self.chi_square
        return {
            "rule": self.rule,
            "does": rule.does,
            "remark": rule.remark,
            "frequencies": self.frequencies.tolist(),
            "accept_rate": self.accept_rate,
            "overlap": self.overlap,
            "chi2_p": chi.p_value,
            "chi2": _finite(chi.statistic),
            "chi2_degrees": chi.degrees,
            "chi2_merged": chi.merged,
            "errors": self.errors.tolist(),
            "largest_error": float(np.abs(self.errors).max()),
            "z_scores": [_finite(z) for z in self.z_scores.tolist()],
            "accept_z": _finite(self.accept_z),
            "distance": self.distance,
            "distance_by_luck": self.distance_by_luck,
            "exact_distance": self.exact_distance,
            "exact_probs": self.exact.probs.tolist(),
            "exact_accept_rate": self.exact.accept_rate,
            "counts": self.counts.tolist(),
            "kept": self.kept,
            "seconds": self.seconds,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def overlap(target_probs: Floats, draft_probs: Floats) -> float:
    """sum(min(p, q))."""
    return math.fsum(np.minimum(target_probs, draft_probs))


def distance(one: Floats, other: Floats) -> float:
    """Total variation: the most by which two laws differ on any set of tokens."""
    return math.fsum(np.abs(one - other)) / 2


def z_score(counts: Ints, probs: Floats, trials: int) -> Floats:
    """Counts [n] less what is expected, in standard deviations; 0 or infinite where there is no luck in it."""
    excess = counts - trials * probs
    deviation = np.sqrt(trials * probs * np.clip(1 - probs, 0, None))
    never = np.where(excess == 0, 0.0, np.copysign(np.inf, excess))
    return np.divide(excess, deviation, out=never, where=deviation > 0)


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
