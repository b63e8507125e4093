"""Guesses whose laws are all known before the first is drawn: each is drawn by itself.

That is what drafters have to offer that make several guesses at once: the second is not told what the first was, so
together they may make no sense. The law of the text does not suffer: each guess states the law that it was drawn from,
and the target judges it in its place.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters.small_model import probability
from minispec.speculative import Choices, Draft, GoOn, Probs, Sampler


def draw_each(logits: NDArray[Any], position: int, sampling: Sampler, choices: Choices, go_on: GoOn) -> Draft:
    """A guess from each row of logits [n_guess, n_vocab], the first for this place of the text, until go_on says no.

    A row with no usable largest logit ends the draft: a broken drafter may cost speed, never the text.
    """
    tokens: list[int] = []
    probs: list[Probs] = []
    for i, row in enumerate(logits):
        if not -np.inf < row.max() < np.inf:
            break
        probs.append(sampling.probs(row, position + i))
        tokens.append(choices.draw(probs[-1]))
        if not go_on(partial(probability, row, tokens[-1])):
            break
    return Draft(tokens, probs)
