"""A smaller model of the same vocabulary guesses, token by token: the classic drafter.

Cost: one pass of the small model a guess. Its cache follows the text by itself: it keeps the longest
beginning that it shares with the ids it is asked to continue, and forgets the rest.

Law: kept, a guess is drawn from the law that it is judged by. Training: none beyond the small model's own.

Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from itertools import compress, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.protocols import Choices, Draft, GoOn, Probs, Sampler, Target, always


class SmallModelDrafter:
    """Drafts with `model`, anything that could be a target."""

    def __init__(self, model: Target) -> None:
        self.model = model

    @property
    def n_vocab(self) -> int:
        """Tokens in the model's vocabulary."""
        return self.model.n_vocab

    def start(self, cache: Any = None) -> SmallModelDrafting:
        """Begin a text with an empty cache of its own; the target's is not looked at."""
        return SmallModelDrafting(self.model)


class SmallModelDrafting:
    """The small model at work on one text: `cached` are the ids whose keys and values `cache` holds."""

    def __init__(self, model: Target) -> None:
        self.model = model
        self.cache = model.new_cache()
        self.cached: list[int] = []

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Up to n_draft tokens after ids: fewer where the small model's context window or its logits end."""
        n_draft = min(n_draft, self.model.n_ctx - len(ids) + 1)
        tokens: list[int] = []
        probs: list[Probs] = []
        if n_draft < 1:
            return Draft(tokens, probs)
        self._roll_back(ids)
        pending = list(ids[len(self.cached) :])
        for position in range(len(ids), len(ids) + n_draft):
            logits = self.model.forward(pending, self.cache, n_logits=1)[-1]
            self.cached += pending
            if not usable(logits):
                break
            probs.append(sampling.probs(logits, position))
            tokens.append(choices.draw(probs[-1]))
            if not go_on(partial(probability, logits, tokens[-1])):
                break
            pending = tokens[-1:]
        return Draft(tokens, probs)

    def _roll_back(self, ids: Sequence[int]) -> None:
        """Keep what the cache shares with ids, but not the last of them: its logits are needed anew."""
        # Compared anew every round, and texts are long: without a line of Python a token.
        differ = compress(count(), map(operator.ne, self.cached, ids))
        shared = next(differ, len(self.cached))
        shared = min(shared, len(ids) - 1)
        self.cache.truncate(shared)
        del self.cached[shared:]


def usable(logits: NDArray[Any]) -> bool:
    """Whether a token can be drawn from logits [n_vocab]. A broken drafter may cost speed, never the text."""
    return bool(-np.inf < logits.max() < np.inf)  # a single -infinity is a token ruled out; with a NaN this is false


def probability(logits: NDArray[Any], token: int) -> float:
    """What a model itself gives a token, at temperature 1: logits [n_vocab] are finite, or -infinity for some."""
    weights = np.exp((logits - logits.max()).astype(np.float32, copy=False))
    return float(weights[token] / weights.sum())
