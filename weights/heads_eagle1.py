"""EAGLE-1: a block that guesses the target's last hidden state, and the target's own output layer on it.

It has the names and the block of EAGLE-3 (see heads_eagle.py, and minispec/drafters/eagle.py). A state z becomes the
next feature, out(z), which the target's output layer reads like one of its own, and which goes into the block as one
of its own would: fc(feature). The loss is mostly how far the feature is off, and a tenth of the usual one; the features
that it is given are made a little noisy, since its own will be.

Source: Li, Wei, Zhang, Zhang 2024 (arXiv 2401.15077): rates of loss and noise as there.
"""

from __future__ import annotations

import argparse

import torch
from head import FrozenTarget, Seen
from heads_eagle import Eagle, add_options
from torch import Tensor
from torch.nn import functional as F
from unrolled import Weight, frequent_tokens, soft_cross_entropy

__all__ = ["add_options", "build"]

NOISE = 0.1  # of features whose text fills 512 positions
TOKENS = 0.1  # the share of the loss of tokens


class Eagle1(Eagle):
    """One step, from real features."""

    method = "eagle1"
    steps = 1

    def __init__(self, target: FrozenTarget, n_small: int, n_head: int, tokens: Tensor) -> None:
        super().__init__(target, (target.config.n_layer,), n_small, n_head, tokens)
        n_embd = target.config.n_embd
        del self.into, self.back, self.head
        self.fc = Weight(n_embd, n_small)
        self.out = Weight(n_small, n_embd)

    def enter(self, target: FrozenTarget, seen: Seen) -> Tensor:
        feature = target.ln_f(seen.hidden[-1])
        if self.training:
            feature = feature + (2 * torch.rand_like(feature) - 1) * NOISE * 512 / feature.shape[1]
        x: Tensor = self.fc(feature)
        return x

    def again(self, z: Tensor) -> Tensor:
        x: Tensor = self.fc(self.out(z))
        return x

    def logits(self, target: FrozenTarget, z: Tensor) -> Tensor:
        layer = target.wte if target.tied else target.lm_head
        return F.linear(self.out(z), layer.weight[self.guessed])

    def loss(self, target: FrozenTarget, seen: Seen) -> Tensor:
        """Smooth L1 between features, and a tenth of the cross-entropy of tokens."""
        (z,) = self.states(target, seen, 1)
        feature = target.ln_f(seen.hidden[-1])[:, 1:]
        off = F.smooth_l1_loss(self.out(z).float(), feature.float())
        return off + TOKENS * soft_cross_entropy(self.logits(target, z), self.label(seen, 0))

    def tensors(self) -> dict[str, Tensor]:
        tensors = dict(self.state_dict())
        whole = {"tokens": self.guessed, "depths": torch.tensor(self.depths), "n_head": torch.tensor([self.n_head])}
        return tensors | whole


def build(target: FrozenTarget, options: argparse.Namespace) -> Eagle1:
    return Eagle1(target, options.width, options.heads, frequent_tokens(options, target.config.n_vocab))
