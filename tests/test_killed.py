"""SIGTERM and SIGKILL while a file is written: the process ends, and the file is the old or the new one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from children import ended_by
from hostile import THOROUGH

from minispec.trace_page import data_of

if os.name == "nt":
    pytest.skip("signals of POSIX", allow_module_level=True)

UNFINISHED = re.compile(r"minispec-[0-9a-f]{16}\.tmp")
BEGINS, WRITTEN = ("minispec/whole_file.py:write_whole", 1), (":Path.replace", 1)  # nothing of it is there, or all
SIGNALS = ["SIGKILL", "SIGTERM"][: 2 if THOROUGH else 1]
SLOW = pytest.mark.skipif(not THOROUGH, reason="many starts, or what compiles for minutes")
PAGE = ["trace", "Once", "-k", "4", "-n", "8", "-o", "run.html", "-q"]
SWEEP = ["sweep", "--per-kind", "1", "-k", "2", "-n", "8", "--output-file", "kept.jsonl"]


def killed(name: str, moment: tuple[str, int], arguments: list[str], folder: Path, **more: Any) -> list[str]:
    """The files of this folder after a run that such a signal ends there, but for unfinished ones."""
    place, n_calls = moment
    status, _, said = ended_by(name, place, n_calls, ["minispec", *arguments], folder=folder, **more)
    assert (status, said) == (-signal.Signals[name], [])
    return sorted(file for file in os.listdir(folder) if not UNFINISHED.fullmatch(file))


def whole(arguments: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A run that nothing ends before its time."""
    command, around = [sys.executable, "-m", "minispec", *arguments], {**os.environ, **more}
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("moment", [WRITTEN, pytest.param(BEGINS, marks=SLOW)], ids=["written", "begins"])
@pytest.mark.parametrize("name", SIGNALS)
def test_a_page(name: str, moment: tuple[str, int], tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    if THOROUGH:
        assert killed(name, moment, PAGE, tmp_path) == []
    page.touch()  # any other text is no page, and would be refused
    assert killed(name, moment, PAGE, tmp_path) == ["run.html"]
    assert page.read_bytes() == b""
    if THOROUGH:
        assert whole(PAGE, tmp_path).returncode == 0
        assert len(data_of(page.read_text())["ids"]) == 8


@SLOW
@pytest.mark.parametrize("name", SIGNALS)
def test_a_plot(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "plot.svg").write_text("old")
    assert killed(name, WRITTEN, ["theory", "--plot-file", "plot.svg"], tmp_path) == ["plot.svg"]
    assert (tmp_path / "plot.svg").read_text() == "old"


@SLOW
@pytest.mark.parametrize("name", SIGNALS)
def test_a_sweep(name: str, tmp_path: Path) -> None:
    """Its file grows line by line: those that are there are whole, and the next run goes on from them.

    The lock beside it stays, and holds nobody up.
    """
    place = "minispec/sweep_file.py:ResultsFile.append"
    assert killed(name, (place, 3), SWEEP, tmp_path) == ["kept.jsonl", "kept.jsonl.lock"]
    before = (tmp_path / "kept.jsonl").read_bytes()
    for line in before.splitlines(keepends=True):
        assert line.endswith(b"\n")
        json.loads(line)
    assert whole(SWEEP, tmp_path).returncode == 0
    after = (tmp_path / "kept.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") > before.count(b"\n") >= 2


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--trials", "100000"],
        pytest.param(["generate", "Once", "-n", "8", "-k", "4"], marks=SLOW),
    ],
    ids=["some", "all"],
)
def test_compiled_code(name: str, arguments: list[str], tmp_path: Path) -> None:
    """The next start takes what is whole, and compiles the rest."""
    pytest.importorskip("numba")
    around = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert killed(name, (":Path.replace", 2), arguments, tmp_path, **around) == ["cache"]
    kept = [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert sum(file.endswith(".nbc") for file in kept) == 1
    assert len(kept) == 2
    for _ in range(2 if THOROUGH else 1):
        done = whole([*arguments, "-q"], tmp_path, **around)
        assert (done.returncode, done.stderr) == (0, "")
