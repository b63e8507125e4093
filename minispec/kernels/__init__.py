"""GPT-2's operations as Numba kernels: the twins of `reference.py`, at the speed of memory.

Down to `warm_up` this file has the names, the arguments and the order of `reference.py`; `forward` is all of them as
one call, and what a model runs. The kernels behind, each with its one idea and what it costs:

    product      rows by weights, where the time goes
    int8         the same with weights of 8 bits
    rows         GELU, layer norm, softmax
    attention    looking back over the cache
    crew         how threads share a pass
    whole_pass   the pass as one call
    look_back    the same for layers that have queries alone
    compilation  what the compiler is promised, and when code on disk is stale
    kept         code on disk, and what is damaged there

Axes as in `reference.py`; a weight lies in n_panel panels of WIDE columns, [n_panel, n_in, WIDE].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from minispec.kernels.attention import attend_all, store_rows
from minispec.kernels.compilation import Floats, Ints, compiled_for, fused
from minispec.kernels.int8 import linear_pieces, n_sides
from minispec.kernels.look_back import run_look_back
from minispec.kernels.product import ROWS, WIDE
from minispec.kernels.rows import gelu_row, layer_norm_rows, softmax_rows
from minispec.kernels.whole_pass import run
from minispec.parameters import QueryWeights, Weights

__all__ = [
    "ROWS", "WIDE", "attention", "columns", "compiled_for", "copy_rows", "empty_caches", "empty_weight", "fetch",
    "forward", "fused", "gelu", "layer_norm", "linear", "look_back", "pack", "softmax", "store", "threads", "warm_up",
]  # fmt: skip

WORTH_SHARING = 1 << 19  # multiply-adds, about 50 us on one core: for less, waking a second one does not pay
DEAR_REGION = 8  # times as much, where waking one costs 80 us and not one
NOTHING: Ints = np.empty(0, np.int64)
NO_FEATURES: Floats = np.empty((0, 0, 0), np.float32)


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """Each row to mean 0 and variance 1, then scaled and shifted: [n_new, n] -> [n_new, n]."""
    y = np.empty_like(x)
    layer_norm_rows(x, weight, bias, np.float32(eps), y)
    return y


def gelu(x: Floats) -> Floats:
    """GPT-2's GELU, the one with tanh, element by element."""
    y = x.copy()
    gelu_row(y.reshape(-1))
    return y


def softmax(x: Floats) -> Floats:
    """Scores [n_row, n] to probabilities along the last axis."""
    y = np.empty_like(x)
    softmax_rows(x, y)
    return y


def linear(x: Floats, weight: NDArray[Any], scale: Floats, bias: Floats) -> Floats:
    """(x @ weight) * scale + bias: [n_new, n_in] by panels [n_panel, n_in, WIDE] -> [n_new, n_out]."""
    out = np.empty((len(x), len(bias)), np.float32)
    linear_pieces(x, weight, scale, bias, out)
    return out


def attention(q: Floats, keys: Floats, values: Floats, n_past: int, scale: float) -> Floats:
    """Each new row looks at itself and all rows before it: -> [n_new, n_head * d_head].

    q [n_head, n_new, d_head]; keys and values as `empty_caches` lays out a layer's, n_past + n_new filled.
    """
    n_head, n_new, d_head = q.shape
    out = np.empty((n_new, n_head * d_head), np.float32)
    attend_all(q.transpose(1, 0, 2).reshape(out.shape), keys, values, n_past, np.float32(scale), out)
    return out


# --- how weights and cache are laid out ----------------------------------------------------------


def empty_weight(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Room for weights [..., n_in, n_out]: panels [..., n_panel, n_in, WIDE], an even number of them for 8 bits."""
    *many, n_in, n_out = shape
    together = WIDE * n_sides(np.dtype(dtype).itemsize)
    return np.zeros((*many, -(-n_out // together) * together // WIDE, n_in, WIDE), dtype)


def pack(weight: NDArray[Any], packed: NDArray[Any], first: int = 0) -> None:
    """Write a weight [n_in, n_out] as panels [n_panel, n_in, WIDE]: the outputs from `first` on, a multiple of WIDE."""
    for start in range(0, weight.shape[1], WIDE):
        some = weight[:, start : start + WIDE]
        packed[(first + start) // WIDE, :, : some.shape[1]] = some


def columns(weight: NDArray[Any], scale: Floats, ids: Ints) -> Floats:
    """Columns of a packed weight, times their scales: panels at ids [n_new] -> [n_new, n_in]."""
    y: Floats = weight[ids // WIDE, :, ids % WIDE] * scale[ids, None]
    return y


def empty_caches(n_slot: int, n_layer: int, n_head: int, n_ctx: int, d_head: int) -> tuple[Floats, Floats]:
    """Keys [n_slot, n_layer, n_head, n_ctx / WIDE, d_head, WIDE], values [n_slot, ..., d_head / WIDE, n_ctx, WIDE]."""
    keys = np.zeros((n_slot, n_layer, n_head, -(-n_ctx // WIDE), d_head, WIDE), np.float32)
    return keys, np.zeros((n_slot, n_layer, n_head, -(-d_head // WIDE), n_ctx, WIDE), np.float32)


def store(k: Floats, v: Floats, keys: Floats, values: Floats, n_past: int) -> None:
    """Write k and v [n_head, n_new, d_head] into a layer's cache from position n_past on."""
    store_rows(np.concatenate([k, v], axis=2), keys, values, n_past)


def copy_rows(keys: Floats, values: Floats, places: Ints, to: Ints) -> None:
    """Copy the rows at some places [n_row] to others, in the keys and values of a whole cache."""
    keys[:, :, to // WIDE, :, to % WIDE] = keys[:, :, places // WIDE, :, places % WIDE]
    values[..., to, :] = values[..., places, :]


def fetch(keys: Floats, values: Floats, length: int) -> tuple[Floats, Floats]:
    """What `store` wrote: the first `length` rows of a layer's cache, both [n_head, length, d_head]."""
    n_head, _, d_head, _ = keys.shape
    k = keys.transpose(0, 1, 3, 2).reshape(n_head, -1, d_head)
    v = values.transpose(0, 2, 1, 3).reshape(n_head, values.shape[2], -1)
    return k[:, :length], v[:, :length, :d_head]


def warm_up(dtype: np.dtype[Any]) -> None:
    """Compile all that a pass over weights of this type needs, or load it from the cache on disk.

    That is one token through one layer of width one, by two threads.
    """
    threads()
    one, row = np.zeros(1, np.float32), np.zeros((1, 1), np.float32)
    three, weight = np.zeros((1, 3), np.float32), empty_weight((1, 1, 1), dtype)
    linear_ = weight, row, row
    w = Weights(
        weight[0], one, row, row, row, empty_weight((1, 1, 3), dtype), three, three, *linear_, row, row, *linear_,
        *linear_, one, one, weight[0], one, one, one,
    )  # fmt: skip
    one_row = np.array([[0, 0, 1, 1]], np.int64)
    caches = empty_caches(1, 1, 1, 1, 1)
    run(2, w, np.float32(1), np.zeros(1, np.int64), one_row, *caches, row, NOTHING, NOTHING, NO_FEATURES)


# --- passes as one call, which plain NumPy has not -----------------------------------------------


def forward(
    w: Weights, eps: float, ids: Ints, sequences: Sequence[tuple[int, int, int, int]], keys: Floats, values: Floats,
    logits: Floats, aside: Ints = NOTHING, taps: Ints = NOTHING, features: Floats = NO_FEATURES,
    most_crew: int | None = None,
) -> None:  # fmt: skip
    """A whole pass: ids [n_new], the rows of one sequence after the other's -> logits [n_logits, n_vocab].

    sequences: of each its slot in keys and values [n_slot, n_layer, ...], the rows that are there, its new rows, and
    of how many of the last of these logits are wanted. Those of one slot, which are the runs of a tree, are taken in
    their order; aside [n_new] says where each of its rows is stored as well, or -1.
    taps: depths, ascending, at which features [n_tap, n_new, n_embd] get the rows of the residual stream.
    most_crew: threads, by default as many as Numba is set to.
    """
    n_threads = threads()
    most_crew = n_threads if most_crew is None else most_crew
    n_crew = most_crew if _worth_sharing(len(ids) * _n_multiply_adds(w)) else 1
    rows = np.array(sequences, np.int64)
    run(n_crew, w, np.float32(eps), ids, rows, keys, values, logits, aside, taps, features)


def threads() -> int:
    """As many threads as Numba is set to, and they are started.

    To be asked before the first call of `run` and `run_look_back`: what these call in parallel finds the threads in
    place when it is compiled, but Numba does not see to it when it loads them from the disk, if they were compiled in
    another process than what they call (the one before was interrupted in between). That ends in a crash.
    """
    return int(numba.get_num_threads())


def look_back(w: QueryWeights, eps: float, x: Floats, keys: Floats, values: Floats, n_seen: int) -> Floats:
    """Layers of queries: a row x [1, n_small], over keys and values of n_seen positions -> [n_out].

    keys and values as `empty_caches` lays out a layer's, of the heads that are asked.
    """
    out = np.empty((1, len(w.lm_head_bias)), np.float32)
    n = w.c_q_weight.size + w.attn_c_proj_weight.size + w.c_fc_weight.size + w.mlp_c_proj_weight.size + w.lm_head.size
    n_threads = threads()
    n_crew = n_threads if _worth_sharing(n) else 1
    run_look_back(n_crew, w, np.float32(eps), x, keys, values, n_seen, out)
    return out[0]


def _n_multiply_adds(w: Weights) -> int:
    """Those of a row, in the products of the layers and the output layer."""
    return w.c_attn_weight.size + w.attn_c_proj_weight.size + 2 * w.c_fc_weight.size + w.lm_head.size


def _worth_sharing(n: int) -> bool:
    """Whether so many multiply-adds pay for waking other threads."""
    return n >= WORTH_SHARING * (DEAR_REGION if _layer() == "workqueue" else 1)


def _layer() -> str | None:
    """Which of Numba's threading layers is in use, once one is."""
    try:
        layer: str = numba.threading_layer()  # type: ignore[attr-defined]
    except ValueError:
        return None
    return layer
