"""A target that is not trained any more, and all that it sees of a text: what heads are trained on.

It is train.py's GPT-2 with the shape and the weights of any checkpoint folder in Hugging Face form.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from train import Block, Recipe

from minispec.heads import fingerprint_of
from minispec.parameters import GPT2Config
from minispec.vocabulary import count_tokens
from minispec.weights import Checkpoint


@dataclass(frozen=True)
class Seen:
    """A batch of texts and what the target has made of them."""

    ids: Tensor  # [n_batch, n_tokens]
    hidden: list[Tensor]  # n_layer + 1 of [n_batch, n_tokens, n_embd]: the residual stream after so many layers
    logits: Tensor  # [n_batch, n_tokens, n_vocab]: of the token after each


class ReadGPT2(nn.Module):
    """A checkpoint's GPT-2, its parameters named as there."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError for a folder that holds no GPT-2, or one of a shape that train.py's blocks do not have."""
        super().__init__()
        checkpoint = Checkpoint(folder, count_tokens(folder))
        self.config = c = checkpoint.config
        plain = GPT2Config(c.n_layer, c.n_head, c.n_embd, c.n_ctx, c.n_vocab, 4 * c.n_embd, c.layer_norm_epsilon)
        if c != plain:
            raise ValueError(f"{folder} is a {c}, but heads are trained on {plain} alone")
        self.fingerprint = fingerprint_of(c, checkpoint)
        self.wte, self.wpe = nn.Embedding(c.n_vocab, c.n_embd), nn.Embedding(c.n_ctx, c.n_embd)
        recipe = Recipe("", c.n_layer, c.n_head, c.n_embd, tokens=0, peak_rate=0)
        self.h = nn.ModuleList(Block(recipe, 0.0) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd)
        if "lm_head.weight" in checkpoint:
            self.lm_head = nn.Linear(c.n_embd, c.n_vocab, bias=False)
        self.load_state_dict({name: torch.from_numpy(checkpoint[name]) for name in checkpoint})
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = c.layer_norm_epsilon

    @property
    def tied(self) -> bool:
        """Whether the output layer is the embeddings."""
        return not hasattr(self, "lm_head")

    def output(self, normed: Tensor) -> Tensor:
        """The output layer: [..., n_embd], as ln_f gives it, to logits [..., n_vocab]."""
        return F.linear(normed, self.wte.weight if self.tied else self.lm_head.weight)


class FrozenTarget(ReadGPT2):
    """The target: no dropout, no gradients."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def see(self, ids: Tensor) -> Seen:
        """Read texts [n_batch, n_tokens], each from position 0."""
        hidden = [self.wte(ids) + self.wpe.weight[: ids.shape[1]]]
        for block in self.h:
            hidden.append(block(hidden[-1]))
        return Seen(ids, hidden, self.output(self.ln_f(hidden[-1])))

    @torch.no_grad()
    def keys_values(self, seen: Seen, layer: int) -> tuple[Tensor, Tensor]:
        """What a layer's cache holds of these texts, both [n_batch, n_head, n_tokens, d_head]."""
        block: Any = self.h[layer]
        qkv = block.attn.c_attn(block.ln_1(seen.hidden[layer]))
        _, keys, values = qkv.unflatten(-1, (3, self.config.n_head, -1)).permute(2, 0, 3, 1, 4)
        return keys, values
