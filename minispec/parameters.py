"""GPT-2's shape, and its weights as one named tuple.

The layers' arrays of a kind lie in one array with the layer as its first axis, so that a compiled pass takes the
whole model as one argument. Shapes of products' weights are given as before packing: `reference.pack` leaves them,
`kernels.pack` makes panels of them, [n_layer, n_panel, n_in, 32].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


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


# Those without a layer as their first axis.
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
