"""A program with a signal at one moment, as Ctrl-C: `python pressed.py SIGNAL TIMES PLACE N_CALLS PROGRAM ...`.

PLACE is FILE:NAME, a Python function or the body of a module; at its call number N_CALLS the time is said, and the
signal is sent, TIMES times in all: at once, and then by another thread while the program ends. With 0 the parent sends
it. PROGRAM is a script, or `minispec`, and what follows are its arguments.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

APART = 0.01  # seconds


def press(number: int, times: int) -> None:
    """The signal, and again from beside."""

    def again() -> None:
        for _ in range(times - 1):
            time.sleep(APART)
            os.kill(os.getpid(), number)

    if times:
        os.kill(os.getpid(), number)
        threading.Thread(target=again, daemon=True).start()


def press_at(place: str, n_calls: int, number: int, times: int) -> None:
    """Press when this function is called in the main thread for the n-th time."""
    file, _, name = place.partition(":")
    left = n_calls

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        code = frame.f_code
        if event == "call" and code.co_qualname == name and code.co_filename.replace("\\", "/").endswith(file):
            left -= 1
            if not left:
                sys.setprofile(None)
                print("pressed", time.monotonic(), file=sys.stderr, flush=True)
                press(number, times)

    sys.setprofile(watch)


def main(program: str) -> None:
    """The program as it starts by itself."""
    if program == "minispec":
        from minispec.__main__ import main

        main()
    else:
        sys.path[0] = os.path.dirname(program)
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    name, times, place, n_calls, program = sys.argv[1:6]
    sys.argv[:] = sys.argv[5:]
    press_at(place, int(n_calls), signal.Signals[name], int(times))
    main(program)
