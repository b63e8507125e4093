"""Ctrl-C ends a program within a second, in one line and with status 130, whatever it is doing.

Python hears Ctrl-C when its main thread gets to its next instruction, and makes an exception of it, which is how a
run keeps its text and takes its unfinished files away. That has three holes, which are closed here. A long call into
other code, as to the compiler, is not left before it is over; an exception in a finaliser is printed and lost; and at
the end of a process all other threads are waited for. So there is one more thread, which the signal itself wakes: it
gives the run GRACE seconds to end, and then ends the process. A second Ctrl-C is not heard.

What comes before `run` is Python's own start, which this cannot reach: some 20 ms.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

GRACE = 0.7  # seconds
STATUS = 130  # what a shell reports for a program that SIGINT ended
LINE = "minispec: interrupted"

_heard = False
_said = False


def run(work: Callable[[], None], line: str = LINE) -> None:
    """Do the work of a whole process, which Ctrl-C interrupts; the line is for standard error.

    Nothing is changed where Ctrl-C is ignored already, as in what a script starts in the background.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        work()
        return
    signal.signal(signal.SIGINT, _raise_once)
    _thread.start_new_thread(_end_in_time, (_woken_by_signals(), line))
    sys.unraisablehook = _but_interrupts
    try:
        work()
    finally:
        if _heard:  # at once: Python would wait for threads, and may forget the status where it ran a text as code
            with suppress(Exception):
                atexit._run_exitfuncs()
            _end(line)
        signal.signal(signal.SIGINT, lambda *_: _end(line))  # there is nothing left to keep


def run_main(module: str, line: str) -> NoReturn:
    """Import a module and run its `main` as `run` does, for a script that is this module.

    It calls this first of all: then Ctrl-C is heard while all is imported that the script needs.
    """
    run(lambda: import_module(module).main(), line)
    sys.exit()


def say(line: str = LINE) -> None:
    """Say that it was interrupted, where anybody can be told."""
    global _said
    _said = True
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def heard() -> bool:
    """Whether Ctrl-C was pressed: what fails after it may fail for that."""
    return _heard


def _raise_once(*_: object) -> NoReturn:
    global _heard
    _heard = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _woken_by_signals() -> Callable[[], bytes]:
    """A function that waits for signals, and returns their numbers."""
    if sys.platform == "win32":  # which wants a socket for it
        from socket import socketpair

        ours, theirs = socketpair()
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.detach())
        return lambda: ours.recv(1)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    return lambda: os.read(read, 1)


def _end_in_time(next_signal: Callable[[], bytes], line: str) -> None:
    while next_signal() != bytes([signal.SIGINT]):
        pass
    time.sleep(GRACE)
    _end(line)


def _end(line: str) -> NoReturn:
    if not _said:
        with suppress(OSError):
            os.write(2, f"{line}\n".encode())  # whatever the stream is in the middle of
    os._exit(STATUS)


def _but_interrupts(unraisable: Any) -> None:
    """Print what cannot be raised, as Python does; but an interrupt is told elsewhere."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
