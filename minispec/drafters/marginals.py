"""Guesses whose laws are all known before the first is drawn: each is drawn by itself.

That is what drafters have to offer that make several guesses at once: the second is not told what the first was, so
together they may make no sense. The law of the text does not suffer: each guess states the law that it was drawn from,
and the target judges it in its place.

Trees cost no more than chains here: a place has one law, whatever branch leads to it. Siblings are drawn without
replacement, each by the law less its elder siblings, and judged by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from minispec.drafters.small_model import probability, usable
from minispec.drafters.small_model_tree import draw_levels
from minispec.protocols import Choices, Draft, GoOn, Probs, Sampler, depths


def draw_each(logits: NDArray[Any], position: int, sampling: Sampler, choices: Choices, go_on: GoOn) -> Draft:
    """A guess from each row of logits [n_guess, n_vocab], the first for this place of the text, until go_on says no."""
    tokens: list[int] = []
    probs: list[Probs] = []
    for i, row in enumerate(logits):
        if not usable(row):
            break
        probs.append(sampling.probs(row, position + i))
        tokens.append(choices.draw(probs[-1]))
        if not go_on(partial(probability, row, tokens[-1])):
            break
    return Draft(tokens, probs)


def draw_tree(
    logits: NDArray[Any], parents: Sequence[int], position: int, sampling: Sampler, choices: Choices, go_on: GoOn
) -> Draft:
    """A tree of this shape, as deep as there are rows of logits [depth, n_vocab], until after a level go_on says no.

    parents: as a draft's.
    """
    levels = iter(logits)

    def rows(draft: Draft, places: Sequence[int]) -> list[NDArray[Any]]:
        return [next(levels)] * len(places)

    return draw_levels(rows, parents, len(logits), position, sampling, choices, go_on)


def level_order(parents: Sequence[int]) -> tuple[int, ...]:
    """The same shape with its guesses in the order of their depths; siblings keep theirs."""
    deep = depths(parents)
    order = sorted(range(len(parents)), key=lambda guess: deep[guess])
    number = {guess: i for i, guess in enumerate(order)} | {-1: -1}
    return tuple(number[parents[guess]] for guess in order)
