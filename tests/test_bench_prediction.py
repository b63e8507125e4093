"""The scripted pair agrees where it should, and predictions are put beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minispec import bench_scripts, made_up
from minispec.bench_plot import write_predictions
from minispec.bench_prediction import Predicted, Way, measure_predictions, row_of, summary, with_best
from minispec.bench_scripts import PROMPT, Script, agreeing, patterns, round_sizes
from minispec.costs import Costs
from minispec.drafters import SmallModelDrafter
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.protocols import Step
from minispec.sampling import Sampling
from minispec.settings import AUTO
from minispec.speculative import speculate
from minispec.theory import expected_tokens

SMALL = GPT2Config(n_layer=2, n_head=2, n_embd=32, n_ctx=96, n_vocab=300, n_inner=64)


def scripted_pair(stored: str = "f32") -> tuple[GPT2, GPT2]:
    one, other = made_up.scripts(SMALL, 0.8)
    return (
        GPT2(SMALL, made_up.scripted_tensors(SMALL, one, 0)),
        GPT2(SMALL, made_up.scripted_tensors(SMALL, other, 1), stored=stored),
    )


@pytest.mark.parametrize("stored", ["f32", "int8"])
@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("k", [1, 4])
def test_a_draft_agrees_where_the_pattern_says(rate: float, k: int, stored: str) -> None:
    """Passes of the real loop are those that the pattern alone foretells."""
    target, draft = scripted_pair(stored)
    agree = np.random.default_rng(1).random(SMALL.n_ctx) < rate
    drafter = SmallModelDrafter(agreeing(draft, target, agree))
    steps = list(speculate(target, drafter, [1] * PROMPT, max_new_tokens=60, n_draft=k, sampling=Sampling()))
    assert len(steps) == len(round_sizes(agree, k, 60))
    assert draft.weights.wpe is not drafter.model.weights.wpe  # type: ignore[attr-defined]


def test_the_luck_of_a_pattern_is_small() -> None:
    for rate in (0.3, 0.8, 0.95):
        agree = patterns(rate, [1, 4, 12], 256, 1024)[0]
        for k in (1, 4, 12):
            sizes = round_sizes(agree, k, 256)
            assert sum(sizes) == 256
            assert sum(sizes[1:]) / len(sizes[1:]) == pytest.approx(expected_tokens(rate, k), rel=0.06)


def test_a_price_is_in_plain_tokens_at_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that becomes twice as slow changes nothing."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    slow = [1.0]

    def steps() -> Iterator[Step]:
        for i in range(4):
            if i == 2:
                slow[0] = 2.0
            clock[0] += 2.0 * slow[0]
            yield Step((), 0, (1, 2, 3, 4), None)

    way = Way(steps())
    way.write(1.0, lambda: slow[0])
    way.write(2.0, lambda: slow[0])
    assert not way.ended
    way.write(2.0, lambda: slow[0])
    assert way.ended
    costs = Costs(0.1, (0.0, 1.0, 1.1, 1.2, 1.3, 1.5), 0.0, 1.0)
    row = row_of(Script("0.8", 0.8, 32, np.ones(9, np.bool_)), 4, way, costs)
    assert (row.measured, row.tokens_per_pass) == (2.0, 4.0)
    assert row.expected_tokens == pytest.approx(3.3616)
    assert row.textbook == pytest.approx(3.3616 / 1.4)
    assert row.by_costs == pytest.approx(3.3616 / 1.9)
    assert row.error == pytest.approx(3.3616 / 1.9 / 2 - 1)


def test_auto_is_compared_with_the_best_fixed_length_of_its_rate() -> None:
    rows = [
        Predicted("0.8", 2, 2.0, 1.5, error=0.2), Predicted("0.8", 4, 3.0, 2.0, error=-0.05),
        Predicted("0.8", AUTO, 3.0, 1.9), Predicted("0", 2, 1.0, 0.7, error=0.1), Predicted("0", AUTO, 1.0, 0.98),
    ]  # fmt: skip
    assert [row.of_best_fixed for row in with_best(rows)] == [None, None, 0.95, None, 0.98]
    notes = summary(with_best(rows))
    assert "in 2 of 3 cases" in notes[0]
    assert "auto reaches 0.95" in notes[1]


def test_every_rate_is_measured_with_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_scripts, "SEEDS", 3)
    rows = measure_predictions(*scripted_pair(), [0.2, 0.9], [1, 3], 24, True)
    names = ["0.2", "0.9", "0.9, then 0.2"]
    assert [(row.accept, row.num_draft_tokens) for row in rows] == [(name, k) for name in names for k in (1, 3, AUTO)]
    assert all(row.measured > 0 for row in rows)


@pytest.mark.parametrize("n_rates", [1, 4])
def test_predictions_are_drawn_for_every_rate(n_rates: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        Predicted(f"0.{rate}", k, 2.0, 1.5 + k / 10, 2.0, 1.8, 1.6, 0.1)
        for rate in range(1, n_rates + 1)
        for k in (1, 4, 12)
    ]
    write_predictions(tmp_path / "it.svg", [*rows, Predicted("0.1", AUTO, 2.0, 1.7)])
    drawn = (tmp_path / "it.svg").read_text(encoding="utf-8")
    assert drawn.count("<!-- accept rate") == n_rates
    assert "<!-- measured -->" in drawn


def test_a_price_is_in_the_plain_tokens_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 8.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    way = Way(iter([Step((), 0, (1, 2), None)]))
    assert way.write(1.0, lambda: 3.0) == 3.0
    assert way.price == 4.0
