"""What train_heads.py asks of a method: a module that guesses from what a frozen target has seen, and its loss.

A method is a file heads_METHOD.py with `build(target, options) -> Head`, and `add_options(parser)` where it has some.

Places: where the target has read position t, and the loop has drawn the token at t + 1 from its logits, guess i
(0, 1, ...) is the token at t + 2 + i. The target's own law of that token is its row t + 1 + i.
"""

from __future__ import annotations

import torch
from frozen_target import FrozenTarget, Seen
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["FrozenTarget", "Head", "Seen", "aligned", "rates", "soft_loss"]


class Head(nn.Module):
    """A drafter in training."""

    method = ""
    peak_rate = 1e-3
    tokens = 2_000_000  # to train on, unless --tokens says otherwise

    def loss(self, target: FrozenTarget, seen: Seen) -> Tensor:
        """What is minimised on a batch, in nats a token where nothing else is said."""
        raise NotImplementedError

    def guesses(self, target: FrozenTarget, seen: Seen) -> list[Tensor]:
        """For each guess i its logits [n_batch, n_tokens, n_vocab], in the row of the last position read, t.

        Rows whose guess would lie past the end of the text may hold anything.
        """
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """What the heads file holds, by name."""
        return dict(self.state_dict())

    def figures(self) -> dict[str, str]:
        """What else its metadata tell."""
        return {}


def aligned(guess: Tensor, seen: Seen, place: int) -> tuple[Tensor, Tensor]:
    """A guess's logits and the target's for the same tokens, both [n_rows, n_vocab], where both are in the text."""
    n = seen.ids.shape[1] - 1 - place
    return guess[:, :n].flatten(0, 1), seen.logits[:, 1 + place :].flatten(0, 1)


def soft_loss(guess: Tensor, seen: Seen, place: int) -> Tensor:
    """Cross-entropy of guess `place` with the target's whole law as the label.

    The target has seen all tokens up to its row, the guesser fewer; on average over texts its law is the right one.
    """
    guessed, own = aligned(guess, seen, place)
    return F.cross_entropy(guessed.float(), own.float().softmax(-1))


@torch.no_grad()
def rates(guess: Tensor, seen: Seen, place: int) -> tuple[float, float]:
    """How often a guess is right by itself: (of greedy text, same top token; of sampled, mean of sum(min(p, q)))."""
    guessed, own = aligned(guess, seen, place)
    same = (guessed.argmax(-1) == own.argmax(-1)).float().mean().item()
    overlap = torch.minimum(guessed.float().softmax(-1), own.float().softmax(-1)).sum(-1).mean().item()
    return same, overlap
