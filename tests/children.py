"""Processes that tests start, and that get a signal at a chosen moment."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hostile import THOROUGH

PRESSED = Path(__file__).parent / "pressed.py"
SECONDS = 1.0  # from a signal to the end, on an idle machine, for the thorough profile to look at


def hear() -> None:
    """For `preexec_fn`: a process that a shell has put into the background does not hear SIGINT unless told to."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def check_time(took: float) -> None:
    """Raise AssertionError where the end took long."""
    assert took < SECONDS or not THOROUGH, f"{took:.2f} s from the signal to the end"


def ended_by(
    name: str,
    place: str,
    n_calls: int,
    command: list[str],
    times: int = 1,
    folder: Path | None = None,
    **more: str,
) -> tuple[int, str, list[str]]:
    """Status, output and what is said from then on, of a program that gets this signal at that place: see `pressed`.

    It must come there, and be gone soon.
    """
    call = [sys.executable, str(PRESSED), name, str(times), place, str(n_calls), *command]
    around = {**os.environ, **more}
    with subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear, cwd=folder, env=around
    ) as process:
        try:
            out, err = process.communicate(timeout=100)
            now = time.monotonic()
        finally:
            process.kill()
    lines = [line for line in err.splitlines() if not line.endswith(" ...")]  # on a busy machine
    pressed = [number for number, line in enumerate(lines) if line.startswith("pressed ")]
    assert pressed, err
    check_time(now - float(lines[pressed[0]].split()[1]))
    return process.returncode, out, lines[pressed[0] + 1 :]


def bound_by_modes() -> None:
    """For `preexec_fn`: a process of root that may write where modes let it, and nowhere else (Linux)."""
    if os.geteuid() == 0:
        drop_from_bounding_set, write_anywhere = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
        if ctypes.CDLL(None).prctl(drop_from_bounding_set, write_anywhere, 0, 0, 0):
            raise OSError("root cannot give up its right to write anywhere")
