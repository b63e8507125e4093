"""GPT-2: one wiring of a pass, for both sets of operations.

`reference` and `kernels` have the same functions; this file says in which order they are called. A pass
takes the ids of n_new positions, appends their keys and values to a cache, and gives logits for the
last rows that are asked for.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from minispec.kv_cache import KVCache

Floats = NDArray[np.float32]
BACKENDS = ("numba", "numpy")
_MODULES = dict(zip(BACKENDS, ("minispec.kernels", "minispec.reference"), strict=True))


class OnePass:
    """One compiled pass at a time, in one process: Numba's threads abort a second one, and do not survive a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: int | None = None

    def __enter__(self) -> None:
        if self.process not in (None, os.getpid()):
            raise ValueError(
                "this process was forked after a pass, which compiled threads do not survive: start it by spawn or "
                "forkserver, or take backend='numpy'"
            )
        self.lock.acquire()
        self.process = os.getpid()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


_passes: dict[str, OnePass | nullcontext[None]] = {"minispec.kernels": OnePass(), "minispec.reference": nullcontext()}


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


@dataclass(frozen=True)
class Linear:
    """A product's weight, packed for its operations, and bias [n_out]."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class Norm:
    """A layer norm's weight and bias, both [n_embd]."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class Block:
    """One layer: attention and MLP, each behind its norm."""

    ln_1: Norm
    c_attn: Linear
    attn_c_proj: Linear
    ln_2: Norm
    c_fc: Linear
    mlp_c_proj: Linear


def operations(backend: str) -> ModuleType:
    """The module with the operations of a backend. Raises ValueError for an unknown one."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}: choose one of {', '.join(BACKENDS)}")
    if backend == "numba" and find_spec("numba") is None:
        warnings.warn(
            "Numba is not installed: going on with the plain NumPy, which is slow", RuntimeWarning, stacklevel=1
        )
        backend = "numpy"
    return import_module(_MODULES[backend])


class GPT2:
    """GPT-2's weights and its forward pass. Weights never change; all that does is in the cache."""

    def __init__(self, config: GPT2Config, tensors: Mapping[str, Floats], backend: str = "numba") -> None:
        """Take float32 tensors by their checkpoint names, each once, packed for the backend.

        Raises KeyError for a missing name, ValueError for an unknown backend.
        """
        self.config = config
        self.ops = ops = operations(backend)

        def norm(name: str) -> Norm:
            return Norm(np.array(tensors[f"{name}.weight"]), np.array(tensors[f"{name}.bias"]))

        def linear(name: str) -> Linear:
            return Linear(ops.pack(tensors[f"{name}.weight"]), np.array(tensors[f"{name}.bias"]))

        def block(layer: int) -> Block:
            h = f"h.{layer}"
            return Block(
                ln_1=norm(f"{h}.ln_1"),
                c_attn=linear(f"{h}.attn.c_attn"),
                attn_c_proj=linear(f"{h}.attn.c_proj"),
                ln_2=norm(f"{h}.ln_2"),
                c_fc=linear(f"{h}.mlp.c_fc"),
                mlp_c_proj=linear(f"{h}.mlp.c_proj"),
            )

        self.wte = ops.pack(tensors["wte.weight"].T)  # [n_embd, n_vocab]: a token's embedding is a column
        self.wpe = np.array(tensors["wpe.weight"])
        self.h = [block(layer) for layer in range(config.n_layer)]
        self.ln_f = norm("ln_f")
        tied = "lm_head.weight" not in tensors
        head = self.wte if tied else ops.pack(tensors["lm_head.weight"].T)
        self.lm_head = Linear(head, np.zeros(config.n_vocab, np.float32))

    def __repr__(self) -> str:
        c = self.config
        backend = self.ops.__name__.rpartition(".")[2]
        return f"<GPT2 {c.n_layer} layers, {c.n_head} heads, width {c.n_embd}, {c.n_vocab} tokens, {backend}>"

    @property
    def backend(self) -> str:
        """The backend that the passes run on: "numba" or "numpy"."""
        return next(name for name, module in _MODULES.items() if module == self.ops.__name__)

    @property
    def n_ctx(self) -> int:
        """Positions in the context window."""
        return self.config.n_ctx

    @property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return self.config.n_vocab

    def new_cache(self) -> KVCache:
        """An empty cache for one text."""
        c = self.config
        layers = [self.ops.empty_cache(c.n_head, c.n_ctx, c.n_embd // c.n_head) for _ in range(c.n_layer)]
        return KVCache(layers, c.n_ctx, self)

    def forward(self, ids: Sequence[int], cache: KVCache, n_logits: int | None = None) -> Floats:
        """Append len(ids) positions to the cache; logits [n_logits, n_vocab] of the last rows, all by default.

        A row's logits are the same bits however the text before it was cut into passes.
        Raises ValueError for ids outside the vocabulary, too many positions, or no ids at all.
        """
        new = self._checked(ids)
        n_new, n_past = len(new), cache.length
        n_logits = n_new if n_logits is None else n_logits
        if not 0 <= n_logits <= n_new:
            raise ValueError(f"n_logits is {n_logits}: a pass over {n_new} rows has logits for 0 to {n_new}")
        cache.check(self, n_new)
        with _passes[self.ops.__name__]:
            x = self.ops.columns(self.wte, new) + self.wpe[n_past : n_past + n_new]
            for layer, block in enumerate(self.h):
                x += self._attention(block, x, cache, layer)
                x += self._mlp(block, x)
            cache.append(n_new)
            x = self._norm(self.ln_f, x[n_new - n_logits :])
            logits: Floats = self._linear(self.lm_head, x)
        return logits

    def _attention(self, block: Block, x: Floats, cache: KVCache, layer: int) -> Floats:
        n_new, n_embd = x.shape
        n_head = self.config.n_head
        qkv = self._linear(block.c_attn, self._norm(block.ln_1, x))
        # A row of qkv is q of every head, then k, then v: [n_new, 3, n_head, d_head] to [3, n_head, n_new, d_head].
        split = qkv.reshape(n_new, 3, n_head, n_embd // n_head).transpose(1, 2, 0, 3)
        q, k, v = np.ascontiguousarray(split)
        keys, values = cache.layers[layer]
        self.ops.store(k, v, keys, values, cache.length)
        out = self.ops.attention(q, keys, values, cache.length, self.config.attention_scale(layer))
        return self._linear(block.attn_c_proj, out)

    def _mlp(self, block: Block, x: Floats) -> Floats:
        up = self._linear(block.c_fc, self._norm(block.ln_2, x))
        return self._linear(block.mlp_c_proj, self.ops.gelu(up))

    def _norm(self, norm: Norm, x: Floats) -> Floats:
        y: Floats = self.ops.layer_norm(x, norm.weight, norm.bias, self.config.layer_norm_epsilon)
        return y

    def _linear(self, linear: Linear, x: Floats) -> Floats:
        y: Floats = self.ops.linear(x, linear.weight, linear.bias)
        return y

    def _checked(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """ids as an array of int64, each one in the vocabulary: compiled code does not look."""
        array = np.asarray(ids)
        if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
            raise ValueError(f"ids are {ids!r:.80}: a pass takes a non-empty list of token ids")
        outside = array[(array < 0) | (array >= self.n_vocab)]
        if len(outside):
            raise ValueError(f"token id {outside[0]} is outside the vocabulary of {self.n_vocab}")
        return array.astype(np.int64)
