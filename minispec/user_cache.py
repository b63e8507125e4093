"""Where the program keeps what it can make again: one folder of the user's, as each system has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder for things of one kind. It need not be there yet."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without an entry and without HOME, as in containers: a place that takes no file
        home = Path(os.devnull)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "minispec" / name
