"""`minispec simulate` as users and scripts meet it: JSON, tables, files, two models, one line for every fault."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minispec import trials
from minispec.options import RULES

PROBS = ["--target-probs", "0.15,0.35,0.10,0.40", "--draft-probs", "0.50,0.20,0.20,0.10"]
FEW = ["--trials", "20000"]


@pytest.fixture
def run(run: Any) -> Any:
    """Run `minispec simulate` in this process: (status, standard output, standard error)."""
    return partial(run, "simulate")


def run_json(run: Any, *arguments: str) -> dict[str, Any]:
    status, out, _ = run(*arguments, "--json")
    assert status == 0
    result: dict[str, Any] = json.loads(out)
    return result


def test_json_has_the_keys_of_the_contract(run: Any) -> None:
    result = run_json(run, *PROBS, "--trials", "2000000", "--seed", "3")
    assert {"frequencies", "accept_rate", "overlap", "chi2_p", "largest_error", "z_scores", "accept_z"} <= set(result)
    assert (result["rule"], result["trials"], result["seed"]) == ("right", 2_000_000, 3)
    assert result["overlap"] == 0.55
    assert result["target_probs"] == [0.15, 0.35, 0.10, 0.40]
    assert result["frequencies"] == pytest.approx(result["target_probs"], abs=2e-3)  # 5 deviations and more
    assert result["accept_rate"] == pytest.approx(0.55, abs=2e-3)
    assert 1e-6 < result["chi2_p"] <= 1
    assert "rules" not in result


def test_the_example_is_what_runs_by_itself_and_nothing_is_read(run: Any) -> None:
    one, other = (run_json(run, *more, *FEW, "--backend", "numpy") for more in ([], PROBS))
    assert one.pop("seconds") != other.pop("seconds")
    assert one == other


def test_all_rules_in_one_list(run: Any) -> None:
    result = run_json(run, *FEW, "--rule", "all")
    assert [entry["rule"] for entry in result["rules"]] == list(RULES)
    assert result["frequencies"] == result["rules"][0]["frequencies"]
    far = {entry["rule"]: entry["exact_distance"] for entry in result["rules"]}
    assert far["right"] == far["equal"] == pytest.approx(0)
    assert all(distance > 0.1 for name, distance in far.items() if name not in ("right", "equal"))
    chosen = run_json(run, *FEW, "--rule", "equal", "--rule", "discard", "--rule", "equal")
    assert [entry["rule"] for entry in chosen["rules"]] == ["equal", "discard"]


def test_a_rule_as_a_table(run: Any) -> None:
    status, out, err = run(*PROBS, *FEW)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("right: a guess is kept with chance min(1, p/q)")
    assert lines[2].split() == ["token", "target", "draft", "measured", "error", "z"]
    assert [line.split()[0] for line in lines[3:7]] == ["0", "1", "2", "3"]
    assert "sum(min(p, q)) = 0.550000" in out
    assert "chi-square" in out
    assert lines[-1].startswith("20,000 trials in")
    assert lines[-1].endswith("seed 0")


def test_rules_as_a_table(run: Any) -> None:
    status, out, _ = run(*FEW, "--rule", "all")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1 : 1 + len(RULES)]] == list(RULES)
    assert max(map(len, out.splitlines())) <= 100


def test_many_tokens_are_cut_and_the_others_summed(run: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.full(500, 1 / 500))
    _, out, _ = run("--target-probs", f"@{tmp_path / 'p.npy'}", "--draft-probs", f"@{tmp_path / 'p.npy'}", *FEW)
    (others,) = (line for line in out.splitlines() if "others" in line)
    assert others.split()[:4] == ["488", "others", "0.976000", "0.976000"]


def test_files_of_every_kind(run: Any, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("[0.15, 0.35, 0.1, 0.4]")
    (tmp_path / "p.txt").write_text("0.15 0.35\n0.10,\t0.40\n")
    np.save(tmp_path / "p.npy", np.array([0.15, 0.35, 0.1, 0.4]))
    expected = run_json(run, *PROBS, *FEW)["counts"]
    for name in ("p.json", "p.txt", "p.npy"):
        assert run_json(run, "--target-probs", f"@{tmp_path / name}", *PROBS[2:], *FEW)["counts"] == expected


def test_two_models_at_a_prompt(run: Any) -> None:
    result = run_json(run, "Once upon a time", "--top-k", "5", *FEW)
    assert (result["target"], result["draft"]) == ("story-target", "story-draft")
    assert 5 <= len(result["tokens"]) == len(result["target_probs"]) <= 10
    assert sum(prob > 0 for prob in result["target_probs"]) == 5
    assert result["accept_rate"] == pytest.approx(result["overlap"], abs=0.02)  # 5 deviations and more
    assert result["tokens"] == run_json(run, "-p", "Once upon a time", "--top-k", "5", *FEW)["tokens"]
    status, out, err = run("-", "--top-k", "5", *FEW, stdin=b"Once upon a time\n")
    assert status == 0
    assert '","' in out
    assert "next token of story-target (p) and story-draft (q)" in err
    greedy = run_json(run, "Once upon a time", "--temperature", "0", *FEW)
    assert set(greedy["frequencies"]) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target-probs", "0.5,0.5"], "--target-probs is given alone: add --draft-probs"),
        (["--draft-probs", "1"], "--draft-probs is given alone: add --target-probs"),
        (["--target-probs", "0.5,0.4", "--draft-probs", "1,0"], "--target-probs sums to 0.9"),
        (["--target-probs", "1,0", "--draft-probs", "1.5,-0.5"], "--draft-probs has -0.5 at place 1"),
        (["--target-probs", "nan,1", "--draft-probs", "1,0"], "--target-probs has nan at place 0"),
        (["--target-probs", "1,inf", "--draft-probs", "1,0"], "--target-probs has inf at place 1"),
        (["--target-probs", "", "--draft-probs", "1"], "--target-probs is empty"),
        (["--target-probs", "1,,0", "--draft-probs", "1,0"], "--target-probs: '' at place 1 is no number"),
        (["--target-probs", "1", "--draft-probs", "x"], "--draft-probs: 'x' at place 0 is no number"),
        (["--target-probs", "1", "--draft-probs", "1,0"], "--target-probs has 1 tokens and --draft-probs 2"),
        ([*PROBS, "-p", "Once"], "--target-probs and -p are both given"),
        ([*PROBS, "--top-k", "3"], "--target-probs and --top-k are both given"),
        (["Once", "-p", "Once"], "the prompt is given twice"),
        (["Once", "-d", "none"], "simulate needs two laws: give -d a draft model"),
        (["Once", "-d", "ngram"], "simulate needs two laws, and -d ngram is not one model's: give -d a draft model"),
        (["Once", "-d", "parallel"], "and -d parallel is not one model's"),
        (["Once " * 600], "tokens and story-target a context window of"),
        (["-m", "story-target"], "the prompt is empty"),
        (["--trials", "0"], "'0' cannot be used: give an integer, 1 or more"),
        (["--trials", "-3"], "'-3' cannot be used"),
        (["--trials", "1000000000000000"], "give 1 to 1000000000000"),
        (["--rule", "left"], "'left' is not one of 'right', 'equal'"),
        (["--temperature", "-1", "Once"], "'-1' cannot be used"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(run: Any, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert err.startswith("minispec: ")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "no such file"),
        ("p.json", b"[0.5, 0.5", "Expecting"),
        ("p.json", b'{"p": 1}', "holds a JSON dict and not a list"),
        ("p.json", b'[0.5, "half"]', "place 1 is 'half', which is no number"),
        ("p.json", b"[0.5, true]", "place 1 is True"),
        ("p.json", b"[" * 100_000, "recursion"),
        ("p.json", b"[1" + b"0" * 400 + b"]", "too large"),
        ("p.txt", b"0.5 half", "'half' at place 1 is no number"),
        ("p.txt", b"\xff\xfe", "utf-8"),
        ("p.txt", b"", "is empty"),
        ("p.npy", b"rubbish", "give .json (a list), .npy (one axis)"),
        ("p.npy", b"", "give .json (a list), .npy (one axis)"),
    ],
)
def test_unreadable_files_are_one_line(run: Any, tmp_path: Path, name: str, content: Any, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    status, out, err = run("--target-probs", f"@{tmp_path / name}", "--draft-probs", "1,0")
    assert (status, out) == (2, "")
    assert message in err
    assert "--target-probs" in err
    assert len(err.splitlines()) == 1


def test_arrays_of_another_kind_are_refused(run: Any, tmp_path: Path) -> None:
    for array, message in ((np.eye(2), "of shape (2, 2)"), (np.array(["a"]), "no array of numbers")):
        np.save(tmp_path / "p.npy", array)
        status, _, err = run("--target-probs", f"@{tmp_path / 'p.npy'}", "--draft-probs", "1,0")
        assert status == 2
        assert message in err


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupt_ends_it_within_a_few_pieces(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, whole = [], trials.count_trials

    def interrupted(key: Any, first: int, *rest: Any) -> int:
        made.append(first)
        if len(made) == 30:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(key, first, *rest)

    monkeypatch.setattr(trials, "count_trials", interrupted)
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        status, out, err = run("--backend", "numpy", "--trials", "1000000000", "--threads", "1")
    finally:
        signal.signal(signal.SIGINT, heard)
    assert (status, out, err.strip()) == (130, "", "minispec: interrupted")
    assert len(made) < 40
