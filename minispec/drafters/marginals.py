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
from itertools import accumulate
from operator import mul
from typing import Any

from numpy.typing import NDArray

from minispec.drafters.small_model import probability, usable
from minispec.drafters.small_model_tree import probability_of_any, siblings
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

    parents: as a draft's, in the order of their depths; such as `level_order` gives.
    """
    tokens: list[int] = []
    probs: list[Probs] = []
    kept: list[int] = []
    number = {-1: -1}  # of a guess of the shape among those that are made
    deep = depths(parents)
    for depth, row in enumerate(logits):
        level = [guess for guess, own in enumerate(deep) if own == depth + 1]
        places = list(dict.fromkeys(parents[guess] for guess in level if parents[guess] in number))
        for parent in places:
            family = [guess for guess in level if parents[guess] == parent]
            made = siblings(row, len(family), position + depth, sampling, choices)
            for guess, (token, law) in zip(family, made, strict=False):
                number[guess] = len(tokens)
                tokens.append(token)
                probs.append(law)
                kept.append(number[parent])
        first = [token for token, parent in zip(tokens, kept, strict=True) if places and parent == number[places[0]]]
        if not first or not go_on(partial(probability_of_any, row, first)):
            break
    return Draft(tokens, probs, kept)


def level_order(parents: Sequence[int]) -> tuple[int, ...]:
    """The same shape with its guesses in the order of their depths; siblings keep theirs."""
    deep = depths(parents)
    order = sorted(range(len(parents)), key=lambda guess: deep[guess])
    number = {guess: i for i, guess in enumerate(order)} | {-1: -1}
    return tuple(number[parents[guess]] for guess in order)


def of_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """The shape in which each guess of a depth, and the text, is followed by so many."""
    starts = [-1, *accumulate(accumulate(widths[:-1], mul), initial=0)]  # of each level, the text being the first
    sizes = [1, *accumulate(widths, mul)]
    levels = zip(starts, sizes, widths, strict=False)
    return tuple(start + i for start, size, width in levels for i in range(size) for _ in range(width))
