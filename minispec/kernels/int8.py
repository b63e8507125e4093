"""Weights of 8 bits: integers from -127 to 127 and a scale an output, so a pass reads a quarter of the bytes.

The idea: a drafter may be rough, as its mistakes cost a guess and never the text; and what it does, one row at a
time, is all reading. Rows stay float32, so each output is the same chain of multiply-adds as ever, with
float32(integer) for the weight, and then its scale: as independent of company as in `product`.

How: panels as in `product`, an even number of them, worked through in pairs: widening takes registers too, and a
tile of one row needs two panels to have enough sums. With AVX-512 there is room for a tile of three rows.

What it costs: n_in n_out bytes, n_new n_in n_out multiply-adds, and a conversion of each weight for every three rows
(for every row without AVX-512). One row takes 0.3 to 0.45 of its time in float32; five take 2 to 3 times one, where
in float32 they take 1.05 to 1.2: 8 bits are for drafting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from minispec.kernels.compilation import Floats, Int8s, jit, tile
from minispec.kernels.product import PIECE, ROWS, WIDE, linear_panel


@tile
def tile_1_int8(a: Floats, left: Int8s, right: Int8s, sums: Floats) -> None:
    """sums [2 * WIDE] += one row [n_in] times two panels [n_in, WIDE] side by side."""
    for k in range(left.shape[0]):
        for n in range(WIDE):
            sums[n] += a[k] * np.float32(left[k, n])
            sums[WIDE + n] += a[k] * np.float32(right[k, n])


@tile
def tile_3_int8(a: Floats, b: Floats, c: Floats, left: Int8s, right: Int8s, sums: Floats) -> None:
    """sums [3 * 2 * WIDE] += three rows [n_in] times two panels [n_in, WIDE] side by side."""
    for k in range(left.shape[0]):
        for n in range(WIDE):
            weight, other = np.float32(left[k, n]), np.float32(right[k, n])
            sums[n] += a[k] * weight
            sums[WIDE + n] += a[k] * other
            sums[2 * WIDE + n] += b[k] * weight
            sums[3 * WIDE + n] += b[k] * other
            sums[4 * WIDE + n] += c[k] * weight
            sums[5 * WIDE + n] += c[k] * other


@jit()
def rows_times_pair(x: Floats, row: int, start: int, stop: int, pair: Int8s, sums: Floats) -> int:
    """As `rows_times_panel`, with two panels side by side: sums[r * 2 * WIDE + n]; returns how many rows."""
    sums[:] = 0
    last = x.shape[0] - 1
    left, right = pair[0, start:stop], pair[1, start:stop]
    if ROWS == 3 or row == last:
        tile_1_int8(x[row, start:stop], left, right, sums)
        return 1
    a, b, c = x[row, start:stop], x[row + 1, start:stop], x[min(row + 2, last), start:stop]
    tile_3_int8(a, b, c, left, right, sums)
    return min(last + 1 - row, 3)


@jit()
def linear_pair(x: Floats, pair: Int8s, scale: Floats, bias: Floats, y: Floats, column: int) -> None:
    """y[:, column : column + 2 * WIDE] = (x @ pair) * scale + bias for a pair of panels [2, n_in, WIDE]."""
    width = min(2 * WIDE, bias.shape[0] - column)
    sums = np.empty(6 * WIDE, np.float32)
    for row in range(x.shape[0]):
        for n in range(width):
            y[row, column + n] = bias[column + n]
    for start in range(0, pair.shape[1], PIECE):
        stop = min(start + PIECE, pair.shape[1])
        row = 0
        while row < x.shape[0]:
            done = rows_times_pair(x, row, start, stop, pair, sums)
            for r in range(done):
                for n in range(width):
                    y[row + r, column + n] += sums[r * 2 * WIDE + n] * scale[column + n]
            row += done


@jit()
def n_sides(itemsize: int) -> int:
    """How many panels of a weight one piece of work is: a pair for 8 bits, else one."""
    return 2 if itemsize == 1 else 1


def linear_piece(x: Floats, weight: NDArray[Any], i: int, scale: Floats, bias: Floats, y: Floats) -> None:
    """The columns of y = (x @ weight) * scale + bias that belong to a panel, or a pair, for either kind of weight."""
    if weight.dtype == np.int8:
        linear_pair(x, weight[2 * i : 2 * i + 2], scale, bias, y, 2 * i * WIDE)
    else:
        linear_panel(x, weight[i], scale, bias, y, i * WIDE)


@overload(linear_piece)
def linear_piece_compiled(x: Any, weight: Any, i: Any, scale: Any, bias: Any, y: Any) -> Any:
    """The same choice, made by Numba from the weight's type while it compiles a caller."""

    def of_int8(x: Any, weight: Any, i: Any, scale: Any, bias: Any, y: Any) -> Any:
        linear_pair(x, weight[2 * i : 2 * i + 2], scale, bias, y, 2 * i * WIDE)

    def of_float32(x: Any, weight: Any, i: Any, scale: Any, bias: Any, y: Any) -> Any:
        linear_panel(x, weight[i], scale, bias, y, i * WIDE)

    return of_int8 if weight.dtype == types.int8 else of_float32


@jit()
def linear_pieces(x: Floats, weight: NDArray[Any], scale: Floats, bias: Floats, y: Floats) -> None:
    """y = (x @ weight) * scale + bias, alone."""
    for i in range(len(weight) // n_sides(weight.itemsize)):
        linear_piece(x, weight, i, scale, bias, y)
