"""Small models for tests: tables of probabilities that depend on the whole context, and tiny random GPT-2s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from checkpoints import TINY, tiny_tensors
from numpy.typing import NDArray

from minispec.model import GPT2, GPT2Config
from minispec.speculative import Draft

Result = TypeVar("Result")
Rule = Callable[[tuple[int, ...]], NDArray[Any]]

ODD = GPT2Config(n_layer=3, n_head=3, n_embd=21, n_ctx=45, n_vocab=71, n_inner=50)


@lru_cache(maxsize=64)
def tiny_model(config: GPT2Config = TINY, seed: int = 0, backend: str = "numba") -> GPT2:
    """A random GPT-2 whose logits are far enough apart to have opinions."""
    return GPT2(config, tiny_tensors(config, seed), backend)


@dataclass
class ListCache:
    """The ids themselves: what a cache of keys and values stands for."""

    ids: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.ids)
        del self.ids[length:]


@dataclass
class Table:
    """A model given by a rule from context to probabilities [n_vocab]. Its logits are their logarithms."""

    rule: Rule
    n_vocab: int
    n_ctx: int = 64

    def new_cache(self) -> ListCache:
        return ListCache()

    def forward(self, ids: Sequence[int], cache: ListCache, n_logits: int | None = None) -> NDArray[Any]:
        assert len(ids)
        assert cache.length + len(ids) <= self.n_ctx
        rows = []
        for token in ids:
            assert 0 <= token < self.n_vocab
            cache.ids.append(token)
            with np.errstate(divide="ignore"):
                rows.append(np.log(self.rule(tuple(cache.ids))))
        return np.array(rows[len(rows) - (len(ids) if n_logits is None else n_logits) :])


def table(n_vocab: int, seed: int, zeros: float = 0.0, n_ctx: int = 64) -> Table:
    """A random `Table`: every context has its own row, in which a share of entries is 0."""

    @cache
    def rule(context: tuple[int, ...]) -> NDArray[Any]:
        rng = np.random.default_rng([seed, *context])
        row = rng.exponential(size=n_vocab) * (rng.random(n_vocab) >= zeros)
        row[rng.integers(n_vocab)] += 0.1
        probs: NDArray[Any] = row / row.sum()
        return probs

    return Table(rule, n_vocab, n_ctx)


class Guesses:
    """A drafter that guesses what a function of the ids says, with certainty."""

    def __init__(self, n_vocab: int, guess: Callable[[Sequence[int], int], Sequence[int]]) -> None:
        self.n_vocab = n_vocab
        self.guess = guess

    def start(self) -> Guesses:
        return self

    def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any) -> Draft:
        tokens = list(self.guess(ids, n_draft))[: max(n_draft, 0)]
        return Draft(tokens, [np.eye(self.n_vocab)[token] for token in tokens])
