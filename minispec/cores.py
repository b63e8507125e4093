"""How many cores there are to use: asked for before NumPy is imported, so this file imports nothing heavy."""

from __future__ import annotations

import os


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
