"""Parallel drafting: a small model that answers several questions in one pass. See drafters/parallel.py.

It begins as a draft model that guesses token by token (--draft), and learns what masks mean: after the last token of a
text come masks, one for each further guess, and the row of mask j guesses the token 1 + j places further on, though
nobody has told it the tokens between. In training a text is followed by many such questions: at some of its places, the
anchors, the masks are put as if the text ended there. A mask sees the text up to its anchor and the masks before it.

Source: An et al. 2025, "PARD" (arXiv 2504.18583). Here each mask has an embedding of its own, some anchors are drawn
for each batch, and the target's law is the label.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from frozen_target import ReadGPT2
from head import FrozenTarget, Head, Seen, soft_loss
from torch import Tensor, nn
from torch.nn import functional as F


class Parallel(Head):
    """A draft model and its masks."""

    method = "parallel"
    peak_rate = 1e-3
    tokens = 4_000_000
    decay = 0.8  # of the weight of a guess's loss, from guess to guess
    share = 4  # one of so many places is an anchor in training

    def __init__(self, draft: ReadGPT2, n_mask: int) -> None:
        super().__init__()
        self.draft = draft
        self.masks = nn.Parameter(draft.wte.weight.detach().mean(0) + 0.02 * torch.randn(n_mask, draft.config.n_embd))

    def rows(self, ids: Tensor, anchors: Tensor) -> Tensor:
        """Logits [n_batch, n_tokens + n_anchor * n_mask, n_vocab]: of the text, then anchor by anchor of its masks."""
        n, n_mask, n_ctx = ids.shape[1], len(self.masks), self.draft.config.n_ctx
        places = (anchors[:, None] + 1 + torch.arange(n_mask)).flatten()  # those past the end are not used
        positions = torch.cat([torch.arange(n), places]).clamp(max=n_ctx - 1)
        masks = self.masks.repeat(len(anchors), 1).expand(len(ids), -1, -1)
        x = torch.cat([self.draft.wte(ids), masks], 1) + self.draft.wpe(positions)
        sees = self.sees(n, anchors)
        for block in self.draft.h:
            x = masked(block, x, sees)
        return self.draft.output(self.draft.ln_f(x))

    def sees(self, n: int, anchors: Tensor) -> Tensor:
        """Which rows [n_row] each row looks at, [n_row, n_row]."""
        n_mask = len(self.masks)
        of = torch.cat([torch.arange(n), anchors.repeat_interleave(n_mask)])  # the last token that a row sees
        group = torch.cat([torch.full((n,), -1), torch.arange(len(anchors)).repeat_interleave(n_mask)])
        order = torch.cat([torch.zeros(n), torch.arange(n_mask).repeat(len(anchors))])
        text = (torch.arange(len(of))[None] <= of[:, None]) & (group == -1)[None]
        siblings = (group[:, None] == group[None]) & (group != -1)[None] & (order[None] <= order[:, None])
        return text | siblings

    def loss(self, target: FrozenTarget, seen: Seen) -> Tensor:
        """The mean over guesses, the first counting most."""
        n, n_mask = seen.ids.shape[1], len(self.masks)
        anchors = torch.randperm(n - n_mask)[: max(1, n // self.share)].sort().values
        logits = self.rows(seen.ids, anchors)
        losses = [soft_loss(logits[:, 1:n], seen, 0)]
        asked = logits[:, n:].unflatten(1, (len(anchors), n_mask))
        for j in range(n_mask):
            own = seen.logits[:, anchors + 1 + j].float().softmax(-1)
            losses.append(F.cross_entropy(asked[:, :, j].flatten(0, 1).float(), own.flatten(0, 1)))
        shares = self.decay ** torch.arange(len(losses))
        return (torch.stack(losses) * shares).sum() / shares.sum()

    def guesses(self, target: FrozenTarget, seen: Seen) -> list[Tensor]:
        """With an anchor at every place: the anchor is the token at t + 1."""
        n, n_mask = seen.ids.shape[1], len(self.masks)
        logits = self.rows(seen.ids, torch.arange(n))
        asked = logits[:, n:].unflatten(1, (n, n_mask))
        return [logits[:, 1:n], *(asked[:, 1:, j] for j in range(n_mask))]

    def tensors(self) -> dict[str, Tensor]:
        """The draft model's, with the masks as further tokens."""
        tensors = dict(self.draft.state_dict())
        tensors["wte.weight"] = torch.cat([tensors["wte.weight"], self.masks.detach()])
        return tensors

    def figures(self) -> dict[str, str]:
        """The model's shape, masks included, and how many there are."""
        config = replace(self.draft.config, n_vocab=self.draft.config.n_vocab + len(self.masks))
        return {"config": json.dumps(asdict(config)), "masks": str(len(self.masks))}


def masked(block: Any, x: Tensor, sees: Tensor) -> Tensor:
    """A block of train.py, where each row looks at the rows it is told to."""
    attn = block.attn
    q, k, v = attn.c_attn(block.ln_1(x)).unflatten(-1, (3, attn.n_head, -1)).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=sees)
    x = x + attn.c_proj(out.transpose(1, 2).flatten(2))
    y: Tensor = x + block.mlp(block.ln_2(x))
    return y


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draft", type=Path, help="folder of the draft model to begin with  [story-draft near TARGET]")
    parser.add_argument("--masks", type=int, default=3, help="guesses of a pass, less one")


def build(target: FrozenTarget, options: argparse.Namespace) -> Parallel:
    draft = ReadGPT2(options.draft or options.target.resolve().parent / "story-draft")
    if draft.config.n_vocab != target.config.n_vocab:
        raise ValueError(f"the draft has {draft.config.n_vocab} tokens and the target {target.config.n_vocab}")
    if not draft.tied:
        raise ValueError("the draft model's output layer is not tied to its embeddings, as it must be here")
    return Parallel(draft, options.masks)
