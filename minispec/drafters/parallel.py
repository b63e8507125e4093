"""A small model guesses several tokens in one pass, by masks that stand for the tokens it does not know yet.

The rule: the text is followed by masks, which are further tokens of the small model's vocabulary: n_draft - 1 of them.
The row of the last token guesses the next one, as ever; the row of mask j guesses the token 1 + j places further on.
Rows of masks are dropped from the cache. The guesses are drawn each by itself: none is told of the others.

What a guess costs: nothing by itself; a round costs one pass of the small model, whatever n_draft is, and a row of
arithmetic a guess. A drafter that goes token by token pays a pass for each, and its later guesses are better.

The law is kept. Training: the draft model learns what its masks mean: `weights/train_heads.py parallel`.

Source: An et al. 2025, "PARD" (arXiv 2504.18583). Here each mask has an embedding of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from minispec.drafters.marginals import draw_each
from minispec.drafters.small_model import SmallModelDrafter, SmallModelDrafting
from minispec.heads import Heads
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.protocols import Choices, Draft, GoOn, Sampler, Target, always
from minispec.weights import shapes_of


class ParallelDrafter(SmallModelDrafter):
    """Drafts with a model whose last n_mask tokens are masks."""

    def __init__(self, model: Target, n_mask: int) -> None:
        """Raises ValueError for a model that has no more tokens than masks, or no masks at all."""
        if not 0 <= n_mask < model.n_vocab:
            raise ValueError(f"{n_mask} masks cannot be among {model.n_vocab} tokens: give 0 or more, but not all")
        super().__init__(model)
        self.n_mask = n_mask

    @classmethod
    def of(cls, target: GPT2, heads: Heads, stored: str = "f32") -> ParallelDrafter:
        """The drafter of a heads file. Raises ValueError for one that is damaged or of another vocabulary."""
        try:
            config = config_of(json.loads(heads.metadata["config"]))
            n_mask = int(heads.metadata["masks"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{heads.path} does not tell its model's shape ({error!r:.80}): train it again") from None
        if config.n_vocab - n_mask != target.n_vocab:
            raise ValueError(f"{heads.path} guesses {config.n_vocab - n_mask} tokens, the target has {target.n_vocab}")
        if config.n_layer > len(heads.stored):
            raise ValueError(f"{heads.path} has not the {config.n_layer} layers that it tells of: train it again")
        shapes = shapes_of(config)  # compiled code does not look
        shapes |= {"lm_head.weight": shapes["wte.weight"]} if "lm_head.weight" in heads.stored else {}
        tensors = {name: heads.shaped(name, *shape) for name, shape in shapes.items()}
        return cls(GPT2(config, tensors, target.backend, stored), n_mask)

    def __repr__(self) -> str:
        return f"<parallel, {self.n_mask} masks>"

    def describe(self) -> str:
        """What its price depends on besides its model."""
        return f"ParallelDrafter(n_mask={self.n_mask})"

    @property
    def n_vocab(self) -> int:
        """Tokens in the model's vocabulary, less the masks."""
        return self.model.n_vocab - self.n_mask

    def start(self, cache: Any = None) -> ParallelDrafting:
        """Begin a text with an empty cache of its own; the target's is not looked at."""
        return ParallelDrafting(self.model, self.n_vocab)


def config_of(told: Any) -> GPT2Config:
    """A shape as a file tells it. Raises TypeError or ValueError for what is none: see `weights.read_config`."""
    c = GPT2Config(**told)
    sizes = c.n_layer, c.n_head, c.n_embd, c.n_ctx, c.n_vocab, c.n_inner
    if not all(type(size) is int and 0 < size < 2**31 for size in sizes) or c.n_embd % c.n_head:
        raise ValueError(f"sizes {sizes!r:.60}")
    scales = c.scale_attn_weights, c.scale_attn_by_inverse_layer_idx
    if not (isinstance(c.layer_norm_epsilon, float) and 0 < c.layer_norm_epsilon < 1) or {*map(type, scales)} != {bool}:
        raise ValueError(f"epsilon {c.layer_norm_epsilon!r:.20}, scales {scales!r:.30}")
    return c


class ParallelDrafting(SmallModelDrafting):
    """The model at work on one text."""

    def __init__(self, model: Target, n_vocab: int) -> None:
        super().__init__(model)
        self.masks = list(range(n_vocab, model.n_vocab))

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Up to n_draft tokens after ids, one more than there are masks, and fewer where the context window ends."""
        n_draft = min(n_draft, 1 + len(self.masks), self.model.n_ctx - len(ids) + 1)
        if n_draft < 1:
            return Draft([], [])
        self._roll_back(ids)
        pending = [*ids[len(self.cached) :], *self.masks[: n_draft - 1]]
        logits = self.model.forward(pending, self.cache, n_logits=n_draft)
        self.cache.truncate(len(ids))
        self.cached = list(ids)
        n_vocab = self.model.n_vocab - len(self.masks)
        return draw_each(logits[:, :n_vocab], len(ids), sampling, choices, go_on)
