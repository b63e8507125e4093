"""Pearson's chi-square: could these counts come from these probabilities?

The statistic is the sum of (count - expected)**2 / expected; its p-value is the chance that right probabilities give
one as large. That chance is the regularised upper incomplete gamma function, which is written out here.

Source: Pearson 1900; DLMF 8.7.1 (series) and 8.9.2 (continued fraction, by Lentz's method: Press et al., Numerical
Recipes, section 6.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST = 5  # expected in a cell: below, the statistic does not follow its law; Cochran's rule
TINY = 1e-300  # in place of a 0 that would be divided by


@dataclass(frozen=True)
class ChiSquare:
    """statistic, its degrees of freedom, p_value, and how many tokens were merged because few were expected.

    A statistic of infinity: something was seen that cannot be. No degrees of freedom: all is in one cell.
    """

    statistic: float
    degrees: int
    p_value: float
    merged: int


def chi_square(counts: NDArray[Any], probs: NDArray[Any]) -> ChiSquare:
    """Compare counts [n] with probs [n] that sum to one.

    Tokens of which fewer than FEWEST are expected count as one cell; if that is too few still, together with the
    rarest other. Tokens that cannot be are left out, and where one was seen p_value is 0.
    """
    expected = counts.sum() * probs
    rare = (expected > 0) & (expected < FEWEST)
    often = expected >= FEWEST
    seen, due = counts[often].astype(np.float64), expected[often]
    if rare.any():
        seen, due = np.append(seen, counts[rare].sum()), np.append(due, expected[rare].sum())
        if due[-1] < FEWEST and len(due) > 1:
            rarest = due[:-1].argmin()
            seen[rarest] += seen[-1]
            due[rarest] += due[-1]
            seen, due = seen[:-1], due[:-1]
    degrees = len(due) - 1
    merged = int(rare.sum())
    if counts[probs == 0].any():
        return ChiSquare(math.inf, degrees, 0.0, merged)
    statistic = math.fsum((seen - due) ** 2 / due) if degrees else 0.0
    return ChiSquare(statistic, degrees, survival(statistic, degrees), merged)


def survival(statistic: float, degrees: int) -> float:
    """The chance that a chi-square variable exceeds the statistic; 1 without degrees of freedom."""
    return upper_gamma(degrees / 2, statistic / 2) if degrees else 1.0


def upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x), for a > 0 and x >= 0.

    Good to 1e-9 of itself for a up to 40,000: the factor in front is the exponential of a small difference.
    """
    if x <= 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    factor = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        return max(0.0, 1 - factor * _series(a, x))
    return factor * _fraction(a, x)


def _series(a: float, x: float) -> float:
    """1/a + x/(a (a+1)) + x**2/(a (a+1) (a+2)) + ..., where x < a + 1, so that terms shrink."""
    term = total = 1 / a
    while term > total * 1e-17:
        a += 1
        term *= x / a
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    """1/(x + 1 - a - 1 (1 - a)/(x + 3 - a - 2 (2 - a)/(x + 5 - a - ...))), where x >= a + 1."""
    below = x + 1 - a
    c, d = 1 / TINY, 1 / below
    value, step, i = d, 0.0, 0
    while abs(step - 1) > 1e-15:
        i += 1
        above = -i * (i - a)
        below += 2
        d = 1 / (_not_zero(above * d + below))
        c = _not_zero(below + above / c)
        step = c * d
        value *= step
    return value


def _not_zero(x: float) -> float:
    return x if abs(x) > TINY else TINY
