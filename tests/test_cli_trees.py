"""The command line's trees and blocks: the same text, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_cli import PROMPT, run_json


@pytest.mark.parametrize("more", [[], ["--temp", "0.8", "--coupling", "gumbel"]])
def test_a_tree_writes_the_same_text_in_fewer_passes(run: Any, more: list[str]) -> None:
    plain = run_json(run, "generate", PROMPT, "-n", "40", "-d", "none", *more)
    chain = run_json(run, "generate", PROMPT, "-n", "40", "-k", "3", *more)
    tree = run_json(run, "generate", PROMPT, "-n", "40", "--tree", "3,2,1", *more)
    assert tree["ids"] == chain["ids"] == plain["ids"]
    assert tree["passes"] <= chain["passes"] < plain["passes"]
    assert (tree["tree"], tree["num_draft_tokens"]) == ([3, 2, 1], 3)
    assert "tree" not in chain


def test_rounds_of_a_tree_are_shown(run: Any) -> None:
    status, _, err = run("generate", PROMPT, "-n", "12", "--tree", "2,1", "-v")
    assert status == 0
    first = next(line for line in err.splitlines() if line.startswith("   1 "))
    assert " of 4: tree [" in first
    assert "*" in first
    status, out, _ = run("compare", PROMPT, "-n", "12", "--tree", "2,1", "--repetitions", "1", "-v")
    assert status == 0
    assert "same text, token for token" in out


def test_a_batch_of_trees(run: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\nThe dog\n")
    status, out, _ = run("generate", "--prompts", str(tmp_path / "prompts.txt"), "-n", "9", "--tree", "2,2", "--json")
    assert status == 0
    for line, prompt in zip(out.splitlines(), (PROMPT, "The dog"), strict=True):
        assert json.loads(line)["ids"] == run_json(run, "generate", prompt, "-n", "9", "-d", "none")["ids"]


def test_blocks(run: Any) -> None:
    told = run_json(run, "generate", PROMPT, "-n", "30", "--temp", "1", "--verification", "block", "-k", "6")
    assert told["verification"] == "block"
    assert len(told["ids"]) == 30
    greedy = run_json(run, "generate", PROMPT, "-n", "30", "--verification", "block")
    assert greedy["ids"] == run_json(run, "generate", PROMPT, "-n", "30")["ids"]
    assert "--verification has no effect" in run("generate", PROMPT, "-n", "3", "--verification", "block")[2]


def test_a_tree_near_the_end_of_the_window_is_as_deep_as_there_is_room(run: Any) -> None:
    prompt = "one two three " * 200
    status, _, err = run("generate", prompt, "-n", "9", "--tree", "2,2,2")
    if status:  # the prompt alone is too long for this pair
        words = int(err.split("shorten it to ")[1].split()[0])
        prompt = "a" + " a" * (words - 4)
    chain, tree = (run_json(run, "generate", prompt, *more) for more in ([], ["--tree", "2,2,2"]))
    assert tree["ids"] == chain["ids"]
    assert tree["finish"] in ("context", "stop")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tree", "9,9"], "a tree of widths 9,9 has 90 guesses, and 64 are the most: make it narrower or shallower"),
        (["--tree", "3,0"], "'0' cannot be used: give an integer, 1 or more"),
        (["--tree", "3,,1"], "'' cannot be used: give an integer, 1 or more"),
        (["--tree", "wide"], "'wide' cannot be used"),
        (["--tree", "2", "--verification", "block"], "--verification block judges chains: leave out --tree"),
        (["--tree", "2", "--schedule", "overlapped"], "--schedule overlapped judges chains, guess by guess"),
        (["--verification", "block", "--schedule", "overlapped"], "leave out --verification block"),
        (["--verification", "all"], "'all' is not one of 'token', 'block'"),
    ],
)
def test_what_is_no_tree_is_refused_in_one_line(run: Any, arguments: list[str], message: str) -> None:
    status, out, err = run("generate", PROMPT, *arguments)
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert message in line


def test_a_tree_without_a_draft_says_so(run: Any) -> None:
    assert "--tree has no effect without a draft" in run("generate", PROMPT, "-n", "3", "-d", "none", "--tree", "2")[2]


def test_bench_tries_all_depths_of_a_tree(run: Any) -> None:
    tree = ["--only", "end-to-end", "--tree", "2,1"]
    told = run_json(run, "bench", *tree, "-n", "6", "--repetitions", "1", "-q")
    assert told["tree"] == [2, 1]
    assert [row["num_draft_tokens"] for row in told["draft_lengths"]] == [1, 2]
    assert all(row["same_text"] for row in told["end_to_end"])
    for arguments in (["--only", "passes", "--tree", "2"], ["-d", "none", "--tree", "2"]):
        status, _, err = run("bench", *arguments, "-q")
        assert status == 2
        assert "--tree is for texts of a pair: leave out -d none" in err


def test_verify_with_a_tree(run: Any) -> None:
    status, out, _ = run("verify", "--quick", "--only", "greedy", "--only", "law", "--tree", "2,2", "--json")
    assert status == 0
    assert json.loads(out)["passed"] is True
