"""GPT-2's operations in plain NumPy: what each kernel must equal, and how to read one.

Axes: n_new rows of a pass, n_past rows before them, n_in and n_out of a product, n_head, d_head,
n_ctx. Every function treats a row the same way whatever else is in the pass, so a row's bits do
not depend on its company. This file is slow on purpose and refuses to be clever; `kernels` has
the same names, the same arguments and the same order, with loops: read the two side by side.

Source: Radford et al. 2019 (GPT-2); Ba, Kiros, Hinton 2016; Hendrycks, Gimpel 2016; Vaswani et al. 2017.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """Each row to mean 0 and variance 1, then scaled and shifted: [n_new, n] -> [n_new, n]."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    y: Floats = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
    return y


def gelu(x: Floats) -> Floats:
    """GPT-2's GELU, the one with tanh, element by element."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    y: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


def softmax(x: Floats) -> Floats:
    """Scores to probabilities along the last axis."""
    exps = np.exp(x - x.max(axis=-1, keepdims=True))
    y: Floats = exps / exps.sum(axis=-1, keepdims=True)
    return y


def linear(x: Floats, weight: NDArray[Any], scale: Floats, bias: Floats) -> Floats:
    """(x @ weight) * scale + bias: [n_new, n_in] by [n_in, n_out] -> [n_new, n_out]. For float32 all scales are 1.

    One row at a time, because a BLAS sums five rows in another order than one.
    """
    out = np.empty((len(x), len(bias)), np.float32)
    weight = np.asarray(weight, np.float32)
    for row in range(len(x)):
        out[row] = x[row] @ weight * scale + bias
    return out


def attention(q: Floats, keys: Floats, values: Floats, n_past: int, scale: float) -> Floats:
    """Each new row looks at itself and all rows before it: -> [n_new, n_head * d_head].

    q [n_head, n_new, d_head]; keys and values [n_head, n_ctx, d_head], of which n_past + n_new are filled.
    vecdot, not @: for some sizes of a head OpenBLAS's product reads memory that nobody has written, and NumPy
    then warns of an invalid value, though no result holds one.
    """
    n_head, n_new, d_head = q.shape
    out = np.empty((n_new, n_head, d_head), np.float32)
    for head in range(n_head):
        for row in range(n_new):
            seen = n_past + row + 1
            scores = np.vecdot(keys[head, :seen], q[head, row]) * np.float32(scale)
            out[row, head] = softmax(scores) @ values[head, :seen]
    return out.reshape(n_new, n_head * d_head)


# --- how weights and cache are laid out ----------------------------------------------------------

# Plainly. The kernels want other shapes, which is why a model asks its operations for them. An embedding is a column,
# since the output layer, which GPT-2 ties to its embeddings, is kept as [n_embd, n_vocab].


def empty_weight(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Room for weights [..., n_in, n_out]."""
    return np.empty(shape, dtype)


def pack(weight: NDArray[Any], packed: NDArray[Any], first: int = 0) -> None:
    """Write a weight [n_in, n_out] as `linear` wants it, unchanged: the outputs from `first` on."""
    packed[:, first : first + weight.shape[1]] = weight


def columns(weight: NDArray[Any], scale: Floats, ids: Ints) -> Floats:
    """Columns of a packed weight, times their scales: [n_in, n_out] at ids [n_new] -> [n_new, n_in]."""
    return np.ascontiguousarray((weight[:, ids] * scale[ids]).T)


def empty_caches(n_slot: int, n_layer: int, n_head: int, n_ctx: int, d_head: int) -> tuple[Floats, Floats]:
    """Keys and values for n_slot texts, both [n_slot, n_layer, n_head, n_ctx, d_head]."""
    shape = n_slot, n_layer, n_head, n_ctx, d_head
    return np.zeros(shape, np.float32), np.zeros(shape, np.float32)


def store(k: Floats, v: Floats, keys: Floats, values: Floats, n_past: int) -> None:
    """Write k and v [n_head, n_new, d_head] into a layer's cache from position n_past on."""
    keys[:, n_past : n_past + k.shape[1]] = k
    values[:, n_past : n_past + v.shape[1]] = v


def copy_rows(keys: Floats, values: Floats, places: Ints, to: Ints) -> None:
    """Copy the rows at some places [n_row] to others, in a cache's keys and values [..., n_ctx, d_head]."""
    keys[..., to, :] = keys[..., places, :]
    values[..., to, :] = values[..., places, :]


def fetch(keys: Floats, values: Floats, length: int) -> tuple[Floats, Floats]:
    """What `store` wrote: the first `length` rows of a layer's cache, both [n_head, length, d_head]."""
    return keys[:, :length], values[:, :length]


def warm_up(dtype: np.dtype[Any]) -> None:
    """Nothing is compiled here."""


# --- for both sets of operations -----------------------------------------------------------------


def quantise(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """A weight [n_in, n_out] as integers from -127 to 127 and a scale an output [n_out]: about integers * scale.

    The largest number of an output becomes 127 or -127; an output of zeros has the scale 1.
    """
    scale = np.abs(weight).max(axis=0) / np.float32(127)
    scale[scale == 0] = 1
    return np.clip(np.rint(weight / scale), -127, 127).astype(np.int8), scale  # (a denormal scale is coarse)
