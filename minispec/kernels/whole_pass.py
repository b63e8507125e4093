"""A whole pass as one compiled call: the wiring of `model.py` once more, with the same kernels and the same bits.

The idea: a pass of a small model takes 100 us, and calling 10 kernels a layer from Python would take as long.
Threads go through it together (see `crew`); the stages of a layer are

    norm, c_attn, attention, c_proj + residual, norm, c_fc + GELU, c_proj + residual

and each is done before the next begins. A piece is a panel of 32 outputs for the products, a head for attention,
a row for the norms.

What it costs: the weights are read once, 4 bytes each, and everything else has to hide behind that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from minispec.kernels.attention import attend, store_head
from minispec.kernels.compilation import Floats, Ints, jit
from minispec.kernels.crew import NONE, new_board, take
from minispec.kernels.int8 import linear_piece, n_sides
from minispec.kernels.product import ROWS, WIDE
from minispec.kernels.rows import LANES, gelu_row, layer_norm_row
from minispec.parameters import Weights

STAGES = 7  # of a layer


@jit()
def embed(w: Weights, ids: Ints, n_past: int, x: Floats, row: int) -> None:
    """x[row] = the embedding of a token, a column of the packed output layer, and that of its position."""
    token = ids[row]
    panel, column, scale = token // WIDE, token % WIDE, w.wte_scale[token]
    for i in range(x.shape[1]):
        x[row, i] = w.wte[panel, i, column] * scale + w.wpe[n_past + row, i]


@jit()
def add_columns(y: Floats, first: int, width: int, x: Floats) -> None:
    """x += y for the columns of a panel."""
    for row in range(x.shape[0]):
        for n in range(first, min(first + width, x.shape[1])):
            x[row, n] += y[row, n]


@jit()
def gelu_columns(y: Floats, first: int, width: int) -> None:
    """GELU in place for the columns of a panel."""
    for row in range(y.shape[0]):
        gelu_row(y[row, first : min(first + width, y.shape[1])])


@jit()
def share(
    me: Any, n_crew: int, board: Ints, w: Weights, eps: np.float32, ids: Ints, keys: Floats, values: Floats,
    n_past: int, x: Floats, normed: Floats, qkv: Floats, up: Floats, logits: Floats,
) -> None:  # fmt: skip
    """What thread `me` of n_crew does of a pass. keys and values have the layer as their first axis."""
    lanes = np.empty(LANES, np.float32)
    n_new, n_embd = x.shape
    n_head, d_head = keys.shape[1], keys.shape[3]
    sides = n_sides(w.wte.itemsize)  # panels to a piece of work
    width = sides * WIDE
    stage: Any = np.int64(0)
    i = take(board, stage, me, n_crew, n_new, NONE)
    while i != NONE:
        embed(w, ids, n_past, x, i)
        i = take(board, stage, me, n_crew, n_new, i)
    for layer in range(w.ln_1_weight.shape[0]):
        stage = 1 + STAGES * layer
        i = take(board, stage, me, n_crew, n_new, NONE)
        while i != NONE:
            layer_norm_row(x[i], w.ln_1_weight[layer], w.ln_1_bias[layer], eps, normed[i], lanes)
            i = take(board, stage, me, n_crew, n_new, i)

        weight, scale, bias = w.c_attn_weight[layer], w.c_attn_scale[layer], w.c_attn_bias[layer]
        i = take(board, stage + 1, me, n_crew, len(weight) // sides, NONE)
        while i != NONE:
            linear_piece(normed, weight, i, scale, bias, qkv)
            i = take(board, stage + 1, me, n_crew, len(weight) // sides, i)

        i = take(board, stage + 2, me, n_crew, n_head, NONE)
        while i != NONE:
            q, head_keys, head_values = i * d_head, keys[layer, i], values[layer, i]
            store_head(qkv, n_embd + q, 2 * n_embd + q, head_keys, head_values, n_past)
            for first in range(0, n_new, ROWS):
                attend(qkv, q, head_keys, head_values, n_past, w.attention_scale[layer], normed, first)
            i = take(board, stage + 2, me, n_crew, n_head, i)

        weight, scale, bias = w.attn_c_proj_weight[layer], w.attn_c_proj_scale[layer], w.attn_c_proj_bias[layer]
        i = take(board, stage + 3, me, n_crew, len(weight) // sides, NONE)
        while i != NONE:
            linear_piece(normed, weight, i, scale, bias, qkv)
            add_columns(qkv, i * width, width, x)
            i = take(board, stage + 3, me, n_crew, len(weight) // sides, i)

        i = take(board, stage + 4, me, n_crew, n_new, NONE)
        while i != NONE:
            layer_norm_row(x[i], w.ln_2_weight[layer], w.ln_2_bias[layer], eps, normed[i], lanes)
            i = take(board, stage + 4, me, n_crew, n_new, i)

        weight, scale, bias = w.c_fc_weight[layer], w.c_fc_scale[layer], w.c_fc_bias[layer]
        i = take(board, stage + 5, me, n_crew, len(weight) // sides, NONE)
        while i != NONE:
            linear_piece(normed, weight, i, scale, bias, up)
            gelu_columns(up, i * width, width)
            i = take(board, stage + 5, me, n_crew, len(weight) // sides, i)

        weight, scale, bias = w.mlp_c_proj_weight[layer], w.mlp_c_proj_scale[layer], w.mlp_c_proj_bias[layer]
        i = take(board, stage + 6, me, n_crew, len(weight) // sides, NONE)
        while i != NONE:
            linear_piece(up, weight, i, scale, bias, normed)
            add_columns(normed, i * width, width, x)
            i = take(board, stage + 6, me, n_crew, len(weight) // sides, i)

    stage = 1 + STAGES * len(w.ln_1_weight)
    n_logits = len(logits)
    i = take(board, stage, me, n_crew, n_logits, NONE)
    while i != NONE:
        layer_norm_row(x[n_new - n_logits + i], w.ln_f_weight, w.ln_f_bias, eps, normed[i], lanes)
        i = take(board, stage, me, n_crew, n_logits, i)
    last = normed[:n_logits]
    i = take(board, stage + 1, me, n_crew, len(w.lm_head) // sides, NONE)
    while i != NONE:
        linear_piece(last, w.lm_head, i, w.lm_head_scale, w.lm_head_bias, logits)
        i = take(board, stage + 1, me, n_crew, len(w.lm_head) // sides, i)


@jit(parallel=True)
def together(
    n_crew: int, board: Ints, w: Weights, eps: np.float32, ids: Ints, keys: Floats, values: Floats,
    n_past: int, x: Floats, normed: Floats, qkv: Floats, up: Floats, logits: Floats,
) -> None:  # fmt: skip
    for me in prange(n_crew):
        share(np.int64(me), n_crew, board, w, eps, ids, keys, values, n_past, x, normed, qkv, up, logits)


@jit()
def run(
    n_crew: int, w: Weights, eps: np.float32, ids: Ints, keys: Floats, values: Floats, n_past: int, logits: Floats
) -> None:
    """A pass of n_crew threads."""
    n_new, n_embd = len(ids), w.wpe.shape[1]
    x, normed = np.empty((n_new, n_embd), np.float32), np.empty((n_new, n_embd), np.float32)
    qkv, up = np.empty((n_new, 3 * n_embd), np.float32), np.empty((n_new, w.c_fc_bias.shape[1]), np.float32)
    board = new_board(STAGES * len(keys) + 3, n_crew)
    if n_crew == 1:
        share(n_crew - 1, n_crew, board, w, eps, ids, keys, values, n_past, x, normed, qkv, up, logits)
    else:
        together(n_crew, board, w, eps, ids, keys, values, n_past, x, normed, qkv, up, logits)
