"""Compiled code on disk: what is damaged there counts as missing, and is made anew.

Numba keeps an index and numbered files, and believes what it finds. That fails in three ways: a file that was cut off,
as by a full disk, ends every later start; two processes that begin with an empty folder may take the same number for
different code; and where a disk is full, nothing is compiled at all. Here a file is called after what it is for, there
is no index, nothing is looked into whose checksum is wrong, and what cannot be kept is not.
"""

from __future__ import annotations

import pickle
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba.core.serialize import dumps

from minispec.whole_file import write_whole

N_CHECK = 32  # bytes of a checksum


class KeptCode:
    """The files of one function, one for each kind of arguments; takes the place of Numba's IndexDataCacheFile."""

    told = False  # that code cannot be kept: once a process, and Numba has Python forget what was shown already

    def __init__(self, beginning: str, made_of: object) -> None:
        """beginning: of the paths of its files; made_of: what the code depends on, but for its arguments' kinds."""
        self.beginning = beginning
        self.made_of = repr(made_of).encode()

    def load(self, key: object) -> Any:
        """The code for a kind of arguments, or None."""
        try:
            kept = self._file(key).read_bytes()
        except OSError:
            return None
        check, code = kept[:N_CHECK], kept[N_CHECK:]
        return pickle.loads(code) if check == self._check(code) else None

    def save(self, key: object, data: Any) -> None:
        """Keep code, if that is possible."""
        code = dumps(data)
        try:
            write_whole(self._file(key), self._check(code) + code)
        except OSError as error:
            # Where it is there, another process was quicker, and Windows leaves it its file.
            if not KeptCode.told and self.load(key) is None:
                KeptCode.told = True
                message = f"{self._file(key).parent} ({error.strerror}), every start compiles anew: set NUMBA_CACHE_DIR"
                warnings.warn(f"compiled code cannot be kept in {message} to a folder", RuntimeWarning, stacklevel=1)

    def flush(self) -> None:
        """Numba's word for beginning anew: files are overwritten as they come."""

    def _file(self, key: object) -> Path:
        return Path(f"{self.beginning}.{sha256(repr(key).encode()).hexdigest()[:16]}.nbc")

    def _check(self, code: bytes) -> bytes:
        return sha256(self.made_of + code).digest()
