"""An installation that can be read and not written, without a home; and folders for compiled code that take none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import bound_by_modes
from hostile import THOROUGH

if sys.platform != "linux":
    pytest.skip("lets go of root's rights as Linux does", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[1]
SLOW = pytest.mark.skipif(not THOROUGH, reason="compiles, for minutes")
SIMULATE = ["-m", "minispec", "simulate", "--trials", "100000"]  # compiles for seconds
GENERATE = ["-m", "minispec", "generate", "Once upon a time", "-n", "8", "-k", "4", "-q"]
NO_PLACE = (
    "minispec: warning: compiled code cannot be kept, every start compiles anew: set NUMBA_CACHE_DIR to a folder "
    "(if it is set, this version of Numba is not known yet)"
)
PLACES = ("HOME", "XDG_CACHE_HOME", "HF_HOME", "NUMBA_CACHE_DIR", "PYTHONPATH")
AROUND = {name: value for name, value in os.environ.items() if name not in PLACES}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the package and the pair in the box where nothing can be written."""
    place = tmp_path_factory.mktemp("installed") / "read-only"
    leave = shutil.ignore_patterns("__pycache__")
    for name in ("minispec", "weights/story-target", "weights/story-draft"):
        shutil.copytree(ROOT / name, place / name, ignore=leave)
    every = [place, *place.rglob("*")]
    for path in every:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        refused = run(place, ["-c", "open('minispec/new.py', 'w')"])
    except subprocess.SubprocessError:
        pytest.skip("root cannot be bound here")
    assert "PermissionError" in refused.stderr
    before = sorted(place.rglob("*"))
    yield place
    assert sorted(place.rglob("*")) == before
    for path in every:
        path.chmod(path.stat().st_mode | 0o200)


def run(place: Path, arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """A process in this folder, whose home is not there."""
    around = {**AROUND, "HOME": str(place / "home"), "PYTHONPATH": str(place), **more}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=place, env=around, preexec_fn=bound_by_modes, capture_output=True, text=True, check=False
    )


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on standard error of a run that went well, but for what it is doing."""
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if not line.endswith(" ...")]


@pytest.fixture(scope="module")
def text() -> str:
    """What is written where nothing is wrong."""
    return subprocess.run([sys.executable, *GENERATE], capture_output=True, text=True, check=True).stdout


def test_what_compiles_nothing(installed: Path, text: str) -> None:
    """It works, and there is nothing to say."""
    where = run(installed, ["-c", "import minispec; print(minispec.__file__)"])
    assert (where.stdout, told(where)) == (f"{installed}/minispec/__init__.py\n", [])
    shown = run(installed, ["-m", "minispec", "--help"])
    assert (shown.stdout[:15], told(shown)) == ("Usage: minispec", [])
    done = run(installed, [*GENERATE, "--backend", "numpy"])
    assert (done.stdout, told(done)) == (text, [])


@pytest.mark.parametrize("folder", [pytest.param(None, marks=SLOW), "/dev/null/x"])
@pytest.mark.parametrize("command", [SIMULATE, pytest.param(GENERATE, marks=SLOW)], ids=["some", "all"])
def test_what_compiles(command: list[str], folder: str | None, installed: Path, text: str) -> None:
    """It works, and one line says what it costs."""
    pytest.importorskip("numba")
    done = run(installed, command, **({} if folder is None else {"NUMBA_CACHE_DIR": folder}))
    assert told(done) == [NO_PLACE]
    assert done.stdout == text or command == SIMULATE


@pytest.mark.parametrize("command", [SIMULATE, pytest.param(GENERATE, marks=SLOW)], ids=["some", "all"])
def test_a_full_disk_for_compiled_code(command: list[str], tmp_path: Path, text: str) -> None:
    """Files may have a kilobyte: nothing is kept, and that is said once. -B: nor is bytecode, which would stay so."""
    pytest.importorskip("numba")
    before = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    script = f"{before}; sys.argv[1:] = {command[2:]}; from minispec.__main__ import main; main()"
    around = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-B", "-c", script], env=around, capture_output=True, text=True, check=False)
    (line,) = told(done)
    assert line.startswith(f"minispec: warning: compiled code cannot be kept in {tmp_path}/")
    assert line.endswith(" (File too large), every start compiles anew: set NUMBA_CACHE_DIR to a folder")
    assert done.stdout == text or command == SIMULATE
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
