"""Layers of queries alone as one compiled call: the wiring of `drafters.mtp` once more, with the same bits.

The idea: as in `whole_pass`, whose stages these are; a guess takes 100 us, and 20 calls from Python would take as long.
There is one row. A stage is new: attention that stores nothing, over keys and values that another model has made.

What it costs: the weights are read once, and in each layer the keys and values of the heads that are asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from minispec.kernels.attention import attend
from minispec.kernels.compilation import Floats, Ints, jit
from minispec.kernels.crew import NONE, Crew, new_board, take
from minispec.kernels.whole_pass import STAGES, linear, linear_add, linear_gelu, norm
from minispec.parameters import QueryWeights


@jit()
def attention_only(
    crew: Crew, stage: int, q: Floats, keys: Floats, values: Floats, n_seen: int, scale: np.float32, out: Floats
) -> None:
    """One row q [1, n_head * d_head] looks at the first n_seen positions."""
    head = take(crew, stage, len(keys), NONE)
    while head != NONE:
        attend(q, head * keys.shape[2], keys[head], values[head], n_seen - 1, scale, out, 0)
        head = take(crew, stage, len(keys), head)


@jit()
def share_look_back(
    me: Any, n_crew: int, board: Ints, w: QueryWeights, eps: np.float32, keys: Floats, values: Floats, n_seen: int,
    x: Floats, normed: Floats, q: Floats, seen: Floats, up: Floats, out: Floats,
) -> None:  # fmt: skip
    """What thread `me` of n_crew does. x [1, n_small] goes in and is changed; out [1, n_out].

    normed [1, n_small], q and seen [1, n_query] and up [1, n_inner] are room to work in. The stage that `whole_pass`
    has for embeddings is left out.
    """
    crew = Crew(board, me, n_crew)
    every, n_layer, d_head = np.arange(1), w.c_q_bias.shape[0], np.float32(keys.shape[2])
    for i in range(n_layer):
        s = STAGES * i
        norm(crew, s, x, every, w.ln_1_weight[i], w.ln_1_bias[i], eps, normed)
        linear(crew, s + 1, normed, w.c_q_weight[i], w.c_q_scale[i], w.c_q_bias[i], q)
        attention_only(crew, s + 2, q, keys, values, n_seen, np.float32(1) / np.sqrt(d_head), seen)
        linear_add(crew, s + 3, seen, w.attn_c_proj_weight[i], w.attn_c_proj_scale[i], w.attn_c_proj_bias[i], normed, x)
        norm(crew, s + 4, x, every, w.ln_2_weight[i], w.ln_2_bias[i], eps, normed)
        linear_gelu(crew, s + 5, normed, w.c_fc_weight[i], w.c_fc_scale[i], w.c_fc_bias[i], up)
        linear_add(crew, s + 6, up, w.mlp_c_proj_weight[i], w.mlp_c_proj_scale[i], w.mlp_c_proj_bias[i], normed, x)
    norm(crew, STAGES * n_layer, x, every, w.ln_f_weight, w.ln_f_bias, eps, normed)
    linear(crew, STAGES * n_layer + 1, normed, w.lm_head, w.lm_head_scale, w.lm_head_bias, out)


@jit(parallel=True, kept_by_caller=True)
def look_back_together(
    n_crew: int, board: Ints, w: QueryWeights, eps: np.float32, keys: Floats, values: Floats, n_seen: int, x: Floats,
    normed: Floats, q: Floats, seen: Floats, up: Floats, out: Floats,
) -> None:  # fmt: skip
    """The one parallel region: every thread does its share."""
    for me in prange(n_crew):
        share_look_back(np.int64(me), n_crew, board, w, eps, keys, values, n_seen, x, normed, q, seen, up, out)


@jit()
def run_look_back(
    n_crew: int, w: QueryWeights, eps: np.float32, x: Floats, keys: Floats, values: Floats, n_seen: int, out: Floats
) -> None:
    """A row x [1, n_small] by n_crew threads, over keys and values [n_head, ...] of n_seen positions: fills out."""
    x, normed = x.copy(), np.empty_like(x)
    q, seen = np.empty((1, w.c_q_bias.shape[1]), np.float32), np.empty((1, w.c_q_bias.shape[1]), np.float32)
    up = np.empty((1, w.c_fc_bias.shape[1]), np.float32)
    board = new_board(STAGES * w.c_q_bias.shape[0] + 2, n_crew)
    if n_crew == 1:
        share_look_back(n_crew - 1, n_crew, board, w, eps, keys, values, n_seen, x, normed, q, seen, up, out)
    else:
        look_back_together(n_crew, board, w, eps, keys, values, n_seen, x, normed, q, seen, up, out)
