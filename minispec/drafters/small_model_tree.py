"""A smaller model guesses a tree: several tokens for each place, and for each of them what may follow.

The rule: a place has as many guesses as `widths` says for its depth. They are drawn without replacement: each from the
model's law less the tokens of its elder siblings, rescaled, and that is the law it is judged by. (Judged by the law
that the first was drawn from, what is written would be another's.) Where nothing is left of the law, as after the one
token of greedy decoding, the sampler is asked again for the logits without those tokens: so greedily the most likely
tokens are guessed, each with certainty.

Cost: a pass of the small model for every level, over all guesses so far: little more than the chain of that depth,
since a pass reads each weight once. Its cache is rolled back to the text each time. The target's pass has a row a
guess. The law is kept, and greedy text is plain decoding's. Training: none beyond the small model's.

Source: Chen et al. 2024, Sequoia (arXiv 2402.12374); Jeon et al. 2024 (arXiv 2402.14160); trees as such: Miao et al.
2023, SpecInfer (arXiv 2305.09781).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters.small_model import SmallModelDrafter, SmallModelDrafting, probability, usable
from minispec.protocols import Choices, Draft, GoOn, Probs, Sampler, Target, always
from minispec.trees import MOST_NODES


class SmallModelTreeDrafter(SmallModelDrafter):
    """Drafts trees with `model`, anything that could be a target and has `forward_tree`."""

    branches = True

    def __init__(self, model: Target, widths: Sequence[int]) -> None:
        """widths: how many guesses follow each guess of the depth before; the first, how many follow the text.

        Raises ValueError for widths below 1, and for a tree of more than MOST_NODES guesses.
        """
        super().__init__(model)
        self.widths = check_widths(widths)

    def describe(self) -> str:
        """What a guess costs depends on this, besides the model."""
        return f"SmallModelTreeDrafter(widths={self.widths})"

    def start(self, cache: Any = None) -> SmallModelTreeDrafting:
        """Begin a text with an empty cache of its own; the target's is not looked at."""
        return SmallModelTreeDrafting(self.model, self.widths)


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """The widths of a tree. Raises ValueError where there are none, one is below 1, or the tree is too large."""
    if not len(widths) or not all(isinstance(width, int | np.integer) and width > 0 for width in widths):
        raise ValueError(f"the widths of the tree are {list(widths)!r:.60}: give integers, 1 or more, as in 3,2,1")
    n_guess = sum(accumulate(map(int, widths), mul))
    if n_guess > MOST_NODES:
        raise ValueError(
            f"a tree of widths {','.join(map(str, widths))} has {n_guess} guesses, and {MOST_NODES} are the most: "
            "make it narrower or shallower"
        )
    return tuple(map(int, widths))


class SmallModelTreeDrafting(SmallModelDrafting):
    """The small model at work on one text."""

    def __init__(self, model: Target, widths: Sequence[int]) -> None:
        super().__init__(model)
        self.widths = widths

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """A tree after ids, at most n_draft deep: less where the small model's window or its logits end.

        After each level go_on hears what the model gives all guesses together that follow the first of the level.
        """
        n_draft = min(n_draft, self.model.n_ctx - len(ids) + 1)
        tokens: list[int] = []
        probs: list[Probs] = []
        parents: list[int] = []
        level = [-1]
        for depth, width in enumerate(self.widths[: max(n_draft, 0)]):
            first = len(tokens)
            rows = self._rows(ids, Draft(tokens, probs, parents), level)
            for parent, logits in zip(level, rows, strict=True):
                for token, law in siblings(logits, width, len(ids) + depth, sampling, choices):
                    tokens.append(token)
                    probs.append(law)
                    parents.append(parent)
            eldest = [token for token, parent in zip(tokens, parents, strict=True) if parent == level[0]]
            level = list(range(first, len(tokens)))
            if not level or not go_on(partial(probability_of_any, rows[0], eldest)):
                break
        return Draft(tokens, probs, parents)

    def _rows(self, ids: Sequence[int], tree: Draft, level: Sequence[int]) -> list[NDArray[Any]]:
        """Logits [n_vocab] after each guess of a level, or after the text. The cache then has the text alone."""
        if not tree.tokens:
            self._roll_back(ids)
            pending = list(ids[len(self.cached) :])
            self.cached += pending
            return [self.model.forward(pending, self.cache, n_logits=1)[-1]]
        self.cache.truncate(len(ids) - 1)
        model: Any = self.model
        logits = model.forward_tree(ids[-1:], tree.tokens, tree.parents, self.cache)
        return [logits[1 + guess] for guess in level]


def probability_of_any(logits: NDArray[Any], tokens: Sequence[int]) -> float:
    """What a model itself gives these tokens together, at temperature 1."""
    return sum(probability(logits, token) for token in tokens)


def siblings(
    logits: NDArray[Any], width: int, position: int, sampling: Sampler, choices: Choices
) -> Iterator[tuple[int, Probs]]:
    """Up to `width` guesses for one place, each with the law that it was drawn from, given those before it."""
    taken: list[int] = []
    law: Probs | None = None
    while len(taken) < width:
        law = without(law, taken) if law is not None else None
        if law is None:
            logits = logits.copy()
            logits[taken] = -np.inf
            if not usable(logits):
                return
            law = sampling.probs(logits, position)
        taken.append(choices.draw(law))
        yield taken[-1], law


def without(law: Probs, taken: Sequence[int]) -> Probs | None:
    """A law less some tokens, rescaled; None where nothing is left."""
    left = law.copy()
    left[list(taken)] = 0
    total = left.sum()
    return left / total if total > 0 else None
