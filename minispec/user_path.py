"""Paths as people write them: ~ is the home folder, ~name another user's."""

from __future__ import annotations

from pathlib import Path


def user_path(text: str) -> Path:
    """The path with ~ replaced. Raises ValueError where nobody's home folder is known by that name."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text}: no home folder is known for {Path(text).parts[0]}: write the path out") from None
