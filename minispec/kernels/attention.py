"""Attention: a new row looks back at all rows before it, over the keys and values in the cache.

The idea: its two products are products with panels, too. Keys lie as [n_ctx / WIDE, d_head, WIDE], so a tile
gives 32 scores at once, and values as [d_head / WIDE, n_ctx, WIDE], so a tile gives 32 numbers of the result.
The rows of a pass share what is read, as in any product.

What it costs: a layer reads its cache once for up to 6 rows, 8 n_embd bytes a position, and does 2 n_embd multiply-adds
a position and row. GPT-2 medium reads 197 kB a position in all: at 1000 positions a seventh of what its weights are.
"""

from __future__ import annotations

import numpy as np

from minispec.kernels.compilation import Floats, Ints, jit
from minispec.kernels.product import ROWS, WIDE, rows_times_panel
from minispec.kernels.rows import LANES, softmax_row


@jit()
def attend(
    q: Floats, column: int, keys: Floats, values: Floats, n_past: int, scale: np.float32, out: Floats, first: int
) -> None:
    """One head, rows first .. first + ROWS: of q and of out [n_new, ...] it has d_head columns, from `column` on.

    keys [n_ctx / WIDE, d_head, WIDE] and values [d_head / WIDE, n_ctx, WIDE], of which n_past + n_new positions
    are filled. A row that sees fewer keys than its neighbours adds zeros.
    """
    n_row, d_head = min(ROWS, q.shape[0] - first), keys.shape[1]
    seen = n_past + first + n_row
    weights = np.empty((n_row, (seen + LANES - 1) // LANES * LANES), np.float32)
    sums, alone = np.empty(ROWS * WIDE, np.float32), np.empty(ROWS * WIDE, np.float32)
    lanes = np.empty(LANES, np.float32)
    inverse = np.empty(ROWS, np.float32)
    rows = q[: first + n_row]
    for t in range((seen + WIDE - 1) // WIDE):
        rows_times_panel(rows, first, column, column + d_head, keys[t], sums)
        for r in range(n_row):
            for n in range(WIDE):
                weights[r, t * WIDE + n] = sums[r * WIDE + n] * scale
    for r in range(n_row):
        inverse[r] = softmax_row(weights[r], n_past + first + r + 1, lanes)
    for p in range(values.shape[0]):
        rows_times_panel(weights, 0, 0, seen, values[p, :seen], sums)
        for r in range(n_row):
            row, own = sums[r * WIDE : (r + 1) * WIDE], n_past + first + r + 1
            if own < seen and not np.isfinite(row.sum()):  # 0 times a later row's infinity: look at its own alone
                rows_times_panel(weights[r : r + 1], 0, 0, own, values[p, :own], alone)
                row = alone[:WIDE]
            for n in range(min(WIDE, d_head - p * WIDE)):
                out[first + r, column + p * WIDE + n] = row[n] * inverse[r]


@jit()
def store_head(kv: Floats, k: int, v: int, keys: Floats, values: Floats, n_past: int) -> None:
    """Write one head's keys and values, the d_head columns of kv [n_new, ...] from k and v on, into its cache."""
    for row in range(kv.shape[0]):
        t = n_past + row
        for i in range(keys.shape[1]):
            keys[t // WIDE, i, t % WIDE] = kv[row, k + i]
            values[i // WIDE, t, i % WIDE] = kv[row, v + i]


@jit()
def store_aside(kv: Floats, k: int, v: int, keys: Floats, values: Floats, places: Ints) -> None:
    """As `store_head`, but row by row to places [n_new] of their own; to none where that is negative."""
    for row in range(kv.shape[0]):
        if places[row] >= 0:
            store_head(kv[row : row + 1], k, v, keys, values, places[row])


# --- alone, for the twins of `reference.py` ------------------------------------------------------


@jit()
def attend_all(q: Floats, keys: Floats, values: Floats, n_past: int, scale: np.float32, out: Floats) -> None:
    """All heads, all rows: q and out [n_new, n_head * d_head]."""
    for head in range(keys.shape[0]):
        for first in range(0, q.shape[0], ROWS):
            attend(q, head * keys.shape[2], keys[head], values[head], n_past, scale, out, first)


@jit()
def store_rows(kv: Floats, keys: Floats, values: Floats, n_past: int) -> None:
    """All heads: kv [n_head, n_new, 2 * d_head], keys then values."""
    for head in range(kv.shape[0]):
        store_head(kv[head], 0, keys.shape[2], keys[head], values[head], n_past)
