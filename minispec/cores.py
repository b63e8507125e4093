"""How many cores there are to use: asked for before NumPy is imported, so this file imports nothing heavy."""

from __future__ import annotations

import os
import sys
from functools import cache
from math import ceil
from pathlib import Path

PLENTY = 1 << 20  # where nobody limits them
# How Linux says how long the processes of a group may run, and of which time: both kinds of groups, where they are.
GROUPS = Path("/proc/self/cgroup")
TREES = Path("/sys/fs/cgroup")


def count_cores() -> int:
    """The cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, cores_paid_for())


def tell_numba() -> None:
    """Have Numba make no more threads than that; it looks at the cores alone, when it is imported."""
    if cores_paid_for() < PLENTY and "numba" not in sys.modules:
        os.environ.setdefault("NUMBA_NUM_THREADS", str(count_cores()))


@cache
def cores_paid_for() -> int:
    """As many cores as the time is worth that this process may use, as in a container: more threads would wait."""
    try:
        lines = GROUPS.read_text().splitlines()
    except OSError:
        return PLENTY
    shares = [share for line in lines if line.count(":") >= 2 for share in shares_of(*line.split(":", 2)[1:])]
    return min((max(1, ceil(share)) for share in shares), default=PLENTY)


def shares_of(kind: str, group: str) -> list[float]:
    """Cores that a group of this kind has, and each of those around it, as far as they are limited."""
    parts, shares = [part for part in group.split("/") if part not in ("", "..")], []
    for depth in range(len(parts) + 1):
        folder = TREES.joinpath(*["cpu"][: len(kind)], *parts[:depth])
        try:
            if not kind:  # all kinds at once: version 2
                most, period = (folder / "cpu.max").read_text().split()
            elif "cpu" in kind.split(","):
                most, period = ((folder / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
            else:
                continue
            if int(most) > 0:
                shares.append(int(most) / int(period))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return shares
