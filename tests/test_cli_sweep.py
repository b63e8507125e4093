"""`minispec sweep` as users and scripts meet it: what it prints, what it keeps, one line for every fault."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from minispec import sweep_workers
from minispec.cli import main

QUICK = ["-n", "8", "--per-kind", "1"]
SWEEP = [sys.executable, "-m", "minispec", "sweep"]
COUNTS = [
    "texts", "tokens", "plain_tokens", "passes", "rounds", "drafted", "different", "judged", "kept", "later",
    "later_plain",
]  # fmt: skip


@pytest.fixture
def run(run: Any) -> Any:
    """Run `minispec sweep` in this process: (status, standard output, standard error)."""
    return partial(run, "sweep")


def test_json_has_counts_and_seconds_apart(run: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "One day", "kind": "story"}\n{"prompt": "a b a b", "kind": "repetition"}\n')
    arguments = [
        "-f",
        str(prompts),
        "-n",
        "8",
        "-k",
        "1,3",
        "-d",
        "story-draft",
        "-d",
        "none",
        "--temperature",
        "0,1",
        "--by",
        "kind",
    ]
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert list(result) == [
        "target", "weights", "draft_weights", "backend", "max_new_tokens", "top_k", "top_p", "coupling", "seed", "stop",
        "prompts", "rows",
    ]  # fmt: skip
    assert len(result["rows"]) == (2 + 1) * 2 * (2 + 1)
    for row in result["rows"]:
        assert list(row) == [
            "draft", "temperature", "num_draft_tokens", "kind", "counts", "accept_by_position",
            "accept_rate", "kept_of_judged", "tokens_per_pass", "expected_tokens", "predicted_speedup", "speedup",
            "tokens_per_second", "seconds",
        ]  # fmt: skip
        counts = row["counts"]
        assert list(counts) == COUNTS
        assert counts["texts"] == (2 if row["kind"] == "all" else 1)
        assert len(counts["judged"]) == len(counts["kept"]) == len(row["accept_by_position"]) == row["num_draft_tokens"]
        assert row["tokens_per_pass"] == counts["tokens"] / counts["passes"]
        assert (row["speedup"] is None) == (row["draft"] is None) == (row["num_draft_tokens"] == 0)
        if row["draft"]:
            assert row["accept_rate"] == sum(counts["kept"]) / counts["drafted"]
            assert row["kept_of_judged"] == sum(counts["kept"]) / sum(counts["judged"])
            assert row["speedup"] > 0
    assert [row["kind"] for row in result["rows"]] == ["story", "repetition", "all"] * 6
    again = json.loads(run(*arguments, "--json", "--backend", "numba", "--threads", "1")[1])
    assert [row["counts"] for row in again["rows"]] == [row["counts"] for row in result["rows"]]
    other = json.loads(run(*arguments, "--json", "--seed", "1")[1])
    assert [row["counts"] for row in other["rows"]] != [row["counts"] for row in result["rows"]]


def test_csv_and_the_table_say_what_json_says(run: Any, tmp_path: Path) -> None:
    """All of one sweep, as the second and the third find all they need in the file."""
    arguments = [*QUICK, "-k", "1,2", "--output-file", str(tmp_path / "kept.jsonl")]
    rows = json.loads(run(*arguments, "--json")[1])["rows"]
    status, out, err = run(*arguments, "--output", "csv")
    assert status == 0
    assert "12 of 12 texts are in" in err
    lines = list(csv.DictReader(io.StringIO(out)))
    for line, row in zip(lines, rows, strict=True):
        padding = [0] * (2 - row["num_draft_tokens"])
        for name in ("judged", "kept"):
            assert [int(line[f"{name}_{place}"]) for place in (1, 2)] == row["counts"][name] + padding
        assert all(int(line[name]) == row["counts"][name] for name in ("tokens", "passes", "rounds", "drafted"))
        assert float(line["speedup"]) == row["speedup"]
        assert float(line["plain_seconds"]) == row["seconds"]["plain"]
        assert line["draft"] == "story-draft"
    head, empty, titles, _, *body = run(*arguments)[1].splitlines()
    assert head.startswith("story-target (f32), up to 8 tokens after each prompt, seed 0")
    assert empty == ""
    assert "kind" not in titles
    for line, row in zip(body, rows, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        places = " ".join(f"{100 * chance:.0f}" for chance in row["accept_by_position"])
        assert cells == [
            "story-draft", "0", str(row["num_draft_tokens"]), "6", "48", f"{row['tokens_per_pass']:.2f}",
            f"{100 * row['kept_of_judged']:.0f} %", f"{row['predicted_speedup']:.2f}", f"{row['speedup']:.2f}", places,
        ]  # fmt: skip


def test_prompts_of_a_file_and_a_larger_sweep_goes_on_from_a_smaller(run: Any, tmp_path: Path) -> None:
    prompts, kept = tmp_path / "prompts.txt", tmp_path / "kept.jsonl"
    prompts.write_text("Once upon a time\nOne day\n")
    arguments = ["-f", str(prompts), "-n", "5", "--output-file", str(kept), "--json"]
    assert json.loads(run(*arguments, "-k", "2")[1])["rows"][0]["counts"]["texts"] == 2
    first = kept.read_bytes()
    status, out, err = run(*arguments, "-k", "2,3")
    assert status == 0
    assert [row["counts"]["texts"] for row in json.loads(out)["rows"]] == [2, 2]
    assert "2 of 4 texts are in" in err
    assert kept.read_bytes().startswith(first)
    assert len(kept.read_bytes().splitlines()) == 4


def test_texts_that_differ_are_told_and_fail(run: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    arguments = ["--per-kind", "1", "-n", "3", "-k", "1", "--output-file", str(kept)]
    assert run(*arguments)[0] == 0
    text = kept.read_text()
    kept.write_text(text.replace('"different": 0', '"different": 1', 1))
    status, _, err = run(*arguments, "-q")
    assert status == 1
    assert err.strip() == "minispec: 1 TEXTS DIFFER from those of plain decoding; minispec verify looks further"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-f", "none.txt"], "none.txt: No such file"),
        (["-k", "0"], "'0' cannot be used: give an integer, 1 or more"),
        (["-k", "2,x"], "'x' cannot be used: give an integer"),
        (["--temperature", "0,-1"], "'-1' cannot be used: give a number, 0 or more"),
        (["--temperature", "nan"], "'nan' cannot be used: give a number"),
        (["-d", "story-drift"], "no model is called 'story-drift'"),
        (["-d", "story-draft", "-d", "gtp2"], "no model is called 'gtp2'"),
        (["--workers", "0"], "'0' cannot be used"),
        (["--workers", "9999"], "--workers is 9999: this machine offers"),
        (["--workers", "1", "--dask", "tcp://127.0.0.1:9"], "--workers is for this machine and --dask for a cluster"),
        (["--json", "--output", "csv"], "--json and --output csv are both given"),
        (["--output-file", "no/file.jsonl"], "--output-file no/file.jsonl: there is no folder no"),
        (["--output-file", "."], "--output-file .: it is a folder"),
        (["--output-file", os.devnull], f"--output-file {os.devnull}: it is a device"),
        (["-d", ""], "no model is called ''"),
        (["-f", "~nobody-of-this-name/x"], "no home folder is known for ~nobody-of-this-name"),
        (["--output-file", "~nobody-of-this-name/x"], "no home folder is known for ~nobody-of-this-name"),
        (["extra"], "sweep takes no prompt"),
    ],
)
def test_one_line_for_every_fault(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert complaint in line


def test_prompts_that_cannot_be_used(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n{"prompt": 3}\n')
    status, out, err = run("-f", str(path))
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert 'prompts.jsonl, line 2: "prompt" is 3' in err
    path.write_text(json.dumps({"id": "long", "prompt": "word " * 600}))
    status, out, err = run("-f", str(path))
    assert (status, out) == (2, "")
    assert "prompt long has" in err
    assert "a context window of 512: shorten it to 511" in err


@pytest.mark.skipif(not find_spec("distributed"), reason="the extra `distributed` is not installed")
def test_a_dead_scheduler_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sweep_workers, "CONNECT_WITHIN", 0.5)
    with pytest.raises(SystemExit) as end:
        main(["sweep", *QUICK, "--dask", "tcp://127.0.0.1:9"])
    out, err = capfd.readouterr()
    assert (end.value.code, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert "--dask tcp://127.0.0.1:9: no scheduler answers there" in line


@pytest.mark.skipif(not find_spec("distributed"), reason="the extra `distributed` is not installed")
def test_an_address_that_is_none_is_one_line_to_the_end_of_the_process() -> None:
    """A client that was never connected would have a last word when the process ends."""
    command = [*SWEEP, *QUICK, "-q", "--dask", "nonsense"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.strip().splitlines()
    assert "--dask nonsense: no scheduler answers there" in line


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path, workers: list[str]) -> None:
    kept = tmp_path / "kept.jsonl"
    arguments = [*SWEEP, "-n", "40", "-k", "1", "--output-file", str(kept), "--backend", "numpy", *workers]

    def hear() -> None:
        os.setpgid(0, 0)  # as a terminal does, whose Ctrl-C goes to a group
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear
    ) as process:
        until = time.monotonic() + 60
        while not (kept.exists() and kept.read_bytes().count(b"\n")) and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    n_kept = kept.read_bytes().count(b"\n")
    assert 0 < n_kept < 60
    assert err.splitlines() == [
        f"{n_kept} of 60 texts are in {kept}: the same command goes on from there",
        "minispec: interrupted",
    ]
    assert kept.read_bytes().endswith(b"\n")
    assert list(tmp_path.iterdir()) == [kept]
