"""GPT-2's shape and its weights as one named tuple, and how a checkpoint's tensors become it.

The layers' arrays of a kind lie in one array with the layer as its first axis, so that a compiled pass takes the
whole model as one argument. Shapes of products' weights are given as before packing: `reference.pack` leaves them,
`kernels.pack` makes panels of them, [n_layer, n_panel, n_in, 32].

They are read and packed in small pieces, one a core, so that a load needs little more memory than the model: the first
touch of fresh memory is most of the work, and two cores do it in half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minispec.cores import count_cores
from minispec.reference import quantise

Floats = NDArray[np.float32]
BLOCK = 4096  # tokens whose embeddings are read at a time
MOST_THREADS = 8  # more than that only wait for memory


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a checkpoint; names as in its config.json, but n_ctx and n_vocab."""

    n_layer: int
    n_head: int
    n_embd: int
    n_ctx: int
    n_vocab: int
    n_inner: int
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False

    def attention_scale(self, layer: int) -> float:
        """What a score q @ k is multiplied with in this layer."""
        scale = (self.n_embd // self.n_head) ** -0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


class Weights(NamedTuple):
    """All of a model; names as in a checkpoint. A scale belongs to each output of a product, 1 for float32."""

    wte: NDArray[Any]  # [n_embd, n_vocab]: a token's embedding is a column
    wte_scale: Floats  # [n_vocab]
    wpe: Floats  # [n_ctx, n_embd]
    ln_1_weight: Floats  # [n_layer, n_embd], as are the other norms'
    ln_1_bias: Floats
    c_attn_weight: NDArray[Any]  # [n_layer, n_embd, 3 n_embd]
    c_attn_scale: Floats  # [n_layer, 3 n_embd]
    c_attn_bias: Floats
    attn_c_proj_weight: NDArray[Any]  # [n_layer, n_embd, n_embd]
    attn_c_proj_scale: Floats
    attn_c_proj_bias: Floats
    ln_2_weight: Floats
    ln_2_bias: Floats
    c_fc_weight: NDArray[Any]  # [n_layer, n_embd, n_inner]
    c_fc_scale: Floats
    c_fc_bias: Floats
    mlp_c_proj_weight: NDArray[Any]  # [n_layer, n_inner, n_embd]
    mlp_c_proj_scale: Floats
    mlp_c_proj_bias: Floats
    ln_f_weight: Floats  # [n_embd]
    ln_f_bias: Floats
    lm_head: NDArray[Any]  # [n_embd, n_vocab]: the same array as wte, if they are tied
    lm_head_scale: Floats
    lm_head_bias: Floats  # zeros
    attention_scale: Floats  # [n_layer]: what scores are multiplied with


WHOLE = {"wte", "wte_scale", "wpe", "ln_f_weight", "ln_f_bias", "lm_head", "lm_head_scale", "lm_head_bias"}


def first_layers(weights: Weights, n: int) -> Weights:
    """The first n layers between the same embeddings and output layer: views, nothing is copied."""
    parts = weights._asdict()
    return Weights(**{name: part if name in WHOLE else part[:n] for name, part in parts.items()})


class QueryWeights(NamedTuple):
    """Layers that look back on another model's keys and values (see `drafters.mtp`), and their output layer.

    n_query is the number of heads they ask for, times d_head. Shapes as before packing.
    """

    ln_1_weight: Floats  # [n_layer, n_small], as are the other norms'
    ln_1_bias: Floats
    c_q_weight: NDArray[Any]  # [n_layer, n_small, n_query]
    c_q_scale: Floats
    c_q_bias: Floats
    attn_c_proj_weight: NDArray[Any]  # [n_layer, n_query, n_small]
    attn_c_proj_scale: Floats
    attn_c_proj_bias: Floats
    ln_2_weight: Floats
    ln_2_bias: Floats
    c_fc_weight: NDArray[Any]  # [n_layer, n_small, n_inner]
    c_fc_scale: Floats
    c_fc_bias: Floats
    mlp_c_proj_weight: NDArray[Any]  # [n_layer, n_inner, n_small]
    mlp_c_proj_scale: Floats
    mlp_c_proj_bias: Floats
    ln_f_weight: Floats  # [n_small]
    ln_f_bias: Floats
    lm_head: NDArray[Any]  # [n_small, n_out]
    lm_head_scale: Floats
    lm_head_bias: Floats


def read_weights(
    config: GPT2Config, tensors: Mapping[str, Floats], ops: ModuleType, stored: type[np.generic]
) -> Weights:
    """Weights from float32 tensors by their checkpoint names, packed for a set of operations.

    stored: float32, or int8 for weights of products in 8 bits. Raises KeyError for a missing name.
    """
    c, layers = config, range(config.n_layer)
    work: list[Callable[[], None]] = []

    def stack(name: str) -> Floats:
        return np.stack([np.asarray(tensors[f"h.{layer}.{name}"], np.float32) for layer in layers])

    def products(name: str, n_in: int, n_out: int) -> tuple[NDArray[Any], Floats, Floats]:
        weight, scale = ops.empty_weight((c.n_layer, n_in, n_out), stored), np.ones((c.n_layer, n_out), np.float32)
        for layer in layers:
            read = partial(tensors.__getitem__, f"h.{layer}.{name}.weight")
            work.append(partial(_pack, read, ops, weight[layer], scale[layer], 0))
        return weight, scale, stack(f"{name}.bias")

    def output(name: str) -> tuple[NDArray[Any], Floats]:
        weight, scale = ops.empty_weight((c.n_embd, c.n_vocab), stored), np.ones(c.n_vocab, np.float32)
        for first in range(0, c.n_vocab, BLOCK):
            read = partial(_columns, tensors, name, first, min(first + BLOCK, c.n_vocab))
            work.append(partial(_pack, read, ops, weight, scale, first))
        return weight, scale

    wte = output("wte.weight")
    weights = (
        *wte, np.array(tensors["wpe.weight"], np.float32, order="C"),
        stack("ln_1.weight"), stack("ln_1.bias"),
        *products("attn.c_attn", c.n_embd, 3 * c.n_embd), *products("attn.c_proj", c.n_embd, c.n_embd),
        stack("ln_2.weight"), stack("ln_2.bias"),
        *products("mlp.c_fc", c.n_embd, c.n_inner), *products("mlp.c_proj", c.n_inner, c.n_embd),
        np.array(tensors["ln_f.weight"], np.float32), np.array(tensors["ln_f.bias"], np.float32),
    )  # fmt: skip
    head = output("lm_head.weight") if "lm_head.weight" in tensors else wte
    _do_all(work)
    scales = np.array([c.attention_scale(layer) for layer in layers], np.float32)
    return Weights(*weights, *head, np.zeros(c.n_vocab, np.float32), scales)


def _pack(read: Callable[[], Floats], ops: ModuleType, packed: NDArray[Any], scale: Floats, first: int) -> None:
    """Read a weight, or its outputs from `first` on, and write it where it belongs, quantised if that is of 8 bits."""
    weight: NDArray[Any] = read()
    if packed.dtype == np.int8:
        weight, scale[first : first + weight.shape[1]] = quantise(weight)
    ops.pack(weight, packed, first)


def _columns(tensors: Mapping[str, Floats], name: str, first: int, last: int) -> Floats:
    """Rows of an embedding as columns of an output layer; a checkpoint on disk reads no others."""
    read_rows = getattr(tensors, "rows", None)
    rows: Floats = tensors[name][first:last] if read_rows is None else read_rows(name, first, last)
    return rows.T


def _do_all(work: Sequence[Callable[[], None]]) -> None:
    """A piece a core, on 8 of them at most. The first error is raised, and what has not begun then is left."""
    with ThreadPoolExecutor(min(count_cores(), MOST_THREADS)) as pool:
        try:
            for done in [pool.submit(piece) for piece in work]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
