"""What the loop is given and what it gives back: target, cache, sampler and chance; drafter and draft; a step.

Protocols, so that a toy of three tokens is as good a target as GPT-2: tests walk all that can happen to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[Any]  # [n_vocab], sums to one: float64, or Fraction where a test wants exact sums
GoOn = Callable[[Callable[[], float]], bool]  # after a guess, given how sure the drafter was of it: another one?


# --- the target ----------------------------------------------------------------------------------


class Cache(Protocol):
    """The keys and values of `length` positions. Where drafts branch, also `keep(path)`, as `KVCache` has it."""

    length: int

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions."""


class Target(Protocol):
    """The model whose text is written. Where drafts branch, also `forward_tree`, as `GPT2` has it."""

    @property
    def n_ctx(self) -> int:
        """The most positions a cache holds."""

    @property
    def n_vocab(self) -> int:
        """The number of tokens."""

    def new_cache(self) -> Any:
        """An empty `Cache`."""

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> NDArray[Any]:
        """Append positions to the cache; logits [n_logits, n_vocab] of the last of them."""


class Sampler(Protocol):
    """How logits become the distribution that a token is drawn from."""

    def probs(self, logits: NDArray[Any], position: int) -> Probs:
        """Logits [n_vocab] to probabilities [n_vocab] of the token at this place of the text, counted from 0."""


class Choices(Protocol):
    """The loop's only two kinds of chance. A test may walk all outcomes instead of throwing dice."""

    def accept(self, target_prob: Any, draft_prob: Any) -> bool:
        """True with probability min(1, target_prob / draft_prob); never where target_prob is 0."""

    def draw(self, probs: Probs) -> int:
        """A token with these probabilities; never one whose probability is 0."""


# --- the drafter ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """Guessed tokens and, for each, the distribution [n_vocab] it was really drawn from.

    Each guess follows the one before: a chain. Or, where there are parents, it follows guess parents[i] < i, and the
    text itself where that is -1: a tree. Children of one parent are in the order in which they were drawn, and probs[i]
    is the law of guess i given its elder siblings: for draws with replacement the same for all of them, without
    replacement the law less their tokens, rescaled. A guess made with certainty has a one-hot law.
    """

    tokens: Sequence[int]
    probs: Sequence[Probs]
    parents: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probs):
            raise ValueError(
                f"a draft of {len(self.tokens)} tokens and {len(self.probs)} distributions: each token needs its own"
            )

    def children(self, guess: int) -> Sequence[int]:
        """The guesses that follow this one, or with -1 the text, in order."""
        if self.parents is None:
            return range(guess + 1, min(guess + 2, len(self.tokens)))
        return [child for child, parent in enumerate(self.parents) if parent == guess]

    @property
    def depth(self) -> int:
        """How far into the text the guesses reach."""
        if self.parents is None:
            return len(self.tokens)
        return max(depths(self.parents), default=0)


def check_parents(parents: Sequence[int], n_guess: int) -> None:
    """Raise ValueError unless these are the parents of n_guess guesses."""
    whole = len(parents) == n_guess and all(isinstance(parent, int | np.integer) for parent in parents)
    if not whole or not all(-1 <= parent < i for i, parent in enumerate(parents)):
        shown = np.array(parents, object).tolist()  # also of an array on one line
        raise ValueError(
            f"the parents of {n_guess} guesses are {shown!r:.80}: give for each the number of an earlier one, or -1 "
            "where it follows the text"
        )


def depths(parents: Sequence[int]) -> list[int]:
    """How far into the text each guess is: 1 for those that follow it."""
    deep: list[int] = []
    for parent in parents:
        deep.append(1 if parent < 0 else deep[parent] + 1)
    return deep


def always(surety: Callable[[], float]) -> bool:
    """Guess on, however sure the drafter is."""
    return True


class Drafting(Protocol):
    """A drafter at work on one text."""

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Guess up to n_draft tokens that follow ids; fewer, or none, are fine. A tree is at most so deep.

        After each guess, or level of a tree, go_on must be asked whether to make another. The guess stands, whatever it
        says: to throw a guess away for what it is would change the law of what is written.
        """


class Drafter(Protocol):
    """A way of guessing."""

    @property
    def n_vocab(self) -> int:
        """The number of tokens it may guess from: the target's."""

    def start(self, cache: Any) -> Drafting:
        """Begin a text: all state of the run is in what is returned.

        cache: the target's `Cache` of this text, for those who guess from what the target has seen.
        """


# --- how far to guess ----------------------------------------------------------------------------


class Guide(Protocol):
    """How far to guess in one text, by what became of its guesses so far."""

    def most(self) -> int:
        """The most guesses of the next round; with 0 it is a plain pass."""

    def go_on(self, surety: Callable[[], float]) -> bool:
        """Whether to guess on after a guess; `surety` tells the drafter's own probability of it."""

    def learn(self, n_guess: int, n_accepted: int, n_judged: int) -> None:
        """Of a round's n_guess guesses the first n_judged were judged, and of these the first n_accepted kept.

        Of a tree these are depths: how deep it was, how far guesses were kept, and whether others were refused there.
        """


class DraftLength(Protocol):
    """A way to choose how far to guess."""

    def start(self) -> Guide:
        """Begin a text: all that is learned of it is in what is returned."""


@dataclass(frozen=True)
class Fixed:
    """The same number of guesses in every round: a `DraftLength`, and its own `Guide`."""

    n_draft: int

    def start(self) -> Fixed:
        """Nothing is learned."""
        return self

    def most(self) -> int:
        """The number."""
        return self.n_draft

    go_on = staticmethod(always)

    def learn(self, n_guess: int, n_accepted: int, n_judged: int) -> None:
        """Nothing is learned."""


# --- what comes of it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One pass of the target: what was guessed, how much was kept, what was written.

    n_accepted tokens of `drafted` open `committed`; a replacement or a bonus token closes it, unless the
    text stopped before. finish is None, or in the last step "stop", "length" or "context".
    draft_seconds and target_seconds are the time spent in the drafter and in the target's pass.
    parents is None for a chain, or as the draft's; path has the places in `drafted` of the n_accepted guesses.
    """

    drafted: tuple[int, ...]
    n_accepted: int
    committed: tuple[int, ...]
    finish: str | None
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    parents: tuple[int, ...] | None = None
    path: tuple[int, ...] = ()

    @property
    def at_end(self) -> bool:
        """Whether no guess was left to follow the last that was kept, so that the closing token is a bonus."""
        if self.parents is None:
            return self.n_accepted == len(self.drafted)
        return (self.path[-1] if self.path else -1) not in self.parents
