"""Files of a model's folder: where they may lie, and how much memory a text may take.

A folder may come from anywhere. So nothing in it leads out of it, neither a name nor a link; nothing but a regular file
is opened, as a pipe would be waited for; and a text is judged before it is parsed, since of the right kind (a list of
empty lists) it takes twenty times its size.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

MOST_MEMORY = 100_000_000  # bytes that a text may take beyond its own size
PER_MARK = 125  # bytes: the most that what stands before a mark takes, one mark with another


def check_inside(path: Path) -> None:
    """Raise ValueError for a file that is a link out of its folder.

    The Hugging Face cache keeps its files as links from models--*/snapshots/* into the blobs of the same
    repository, or into those that all repositories share: these are let through.
    """
    home, target = path.parent.resolve(), path.resolve()
    allowed = [home]
    if home.parent.name == "snapshots" and home.parent.parent.name.startswith("models--"):
        repository = home.parent.parent
        allowed += [repository / "blobs", repository.parent / "blobs"]
    if not any(target.is_relative_to(place) for place in allowed):
        raise ValueError(f"{path} is a link out of its folder: put the file itself there")


def is_there(path: Path) -> bool:
    """Whether a folder has an entry of this name, be it a link to nothing: it is refused when it is read."""
    return os.path.lexists(path)


def read_text(path: Path, most_bytes: int, marks: str, encoding: str = "utf-8") -> str:
    """A text of a model's folder. marks: the characters that its parts end with, of which each will take memory.

    Raises ValueError for a file that is none, lies elsewhere, is too large or not in this encoding; OSError.
    """
    if not os.path.isfile(path):  # unlike Path.is_file, it takes names that no file can have
        raise ValueError("no such file")
    check_inside(path)
    size = path.stat().st_size
    if size > most_bytes:
        raise ValueError(f"{size} bytes are more than the {most_bytes} that it may have")
    text = path.read_bytes().decode(encoding)
    n_marks = sum(map(text.count, marks))
    memory = 2 * sys.getsizeof(text) + PER_MARK * n_marks
    if memory > MOST_MEMORY + size:
        raise ValueError(f"its {n_marks} parts could take {memory >> 20} MB of memory, more than such a file may")
    return text
