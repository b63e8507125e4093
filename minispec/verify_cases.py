"""What the trials of `minispec verify` are made of: random cases, a drafter of random guesses, and how they report.

All that is random comes from the generator that is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minispec.costs import Costs
from minispec.drafters.models import models_of
from minispec.model import GPT2
from minispec.protocols import Draft, Sampler
from minispec.sampling import Sampling
from minispec.session import Pair

Rng = np.random.Generator
Counts = dict[str, int]  # what a trial compared, and how much of it

TEXTS = (
    "Once upon a time",
    "The cat sat on the",
    "Lily and Tom went to the park. They saw a big",
    "one, two, three, four, five,",
    'x = "!"\n\n\tcaf\u00e9 %% 1234 \U0001f40d',
)


class Mismatch(Exception):  # noqa: N818  # a finding, not a fault of the program
    """Two things that must be equal differ; the message says which, where, and both values."""


def random_prompt(pair: Pair, rng: Rng, longest: int = 40) -> list[int]:
    """The ids of a text, or any ids: at most half of the context window."""
    ids = pair.tokenizer.encode(TEXTS[rng.integers(len(TEXTS))])
    if rng.random() < 0.5:
        ids = rng.integers(pair.target.n_vocab, size=rng.integers(1, longest + 1)).tolist()
    return ids[: max(1, min(longest, pair.target.n_ctx // 2))]


def near_the_end(pair: Pair, rng: Rng) -> list[int]:
    """Any ids that fill the context window but for a few tokens."""
    n_ctx = pair.target.n_ctx
    ids: list[int] = rng.integers(pair.target.n_vocab, size=max(1, n_ctx - int(rng.integers(2, 12)))).tolist()
    return ids


def random_sampling(rng: Rng) -> Sampling:
    """Any temperature; top-k and top-p each in half of the cases."""
    with_top_k, with_top_p = rng.random(2) < 0.5
    temperature, top_p = np.round(rng.uniform([0.3, 0.3], [1.5, 1.0]), 3).tolist()
    return Sampling(temperature, int(rng.integers(1, 51)) if with_top_k else 0, top_p if with_top_p else 1.0)


def random_widths(rng: Rng) -> tuple[int, ...]:
    """The widths of a tree, up to 3 levels of up to 3 guesses for a place, 39 guesses at most."""
    return tuple(rng.integers(1, 4, size=rng.integers(1, 4)).tolist())


def random_costs(rng: Rng) -> Costs:
    """Prices at which it pays to guess far, or hardly at all."""
    steps = rng.uniform(0, 0.3, size=16)
    steps[0] = 1.0
    return Costs(float(rng.uniform(0, 0.5)), (0.0, *map(float, steps.cumsum())), float(rng.uniform(0, 0.1)), 1.0)


def thread_counts(model: GPT2, rng: Rng) -> tuple[int, int]:
    """Two numbers of threads, different where there is a choice; every machine takes as much from the generator."""
    first, further = rng.integers(1 << 16, size=2).tolist()
    most = 1
    if model.backend == "numba":
        import numba

        most = numba.get_num_threads()
    return first % most + 1, (first % most + 1 + further % max(most - 1, 1)) % most + 1


@contextmanager
def threads(model: GPT2, n: int) -> Iterator[None]:
    """Let the kernels use n threads meanwhile, or as many as there are."""
    if model.backend != "numba":
        yield
        return
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(min(n, int(numba.config.NUMBA_NUM_THREADS)))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        numba.set_num_threads(before)


def models_alike(pair: Pair) -> list[Any]:
    """The models that draft and have the target's vocabulary: some have tokens of their own besides."""
    return [model for model in models_of(pair.drafter) if model.n_vocab == pair.target.n_vocab]


class RandomGuesses:
    """A drafter without a model: most of its guesses are the text's own tokens, the others are random."""

    def __init__(self, n_vocab: int, text: Sequence[int], rng: Rng) -> None:
        self.n_vocab, self.text, self.rng = n_vocab, text, rng

    def start(self, cache: object = None) -> RandomGuesses:
        """Begin a text; nothing is remembered."""
        return self

    def draft(self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: object, *_: object) -> Draft:
        """Up to n_draft guesses, each with certainty."""
        tokens = self.rng.integers(self.n_vocab, size=self.rng.integers(n_draft + 1)).tolist()
        own = self.text[len(ids) :][: len(tokens)]
        right = self.rng.random(len(own)) < 0.8
        tokens[: len(own)] = [token if yes else other for token, other, yes in zip(own, tokens, right, strict=False)]
        probs = np.zeros((len(tokens), self.n_vocab))
        probs[np.arange(len(tokens)), tokens] = 1.0
        return Draft(tokens, list(probs))
