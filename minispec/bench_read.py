"""Reading an array with all threads, and nothing else: the floor under every pass, as a Numba kernel.

The twin in plain NumPy is `chunks.sum()`. A sum in any order will do here, so `fastmath` is whole, unlike in
`kernels`: the vectors must add up faster than memory delivers.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numpy.typing import NDArray

from minispec.kernels.compilation import jit

Floats = NDArray[np.float32]


@jit(fastmath=True)
def total(x: Floats) -> np.float32:
    """The sum of x. It is a slice of its own: with `chunks[i, j]` in the loop, the loop does not vectorise."""
    s = np.float32(0)
    for i in range(len(x)):
        s += x[i]
    return s


@jit(parallel=True)
def read_all(chunks: Floats, sums: Floats) -> None:
    """sums [n_chunk] = chunks [n_chunk, n].sum(axis=1): every thread reads its own part from its start to its end."""
    for i in prange(chunks.shape[0]):
        sums[i] = total(chunks[i])
