"""What stands in for the real thing where a law is walked through: models, a cache, a sampler, a drafter, choices.

A walk over all outcomes comes back to few texts many times, so their passes are made once and remembered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.protocols import Draft, Drafter, Drafting, Probs, Sampler, Target
from minispec.trees import check_path, path_to

TOLERANCE = 1e-12  # of probabilities that are computed in two ways

# --- models ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blurred:
    """The model with fixed noise on its logits: a draft model for a pair that has none."""

    model: Target

    @property
    def n_ctx(self) -> int:
        """The model's context window."""
        return self.model.n_ctx

    @property
    def n_vocab(self) -> int:
        """The model's vocabulary."""
        return self.model.n_vocab

    def new_cache(self) -> Any:
        """The model's empty cache."""
        return self.model.new_cache()

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> NDArray[Any]:
        """The model's logits, and the same noise on every row."""
        return self.model.forward(ids, cache, n_logits) + self.noise

    def forward_tree(
        self, ids: Sequence[int], guesses: Sequence[int], parents: Sequence[int], cache: Any
    ) -> NDArray[Any]:
        """The same of a tree."""
        model: Any = self.model
        logits: NDArray[Any] = model.forward_tree(ids, guesses, parents, cache) + self.noise
        return logits

    @property
    def noise(self) -> NDArray[np.float64]:
        """The noise [n_vocab]."""
        return 2 * np.random.default_rng(0).standard_normal(self.n_vocab)


@dataclass
class ReadTexts:
    """A cache that holds the ids themselves."""

    ids: list[int] = field(default_factory=list)
    on_trial: tuple[Sequence[int], Sequence[int]] = (), ()  # tokens and parents of a tree, if it was read last

    @property
    def length(self) -> int:
        """How many they are."""
        return len(self.ids)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length`, of which there must be so many."""
        assert 0 <= length <= self.length
        del self.ids[length:]
        self.on_trial = (), ()

    def keep(self, path: Sequence[int]) -> None:
        """Take over these guesses of the tree that was read last."""
        tokens, parents = self.on_trial
        check_path(path, parents)
        self.ids += [tokens[guess] for guess in path]
        self.on_trial = (), ()

    def texts(self, tokens: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
        """Put a tree on trial: the text, and the text as far as each guess."""
        self.on_trial = tokens, parents
        paths = [path_to(guess, parents) for guess in range(-1, len(tokens))]
        return [[*self.ids, *(tokens[guess] for guess in path)] for path in paths]


class Remembered:
    """A model whose logits are its probabilities, of passes from scratch, each text read once.

    That a pass of any other kind has the same bits is for `verify_bits.same_bits` to say.
    """

    def __init__(self, model: Target, sampling: Sampler) -> None:
        self.model, self.sampling, self.n_ctx, self.n_vocab = model, sampling, model.n_ctx, model.n_vocab
        self.rows: dict[tuple[int, ...], Probs] = {}

    def new_cache(self) -> ReadTexts:
        """An empty cache."""
        return ReadTexts()

    def forward(self, ids: Sequence[int], cache: ReadTexts, n_logits: int | None = None) -> NDArray[Any]:
        """Append ids; the probabilities [n_logits, n_vocab] of what follows the last of them."""
        cache.ids += ids
        return np.stack([self.probs(cache.ids[: cache.length - back]) for back in reversed(range(n_logits or 1))])

    def forward_tree(
        self, ids: Sequence[int], guesses: Sequence[int], parents: Sequence[int], cache: ReadTexts
    ) -> NDArray[Any]:
        """Append ids; the probabilities [1 + len(guesses), n_vocab] of what follows them, and of what each guess."""
        cache.ids += ids
        return np.stack([self.probs(text) for text in cache.texts(guesses, parents)])

    def probs(self, text: Sequence[int]) -> Probs:
        """The probabilities [n_vocab] of what follows a text."""
        key = tuple(text)
        if key not in self.rows:
            logits = self.model.forward(key, self.model.new_cache(), n_logits=1)[-1]
            self.rows[key] = self.sampling.probs(logits, len(key))
        return self.rows[key]


# --- what the loop is given besides ----------------------------------------------------------------


class AsTheyAre:
    """A sampler for logits that are probabilities already, but for those that a drafter has cut off or ruled out."""

    def probs(self, logits: NDArray[Any], position: int) -> Probs:
        """The logits. A part of a law is rescaled; where nothing is left, the first token that may be is certain."""
        if abs(logits.sum() - 1) < TOLERANCE:
            return logits
        left: Probs = np.maximum(logits, 0)
        if not left.any():
            left[(logits > -np.inf).argmax()] = 1
        law: Probs = left / left.sum()
        return law


class OneBlock:
    """A drafter that guesses once in a text, after its prompt: to walk through many long blocks would take too long."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.n_vocab = drafter, drafter.n_vocab

    def start(self, cache: Any = None) -> OneBlockDrafting:
        """Begin a text with its one block."""
        return OneBlockDrafting(self.drafter.start(cache))


class OneBlockDrafting:
    """The first block that has guesses is the drafter's, all later ones are empty."""

    def __init__(self, drafting: Drafting) -> None:
        self.drafting: Drafting | None = drafting

    def draft(self, *case: Any) -> Draft:
        """The block, if none was before."""
        draft = Draft([], []) if self.drafting is None else self.drafting.draft(*case)
        if draft.tokens:
            self.drafting = None
        return draft


@dataclass
class Verdict:
    """Choices that accept or refuse as they are told, and keep the chance of it and what was drawn from."""

    accepted: bool
    chance: float = math.nan
    drawn_from: Probs | None = None

    def accept(self, target_prob: float, draft_prob: float) -> bool:
        """As told; notes the probability of accepting."""
        self.chance = 1.0 if target_prob >= draft_prob > 0 else target_prob / draft_prob
        return self.accepted

    def draw(self, probs: Probs) -> int:
        """Any token; notes the distribution."""
        self.drawn_from = probs
        return 0
