"""What many trials of a rule gave, compared with what the target's law and the overlap promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minispec.chi_square import ChiSquare, chi_square
from minispec.rules import RULES, Exact
from minispec.trials import Floats, Ints


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
