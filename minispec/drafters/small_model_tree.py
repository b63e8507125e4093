"""A smaller model guesses a tree: several tokens for each place, and for each of them what may follow.

The rule: a place has as many guesses as the tree's shape says. They are drawn without replacement: each from the
model's law less the tokens of its elder siblings, rescaled, and that is the law it is judged by. (Judged by the law
that the first was drawn from, what is written would be another's.) Where nothing is left of the law, as after the one
token of greedy decoding, the sampler is asked again for the logits without those tokens: so greedily the most likely
tokens are guessed, each with certainty.

Cost: a pass of the small model for every level, over the guesses so far that have any to follow: little more than the
chain of that depth, since a pass reads each weight once. Its cache is rolled back to the text each time. The target's
pass has a row a guess. The law is kept, and greedy text is plain decoding's. Training: none beyond the small model's.

Source: Chen et al. 2024, Sequoia (arXiv 2402.12374); Jeon et al. 2024 (arXiv 2402.14160); trees as such: Miao et al.
2023, SpecInfer (arXiv 2305.09781).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters.small_model import SmallModelDrafter, SmallModelDrafting, probability, usable
from minispec.protocols import Choices, Draft, GoOn, Probs, Sampler, Target, always
from minispec.trees import families, path_to, tree_parents

Rows = Callable[[Draft, Sequence[int]], Sequence[NDArray[Any]]]  # a draft so far, and places: after each, logits


class SmallModelTreeDrafter(SmallModelDrafter):
    """Drafts trees with `model`, anything that could be a target and has `forward_tree`."""

    branches = True

    def __init__(self, model: Target, tree: Sequence[int]) -> None:
        """tree: its widths, how many guesses follow each guess of the depth before, the first how many follow the text;
        or, for any shape, the parents of its guesses, such as `tree_shape.shape` finds.

        Raises ValueError for widths below 1, parents that are none, and more than MOST_NODES guesses.
        """
        super().__init__(model)
        self.tree = tree_parents(tree)

    def describe(self) -> str:
        """What a guess costs depends on this, besides the model."""
        return f"SmallModelTreeDrafter(tree={self.tree})"

    def with_tree(self, tree: Sequence[int]) -> SmallModelDrafter:
        """The same model with another tree, or with chains where that has no guesses."""
        return SmallModelTreeDrafter(self.model, tree) if len(tree) else SmallModelDrafter(self.model)

    def start(self, cache: Any = None) -> SmallModelTreeDrafting:
        """Begin a text with an empty cache of its own; the target's is not looked at."""
        return SmallModelTreeDrafting(self.model, self.tree)


class SmallModelTreeDrafting(SmallModelDrafting):
    """The small model at work on one text."""

    def __init__(self, model: Target, tree: Sequence[int]) -> None:
        super().__init__(model)
        self.tree = tree

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """A tree after ids, at most n_draft deep: less where the small model's window or its logits end.

        After each level go_on hears what the model gives all guesses together that follow the first of the level.
        """
        n_draft = max(min(n_draft, self.model.n_ctx - len(ids) + 1), 0)
        return draw_levels(partial(self._rows, ids), self.tree, n_draft, len(ids), sampling, choices, go_on)

    def _rows(self, ids: Sequence[int], draft: Draft, places: Sequence[int]) -> list[NDArray[Any]]:
        """Logits [n_vocab] after some guesses, or after the text. The cache then has the text alone.

        Of the draft only what leads to these places is read.
        """
        if not draft.tokens:
            self._roll_back(ids)
            pending = list(ids[len(self.cached) :])
            self.cached += pending
            return [self.model.forward(pending, self.cache, n_logits=1)[-1]]
        self.cache.truncate(len(ids) - 1)
        model: Any = self.model
        assert draft.parents is not None
        inner = sorted({guess for place in places for guess in path_to(place, draft.parents)})
        number = {guess: i for i, guess in enumerate(inner)} | {-1: -1}
        tokens, parents = zip(*((draft.tokens[guess], number[draft.parents[guess]]) for guess in inner), strict=True)
        logits = model.forward_tree(ids[-1:], tokens, parents, self.cache)
        return [logits[1 + number[place]] for place in places]


def draw_levels(
    rows: Rows, parents: Sequence[int], n_deep: int, position: int, sampling: Sampler, choices: Choices, go_on: GoOn
) -> Draft:
    """A tree of this shape, its first n_deep levels, until after a level go_on says no.

    What follows a guess that could not be made is left out. position: of the place after the text.
    """
    tokens: list[int] = []
    probs: list[Probs] = []
    made_parents: list[int] = []
    number = {-1: -1}  # of a guess of the shape among those that are made
    for depth, level in enumerate(families(parents)[:n_deep]):
        places = [parent for parent in level if parent in number]
        if not places:
            break
        first = len(tokens)
        found = rows(Draft(tokens, probs, made_parents), [number[parent] for parent in places])
        for parent, logits in zip(places, found, strict=True):
            made = siblings(logits, len(level[parent]), position + depth, sampling, choices)
            for guess, (token, law) in zip(level[parent], made, strict=False):
                number[guess] = len(tokens)
                tokens.append(token)
                probs.append(law)
                made_parents.append(number[parent])
        eldest = [tokens[i] for i in range(first, len(tokens)) if made_parents[i] == number[places[0]]]
        if first == len(tokens) or not go_on(partial(probability_of_any, found[0], eldest)):
            break
    return Draft(tokens, probs, made_parents)


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
