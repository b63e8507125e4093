"""Small models for tests, drafters of every temper for them, and tiny random GPT-2s."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from checkpoints import TINY, tiny_tensors
from numpy.typing import NDArray

from minispec.costs import Costs
from minispec.drafters import SmallModelDrafter
from minispec.drafters.small_model_tree import without
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.protocols import Draft, Fixed
from minispec.trees import path_to
from minispec.verify_stand_ins import ReadTexts
from minispec.weights import load_model

Rule = Callable[[tuple[int, ...]], NDArray[Any]]

ODD = GPT2Config(n_layer=3, n_head=3, n_embd=21, n_ctx=45, n_vocab=71, n_inner=50)


@lru_cache(maxsize=64)
def tiny_model(config: GPT2Config = TINY, seed: int = 0, backend: str = "numba", stored: str = "f32") -> GPT2:
    """A random GPT-2 whose logits are far enough apart to have opinions."""
    return GPT2(config, tiny_tensors(config, seed), backend, stored)


@contextmanager
def all_work_shared(model: GPT2) -> Iterator[None]:
    """Share even the smallest work among threads."""
    with pytest.MonkeyPatch.context() as patch:
        if model.backend == "numba":
            patch.setattr(model.ops, "WORTH_SHARING", 0)
        yield


@dataclass
class Table:
    """A model given by a rule from context to probabilities [n_vocab]. Its logits are their logarithms."""

    rule: Rule
    n_vocab: int
    n_ctx: int = 64

    def new_cache(self) -> ReadTexts:
        return ReadTexts()

    def logits(self, context: tuple[int, ...]) -> NDArray[Any]:
        with np.errstate(divide="ignore"):
            logits: NDArray[Any] = np.log(np.asarray(self.rule(context), float))
        return logits

    def forward(self, ids: Sequence[int], cache: ReadTexts, n_logits: int | None = None) -> NDArray[Any]:
        assert len(ids)
        assert cache.length + len(ids) <= self.n_ctx
        rows = []
        for token in ids:
            assert 0 <= token < self.n_vocab
            cache.ids.append(token)
            rows.append(self.logits(tuple(cache.ids)))
        return np.array(rows[len(rows) - (len(ids) if n_logits is None else n_logits) :])

    def forward_tree(
        self, ids: Sequence[int], guesses: Sequence[int], parents: Sequence[int], cache: ReadTexts
    ) -> NDArray[Any]:
        self.forward(ids, cache)
        texts = cache.texts(guesses, parents)
        assert max(map(len, texts)) <= self.n_ctx
        return np.array([self.logits(tuple(text)) for text in texts])


class Exact(Table):
    """A model whose logits are its probabilities themselves, fractions perhaps, for the sampler `AsTheyAre`."""

    def logits(self, context: tuple[int, ...]) -> NDArray[Any]:
        return self.rule(context)


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


def ids_of(steps: Any) -> tuple[int, ...]:
    """The tokens that these steps wrote."""
    return tuple(token for step in steps for token in step.committed)


def greedy_oracle(model: Any, ids: Sequence[int], n: int) -> tuple[int, ...]:
    """No cache, no loop to share: argmax over a fresh pass for every token."""
    text = list(ids)
    for _ in range(min(n, model.n_ctx - len(ids))):
        text.append(int(np.argmax(model.forward(text, model.new_cache())[-1])))
    return tuple(text[len(ids) :])


# --- drafters ------------------------------------------------------------------------------------


class Guesses:
    """A drafter that guesses what a function of the ids says, with certainty."""

    def __init__(self, n_vocab: int, guess: Callable[[Sequence[int], int], Sequence[int]], exact: bool = False) -> None:
        self.n_vocab = n_vocab
        self.guess = guess
        self.one_hot: NDArray[Any] = np.eye(n_vocab, dtype=object if exact else float)

    def start(self, cache: Any = None) -> Guesses:
        return self

    def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *_: Any) -> Draft:
        tokens = list(self.guess(ids, n_draft))[: max(n_draft, 0)]
        return Draft(tokens, [self.one_hot[token] for token in tokens])


def whim(*of: Any) -> int:
    """A number that looks random and is a function of its arguments."""
    return crc32(repr(of).encode())


def certain(n_vocab: int, exact: bool = False) -> Guesses:
    """Guesses anything, sometimes less than asked for, always sure of itself."""

    def guess(ids: Sequence[int], n: int) -> list[int]:
        return [whim(ids, i) % n_vocab for i in range(whim(ids) % (n + 1))]

    return Guesses(n_vocab, guess, exact)


class Moody(SmallModelDrafter):
    """Guesses on or stops by a whim, which looks at the text and at the guesses that it keeps. None is thrown away."""

    def start(self, cache: Any = None) -> Any:
        inner = super().start(cache)
        one_more = inner.draft

        def draft(ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *_: Any) -> Draft:
            tokens: list[int] = []
            probs: list[Any] = []
            while len(tokens) < n_draft and whim(list(ids), tokens) % 4:
                one = one_more([*ids, *tokens], 1, sampling, choices)
                if not one.tokens:
                    break  # its context window is full
                tokens += one.tokens
                probs += one.probs
            return Draft(tokens, probs)

        inner.draft = draft  # type: ignore[method-assign, assignment]
        return inner


SHAPES = [[-1], [-1, -1], [-1, 0, 0], [-1, -1, 0], [-1, -1, 1], [-1, 0, -1], [-1, -1, -1], [-1, 0, 1]]


class Trees(SmallModelDrafter):
    """Guesses small trees of many shapes; each guess certain, drawn with replacement or without, or now so, now so."""

    def __init__(self, model: Table, kind: str) -> None:
        super().__init__(model)
        self.table, self.kind = model, kind

    def start(self, cache: Any = None) -> Any:
        return self

    def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *_: Any) -> Draft:
        tokens: list[int] = []
        probs: list[Any] = []
        parents: list[int] = []
        numbers = {-1: -1}  # of the shape, to those of the draft: some guesses cannot be made
        for i, parent in enumerate(SHAPES[whim(list(ids)) % len(SHAPES)]):
            path = path_to(numbers[parent], parents) if parent in numbers else [0] * n_draft
            if len(path) >= n_draft:
                continue
            context = (*ids, *(tokens[guess] for guess in path))
            elder = [token for token, other in zip(tokens, parents, strict=True) if other == numbers[parent]]
            law = self.law(context, elder, whim(list(ids), i), sampling)
            if law is None:
                continue
            numbers[i] = len(tokens)
            tokens.append(choices.draw(law))
            probs.append(law)
            parents.append(numbers[parent])
        return Draft(tokens, probs, parents)

    def law(self, context: tuple[int, ...], elder: Sequence[int], number: int, sampling: Any) -> Any:
        law = sampling.probs(self.table.logits(context), len(context))
        kind = ["certain", "with", "without"][number % 3] if self.kind == "mixed" else self.kind
        if kind == "certain":
            return np.eye(self.n_vocab, dtype=law.dtype)[number // 3 % self.n_vocab]
        return without(law, elder) if kind == "without" else law


CHEAP = Costs(0.05, (0.0, 1.0, 1.0, 1.0, 1.5), 0.0, 1.0)  # a third guess pays, or does not


class Wary(Fixed):
    """A draft length: goes on after a guess of which the drafter was sure, and learns nothing."""

    def go_on(self, surety: Callable[[], float]) -> bool:
        return surety() > 0.4

    def learn(self, n_guess: int, n_accepted: int, n_judged: int) -> None:
        assert 0 <= n_accepted <= n_judged <= min(n_guess, n_accepted + 1)


@dataclass
class Contrary:
    """A model that likes best what another likes least."""

    model: Any

    def __post_init__(self) -> None:
        self.n_ctx, self.n_vocab, self.new_cache = self.model.n_ctx, self.model.n_vocab, self.model.new_cache

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        return -self.model.forward(ids, cache, n_logits)

    def forward_tree(self, *tree: Any) -> Any:
        return -self.model.forward_tree(*tree)


class Teasing(SmallModelDrafter):
    """Guesses as the model it is given, but for the last guess of a block, which is the token after the right one."""

    def start(self, cache: Any = None) -> Any:
        inner = super().start(cache)
        honest = inner.draft

        def draft(ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *_: Any) -> Draft:
            guess = honest(ids, n_draft, sampling, choices)
            if not guess.tokens:
                return guess
            wrong = (guess.tokens[-1] + 1) % self.n_vocab
            return Draft([*guess.tokens[:-1], wrong], [*guess.probs[:-1], np.eye(self.n_vocab)[wrong]])

        inner.draft = draft  # type: ignore[method-assign, assignment]
        return inner


@cache
def story_model(name: str, backend: str) -> Any:
    return load_model(name, backend=backend)


def drafter_for(target: Any, temper: str, backend: str) -> Any:
    """A drafter for a target, by its temper: trained, random, adversarial, erratic, or the target itself."""
    n_vocab = target.n_vocab
    other = story_model("story-draft", backend) if n_vocab == 4096 else tiny_model(target.config, 1, backend)
    drafters: dict[str, Callable[[], Any]] = {
        "itself": lambda: SmallModelDrafter(target),
        "another": lambda: SmallModelDrafter(other),
        "contrary": lambda: SmallModelDrafter(Contrary(target)),
        "teasing": lambda: Teasing(target),
        "moody": lambda: Moody(other),
        "rubbish": lambda: certain(n_vocab),
    }
    return drafters[temper]()


TEMPERS = ["itself", "another", "contrary", "teasing", "moody", "rubbish"]


# --- looking into caches -------------------------------------------------------------------------


def bits(model: GPT2, cache: Any) -> list[bytes]:
    """Keys and values of every layer, as far as the cache is filled."""
    return [side.tobytes() for layer in cache.layers for side in model.ops.fetch(*layer, cache.length)]


def fresh_bits(model: Any, ids: Sequence[int]) -> list[bytes]:
    fresh = model.new_cache()
    if ids:
        model.forward(ids, fresh)
    return bits(model, fresh)


class Watched:
    """A model that notes the caches it hands out."""

    def __init__(self, model: Any) -> None:
        self.model, self.n_ctx, self.n_vocab = model, model.n_ctx, model.n_vocab
        self.caches: list[Any] = []

    def new_cache(self) -> Any:
        self.caches.append(self.model.new_cache())
        return self.caches[-1]

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        return self.model.forward(ids, cache, n_logits)

    def forward_tree(self, *tree: Any) -> Any:
        return self.model.forward_tree(*tree)
