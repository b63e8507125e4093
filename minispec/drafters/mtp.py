"""MTP: two small layers of queries alone look back on the target's own keys and values.

The rule: the target's last layer has keys and values for all that it has read, and they are there for whoever asks.
So this drafter has no keys, no values, no cache: nothing to fill when a text begins, nothing to roll back. It is given
the target's last hidden state and the token that followed, asks the target's cache in each of its layers, and gives
the law of the next token and a state that stands in for the next hidden state. `on_features` has the ways in and out.
What it has guessed itself is in no cache: only its state goes on from guess to guess, and the place it looks back from
stays the last one that the target has read.

Cost: what a guess reads, over what a pass of the target reads. For story-target (12.2 M weights in layers and head)
with two layers of width 128, six heads of 64 and 2048 tokens to guess: a layer has 2 * 128 * 384 for queries and what
comes of them and 8 * 128^2 for its MLP, 459 k for both; head 128 * 2048 = 262 k, way back 16 k: 0.06 of a pass.
The first round of a text has no features and no guesses.

The law is kept: a guess is drawn from the law that it is judged by, which has zeros for tokens it never guesses.
Training: one pass over the target's training text, by weights/train_heads.py, guessing three tokens in a row.

Source: the drafters that go with Gemma 4 ("assistant" checkpoints, as in transformers); the idea of predicting further
tokens with a part of the target's own: DeepSeek-AI 2024 (DeepSeek-V3, arXiv 2412.19437).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minispec.backends import one_pass
from minispec.drafters.on_features import (
    FeatureDrafter,
    Floats,
    Tensors,
    Ways,
    check_shapes,
    guess,
    layer_shapes,
    outputs,
    sizes,
)
from minispec.kv_cache import check_taps
from minispec.model import GPT2
from minispec.packing import packed
from minispec.parameters import QueryWeights
from minispec.protocols import Choices, Draft, GoOn, Sampler, always


class MTPDrafter(FeatureDrafter):
    """Drafts with trained layers that look back on the cache of `target`."""

    def __init__(self, target: GPT2, tensors: Tensors) -> None:
        """Take the tensors of a heads file. Raises ValueError for those of another target."""
        super().__init__(target, tensors)
        self.layers = QueryLayers(target, tensors)

    def describe(self) -> str:
        """What a guess costs depends on this."""
        shapes = [array.shape for array in (self.layers.weights.c_q_bias, self.layers.weights.c_fc_bias)]
        return f"MTP {shapes} {self.ways.embed.shape} {self.ways.tokens.shape}"

    def warm_up(self) -> None:
        """Compile what a guess needs, or load it from the cache on disk."""
        self.ways.warm_up()
        self.layers.warm_up()

    def start(self, cache: Any) -> MTPDrafting:
        """Begin a text. Raises ValueError for a target's cache without the features."""
        return MTPDrafting(self.ways, self.layers, cache)


class MTPDrafting:
    """The layers at work on one text: all state is in the target's cache."""

    def __init__(self, ways: Ways, layers: QueryLayers, cache: Any) -> None:
        check_taps(cache, ways.depths)
        self.ways, self.layers, self.target_cache = ways, layers, cache

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Up to n_draft tokens after ids: none before the target has read."""
        n_read = len(ids) - 1
        if n_draft < 1 or n_read < 1 or self.target_cache.length != n_read:
            return Draft([], [])
        out = self._pass(self.ways.enter(self.target_cache, n_read - 1, ids[-1:]))
        return guess(self.ways, out, self._pass, len(ids), n_draft, sampling, choices, go_on)

    def _pass(self, x: Floats) -> Floats:
        cache = self.target_cache
        return self.layers.forward(x, cache.keys[-1], cache.values[-1], cache.length)


class QueryLayers:
    """The weights, packed for the target's operations, and the pass of one row."""

    def __init__(self, target: GPT2, tensors: Tensors) -> None:
        """Raises ValueError for tensors that do not fit."""
        self.ops = target.ops
        self.epsilon = target.config.layer_norm_epsilon
        self.d_head = target.config.n_embd // target.config.n_head
        n_query = count_queries(target, tensors)
        self.n_head = n_query // self.d_head
        self.weights = read_queries(self.ops, tensors)

    def warm_up(self) -> None:
        """A row over one position."""
        keys, values = self.ops.empty_caches(1, 1, self.n_head, 1, self.d_head)
        self.forward(np.zeros((1, self.weights.ln_f_bias.size), np.float32), keys[0, 0], values[0, 0], 1)

    def forward(self, x: Floats, keys: Floats, values: Floats, n_seen: int) -> Floats:
        """A row [1, n_small], with a layer's keys and values of n_seen positions, to its output [n_out]."""
        run = self.ops.look_back if hasattr(self.ops, "look_back") else self.wired
        with one_pass(self.ops):
            out: Floats = run(self.weights, self.epsilon, x, keys[: self.n_head], values[: self.n_head], n_seen)
        return out

    def wired(self, w: QueryWeights, epsilon: float, x: Floats, keys: Floats, values: Floats, n_seen: int) -> Floats:
        """Operation by operation. The kernels' `look_back` is the same in one compiled call."""
        ops = self.ops
        for i in range(len(w.c_q_bias)):
            normed = ops.layer_norm(x, w.ln_1_weight[i], w.ln_1_bias[i], epsilon)
            q = ops.linear(normed, w.c_q_weight[i], w.c_q_scale[i], w.c_q_bias[i])
            q = q.reshape(self.n_head, 1, self.d_head)
            # A row looks at itself and at those before it: at the place of the last row that the target has read.
            y = ops.attention(q, keys, values, n_seen - 1, self.d_head**-0.5)
            x = x + ops.linear(y, w.attn_c_proj_weight[i], w.attn_c_proj_scale[i], w.attn_c_proj_bias[i])
            normed = ops.layer_norm(x, w.ln_2_weight[i], w.ln_2_bias[i], epsilon)
            up = ops.gelu(ops.linear(normed, w.c_fc_weight[i], w.c_fc_scale[i], w.c_fc_bias[i]))
            x = x + ops.linear(up, w.mlp_c_proj_weight[i], w.mlp_c_proj_scale[i], w.mlp_c_proj_bias[i])
        z = ops.layer_norm(x, w.ln_f_weight, w.ln_f_bias, epsilon)
        out: Floats = ops.linear(z, w.lm_head, w.lm_head_scale, w.lm_head_bias)[0]
        return out


def count_queries(target: GPT2, tensors: Tensors) -> int:
    """How many numbers a query of all heads has. Raises ValueError for tensors that do not fit."""
    n_small, _, n_inner = sizes(target, tensors)
    c, d_head = target.config, target.config.n_embd // target.config.n_head
    n_query = tensors["h.0.attn.c_q.bias"].size if "h.0.attn.c_q.bias" in tensors else 0
    if not 1 <= n_query // d_head <= c.n_head or n_query % d_head:
        raise ValueError(
            f"these heads have queries of {n_query} numbers, and the target has {c.n_head} heads of {d_head}: they "
            "belong to another"
        )
    for layer in layers_of(tensors):
        products = {"attn.c_q": (n_small, n_query), "attn.c_proj": (n_query, n_small)}
        check_shapes(tensors, layer_shapes(layer, n_small, n_inner, products))
    return n_query


def layers_of(tensors: Tensors) -> range:
    """The layers that there are."""
    return range(1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("h.")))


def read_queries(ops: Any, tensors: Tensors) -> QueryWeights:
    """Weights of the layers, each kind stacked, and of the output layer: head and way back."""
    layers = layers_of(tensors)

    def stack(name: str) -> Floats:
        return np.stack([tensors[f"h.{i}.{name}"] for i in layers])

    def products(name: str) -> tuple[Any, Floats, Floats]:
        kinds = zip(*(packed(ops, stack(f"{name}.weight")[i], stack(f"{name}.bias")[i]) for i in layers), strict=True)
        weight, scale, bias = map(np.stack, kinds)
        return weight, scale, bias

    head = outputs(tensors)
    return QueryWeights(
        stack("ln_1.weight"), stack("ln_1.bias"), *products("attn.c_q"), *products("attn.c_proj"),
        stack("ln_2.weight"), stack("ln_2.bias"), *products("mlp.c_fc"), *products("mlp.c_proj"),
        np.array(tensors["ln_f.weight"]), np.array(tensors["ln_f.bias"]),
        *packed(ops, head.T),
    )  # fmt: skip
