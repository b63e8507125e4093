"""Tensors packed for a set of operations, quantised where that is asked for: a product alone, and a whole model.

A whole model is done in small pieces, one a core, so that a load needs little more memory than the model: the first
touch of fresh memory is most of the work, and two cores do it in half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minispec.cores import count_cores
from minispec.parameters import GPT2Config, Weights
from minispec.reference import quantise

Floats = NDArray[np.float32]
BLOCK = 4096  # tokens whose embeddings are read at a time
MOST_THREADS = 8  # more than that only wait for memory


# --- a product alone ------------------------------------------------------------------------------


class Linear(NamedTuple):
    """A product as a set of operations wants it: `ops.linear(x, *linear)`."""

    weight: NDArray[Any]
    scale: Floats
    bias: Floats


def packed(ops: ModuleType, weight: Floats, bias: Floats | None = None, small: bool = False) -> Linear:
    """A product of a weight [n_in, n_out], packed for a set of operations; small: in 8 bits."""
    n_out = weight.shape[1]
    kept, scale = quantise(weight) if small else (weight, np.ones(n_out, np.float32))
    panels = ops.empty_weight(weight.shape, kept.dtype.type)
    ops.pack(kept, panels)
    return Linear(panels, scale, np.zeros(n_out, np.float32) if bias is None else bias)


# --- a whole model --------------------------------------------------------------------------------


def read_weights(
    config: GPT2Config, tensors: Mapping[str, Floats], ops: ModuleType, stored: type[np.generic]
) -> Weights:
    """Weights from float32 tensors by their checkpoint names, packed for a set of operations.

    stored: float32, or int8 for weights of products in 8 bits. Raises KeyError for a missing name.
    """
    c, layers = config, range(config.n_layer)
    work: list[Callable[[], None]] = []

    def stack(name: str) -> Floats:
        """A norm's or a bias's part of all layers: [n_layer, n]."""
        return np.stack([np.asarray(tensors[f"h.{layer}.{name}"], np.float32) for layer in layers])

    def products(name: str, n_in: int, n_out: int) -> tuple[NDArray[Any], Floats, Floats]:
        """Weight, scale and bias of a product in all layers; `work` fills the first two."""
        weight, scale = ops.empty_weight((c.n_layer, n_in, n_out), stored), np.ones((c.n_layer, n_out), np.float32)
        for layer in layers:
            read = partial(tensors.__getitem__, f"h.{layer}.{name}.weight")
            work.append(partial(_pack, read, ops, weight[layer], scale[layer], 0))
        return weight, scale, stack(f"{name}.bias")

    def output(name: str) -> tuple[NDArray[Any], Floats]:
        """Weight and scale of an embedding as an output layer; `work` fills both."""
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
