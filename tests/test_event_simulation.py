"""The event simulation: rounds worked by hand, clocks, and long runs against the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minispec.costs import Costs
from minispec.event_simulation import (
    POST,
    PRE,
    SCHEDULES,
    best_overlapped,
    overlapped,
    overlapped_speedup,
    rounds_of,
    sequential,
    side_by_side,
    simulate_schedule,
)
from minispec.theory import Textbook, expected_tokens, speedup

CURVED = Costs(0.2, (0.0, 1.0, 1.1, 1.3, 1.6, 2.0), 0.01, 0.04)


class Coins:
    """A generator whose numbers make guesses kept (1) or refused (0), in this order."""

    def __init__(self, kept: Sequence[int]) -> None:
        self.numbers = [0.0 if one else 0.99 for one in kept]

    def random(self, n: int) -> Any:
        some, self.numbers = self.numbers[:n], self.numbers[n:]
        assert len(some) == n
        return np.array(some)


def test_rounds_of_an_overlapped_run_worked_by_hand() -> None:
    """k = 3. One kept, two wait; these and a fresh one kept; the second that waits refused; a first one refused."""
    coins = Coins([1, *(1, 1, 1), *(1, 0, 1), 0])
    assert list(islice(overlapped(coins, 0.5, 3), 4)) == [
        (PRE, 3, 0, 1, 1, 0),
        (POST, 3, 0, 3, 3, 0),
        (POST, 3, 0, 3, 2, 3),  # of 2 waiting and 3 fresh guesses two were judged
        (PRE, 3, 0, 1, 1, 2),
    ]


def test_rounds_of_a_pearl_run_worked_by_hand() -> None:
    """k = 3. Pre-verify leaves two waiting, post-verify three: it judges no fresh guess."""
    coins = Coins([1, *(1, 1), *(1, 1, 1), *(0, 1, 1), 0])
    assert list(islice(overlapped(coins, 0.5, 3, pearl=True), 5)) == [
        (PRE, 3, 0, 1, 1, 0),
        (POST, 3, 0, 2, 2, 0),
        (POST, 3, 0, 3, 3, 0),
        (POST, 3, 0, 3, 1, 5),
        (PRE, 3, 0, 1, 1, 2),
    ]


def test_rounds_of_a_sequential_run_worked_by_hand() -> None:
    coins = Coins([1, 1, 0, 1, 1, 0])
    assert list(islice(sequential(coins, 0.5, 2), 3)) == [
        ("sequential", 2, 0, 3, 3, 0),
        ("sequential", 2, 1, 3, 1, 1),
        ("sequential", 2, 0, 3, 2, 0),
    ]


def test_two_jobs_at_once() -> None:
    assert side_by_side(1.0, 3.0, 1.0) == (1.0, 3.0)
    assert side_by_side(1.0, 3.0, 2.0) == (2.0, 4.0)  # as long as one after the other
    assert side_by_side(3.0, 1.0, 1.5) == (3.5, 1.5)
    assert side_by_side(0.0, 1.0, 2.0) == (0.0, 1.0)


def test_a_clock_worked_by_hand() -> None:
    """Every guess is kept; a guess takes 0.2 passes, and both work half as fast while the other does."""
    run = simulate_schedule("overlapped", 1.0, 3, CURVED, interference=2.0, n_tokens=4)
    assert [this.mode for this in run.rounds] == [PRE, POST]
    spans = [(span.worker, span.round, round(span.start, 12), round(span.end, 12)) for span in run.spans]
    assert spans == [
        ("draft", 0, 0.0, 1.2),
        ("target", 0, 0.0, 1.6),
        ("draft", 1, 1.6, 2.8),
        ("target", 1, 1.6, 3.5),
    ]
    assert (run.n_new, run.n_lost) == (4, 0)
    assert run.speedup == pytest.approx(4 / 3.5)
    one_by_one = simulate_schedule("sequential", 1.0, 3, CURVED, n_tokens=4).spans
    assert [(span.worker, round(span.start, 12), round(span.end, 12)) for span in one_by_one] == [
        ("draft", 0.0, 0.6),
        ("target", 0.6, 2.2),
    ]


@given(
    st.sampled_from(SCHEDULES), st.floats(0, 1), st.integers(0, 7), st.floats(0, 2), st.floats(1, 3), st.integers(0, 9)
)
def test_a_timeline_is_one(
    schedule: str, accept: float, n_draft: int, guess: float, interference: float, seed: int
) -> None:
    """Rounds follow each other, no worker does two things at once, and no guess is counted twice."""
    run = simulate_schedule(
        schedule, accept, n_draft, Textbook(guess), interference=interference, n_tokens=60, seed=seed
    )
    assert 60 <= run.n_new < 60 + n_draft + 1
    for worker in ("draft", "target"):
        spans = [span for span in run.spans if span.worker == worker]
        assert [span.round for span in spans] == list(range(len(run.rounds)))
        assert all(one.start <= one.end <= other.start for one, other in pairwise(spans))
    assert 0 <= run.n_lost <= sum(this.n_guess for this in run.rounds)
    if schedule == "plain" or n_draft == 0:
        assert run.speedup == pytest.approx(1.0)


PIECES, LONG = 50, 300


def standard_errors(schedule: str, accept: float, n_draft: int, costs: Any, expected: float) -> float:
    """How far a long run's speed-up is from what is expected, in standard errors by its pieces."""
    pieces = [
        simulate_schedule(schedule, accept, n_draft, costs, interference=1.3, n_tokens=LONG, seed=seed)
        for seed in range(PIECES)
    ]
    excess = np.array([piece.n_new - expected * piece.seconds for piece in pieces])
    if abs(excess).max() < 1e-9:  # one token a round, come what may
        return 0.0
    return float(abs(excess.mean()) / (excess.std(ddof=1) / PIECES**0.5))


@pytest.mark.parametrize("costs", [Textbook(0.15), CURVED], ids=["textbook", "curve"])
@pytest.mark.parametrize(("accept", "n_draft"), [(0.8, 4), (0.5, 3), (0.95, 8), (0.7, 1)])
def test_long_runs_come_to_the_formulas(accept: float, n_draft: int, costs: Any) -> None:
    """Seeded; 7 standard errors of 50 pieces, and a start of one round: false-alarm odds below 1e-6."""
    cases = {
        "overlapped": overlapped_speedup(accept, n_draft, costs, 1.3),
        "sequential": speedup(accept, n_draft, costs),
        "pearl": pearl_speedup(accept, n_draft, costs, 1.3),
    }
    for schedule, expected in cases.items():
        assert standard_errors(schedule, accept, n_draft, costs, expected) < 7, schedule


def pearl_speedup(accept: float, n_draft: int, costs: Any, interference: float) -> float:
    """By the stationary law of what waits: nothing, k - 1 guesses or k."""
    waiting = [0, n_draft - 1, n_draft]
    follow = np.zeros((3, 3))
    for state, n in enumerate(waiting):
        n_judged = max(n, 1)
        follow[state, 0] += 1 - accept**n_judged
        follow[state, (1 if n_draft > 1 else 0) if n == 0 else 2] += accept**n_judged
    law = np.linalg.matrix_power(follow, 4096)[0]
    tokens = [sum(accept**i for i in range(max(n, 1))) for n in waiting]
    times = [max(side_by_side(n_draft * costs.guess, costs.curve(max(n, 1)), interference)) for n in waiting]
    return float((law @ tokens) / (law @ times))


@given(st.fractions(0, 1), st.integers(1, 9))
def test_tokens_a_round_are_those_of_the_chain_of_modes(accept: Fraction, n_draft: int) -> None:
    """Solved with fractions: pre = pre (1 - a) + post (1 - a^k), and tokens of a post-verify round one by one."""
    a, k = accept, n_draft
    pre, post = (1 - a**k, a) if a else (Fraction(1), Fraction(0))
    assert pre == pre * (1 - a) + post * (1 - a**k)
    of_post = sum((kept + 1) * a**kept * (1 - a) for kept in range(k)) + k * a**k
    expected = (pre * 1 + post * of_post) / (pre + post)
    free = Textbook(0.0)  # so a round takes one pass, and the speed-up is tokens a round
    assert overlapped_speedup(float(a), k, free) == pytest.approx(float(expected), abs=1e-12)


@given(st.floats(0, 1), st.integers(1, 12), st.floats(0, 1.5))
def test_taking_turns_on_one_processor_gains_nothing(accept: float, n_draft: int, guess: float) -> None:
    """A round takes as long as a sequential one and writes less."""
    costs = Textbook(guess)
    assert overlapped_speedup(accept, n_draft, costs, 2.0) <= speedup(accept, n_draft, costs) + 1e-12
    assert overlapped_speedup(accept, n_draft, costs) >= overlapped_speedup(accept, n_draft, costs, 1.5) - 1e-12


def test_limits() -> None:
    """All kept and a processor each: as many tokens a pass as guesses fit beside it. None kept: plain decoding."""
    assert overlapped_speedup(1.0, 10, Textbook(0.1)) == pytest.approx(10)
    assert speedup(1.0, 10, Textbook(0.1)) == pytest.approx(11 / 2)
    assert overlapped_speedup(0.0, 10, Textbook(0.1)) == 1.0
    assert overlapped_speedup(0.7, 0, Textbook(0.1)) == 1.0
    assert best_overlapped(0.9, Textbook(0.1))[0] == 10  # a longer block makes the target wait
    assert best_overlapped(0.5, Textbook(2.0)) == (0, 1.0)
    for accept in (0.5, 0.8, 0.95):  # judging a fresh guess at once never writes less
        tokens = overlapped_speedup(accept, 6, Textbook(0.0))
        assert tokens >= pearl_speedup(accept, 6, Textbook(0.0), 1.0)
        assert tokens <= expected_tokens(accept, 6)


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="no schedule is called 'swift': choose one of plain, sequential"):
        simulate_schedule("swift", 0.5, 3, Textbook(0.1))
    with pytest.raises(ValueError, match=r"interference is 0\.5: give 1"):
        simulate_schedule("overlapped", 0.5, 3, Textbook(0.1), interference=0.5)
    with pytest.raises(ValueError, match="interference is nan"):
        overlapped_speedup(0.5, 3, Textbook(0.1), float("nan"))
    with pytest.raises(ValueError, match=r"accept rate is 1\.5"):
        overlapped_speedup(1.5, 3, Textbook(0.1))
    with pytest.raises(ValueError, match="n_tokens is -1"):
        simulate_schedule("plain", 0.5, 3, Textbook(0.1), n_tokens=-1)
    assert simulate_schedule("overlapped", 0.5, 3, Textbook(0.1), n_tokens=0).rounds == ()
    assert next(rounds_of("overlapped", Coins([]), 0.5, 0)).mode == "plain"
