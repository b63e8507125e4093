"""Pearson's chi-square against SciPy's, and what it does with tokens of which few, or none, are expected."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare

from minispec.chi_square import chi_square, survival, upper_gamma


@given(
    degrees=st.one_of(st.integers(1, 60), st.integers(1, 70_000)),
    deviations=st.floats(-9, 38),  # of the statistic from its mean, in standard deviations
)
def test_p_values_are_scipys(degrees: int, deviations: float) -> None:
    statistic = max(0.0, degrees + deviations * math.sqrt(2 * degrees))
    assert survival(statistic, degrees) == pytest.approx(chi2.sf(statistic, degrees), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("degrees", [1, 2, 3, 65_535])
@pytest.mark.parametrize("statistic", [0.0, 5e-324, 1e-300, 1e-9, 1e9, 1e300, math.inf])
def test_p_values_at_the_ends(degrees: int, statistic: float) -> None:
    assert survival(statistic, degrees) == pytest.approx(chi2.sf(statistic, degrees), rel=1e-9, abs=1e-300)


def test_an_exponential_is_the_gamma_of_one() -> None:
    for x in (0.1, 1.0, 1.9, 2.1, 30.0):
        assert upper_gamma(1.0, x) == pytest.approx(math.exp(-x), rel=1e-13)


def test_without_rare_tokens_it_is_the_textbooks() -> None:
    counts, probs = np.array([30, 14, 34, 45, 57]), np.full(5, 0.2)
    expected = chisquare(counts, counts.sum() * probs)
    result = chi_square(counts, probs)
    assert (result.degrees, result.merged) == (4, 0)
    assert result.statistic == pytest.approx(expected.statistic)
    assert result.p_value == pytest.approx(expected.pvalue)


def test_rare_tokens_are_one_cell() -> None:
    counts, probs = np.array([480, 500, 3, 4, 8, 5]), np.array([0.49, 0.49, 0.004, 0.004, 0.006, 0.006])
    probs = probs / probs.sum()  # 4 and 6 are expected of 1000
    result = chi_square(counts, probs)
    assert (result.degrees, result.merged) == (4, 2)
    together = chisquare([480, 500, 8, 5, 7], 1000 * np.array([*probs[:2], *probs[4:], probs[2] + probs[3]]))
    assert result.statistic == pytest.approx(together.statistic)


def test_rare_tokens_that_are_too_few_together_join_the_rarest_other() -> None:
    counts, probs = np.array([700, 298, 2]), np.array([0.7, 0.298, 0.002])
    result = chi_square(counts, probs)
    assert (result.degrees, result.merged) == (1, 1)
    assert result.statistic == pytest.approx(0)
    everything_is_rare = chi_square(np.array([1, 2]), np.array([0.5, 0.5]))
    assert (everything_is_rare.degrees, everything_is_rare.p_value) == (0, 1.0)


def test_what_cannot_be_makes_the_p_value_nothing() -> None:
    probs = np.array([0.5, 0.5, 0.0])
    assert chi_square(np.array([500, 500, 0]), probs).p_value == 1.0
    seen = chi_square(np.array([500, 499, 1]), probs)
    assert (seen.p_value, seen.statistic) == (0.0, math.inf)
