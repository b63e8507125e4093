"""Standard streams as they come: closed, on a full disk, read by nobody, or of another encoding than UTF-8.

Text that cannot be written to standard output is an error, as the text is what was asked for. What cannot be written to
standard error is lost, and the run goes on.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

NOWHERE = {0: os.O_RDONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}  # so that writing to a closed standard output fails


def hold_places() -> None:
    """Open what is closed of 0, 1 and 2, or the next file that is opened gets that number, and what is printed."""
    for number, how in NOWHERE.items():
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, how)  # the lowest number that is free


def prepare() -> None:
    """Make standard output and standard error of this process write UTF-8, and be there."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            hold_places()
            stream = open(number, "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        if hasattr(stream, "reconfigure"):  # Windows writes cp1252 into a pipe
            stream.reconfigure(encoding="utf-8", errors="replace")


class Output(io.TextIOWrapper):
    """Standard output: what cannot be written is an error that says so."""

    def write(self, text: str, /) -> int:
        """All of it. Raises OSError, in one line."""
        with self._told():
            return super().write(text)

    def flush(self) -> None:
        """What is left. Raises OSError, in one line."""
        with self._told():
            super().flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # the reader has seen enough
            raise
        except OSError as error:
            reason = f"standard output cannot be written ({error.strerror})"
            raise OSError(f"{reason}: send it to another place, as with > FILE") from None


class Notes(io.TextIOWrapper):
    """Standard error: what cannot be written is lost."""

    def write(self, text: str, /) -> int:
        """All of it, or nothing."""
        try:
            return super().write(text)
        except OSError:
            lead_nowhere(self)
            return len(text)

    def flush(self) -> None:
        """What is left, or nothing."""
        try:
            super().flush()
        except OSError:
            lead_nowhere(self)


def watch() -> None:
    """Have the two watch themselves, for the rest of this process."""
    prepare()
    for name, kind in (("stdout", Output), ("stderr", Notes)):
        stream = getattr(sys, name)
        how = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        setattr(sys, name, kind(stream.detach(), encoding="utf-8", errors="replace", **how))


def lead_nowhere(stream: IO[str]) -> None:
    """Let what cannot be written go to nowhere, so that the interpreter does not complain at its end."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def drop_output() -> None:
    """Let go of what standard output does not take."""
    try:
        sys.stdout.flush()
    except OSError:
        lead_nowhere(sys.stdout)
