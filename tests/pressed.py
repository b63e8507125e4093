"""The program, with Ctrl-C pressed at one moment: `python pressed.py N PLACE N_CALLS ...`.

PLACE is FILE:NAME, a Python function or the body of a module; at its call number N_CALLS the signal is sent, N times in
all: at once, and then by another thread while the program ends. What follows are the program's arguments.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

APART = 0.01  # seconds


def press(times: int) -> None:
    """Ctrl-C, and again from beside."""

    def again() -> None:
        for _ in range(times - 1):
            time.sleep(APART)
            os.kill(os.getpid(), signal.SIGINT)

    os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=again, daemon=True).start()


def press_at(place: str, n_calls: int, times: int) -> None:
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
                print("pressed", file=sys.stderr, flush=True)
                press(times)

    sys.setprofile(watch)


if __name__ == "__main__":
    from minispec.__main__ import main

    times, place, n_calls = sys.argv[1:4]
    sys.argv[1:] = sys.argv[4:]
    press_at(place, int(n_calls), int(times))
    main()
