"""The two sets of operations, compiled and plain, and who may run a pass of them when."""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from minispec.cores import tell_numba

BACKENDS = ("numba", "numpy")
MODULES = dict(zip(BACKENDS, ("minispec.kernels", "minispec.reference"), strict=True))


def operations(backend: str) -> ModuleType:
    """The module with the operations of a backend. Raises ValueError for an unknown one."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}: choose one of {', '.join(BACKENDS)}")
    if backend == "numba" and find_spec("numba") is None:
        warnings.warn(
            "Numba is not installed: going on with the plain NumPy, which is slow", RuntimeWarning, stacklevel=1
        )
        backend = "numpy"
    if backend == "numba":
        tell_numba()
    return import_module(MODULES[backend])


class OnePass:
    """One compiled pass at a time, in one process: Numba's threads abort a second one, and do not survive a fork.

    A pass that is told to use one thread needs none of this: it stays out of Numba's parallel regions.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: int | None = None

    def __enter__(self) -> None:
        if self.process not in (None, os.getpid()):
            raise ValueError(
                "this process was forked after a pass, which compiled threads do not survive: start it by spawn or "
                "forkserver, or take backend='numpy'"
            )
        self.lock.acquire()
        self.process = os.getpid()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


_passes: dict[str, OnePass | nullcontext[None]] = {MODULES["numba"]: OnePass(), MODULES["numpy"]: nullcontext()}


def one_pass(ops: ModuleType) -> OnePass | nullcontext[None]:
    """What a pass of these operations is done in."""
    return _passes[ops.__name__]
