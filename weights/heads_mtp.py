"""MTP: layers of queries alone, on the keys and values of the target's last layer. See minispec/drafters/mtp.py.

Every step looks back from the row that it began with: what it has guessed itself is in no cache.

Source: the drafters that go with Gemma 4 ("assistant" checkpoints, as in transformers).
"""

from __future__ import annotations

import argparse

import torch
from head import FrozenTarget, Seen
from torch import Tensor, nn
from train import MLP, Linear, causal
from unrolled import Unrolled, frequent_tokens


class QueryAttention(nn.Module):
    """Queries of its own, and what becomes of the answers."""

    def __init__(self, n_small: int, n_query: int) -> None:
        super().__init__()
        self.c_q = Linear(n_small, n_query, n_small**-0.5)
        self.c_proj = Linear(n_query, n_small, 0.02)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """x [n_batch, n, n_small]; row t sees the target's rows up to t. keys, values [n_batch, n_head, n, d_head]."""
        q = self.c_q(x).unflatten(-1, (keys.shape[1], -1)).transpose(1, 2)
        out = causal(q, keys.to(q.dtype), values.to(q.dtype))
        y: Tensor = self.c_proj(out.transpose(1, 2).flatten(2))
        return y


class QueryBlock(nn.Module):
    """A layer of GPT-2 whose keys and values are another's."""

    def __init__(self, n_small: int, n_query: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_small)
        self.attn = QueryAttention(n_small, n_query)
        self.ln_2 = nn.LayerNorm(n_small)
        self.mlp = MLP(n_small, 0.02)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), keys, values)
        y: Tensor = x + self.mlp(self.ln_2(x))
        return y


class MTP(Unrolled):
    """Two such layers on the last hidden state."""

    method = "mtp"
    peak_rate = 2e-3

    def __init__(self, target: FrozenTarget, n_layer: int, n_small: int, n_head: int, tokens: Tensor) -> None:
        super().__init__(target, (target.config.n_layer,), n_small, tokens)
        self.n_head = n_head
        n_query = n_head * target.config.n_embd // target.config.n_head
        self.h = nn.ModuleList(QueryBlock(n_small, n_query) for _ in range(n_layer))
        self.seen: tuple[Tensor, Tensor] = torch.empty(0), torch.empty(0)

    def look_at(self, target: FrozenTarget, seen: Seen) -> None:
        """The target's keys and values, of the heads that are asked."""
        keys, values = target.keys_values(seen, target.config.n_layer - 1)
        self.seen = keys[:, : self.n_head], values[:, : self.n_head]

    def layers(self, x: Tensor, step: int) -> Tensor:
        n = x.shape[1]
        keys, values = (side[:, :, :n] for side in self.seen)
        for block in self.h:
            x = block(x, keys, values)
        return x


def add_options(parser: argparse.ArgumentParser) -> None:
    """Sizes: see minispec/drafters/mtp.py for what a guess costs by them."""
    parser.add_argument("--width", type=int, default=128, help="of the layers")
    parser.add_argument("--layers", type=int, default=2, help="how many")
    parser.add_argument("--heads", type=int, help="of the target's heads that they ask  [all]")
    parser.add_argument("--guessable", type=int, default=2048, help="tokens that it may guess, the most frequent ones")


def build(target: FrozenTarget, options: argparse.Namespace) -> MTP:
    n_head = min(options.heads or target.config.n_head, target.config.n_head)
    tokens = frequent_tokens(options, target.config.n_vocab)
    return MTP(target, options.layers, options.width, n_head, tokens)
