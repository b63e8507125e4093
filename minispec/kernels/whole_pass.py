"""A whole pass as one compiled call: `wiring.py` once more, with the same kernels and the same bits.

The idea: a pass of a small model takes 100 us, and calling 10 kernels a layer from Python would take as long.
Threads go through it together (see `crew`); the stages of a layer are

    norm, c_attn, attention, c_proj + residual, norm, c_fc + GELU, c_proj + residual

and each is done before the next begins. A piece is a panel of 32 outputs for the products (a pair of them for 8
bits), a head of a sequence for attention, a row for the norms.

A pass may hold rows of several sequences, one after the other: a batch. The products do not care whose row is whose;
positions, attention and the rows whose logits are wanted are each sequence's own, so nothing is padded or masked.
Sequences of one slot are the runs of a tree (see `trees.py`): a head takes them in their order, one after the other,
and stores their rows a second time where a later run will not overwrite them.

Drafters may want to see what the target has seen: x after some of the layers is then copied out, a stage for each
depth. How many layers there are is what the weights say; the cache may have more.

What it costs: all weights are read once, 4 bytes each or 1, with n_new multiply-adds each; with the cache of the
rows before, that is what takes the time. Everything else is 1 to 6 % of a pass of one row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from minispec.kernels.attention import attend, store_aside, store_head
from minispec.kernels.compilation import Array, Floats, Ints, jit
from minispec.kernels.crew import NONE, Crew, new_board, take
from minispec.kernels.int8 import linear_piece, n_sides
from minispec.kernels.product import ROWS, WIDE
from minispec.kernels.rows import LANES, gelu_row, layer_norm_row
from minispec.parameters import Weights

STAGES = 7  # of a layer
ZERO: Any = np.int64(0)  # of the type of all other stages, so that nothing is compiled twice
SLOT, PAST, NEW, LOGITS = 0, 1, 2, 3  # columns of `sequences`


class Layout(NamedTuple):
    """Whose row is whose, and what is wanted of it.

    A sequence's keys and values are in a slot of the block of caches, n_past of them.
    """

    sequences: Ints  # [n_seq, 4]: slot, n_past, rows of its own in this pass, logits wanted of the last of these
    first: Ints  # [n_seq]: its first row
    texts: Ints  # [n_text + 1]: the first sequence of each slot, and where the last one's end
    aside: Ints  # [n_new]: where a row is stored as well, or -1; of length 0 where none is
    position: Ints  # [n_new]: a row's place in its text
    every: Ints  # [n_new]: all rows
    wanted: Ints  # [n_logits]: the rows whose logits are wanted
    taps: Ints  # [n_tap]: depths, ascending, whose x is wanted
    features: Floats  # [n_tap, n_new, n_embd]: where it goes


@jit()
def lay_out(sequences: Ints, aside: Ints, n_new: int, n_logits: int, taps: Ints, features: Floats) -> Layout:
    """The rows of a pass, sequence by sequence."""
    first, position = np.empty(len(sequences), np.int64), np.empty(n_new, np.int64)
    every, wanted = np.arange(n_new), np.empty(n_logits, np.int64)
    texts = np.empty(len(sequences) + 1, np.int64)
    row = n_wanted = n_text = 0
    for s in range(len(sequences)):
        if s == 0 or sequences[s, SLOT] != sequences[s - 1, SLOT]:
            texts[n_text] = s
            n_text += 1
        first[s] = row
        n_own = sequences[s, NEW]
        for i in range(n_own):
            position[row + i] = sequences[s, PAST] + i
        row += n_own
        for i in range(sequences[s, LOGITS]):
            wanted[n_wanted + i] = row - sequences[s, LOGITS] + i
        n_wanted += sequences[s, LOGITS]
    texts[n_text] = len(sequences)
    return Layout(sequences, first, texts[: n_text + 1], aside, position, every, wanted, taps, features)


@jit()
def embed(w: Weights, ids: Ints, position: Ints, x: Floats, row: int) -> None:
    """x[row] = the embedding of a token, a column of the packed output layer, and that of its position."""
    token = ids[row]
    panel, column, scale = token // WIDE, token % WIDE, w.wte_scale[token]
    for i in range(x.shape[1]):
        x[row, i] = w.wte[panel, i, column] * scale + w.wpe[position[row], i]


# --- stages: each deals out its pieces to the crew, and ends for all when all of them are done ---------


@jit()
def embed_all(crew: Crew, stage: int, w: Weights, ids: Ints, position: Ints, x: Floats) -> None:
    """x [n_new, n_embd] = the embeddings of tokens and positions."""
    row = take(crew, stage, len(ids), NONE)
    while row != NONE:
        embed(w, ids, position, x, row)
        row = take(crew, stage, len(ids), row)


@jit()
def norm(
    crew: Crew, stage: int, x: Floats, rows: Ints, weight: Floats, bias: Floats, eps: np.float32, y: Floats
) -> None:
    """y [len(rows), n_embd] = layer norm of these rows of x."""
    lanes = np.empty(LANES, np.float32)
    i = take(crew, stage, len(rows), NONE)
    while i != NONE:
        layer_norm_row(x[rows[i]], weight, bias, eps, y[i], lanes)
        i = take(crew, stage, len(rows), i)


@jit()
def linear(crew: Crew, stage: int, x: Floats, weight: Array, scale: Floats, bias: Floats, y: Floats) -> None:
    """y [n_row, n_out] = (x @ weight) * scale + bias."""
    n_piece = len(weight) // n_sides(weight.itemsize)
    i = take(crew, stage, n_piece, NONE)
    while i != NONE:
        linear_piece(x, weight, i, scale, bias, y)
        i = take(crew, stage, n_piece, i)


@jit()
def linear_gelu(crew: Crew, stage: int, x: Floats, weight: Array, scale: Floats, bias: Floats, y: Floats) -> None:
    """As `linear`, and GELU of it in place, while it is near."""
    sides = n_sides(weight.itemsize)
    n_piece, width = len(weight) // sides, sides * WIDE
    i = take(crew, stage, n_piece, NONE)
    while i != NONE:
        linear_piece(x, weight, i, scale, bias, y)
        for row in range(len(y)):
            gelu_row(y[row, i * width : min((i + 1) * width, len(bias))])
        i = take(crew, stage, n_piece, i)


@jit()
def linear_add(
    crew: Crew, stage: int, x: Floats, weight: Array, scale: Floats, bias: Floats, y: Floats, total: Floats
) -> None:
    """As `linear`, and total [n_row, n_out] += y."""
    sides = n_sides(weight.itemsize)
    n_piece, width = len(weight) // sides, sides * WIDE
    i = take(crew, stage, n_piece, NONE)
    while i != NONE:
        linear_piece(x, weight, i, scale, bias, y)
        for row in range(len(total)):
            for n in range(i * width, min((i + 1) * width, len(bias))):
                total[row, n] += y[row, n]
        i = take(crew, stage, n_piece, i)


@jit()
def attention(
    crew: Crew, stage: int, qkv: Floats, layout: Layout, keys: Floats, values: Floats, layer: int, scale: np.float32,
    out: Floats,
) -> None:  # fmt: skip
    """Store the new keys and values of a layer, and look back: qkv [n_new, 3 n_embd] -> out [n_new, n_embd].

    keys and values have the slot and the layer as their first axes. Each sequence looks at its own slot alone.
    """
    n_head, d_head, n_embd = keys.shape[2], keys.shape[4], qkv.shape[1] // 3
    n_piece = (len(layout.texts) - 1) * n_head
    piece = take(crew, stage, n_piece, NONE)
    while piece != NONE:
        text, head = piece // n_head, piece % n_head
        q = head * d_head
        k, v = n_embd + q, 2 * n_embd + q
        for s in range(layout.texts[text], layout.texts[text + 1]):
            slot, n_past, n_own = layout.sequences[s, SLOT], layout.sequences[s, PAST], layout.sequences[s, NEW]
            start, end = layout.first[s], layout.first[s] + n_own
            own, own_out = qkv[start:end], out[start:end]
            own_keys, own_values = keys[slot, layer, head], values[slot, layer, head]
            store_head(own, k, v, own_keys, own_values, n_past)
            if len(layout.aside):
                store_aside(own, k, v, own_keys, own_values, layout.aside[start:end])
            for first in range(0, n_own, ROWS):
                attend(own, q, own_keys, own_values, n_past, scale, own_out, first)
        piece = take(crew, stage, n_piece, piece)


@jit()
def copy_out(crew: Crew, stage: int, x: Floats, features: Floats) -> None:
    """features [n_new, n_embd] = x as it is at this depth."""
    row = take(crew, stage, len(x), NONE)
    while row != NONE:
        for i in range(x.shape[1]):
            features[row, i] = x[row, i]
        row = take(crew, stage, len(x), row)


# --- the pass ------------------------------------------------------------------------------------


@jit()
def share(
    me: Any, n_crew: int, board: Ints, w: Weights, eps: np.float32, ids: Ints, layout: Layout, keys: Floats,
    values: Floats, x: Floats, normed: Floats, qkv: Floats, up: Floats, logits: Floats,
) -> None:  # fmt: skip
    """What thread `me` of n_crew does of a pass. keys and values have the slot and the layer as their first axes.

    x [n_new, n_embd], normed, qkv [n_new, 3 n_embd] and up [n_new, n_inner] are room to work in: where a product's
    result goes straight into x, `normed` or `qkv` is where it is written first.
    """
    crew = Crew(board, me, n_crew)
    embed_all(crew, ZERO, w, ids, layout.position, x)
    every, wanted, n_layer = layout.every, layout.wanted, w.c_attn_bias.shape[0]
    taps, features, n_tapped, after = layout.taps, layout.features, 0, 1 + STAGES * n_layer
    for layer in range(n_layer):
        i, s = layer, 1 + STAGES * layer
        if n_tapped < len(taps) and taps[n_tapped] == layer:
            copy_out(crew, after + n_tapped, x, features[n_tapped])
            n_tapped += 1
        norm(crew, s, x, every, w.ln_1_weight[i], w.ln_1_bias[i], eps, normed)
        linear(crew, s + 1, normed, w.c_attn_weight[i], w.c_attn_scale[i], w.c_attn_bias[i], qkv)
        attention(crew, s + 2, qkv, layout, keys, values, i, w.attention_scale[i], normed)
        linear_add(crew, s + 3, normed, w.attn_c_proj_weight[i], w.attn_c_proj_scale[i], w.attn_c_proj_bias[i], qkv, x)
        norm(crew, s + 4, x, every, w.ln_2_weight[i], w.ln_2_bias[i], eps, normed)
        linear_gelu(crew, s + 5, normed, w.c_fc_weight[i], w.c_fc_scale[i], w.c_fc_bias[i], up)
        linear_add(crew, s + 6, up, w.mlp_c_proj_weight[i], w.mlp_c_proj_scale[i], w.mlp_c_proj_bias[i], normed, x)
    if n_tapped < len(taps):
        copy_out(crew, after + n_tapped, x, features[n_tapped])
    s, last = after + len(taps), normed[: len(wanted)]
    norm(crew, s, x, wanted, w.ln_f_weight, w.ln_f_bias, eps, last)
    linear(crew, s + 1, last, w.lm_head, w.lm_head_scale, w.lm_head_bias, logits)


@jit(parallel=True, kept_by_caller=True)
def together(
    n_crew: int, board: Ints, w: Weights, eps: np.float32, ids: Ints, layout: Layout, keys: Floats, values: Floats,
    x: Floats, normed: Floats, qkv: Floats, up: Floats, logits: Floats,
) -> None:  # fmt: skip
    """The one parallel region of a pass: every thread does its `share`."""
    for me in prange(n_crew):
        share(np.int64(me), n_crew, board, w, eps, ids, layout, keys, values, x, normed, qkv, up, logits)


@jit(nogil=True)
def run(
    n_crew: int, w: Weights, eps: np.float32, ids: Ints, sequences: Ints, keys: Floats, values: Floats, logits: Floats,
    aside: Ints, taps: Ints, features: Floats,
) -> None:  # fmt: skip
    """A pass of n_crew threads over the rows of one or more sequences, [n_seq, 4] as in `Layout`.

    aside, taps and features are as in `Layout`, too, and empty in most passes.
    Python goes on beside it. Passes of several threads must not run at the same time; one of a single thread may.
    """
    n_new, n_embd = len(ids), w.wpe.shape[1]
    x, normed = np.empty((n_new, n_embd), np.float32), np.empty((n_new, n_embd), np.float32)
    qkv, up = np.empty((n_new, 3 * n_embd), np.float32), np.empty((n_new, w.c_fc_bias.shape[1]), np.float32)
    board = new_board(STAGES * w.c_attn_bias.shape[0] + len(taps) + 3, n_crew)
    layout = lay_out(sequences, aside, n_new, len(logits), taps, features)
    if n_crew == 1:
        share(n_crew - 1, n_crew, board, w, eps, ids, layout, keys, values, x, normed, qkv, up, logits)
    else:
        together(n_crew, board, w, eps, ids, layout, keys, values, x, normed, qkv, up, logits)
