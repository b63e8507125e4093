"""GPT-2's weights as two named tuples: of a whole model, and of one product.

The layers' arrays of a kind lie in one array with the layer as its first axis, so that a compiled pass takes
the whole model as one argument. Weights of products are laid out as their operations want them (see `pack` there).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


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
