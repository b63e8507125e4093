"""A small model on a target's features, in training: it guesses several tokens in a row from its own states.

This is the torch side of minispec/drafters/on_features.py, which says how such a model is entered and left. In use its
second guess starts from its own first state and not from the target's, so that is how it is trained: each step runs
over all rows of a text at once, row t from the states of row t in the step before, and learns the target's law of one
token further (EAGLE-3's "training-time test").
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from head import FrozenTarget, Head, Seen
from torch import Tensor, nn
from torch.nn import functional as F


class Weight(nn.Module):
    """x @ weight, without a bias: [..., n_in] -> [..., n_out]."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) * n_in**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Unrolled(Head):
    """What EAGLE and MTP share. A method says what its layers do with x."""

    steps = 3  # guesses in a row that it is trained on
    told_steps = 4  # and that rates are told of
    decay = 0.8  # of the weight of a guess's loss, from guess to guess

    def __init__(self, target: FrozenTarget, depths: tuple[int, ...], n_small: int, tokens: Tensor) -> None:
        super().__init__()
        n_embd = target.config.n_embd
        self.depths = depths
        self.guessed = tokens  # [n_guess]: the ids that it may guess
        self.embed = Weight(n_embd, n_small)
        self.into = nn.Linear(len(depths) * n_embd, n_small)
        self.back = Weight(n_small, n_small)
        self.head = nn.Linear(n_small, len(tokens), bias=False)
        self.ln_f = nn.LayerNorm(n_small)
        nn.init.normal_(self.head.weight, std=0.02)

    # --- what a method decides ---------------------------------------------------------------------

    def layers(self, x: Tensor, step: int) -> Tensor:
        """x [n_batch, n_rows, n_small] through the layers; row t is of position t + step of the text."""
        raise NotImplementedError

    def look_at(self, target: FrozenTarget, seen: Seen) -> None:
        """Take from what the target has seen, before the first step, what the layers need besides x."""

    def enter(self, target: FrozenTarget, seen: Seen) -> Tensor:
        """What x gets from the target's features: [n_batch, n_tokens, n_small]."""
        n_embd = target.config.n_embd
        normed = [F.layer_norm(seen.hidden[depth], (n_embd,), eps=self.epsilon(target)) for depth in self.depths]
        x: Tensor = self.into(torch.cat(normed, -1))
        return x

    def again(self, z: Tensor) -> Tensor:
        """What x gets from the state z [..., n_small] of the guess before."""
        x: Tensor = self.back(z)
        return x

    def logits(self, target: FrozenTarget, z: Tensor) -> Tensor:
        """Of the tokens it may guess: [..., n_guess]."""
        logits: Tensor = self.head(z)
        return logits

    # --- what is the same for all ------------------------------------------------------------------

    @staticmethod
    def epsilon(target: FrozenTarget) -> float:
        return target.config.layer_norm_epsilon

    def embedded(self, target: FrozenTarget, ids: Tensor) -> Tensor:
        """What x gets from the next token."""
        normed = F.layer_norm(target.wte(ids), (target.config.n_embd,), eps=self.epsilon(target))
        x: Tensor = self.embed(normed)
        return x

    def states(self, target: FrozenTarget, seen: Seen, steps: int) -> list[Tensor]:
        """z of each step, [n_batch, n_tokens - 1 - step, n_small]: row t is for the token at t + 2 + step."""
        n = seen.ids.shape[1] - 1
        self.look_at(target, seen)
        before, states = self.enter(target, seen)[:, :n], []
        for step in range(steps):
            rows = n - step
            x = before[:, :rows] + self.embedded(target, seen.ids[:, 1 + step :])
            states.append(self.ln_f(self.layers(x, step)))
            before = self.again(states[-1])
        return states

    def label(self, seen: Seen, step: int) -> Tensor:
        """The target's probabilities of the tokens that may be guessed, for the rows of a step."""
        probs: Tensor = seen.logits[:, 1 + step :].float().softmax(-1)
        return probs[..., self.guessed]

    def loss(self, target: FrozenTarget, seen: Seen) -> Tensor:
        """Cross-entropy with the target's law, as far as it is of tokens that may be guessed; the first counts most."""
        states = self.states(target, seen, self.steps)
        shares = self.decay ** torch.arange(len(states))
        losses = [soft_cross_entropy(self.logits(target, z), self.label(seen, step)) for step, z in enumerate(states)]
        return (torch.stack(losses) * shares).sum() / shares.sum()

    def guesses(self, target: FrozenTarget, seen: Seen) -> list[Tensor]:
        """Each from its own state of the guess before; the token between them is the text's."""
        return [self.spread(target, self.logits(target, z)) for z in self.states(target, seen, self.told_steps)]

    def spread(self, target: FrozenTarget, logits: Tensor) -> Tensor:
        """Logits [..., n_guess] as logits [..., n_vocab]."""
        every = logits.new_full((*logits.shape[:-1], target.config.n_vocab), -torch.inf)
        every[..., self.guessed] = logits
        return every

    def tensors(self) -> dict[str, Tensor]:
        """By the names that minispec/drafters/on_features.py reads; products lie [n_in, n_out], but for the head."""
        tensors = dict(self.state_dict())
        tensors["into.weight"] = tensors["into.weight"].t()
        return tensors | {"tokens": self.guessed, "depths": torch.tensor(self.depths)}


def soft_cross_entropy(logits: Tensor, probs: Tensor) -> Tensor:
    """Mean over rows of -sum(probs * log q); probs may sum to less than one."""
    return -(probs * logits.float().log_softmax(-1)).sum(-1).mean()


def frequent_tokens(options: argparse.Namespace, n_vocab: int) -> Tensor:
    """The options.guessable ids that are most frequent in the training text, ascending; all where there are no more."""
    if options.guessable >= n_vocab:
        return torch.arange(n_vocab)
    from train_heads import documents

    texts, _ = documents(Path(options.target), Path(options.corpus))
    counts = np.bincount(np.concatenate(texts), minlength=n_vocab)
    ids = np.sort(np.argsort(-counts, kind="stable")[: options.guessable])
    print(f"{options.guessable} of {n_vocab} tokens may be guessed: {counts[ids].sum() / counts.sum():.4f} of the text")
    return torch.from_numpy(ids)
