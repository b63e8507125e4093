"""Paths as people write them: ~ is the home folder, ~name another user's."""

from __future__ import annotations

import re
from pathlib import Path

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a terminal that is shown such a name obeys it


def user_path(text: str) -> Path:
    """The path with ~ replaced. Raises ValueError where nobody's home folder is known by that name."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text}: no home folder is known for {Path(text).parts[0]}: write the path out") from None
