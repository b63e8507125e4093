"""Medusa: from the last position that the target has read, a block for each further token. See drafters/medusa.py.

Block i maps u, the target's last hidden row after its last norm, to u + silu(W_i u + b_i), and the target's own output
layer makes logits of that. Zero blocks guess what the target itself would write next: training starts from there.

Source: Cai et al. 2024 (arXiv 2401.10774). Here the output layer is shared and frozen, and the target's law the label.
"""

from __future__ import annotations

import argparse

import torch
from head import FrozenTarget, Head, Seen, soft_loss
from torch import Tensor, nn
from torch.nn import functional as F


class Medusa(Head):
    """n_guess residual blocks side by side."""

    method = "medusa"
    peak_rate = 2e-3
    decay = 0.8  # of the weight of a guess's loss, from guess to guess

    def __init__(self, n_embd: int, n_guess: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_guess, n_embd, n_embd))  # [n_guess, n_in, n_out]
        self.bias = nn.Parameter(torch.zeros(n_guess, n_embd))

    def guesses(self, target: FrozenTarget, seen: Seen) -> list[Tensor]:
        """Each from the same row."""
        u = target.ln_f(seen.hidden[-1])
        blocks = zip(self.weight, self.bias, strict=True)
        return [target.output(u + F.silu(u @ weight + bias)) for weight, bias in blocks]

    def loss(self, target: FrozenTarget, seen: Seen) -> Tensor:
        """The mean over guesses, the first counting most."""
        losses = [soft_loss(guess, seen, place) for place, guess in enumerate(self.guesses(target, seen))]
        shares = self.decay ** torch.arange(len(losses))
        return (torch.stack(losses) * shares).sum() / shares.sum()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--guesses", type=int, default=4, help="blocks, each for one token further")


def build(target: FrozenTarget, options: argparse.Namespace) -> Medusa:
    return Medusa(target.config.n_embd, options.guesses)
