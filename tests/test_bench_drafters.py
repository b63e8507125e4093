"""The benchmark of drafters: a row for each that can be had, and a note for each that cannot."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from test_cli import run_json

from minispec import bench_drafters, kept_costs, tree_auto
from minispec.bench_drafters import arrays_of, every_draft, guess_cost, ways
from minispec.draft_option import parts_of
from minispec.drafters import CombinedDrafter, EarlyExitDrafter, SmallModelDrafter, SuffixDrafter
from minispec.methods import METHODS
from minispec.settings import Settings
from minispec.sweep_counts import Counts, Seconds
from minispec.tree_shape import RankCounts


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_drafters, "OF_EACH_KIND", 1)
    counts = RankCounts((((100, 50), (50, 20)), ((50, 25), (25, 1))))
    monkeypatch.setattr(tree_auto, "counts_of", lambda *_: counts)
    monkeypatch.setattr(kept_costs, "measure_beside", lambda *_: 0.01)


def test_drafters_side_by_side(run: Any) -> None:
    status, out, err = run("bench", "--drafters", "suffix,story-draft", "-n", "12", "--json")
    assert status == 0
    told = json.loads(out)
    suffix, model, small, tree, best = told["drafters"]
    trees = [f"story-draft, tree {shape}" for shape in ("2,2,1", "auto")]
    assert [row["draft"] for row in told["drafters"]] == ["suffix", "story-draft", "story-draft, int8", *trees]
    assert [row["num_draft_tokens"] for row in told["drafters"]] == [4, 4, 4, 3, 1]
    assert best["tokens_per_pass"] <= 2
    assert "story-draft, tree: by depth 2 guesses (1.70 tokens" in " ".join(told["notes"])
    assert small["bytes"] < model["bytes"] / 2
    assert model["tokens_per_pass"] > suffix["tokens_per_pass"] >= 1
    assert len(model["accept_by_position"]) == 4
    assert tree["accept_by_position"] is None
    assert suffix["bytes"] == 0 < model["bytes"] == tree["bytes"] == best["bytes"]
    assert (suffix["training"], model["training"]) == ("none", "a model")
    assert all(row["keeps_law"] and row["speedup"] > 0 and row["auto_speedup"] > 0 for row in told["drafters"])
    assert "writing with story-draft, tree 2,2,1 ..." in err


def test_where_no_guess_pays_the_best_tree_is_none(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_auto, "counts_of", lambda *_: RankCounts((((100, 1), (99, 1)),)))
    told = run_json(run, "bench", "--drafters", "medusa", "-n", "6")
    row = told["drafters"][-1]
    assert (row["draft"], row["num_draft_tokens"], row["tokens_per_pass"]) == ("medusa, tree auto", 0, 1.0)
    assert run("bench", "--drafters", "medusa", "-n", "6", "-q")[0] == 0


def test_lossy_drafters_and_drafters_together_have_no_best_tree() -> None:
    drafts = ("suffix", "medusa", "medusa-typical", "suffix+story-draft")
    assert [len(ways(Settings(draft=draft))) for draft in drafts] == [1, 3, 2, 1]


def test_what_cannot_be_had_is_left_out_and_said(run: Any) -> None:
    status, out, _ = run("bench", "-m", "story-draft", "--drafters", "suffix,medusa", "-n", "4", "-k", "1", "--json")
    assert status == 0
    told = json.loads(out)
    assert [row["draft"] for row in told["drafters"]] == ["suffix"]
    assert any("medusa is left out: story-draft has no medusa heads" in note for note in told["notes"])


def test_the_table_says_what_the_rows_do(run: Any) -> None:
    status, out, _ = run("bench", "--drafters", "suffix", "-n", "8", "-k", "2,3", "-q")
    assert status == 0
    (row,) = [line for line in out.splitlines() if line.startswith("| suffix")]
    assert row.split("|")[2].strip() == "none"
    assert row.split("|")[5].strip() == "3"  # the nearest to 4 of those that were asked for
    assert row.rstrip("| ").endswith("yes")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafters", "sufix"], "did you mean suffix?"),
        (["-m", "story-draft", "--drafters", "medusa"], "has no medusa heads"),
        (
            ["-m", "story-draft", "--drafters", "medusa,eagle"],
            "none of these drafters can be had; medusa is left out: story-draft has",
        ),
        (["--drafters", "suffix", "--only", "short"], "--drafters is a part of its own"),
        (["--only", "drafters"], "add --drafters"),
    ],
)
def test_wrong_use_is_one_line(run: Any, arguments: list[str], message: str) -> None:
    status, out, err = run("bench", "-q", *arguments)
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert message in line


def test_a_drafter_that_changes_the_text_is_no_row(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from minispec import speculative

    judge = speculative.judge
    monkeypatch.setattr(speculative, "judge", lambda *case: ((token ^ 1, guess) for token, guess in judge(*case)))
    status, _, err = run("bench", "-q", "--drafters", "suffix", "-n", "8")
    assert status != 0
    assert "another text than plain decoding" in err


def test_what_else_is_asked_for_is_measured_too() -> None:
    from minispec.commands.bench_checks import default_parts

    options: dict[str, Any] = {"drafters": "suffix", "accepts": None, "against": (), "batches": ()}
    assert default_parts(options) == ["drafters"]
    assert default_parts(options | {"batches": (2,), "against": ("transformers",)}) == [
        "end-to-end",
        "drafters",
        "batch",
    ]


def test_every_method_is_among_all_drafts() -> None:
    drafts = every_draft("story-target")
    assert {part.name for draft in drafts for part in parts_of(draft)} == {*METHODS, "story-draft"}
    assert not any("story-draft" in draft for draft in every_draft("elsewhere/target"))


def test_memory_is_what_the_drafter_holds_and_the_target_does_not() -> None:
    from toys import tiny_model

    target, other = tiny_model(), tiny_model(seed=1)
    shared = list(arrays_of(target))
    assert sum(array.nbytes for array in shared) >= target.weight_bytes
    exit_ = EarlyExitDrafter(target, 1)
    assert list(arrays_of(exit_, shared)) == []
    both = CombinedDrafter([SuffixDrafter(target.n_vocab), SmallModelDrafter(other)])
    assert sum(array.nbytes for array in arrays_of(both, shared)) == sum(array.nbytes for array in arrays_of(other))
    assert len(list(arrays_of([np.ones(3), {"a": np.ones(2)}]))) == 2


def test_the_price_of_a_guess_is_in_plain_passes() -> None:
    """Rounds of 2 and of 4 guesses, 0.6 s for 6 of them, where a plain pass takes 0.5 s."""
    counts = Counts(later=(3, 0, 1, 0, 1), later_plain=4)
    assert guess_cost(counts, Seconds(later_draft=(0.0, 0.0, 0.2, 0.0, 0.4), later_plain=2.0)) == pytest.approx(0.2)
    assert guess_cost(Counts(later=(3,)), Seconds(later_plain=2.0)) is None
