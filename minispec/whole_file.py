"""Files that are there whole or not at all, whenever the process is ended and whenever the disk is full."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

from minispec.user_path import CONTROL


def check_place(path: Path, what: str, name: str) -> None:
    """Raise ValueError where no file could be written, before anything is worked out for it.

    what: the file as the message calls it; name: what to call one in the folder that path is, should it be one.
    """
    if CONTROL.search(str(path)):
        raise ValueError(f"{what} {str(path)!r:.100} has control characters in its name: give another")
    try:
        path.stat()
    except FileNotFoundError:
        pass  # it is to be made
    except NotADirectoryError:
        raise ValueError(f"{what} {path} cannot be written: {folder_of(path)} is no folder: name another") from None
    except (OSError, ValueError) as error:  # a name that is too long, or none
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{what} {str(path)!r:.100} cannot be written ({reason}): give another name") from None
    if path.is_dir():
        raise ValueError(f"{what} {path} is a folder: name a file in it, as in {path / name}")
    folder = folder_of(path)
    if not folder.is_dir():
        raise ValueError(f"{what} {path} cannot be written: there is no folder {folder}: make it first")
    if not os.access(folder if not path.exists() or path.is_file() else path, os.W_OK):
        raise ValueError(f"{what} {path} cannot be written: {folder} takes no files: name another place")


def folder_of(path: Path) -> Path:
    """Where a file is made: a link's file is what is written."""
    return (path.resolve() if path.is_symlink() else path).parent


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
