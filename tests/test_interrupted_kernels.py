"""Ctrl-C from outside while the compiler or a kernel is at work, which no Python sees, and what is kept then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from children import PRESSED, check_time, ended_by, hear
from hostile import THOROUGH

from minispec.made_up import shape_of, write_random

pytest.importorskip("numba")
if os.name == "nt":
    pytest.skip("signals of POSIX", allow_module_level=True)

LINE = "minispec: interrupted\n"
SIMULATE = ["simulate", "--trials", "100000", "--seed", "1"]  # compiles for seconds
GENERATE = ["generate", "Once upon a time", "-n", "8", "-k", "4"]  # for a quarter of a minute
SLOW = pytest.mark.skipif(not THOROUGH, reason="compiles, for minutes")


def program(arguments: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    """A whole run with this folder for compiled code."""
    command, around = [sys.executable, "-m", "minispec", *arguments], {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run(command, env=around, capture_output=True, text=True, check=False)


def pressed_after(command: list[str], begins: Callable[[str], bool], seconds: float, **more: str) -> tuple[str, str]:
    """What it writes, and says from then on, when SIGINT comes some seconds after the line that says that it begins."""
    around = {**os.environ, **more}
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear,
        env=around,
    ) as process:
        try:
            assert process.stderr is not None
            assert any(begins(line) for line in process.stderr)
            time.sleep(seconds)
            assert process.poll() is None
            pressed = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=100)
            took = time.monotonic() - pressed
        finally:
            process.kill()
    assert process.returncode == 130, err
    check_time(took)
    return out, err


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [(SIMULATE, 0.0), *(pytest.param(GENERATE, seconds, marks=SLOW) for seconds in (0.0, 0.5, 2.0, 5.0))],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_ctrl_c_while_kernels_are_compiled(arguments: list[str], seconds: float, tmp_path: Path) -> None:
    command = ["-m", "minispec", *arguments]
    out, err = pressed_after(
        command, lambda line: line.startswith("preparing the kernels"), seconds, NUMBA_CACHE_DIR=str(tmp_path)
    )
    assert (out, err) == ("", LINE)
    assert not list(tmp_path.rglob("*.tmp"))
    for _ in range(2):  # compiles, and loads
        done = program([*arguments, "-q"], tmp_path)
        assert (done.returncode, bool(done.stdout), done.stderr) == (0, True, "")


@SLOW
def test_ctrl_c_in_the_middle_of_a_long_prefill(tmp_path: Path) -> None:
    """Of seconds in compiled code, by one call."""
    write_random(tmp_path, shape_of("gpt2"))
    arguments = ["generate", "-m", str(tmp_path), "-d", "none", "-n", "4", "a" * 1900]  # 950 tokens
    command = [str(PRESSED), "SIGINT", "0", "minispec/model.py:GPT2._pass", "1", "minispec", *arguments]
    assert pressed_after(command, lambda line: line.startswith("pressed"), 0.4) == ("", LINE)


@SLOW
def test_an_interrupted_first_start_leaves_the_next_ones_well(tmp_path: Path) -> None:
    """Kernels are kept one by one: whatever is there already when it stops, the next start goes on from it."""
    for n_calls in (3, 12, 13):
        place = "minispec/kernels/kept.py:KeptCode.save"
        status, _, said = ended_by("SIGINT", place, n_calls, ["minispec", *GENERATE], NUMBA_CACHE_DIR=str(tmp_path))
        assert (status, said) == (130, [LINE.strip()])
    for _ in range(2):
        assert program(GENERATE, tmp_path).returncode == 0
