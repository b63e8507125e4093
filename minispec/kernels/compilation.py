"""How the kernels are compiled: with what promises to LLVM, for which processor, and when the code on disk is stale.

Three decorators: `jit` for what only calls and copies, `tile` for the product's inner loops, `vector` for loops
over a row, where division vectorises only if it may give infinity. `fastmath` is `contract` alone: fused
multiply-add, nothing reordered, NaN and infinity kept. NUMBA_DISABLE_JIT=1 runs all of it as plain Python.
"""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from llvmlite.binding import get_host_cpu_features
from numba import config, njit
from numba.core.compiler import Compiler, Flags
from numpy.typing import NDArray

from minispec.kernels.kept import KeptCode

# A thread that waits for the others polls so often before it sleeps: by default for milliseconds, in which it
# keeps the core from the very thread it waits for if other programs are running (200 ms a pass, and not 4).
SPIN_IS_OURS = not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
if SPIN_IS_OURS:
    os.environ["GOMP_SPINCOUNT"] = "1000"

Array = NDArray[Any]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Int8s = NDArray[np.int8]
JIT = not config.DISABLE_JIT  # type: ignore[attr-defined]
Function = TypeVar("Function", bound=Callable[..., Any])

# Compiled code holds the code of all it calls, from whichever file, and the places of fields in tuples; Numba looks
# only at the file of the function itself. So code on disk is current if all of these files are what they were.
ELSEWHERE = ("parameters.py", "trials.py")
FILES = [*sorted(Path(__file__).parent.glob("*.py")), *(Path(__file__).parents[1] / name for name in ELSEWHERE)]
SOURCES = hashlib.sha256(b"".join(file.read_bytes() for file in FILES)).hexdigest()


class NoAlias(Compiler):
    """A pipeline that promises LLVM that what is written overlaps no other argument; what is read may repeat.

    Only then does it keep a tile's sums in registers: without it 5 rows cost twice as much as one.
    The flag is internal to Numba; where it is missing, the plain pipeline gives the same bits.
    """

    def define_pipelines(self) -> Any:
        if hasattr(Flags, "noalias"):
            self.state.flags.noalias = True
        return super().define_pipelines()


def jit(*, kept_by_caller: bool = False, **options: Any) -> Callable[[Function], Function]:
    """`njit` with a cache on disk; where none can be kept, without.

    A parallel function that a compiled one calls is kept in its caller's code alone: code that is compiled on top of
    a parallel function from disk, and is then kept itself, crashes when it is loaded. So one start that was
    interrupted between the two would have ended all later ones.
    """

    def compile_later(function: Function) -> Function:
        if not JIT:
            return function
        if kept_by_caller:
            compiled: Function = njit(**options)(function)
            return compiled
        try:
            kept = njit(cache=True, **options)(function)
            cache = kept._cache  # internal to Numba, as there is no other way to say it
            files = cache._cache_file
            made_of = SOURCES, files._source_stamp, files._version
            cache._cache_file = KeptCode(files._index_path.removesuffix(".nbi"), made_of)
            return kept
        except (RuntimeError, AttributeError):
            message = (
                "compiled code cannot be kept, every start compiles anew: set NUMBA_CACHE_DIR to a folder "
                "(if it is set, this version of Numba is not known yet)"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=1)  # one place, so it is shown once
            return njit(**options)(function)

    return compile_later


tile = jit(fastmath={"contract"}, pipeline_class=NoAlias)
vector = jit(fastmath={"contract"}, pipeline_class=NoAlias, error_model="numpy")


def compiled_for(feature: str) -> bool:
    """Whether code is compiled for this feature of x86: the host's, unless NUMBA_CPU_FEATURES chooses others."""
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    if chosen is not None:
        return f"+{feature}" in chosen.split(",")
    return bool(get_host_cpu_features().get(feature, False))


def fused() -> bool:
    """Whether products are sums of fused multiply-adds: only then are their bits those of every other such machine."""
    on_x86 = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686", "x86")
    return JIT and (not on_x86 or compiled_for("fma"))
