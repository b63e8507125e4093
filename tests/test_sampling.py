"""Temperature, top-k and top-p: values worked by hand, ties, and the far ends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minispec import sampling as module
from minispec.sampling import Sampling
from minispec.speculative import GROUP, Dice

logit_rows = st.lists(st.integers(-8, 8), min_size=1, max_size=12).map(lambda row: np.array(row, np.float32))


def kept(sampling: Sampling, logits: Any) -> set[int]:
    return set(np.flatnonzero(sampling.probs(np.asarray(logits))).tolist())


def by_sorting(logits: Any, temperature: float, top_k: int, top_p: float) -> list[float]:
    """The rule as one would write it first: sort, cut, rescale."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    weights = {i: math.exp((float(logits[i]) - float(logits[order[0]])) / temperature) for i in order}
    order = order[:top_k] if top_k else order
    total, mass, nucleus = sum(weights[i] for i in order), 0.0, []
    for i in order:
        nucleus.append(i)
        mass += weights[i] / total
        if top_p < 1 and mass >= top_p - 1e-12:
            break
    total = sum(weights[i] for i in nucleus)
    return [weights[i] / total if i in nucleus else 0.0 for i in range(len(logits))]


@given(logit_rows, st.floats(0.05, 20), st.integers(0, 14), st.floats(0, 1))
def test_equals_sorting(logits: Any, temperature: float, top_k: int, top_p: float) -> None:
    probs = Sampling(temperature, top_k, top_p).probs(logits)
    assert probs.dtype == np.float64
    assert np.allclose(probs, by_sorting(logits, temperature, top_k, top_p), atol=1e-12)
    assert abs(probs.sum() - 1) < 1e-12


@given(
    st.sampled_from([60, 30, 5, 2, 1]),
    st.integers(0, 999),
    st.sampled_from([2.0, 4.0, 16.0, 100.0, 0.5]),
    st.sampled_from([0.5, 0.9, 0.3, 0.99, 0.1, 0.0, 1e-300]),
    st.sampled_from([52, 47, 54, 62]),
)
def test_bins_of_any_width_change_nothing(n: int, seed: int, temperature: float, top_p: float, first_bit: int) -> None:
    """From one value a bin to all in one bin. Where every token counts as rare, bins are always used."""
    logits = np.random.default_rng(seed).integers(-8, 9, n).astype(np.float32)
    sampling = Sampling(temperature, top_p=top_p)
    expected = sampling.probs(logits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RARE", 2.0)
        patch.setattr(module, "BIN", first_bit)
        got = sampling.probs(logits)
    assert np.array_equal(got > 0, expected > 0)
    assert np.allclose(got, expected, rtol=1e-12, atol=0)


def by_sorting_all(logits: Any, sampling: Sampling) -> Any:
    """by_sorting in NumPy, for a whole vocabulary."""
    order = np.argsort(-logits, kind="stable")[: sampling.top_k or None]
    weights = np.exp((logits[order].astype(float) - float(logits.max())) / sampling.temperature)
    mass = weights.cumsum() / weights.sum()
    n = np.searchsorted(mass, sampling.top_p - 1e-12) + 1 if sampling.top_p < 1 else len(order)
    probs = np.zeros(len(logits))
    probs[order[:n]] = weights[:n] / weights[:n].sum()
    return probs


@pytest.mark.parametrize("n_vocab", [4096, 50_257])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0, 4.0, 9.0])
@pytest.mark.parametrize("ties", [False, True])
def test_whole_vocabularies_equal_sorting(n_vocab: int, spread: float, ties: bool) -> None:
    """From every token alike to one that has nearly all; and with few different values."""
    logits = np.random.default_rng(n_vocab).normal(-30, spread, n_vocab).astype(np.float32)
    logits = logits.round() if ties else logits
    for temperature, top_k in ((1.0, 0), (0.7, 0), (1.3, 1), (0.8, 40), (1.0, 3000), (1.0, n_vocab - 1)):
        for top_p in (1.0, 0.95, 0.5, 0.01, 0.0):
            sampling = Sampling(temperature, top_k, top_p)
            got, expected = sampling.probs(logits), by_sorting_all(logits, sampling)
            assert np.array_equal(got > 0, expected > 0), sampling
            assert np.allclose(got, expected, rtol=1e-11, atol=0), sampling


@given(st.integers(1, 400), st.sampled_from([1000, 9, 3, 1]), st.integers(1, 40), st.integers(0, 99))
def test_top_k_is_the_beginning_of_the_sorted_ids(n_vocab: int, n_values: int, top_k: int, seed: int) -> None:
    logits = np.random.default_rng(seed).integers(0, n_values, n_vocab).astype(np.float32)
    logits[logits == 0] = -np.inf
    logits[-1] = n_values  # left over where the groups do not come out even
    expected = sorted(range(n_vocab), key=lambda i: (-logits[i], i))[:top_k]
    assert module._top_k(logits, min(top_k, n_vocab)).tolist() == expected


@given(logit_rows)
def test_greedy_is_the_first_of_the_largest(logits: Any) -> None:
    assert np.array_equal(Sampling().probs(logits), np.eye(len(logits))[np.argmax(logits)])
    assert np.array_equal(Sampling(1.0, top_k=1).probs(logits), Sampling().probs(logits))
    assert np.array_equal(Sampling(1.0, top_p=0.0).probs(logits), Sampling().probs(logits))


@pytest.mark.parametrize(
    ("top_p", "expected"), [(0.8, {0, 1, 2}), (0.7, {0, 1}), (0.4, {0}), (0.39, {0}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, expected: set[int]) -> None:
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        places = {order.index(i) for i in expected}
        assert kept(Sampling(1.0, top_p=top_p), np.log(probs[order])) == places


def test_top_p_of_equals_keeps_the_lower_ids_and_forgives_rounding() -> None:
    assert kept(Sampling(1.0, top_p=0.5), np.zeros(1000)) == set(range(500))
    rows = np.tile(np.array([0, 1, 2], np.float32), 300)
    survivors = kept(Sampling(1.0, top_p=0.4), rows)
    assert 0 < len(survivors) < 300
    assert survivors == set(range(2, 3 * len(survivors), 3))
    assert kept(Sampling(1.0, top_p=0.8), np.zeros(10)) == set(range(8))  # eight times 0.1 is below 0.8 in floats


def test_top_k_keeps_exactly_k_and_the_lower_id_of_equals() -> None:
    assert kept(Sampling(1.0, top_k=3), [1, 2, 2, 2, 3]) == {1, 2, 4}
    assert kept(Sampling(1.0, top_k=1), np.zeros(7)) == {0}
    assert kept(Sampling(1.0, top_k=2), np.log([0.4, 0.3, 0.3, 1e-9])) == {0, 1}
    for top_k in (0, 5, 6, 10**9):
        assert kept(Sampling(1.0, top_k=top_k), [1, 2, 2, 2, 3]) == {0, 1, 2, 3, 4}


def test_top_k_comes_first_and_top_p_counts_in_what_is_left() -> None:
    assert kept(Sampling(1.0, top_k=5, top_p=0.5), np.zeros(1000)) == {0, 1, 2}
    assert kept(Sampling(0.01, top_k=1, top_p=0.8), np.zeros(1000)) == {0}


@pytest.mark.parametrize("temperature", [1e-300, 1e-38, 1e-10, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [50.0, 1e4])
def test_a_tiny_temperature_is_greedy(temperature: float, size: float) -> None:
    logits = size * np.array([-1, 0.9, 1, 0.3], np.float32)
    assert np.array_equal(Sampling(temperature).probs(logits), Sampling().probs(logits))


def test_a_huge_temperature_is_uniform() -> None:
    assert np.allclose(Sampling(1e30).probs(np.array([-1e4, 0, 1e4])), 1 / 3)


@pytest.mark.parametrize("row", [[np.nan, 1, 2], [1, np.nan, 2], [1, 2, np.nan], [np.inf, 1], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_refused(row: list[float], temperature: float) -> None:
    with pytest.raises(ValueError, match="weights are broken"):
        Sampling(temperature).probs(np.array(row))


def test_the_order_is_that_of_the_logits_where_probabilities_are_equal_by_rounding() -> None:
    logits = np.array([3.0, 3.0000002, 1.0], np.float32)
    for sampling in (Sampling(1e17, top_k=1), Sampling(1e17, top_p=0.0)):
        assert np.array_equal(sampling.probs(logits), [0, 1, 0])


def test_a_masked_token_has_no_chance() -> None:
    assert np.array_equal(Sampling(1.0).probs(np.array([-np.inf, 0.0, -np.inf])), [0, 1, 0])


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": x} for x in (math.nan, math.inf, -math.inf, -1.0)]
    + [{"top_p": x} for x in (math.nan, math.inf, -math.inf, -1.0, 2.5)]
    + [{"top_k": x} for x in (-1, -3, 1.5, True)],
)
def test_nonsense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)
    assert Sampling(temperature=-0.0) == Sampling(0.0)


# --- draws ---------------------------------------------------------------------------------------


@given(st.integers(1, 3 * GROUP), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.integers(0, 99))
def test_a_draw_by_blocks_is_the_first_token_beyond_a_uniform_number(n_vocab: int, zeros: float, seed: int) -> None:
    """Integers for probabilities, so that sums are exact in every order."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 1000, n_vocab) * (rng.random(n_vocab) >= zeros).astype(float)
    weights[rng.integers(n_vocab)] += 1
    dice, uniforms = Dice(seed), np.random.default_rng(seed).random(20)
    for uniform in uniforms:
        assert dice.draw(weights) == np.flatnonzero(weights.cumsum() > uniform * weights.sum())[0]


# --- seeds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [-1, 1.5, "abc", None, True])
def test_a_seed_is_a_natural_number(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed is"):
        Dice(seed)
    assert Dice(2**64).draw(np.array([1.0])) == 0
