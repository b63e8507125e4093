"""Files that are there whole or not at all, whenever the process is ended and whenever the disk is full."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name, and give it its own when it is whole; a link's file, where it is one.

    Raises OSError where it cannot be written: then there is what was there before, and nothing else.
    """
    if path.exists() and not path.is_file():  # a pipe, a device
        path.write_bytes(data)
        return
    path = path.resolve()
    unfinished = path.with_name(f"minispec-{uuid4().hex[:16]}.tmp")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
