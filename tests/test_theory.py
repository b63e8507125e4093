"""The formulas: the published figures, exact sums, a simulation of the process, and what must hold everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from checkpoints import TINY, tiny_tensors
from hypothesis import given
from hypothesis import strategies as st

from minispec import load_model
from minispec.hub import find_model
from minispec.made_up import shape_of
from minispec.model import GPT2
from minispec.theory import (
    PassCosts,
    Textbook,
    best_draft_length,
    break_even_accept,
    expected_tokens,
    kept_share,
    memory,
    predict,
    reply_seconds,
    round_cost,
    speedup,
)
from minispec.trees import MOST_NODES
from minispec.weights import read_config

TENTH = Textbook(4 / 40)  # D = 4 ms, T = 40 ms
LENGTHS = (4, 6, 8, 12)
TABLE = {  # accept rate: speed-up at these draft lengths, the best length and its speed-up
    0.95: ("3.23", "3.77", "4.11", "4.42", 15, "4.48"),
    0.90: ("2.93", "3.26", "3.40", "3.39", 10, "3.43"),
    0.80: ("2.40", "2.47", "2.40", "2.15", 6, "2.47"),
    0.70: ("1.98", "1.91", "1.78", "1.50", 4, "1.98"),
    0.50: ("1.38", "1.24", "1.11", "0.91", 2, "1.46"),
    0.30: ("1.02", "0.89", "0.79", "0.65", 1, "1.18"),
}
accepts = st.floats(0, 1)
lengths = st.integers(0, 60)
guesses = st.floats(0, 3)


@dataclass(frozen=True)
class Measured:
    """A curve that rises by a slope of its own for every row."""

    guess: float
    slopes: tuple[float, ...]
    reread: float = 0.0
    first: float = 0.0

    def curve(self, rows: int) -> float:
        return 1 + sum(self.slopes[i % len(self.slopes)] for i in range(rows - 1))


curves = st.builds(Measured, guesses, st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple), st.floats(0, 0.3))
costs = st.one_of(st.builds(Textbook, guesses), curves)


# --- the published figures ---------------------------------------------------------------------------


@pytest.mark.parametrize("accept", TABLE)
def test_the_table(accept: float) -> None:
    *cells, best, best_speed = TABLE[accept]
    assert [f"{speedup(accept, n_draft, TENTH):.2f}" for n_draft in LENGTHS] == cells
    n_draft, speed = best_draft_length(accept, TENTH)
    assert (n_draft, f"{speed:.2f}") == (best, best_speed)


def test_the_figures_of_the_text() -> None:
    assert f"{break_even_accept(6, TENTH):.4f}" == "0.3757"
    assert f"{expected_tokens(0.8, 6):.3f}" == "3.951"
    assert 40 * round_cost(0.8, 6, TENTH) == pytest.approx(64, rel=1e-12)
    assert f"{reply_seconds(300, 0.040, speedup(0.8, 6, TENTH)):.2f}" == "4.86"
    assert reply_seconds(300, 0.040) == pytest.approx(12.0, rel=1e-12)


def test_predictions_are_what_the_formulas_say() -> None:
    found = predict((0.8, 0.3), (6, 8), TENTH)
    assert list(found) == [(0.8, 6), (0.8, 8), (0.3, 6), (0.3, 8)]
    one = found[0.3, 8]
    assert (one.speedup, one.round_cost) == (speedup(0.3, 8, TENTH), round_cost(0.3, 8, TENTH))
    assert (one.best_k, one.best_speedup) == best_draft_length(0.3, TENTH)
    assert one.break_even_accept == break_even_accept(8, TENTH)


# --- tokens a round ----------------------------------------------------------------------------------


@given(accepts, lengths)
def test_expected_tokens_is_the_sum_of_the_chances(accept: float, n_draft: int) -> None:
    exact = sum(Fraction(accept) ** i for i in range(n_draft + 1))
    assert abs(Fraction(expected_tokens(accept, n_draft)) / exact - 1) < 1e-12


@pytest.mark.parametrize("accept", [0.0, 5e-324, 1e-9, 1 - 1e-9, 1 - 1e-15, math.nextafter(1, 0), 1.0])
def test_expected_tokens_at_its_edges(accept: float) -> None:
    for n_draft in (0, 1, 2, 50, 1000):
        direct = math.fsum(accept**i for i in range(n_draft + 1))
        assert expected_tokens(accept, n_draft) == pytest.approx(direct, rel=1e-12)
    assert expected_tokens(accept, 1) == 1 + accept


@given(st.floats(0.01, 0.99), lengths)
def test_expected_tokens_is_the_quotient_of_the_paper(accept: float, n_draft: int) -> None:
    assert expected_tokens(accept, n_draft) == pytest.approx((1 - accept ** (n_draft + 1)) / (1 - accept), rel=1e-11)


@pytest.mark.parametrize(("accept", "n_draft"), [(0.0, 3), (0.3, 1), (0.5, 4), (0.8, 6), (0.95, 12), (1.0, 5)])
def test_guessing_and_checking_writes_as_many_tokens(accept: float, n_draft: int) -> None:
    """200,000 rounds, seeded; the mean within 5.5 standard errors, so false-alarm odds are below 1e-7 for each case."""
    rng, n = np.random.default_rng(5), 200_000
    kept = rng.random((n, n_draft)) < accept
    tokens = 1 + np.cumprod(kept, axis=1).sum(axis=1)  # up to the first that is refused, and the target's own
    error = tokens.std() / math.sqrt(n)
    assert abs(tokens.mean() - expected_tokens(accept, n_draft)) <= 5.5 * error
    share = kept_share(accept, n_draft)
    assert share is not None
    assert abs((tokens.mean() - 1) / n_draft - share) <= 5.5 * error / n_draft + 1e-15


def test_nothing_guessed_has_no_share() -> None:
    assert kept_share(0.5, 0) is None


@given(accepts, accepts, lengths)
def test_expected_tokens_grows_with_both(one: float, other: float, n_draft: int) -> None:
    low, high = sorted((one, other))
    assert 1 <= expected_tokens(low, n_draft) <= expected_tokens(high, n_draft) <= n_draft + 1
    assert expected_tokens(low, n_draft) <= expected_tokens(low, n_draft + 1)


# --- speed-up, best length, break-even ---------------------------------------------------------------


@given(accepts, lengths, guesses)
def test_a_flat_curve_gives_the_textbook(accept: float, n_draft: int, guess: float) -> None:
    flat, textbook = Measured(guess, (0.0,)), Textbook(guess)
    assert speedup(accept, n_draft, flat) == speedup(accept, n_draft, textbook)
    assert best_draft_length(accept, flat, 40) == best_draft_length(accept, textbook, 40)
    assert break_even_accept(n_draft, flat) == break_even_accept(n_draft, textbook)


def test_a_measured_round_by_hand() -> None:
    """Four guesses at 0.1, five rows at 1.2, and after 0.5^4 of the rounds a token more for the draft to read."""
    measured = Measured(0.1, (0.05,), reread=0.08)
    assert round_cost(0.5, 4, measured) == pytest.approx(4 * 0.1 + 1.2 + 0.08 / 16, rel=1e-12)
    assert speedup(0.5, 4, measured) == pytest.approx(1.9375 / 1.605, rel=1e-12)
    assert round_cost(0.5, 4, replace(measured, first=0.3)) == pytest.approx(1.905, rel=1e-12)


@given(accepts, costs)
def test_no_drafting_is_plain_decoding(accept: float, view: PassCosts) -> None:
    assert speedup(accept, 0, view) == 1.0
    assert break_even_accept(0, view) == 0.0


@given(accepts, costs, st.integers(0, 30))
def test_the_best_length_is_the_first_of_the_best(accept: float, view: PassCosts, most: int) -> None:
    best, speed = best_draft_length(accept, view, most)
    assert 0 <= best <= most
    assert speed == speedup(accept, best, view) >= 1
    for n_draft in range(most + 1):
        other = speedup(accept, n_draft, view)
        assert other < speed or (other == speed and n_draft >= best)


@given(st.floats(0.001, 0.999))
def test_the_textbook_gains_where_guesses_are_kept_more_often_than_they_cost(guess: float) -> None:
    """Leviathan et al., corollary 3.9; at equality one guess costs what it gives, and the shorter of equals is none."""
    assert best_draft_length(guess, Textbook(guess))[0] == 0
    assert best_draft_length(min(1.0, guess + 1e-6), Textbook(guess))[0] > 0


@given(st.integers(1, 40), costs)
def test_break_even_is_where_the_speedup_reaches_one(n_draft: int, view: PassCosts) -> None:
    even = break_even_accept(n_draft, view)
    if even is None:
        assert speedup(1.0, n_draft, view) < 1
    elif even == 0:
        assert speedup(0.0, n_draft, view) >= 1
    else:
        assert speedup(even, n_draft, view) >= 1 > speedup(math.nextafter(even, 0), n_draft, view)
        assert speedup(even, n_draft, view) == pytest.approx(1, abs=1e-12)


def test_break_even_at_its_edges() -> None:
    assert break_even_accept(5, Textbook(0.0)) == 0.0
    assert break_even_accept(4, Textbook(1.0)) == 1.0
    assert break_even_accept(4, Textbook(1.01)) is None
    assert break_even_accept(1, Textbook(0.25)) == pytest.approx(0.25, abs=1e-15)


@pytest.mark.parametrize(
    ("accept", "n_draft", "message"),
    [
        (-0.1, 2, "the accept rate is -0.1: give a number from 0 to 1"),
        (1.1, 2, "the accept rate is 1.1"),
        (math.nan, 2, "the accept rate is nan"),
        (0.5, -1, "the draft length is -1: give 0"),
    ],
)
def test_what_is_no_chance_or_no_length(accept: float, n_draft: int, message: str) -> None:
    for formula in (expected_tokens, kept_share):
        with pytest.raises(ValueError, match=message):
            formula(accept, n_draft)
    for with_costs in (speedup, round_cost):
        with pytest.raises(ValueError, match=message):
            with_costs(accept, n_draft, TENTH)


@pytest.mark.parametrize("guess", [-0.1, math.nan, math.inf])
def test_what_is_no_cost(guess: float) -> None:
    with pytest.raises(ValueError, match=f"a guess costs {guess} target passes: give a number of 0 or more"):
        Textbook(guess)


# --- memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "millions"),
    [("distilgpt2", 82), ("gpt2", 124), ("gpt2-medium", 355), ("gpt2-large", 774), ("gpt2-xl", 1558)],
)
def test_parameters_are_those_that_everybody_names(name: str, millions: int) -> None:
    held = memory(shape_of(name))
    assert round(held.parameters / 1e6) == millions
    assert held.weight_bytes == 4 * held.parameters


def test_parameters_are_those_of_the_checkpoint() -> None:
    n_parameters = sum(tensor.size for tensor in tiny_tensors(TINY, 0).values())
    assert memory(GPT2(TINY, tiny_tensors(TINY, 0), "numpy").config).parameters == n_parameters


@pytest.mark.parametrize("weights", ["f32", "int8"])
@pytest.mark.parametrize("name", ["story-target", "story-draft"])
def test_bytes_are_those_of_the_loaded_model(name: str, weights: str) -> None:
    """Up to 3 %: a loaded model also has scales of one, zeros as biases, and is filled up to whole panels.

    A cache has rows beyond the window as well, which only trees touch.
    """
    model = load_model(name, weights)
    held = memory(read_config(find_model(name)), weights)
    separate = [array for field, array in model.weights._asdict().items() if not field.startswith("lm_head")]
    assert held.weight_bytes == pytest.approx(sum(array.nbytes for array in separate), rel=0.03)
    rows = model.n_ctx + MOST_NODES  # some to spare for trees
    assert model.cache_bytes(rows) == pytest.approx(model.new_cache().keys.nbytes * 2, rel=0.03)
    assert held.cache_bytes == model.cache_bytes(model.n_ctx)


def test_weights_of_an_unknown_kind() -> None:
    with pytest.raises(ValueError, match="weights is 'int4': choose one of f32, int8"):
        memory(shape_of("gpt2"), "int4")
