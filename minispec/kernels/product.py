"""The product, rows [n_new, n_in] by a weight [n_in, n_out], where nearly all of a pass goes.

The idea: a pass costs what it reads, so read every weight once and use it for all rows while it is in a register.

How: the weight lies in panels of 32 columns, each [n_in, 32] without a gap. A tile takes up to 6 rows (3 without
AVX-512) and one panel, walks down k, and keeps its 6 x 32 sums in registers: for each k it loads 32 weights, once,
and does 6 x 32 multiply-adds with them.

What it costs: a product reads 4 n_in n_out bytes, once, and does n_new n_in n_out multiply-adds. Where memory
delivers 8 to 14 billion weights a second, two cores with AVX-512 do 8 to 14 multiply-adds in the time of one weight, so
for the 5 or so rows of a check the reading is what takes the time. NumPy's own product reads as little for one row, but
its 5 rows cost 2.5 to 3 times one: it is made for hundreds of rows, and first copies the weight into another order.

Bits do not depend on company: each output is one chain of multiply-adds in the order of k (in pieces of 1024, whose
sums are scaled and added in order), and no vector lane holds part of a sum. So the number of rows, the tile's height,
the vector width and the threads cannot change a bit.

`tile` and `jit` say how a function is compiled: see `compilation`.

Axes: n_new rows, n_panel = ceil(n_out / WIDE) panels. Every output has a scale, 1 for float32: with weights of
8 bits (see `int8`) it is what their integers are multiplied with.
"""

from __future__ import annotations

import numpy as np

from minispec.kernels.compilation import Floats, compiled_for, jit, tile

WIDE = 32  # columns of a panel: 4 vectors of AVX2, 8 of NEON, 2 of AVX-512
# A sum is cut into pieces this long: its rounding stays near a BLAS's, and a panel's piece (128 kB) stays in the cache
# for the rows that a tile does not reach.
PIECE = 1024
ROWS = 6 if compiled_for("avx512vl") else 3  # rows whose sums fit the registers; a wrong number costs speed, never bits


@tile
def tile_2(a: Floats, b: Floats, panel: Floats, sums: Floats) -> None:
    """sums [2 * WIDE] += two rows [n_in] times a panel [n_in, WIDE]. (LLVM does not vectorise a tile of one row.)"""
    for k in range(panel.shape[0]):
        for n in range(WIDE):
            sums[n] += a[k] * panel[k, n]
            sums[WIDE + n] += b[k] * panel[k, n]


@tile
def tile_3(a: Floats, b: Floats, c: Floats, panel: Floats, sums: Floats) -> None:
    """sums [3 * WIDE] += three rows [n_in] times a panel [n_in, WIDE]."""
    for k in range(panel.shape[0]):
        for n in range(WIDE):
            sums[n] += a[k] * panel[k, n]
            sums[WIDE + n] += b[k] * panel[k, n]
            sums[2 * WIDE + n] += c[k] * panel[k, n]


@tile
def tile_6(a: Floats, b: Floats, c: Floats, d: Floats, e: Floats, f: Floats, panel: Floats, sums: Floats) -> None:
    """sums [6 * WIDE] += six rows [n_in] times a panel [n_in, WIDE]."""
    for k in range(panel.shape[0]):
        for n in range(WIDE):
            sums[n] += a[k] * panel[k, n]
            sums[WIDE + n] += b[k] * panel[k, n]
            sums[2 * WIDE + n] += c[k] * panel[k, n]
            sums[3 * WIDE + n] += d[k] * panel[k, n]
            sums[4 * WIDE + n] += e[k] * panel[k, n]
            sums[5 * WIDE + n] += f[k] * panel[k, n]


@jit()
def rows_times_panel(x: Floats, row: int, start: int, stop: int, panel: Floats, sums: Floats) -> int:
    """sums[r * WIDE + n] = x[row + r, start:stop] @ panel[:, n] for up to ROWS rows; returns how many.

    Where x has no more rows, a tile reads the last one again.
    """
    sums[:] = 0
    last = x.shape[0] - 1
    a, b = x[row, start:stop], x[min(row + 1, last), start:stop]
    if row + 1 >= last:  # two rows or one
        tile_2(a, b, panel, sums)
        return last + 1 - row
    c = x[row + 2, start:stop]
    if ROWS == 3 or row + 2 == last:
        tile_3(a, b, c, panel, sums)
        return 3
    d, e, f = x[row + 3, start:stop], x[min(row + 4, last), start:stop], x[min(row + 5, last), start:stop]
    tile_6(a, b, c, d, e, f, panel, sums)
    return min(last + 1 - row, 6)


@jit()
def linear_panel(x: Floats, panel: Floats, scale: Floats, bias: Floats, y: Floats, column: int) -> None:
    """y[:, column : column + WIDE] = (x @ panel) * scale + bias, one piece of the sum after another."""
    width = min(WIDE, bias.shape[0] - column)
    sums = np.empty(ROWS * WIDE, np.float32)
    for row in range(x.shape[0]):
        for n in range(width):
            y[row, column + n] = bias[column + n]
    for start in range(0, panel.shape[0], PIECE):
        stop = min(start + PIECE, panel.shape[0])
        row = 0
        while row < x.shape[0]:
            done = rows_times_panel(x, row, start, stop, panel[start:stop], sums)
            for r in range(done):
                for n in range(width):
                    y[row + r, column + n] += sums[r * WIDE + n] * scale[column + n]
            row += done
