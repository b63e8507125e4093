"""GPT-2's pass, operation by operation, for any set of operations.

This is the pass to read. `kernels` does the same in one compiled call (`kernels/whole_pass.py`), bit for bit the same
as these lines with its own operations.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minispec.kv_cache import KVCache
from minispec.parameters import GPT2Config, Weights

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Wiring(NamedTuple):
    """What a pass is made of: a shape, weights of it, and the operations they were packed for."""

    config: GPT2Config
    weights: Weights
    ops: ModuleType

    @np.errstate(over="ignore", invalid="ignore")  # compiled code says nothing either: the logits tell, and are refused
    def forward(self, ids: Ints, cache: KVCache, n_logits: int) -> Floats:
        """Ids [n_new], appended to a cache whose length stays -> logits [n_logits, n_vocab] of the last rows."""
        w, ops, n_past = self.weights, self.ops, cache.length
        x = ops.columns(w.wte, w.wte_scale, ids) + w.wpe[n_past : n_past + len(ids)]
        for layer in range(self.config.n_layer):
            cache.tap(layer, x)
            x += self.attention(x, cache, layer)
            x += self.mlp(x, layer)
        cache.tap(self.config.n_layer, x)
        x = self.norm(x[len(ids) - n_logits :], w.ln_f_weight, w.ln_f_bias)
        logits: Floats = ops.linear(x, w.lm_head, w.lm_head_scale, w.lm_head_bias)
        return logits

    def attention(self, x: Floats, cache: KVCache, layer: int) -> Floats:
        """What each row [n_new, n_embd] takes from the rows up to its own."""
        w, ops = self.weights, self.ops
        n_new, n_embd = x.shape
        n_head = self.config.n_head
        x = self.norm(x, w.ln_1_weight[layer], w.ln_1_bias[layer])
        qkv = ops.linear(x, w.c_attn_weight[layer], w.c_attn_scale[layer], w.c_attn_bias[layer])
        # A row of qkv is q of every head, then k, then v: [n_new, 3, n_head, d_head] to [3, n_head, n_new, d_head].
        split = qkv.reshape(n_new, 3, n_head, n_embd // n_head).transpose(1, 2, 0, 3)
        q, k, v = np.ascontiguousarray(split)
        keys, values = cache.keys[layer], cache.values[layer]
        ops.store(k, v, keys, values, cache.length)
        out = ops.attention(q, keys, values, cache.length, w.attention_scale[layer])
        y: Floats = ops.linear(out, w.attn_c_proj_weight[layer], w.attn_c_proj_scale[layer], w.attn_c_proj_bias[layer])
        return y

    def mlp(self, x: Floats, layer: int) -> Floats:
        """What each row makes of itself."""
        w, ops = self.weights, self.ops
        x = self.norm(x, w.ln_2_weight[layer], w.ln_2_bias[layer])
        up = ops.linear(x, w.c_fc_weight[layer], w.c_fc_scale[layer], w.c_fc_bias[layer])
        y: Floats = ops.linear(
            ops.gelu(up), w.mlp_c_proj_weight[layer], w.mlp_c_proj_scale[layer], w.mlp_c_proj_bias[layer]
        )
        return y

    def norm(self, x: Floats, weight: Floats, bias: Floats) -> Floats:
        """Each row with mean 0 and variance 1, scaled and shifted."""
        y: Floats = self.ops.layer_norm(x, weight, bias, self.config.layer_norm_epsilon)
        return y
