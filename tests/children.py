"""Processes that tests start."""

from __future__ import annotations

import signal


def hear() -> None:
    """For `preexec_fn`: a process that a shell has put into the background does not hear SIGINT unless told to."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
