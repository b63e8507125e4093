"""EAGLE-3: a block on the target's features of three depths, trained on its own states. See minispec/drafters/eagle.py.

Attention in a step after the first: row t looks back on the keys and values of real features, those of the first
step, up to its own row, and on those that row t itself has made since: what the block will find in its cache.

Source: Li, Wei, Zhang, Zhang 2025 (arXiv 2503.01840). Here the target's whole law is the label.
"""

from __future__ import annotations

import argparse

import torch
from head import FrozenTarget, Seen
from torch import Tensor, nn
from train import Block, Recipe, causal
from unrolled import Unrolled, frequent_tokens

from minispec.drafters.eagle import three_depths


class Eagle(Unrolled):
    """One block of GPT-2 with positions of its own."""

    method = "eagle"
    peak_rate = 2e-3

    def __init__(
        self, target: FrozenTarget, depths: tuple[int, ...], n_small: int, n_head: int, tokens: Tensor
    ) -> None:
        super().__init__(target, depths, n_small, tokens)
        self.n_head = n_head
        self.wpe = nn.Embedding(target.config.n_ctx, n_small)
        self.h = nn.ModuleList([Block(Recipe("block", 1, n_head, n_small, tokens=0, peak_rate=0), 0.0)])
        nn.init.normal_(self.wpe.weight, std=0.01)
        self.keys: list[Tensor] = []  # of each step so far
        self.values: list[Tensor] = []

    def look_at(self, target: FrozenTarget, seen: Seen) -> None:
        """A new text: nothing is cached."""
        self.keys, self.values = [], []

    def layers(self, x: Tensor, step: int) -> Tensor:
        n, block = x.shape[1], self.h[0]
        assert isinstance(block, Block)
        x = x + self.wpe.weight[step : step + n]
        heads = block.attn.c_attn(block.ln_1(x)).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = heads[0], heads[1], heads[2]  # [n_batch, n_head, n, d_head]
        self.keys.append(k)
        self.values.append(v)
        out = look(q, [keys[:, :, :n] for keys in self.keys], [values[:, :, :n] for values in self.values])
        x = x + block.attn.c_proj(out.transpose(1, 2).flatten(2))
        y: Tensor = x + block.mlp(block.ln_2(x))
        return y

    def tensors(self) -> dict[str, Tensor]:
        """And how many heads the block has."""
        return super().tensors() | {"n_head": torch.tensor([self.n_head])}


def look(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Each row at the first step's rows up to its own, and at its own of every later step."""
    n = q.shape[2]
    if len(keys) == 1:
        return causal(q, keys[0], values[0])
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    real = (q @ keys[0].mT).masked_fill(later, -torch.inf)
    own = [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
    weights = (torch.cat([real, *own], -1).float() * q.shape[-1] ** -0.5).softmax(-1).to(q.dtype)
    out = weights[..., :n] @ values[0]
    for i, v in enumerate(values[1:]):
        out = out + weights[..., n + i : n + i + 1] * v
    return out


def add_options(parser: argparse.ArgumentParser) -> None:
    """Sizes: see minispec/drafters/eagle.py for what a guess costs by them."""
    parser.add_argument("--width", type=int, default=192, help="of the block")
    parser.add_argument("--heads", type=int, default=3, help="of its attention")
    parser.add_argument("--guessable", type=int, default=2048, help="tokens that it may guess, the most frequent ones")


def build(target: FrozenTarget, options: argparse.Namespace) -> Eagle:
    tokens = frequent_tokens(options, target.config.n_vocab)
    return Eagle(target, three_depths(target.config.n_layer), options.width, options.heads, tokens)
