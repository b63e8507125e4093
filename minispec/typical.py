"""Typical acceptance, LOSSY: what the target finds likely enough is kept, and the text has another law than its own.

The rule: a guess stands if the target gives it more than min(0.3, 0.09 e**-entropy), where it is unsure more leniently
than where it is sure; of a tree the longest path that stands. No coin is thrown, and nothing makes up for what is kept
too often: what is likely is written more often than the target would, and what is unlikely never, unless it closes a
round. It is here to be compared with, and to show what a law test is for: `-d medusa-typical`, and `minispec verify`
says NOT EXACT. Where there is only one token to choose, greedily or for a seed of --coupling gumbel, it is exact.

Source: Cai et al. 2024, "Medusa" (arXiv 2401.10774).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.protocols import Choices, Draft, Probs, Sampler
from minispec.speculative import checked_law
from minispec.trees import path_to

ENOUGH = 0.3  # so likely is enough anywhere
SHARE = 0.09  # of e**-entropy, which is one over the number of tokens that the target hesitates between


def judge_typical(
    draft: Draft, logits: NDArray[Any], position: int, sampling: Sampler, choices: Choices
) -> Iterator[tuple[int, int]]:
    """As `speculative.judge`, by another rule: for `speculate`'s verification."""
    parents = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
    depth = {-1: 0}  # of the guesses that stand, and of the text: how far into it
    probs = {-1: checked_law(sampling.probs(logits[0], position))}
    for guess, (token, parent) in enumerate(zip(draft.tokens, parents, strict=True)):
        if parent in depth and probs[parent][token] > likely_enough(probs[parent]):
            depth[guess] = depth[parent] + 1
            probs[guess] = checked_law(sampling.probs(logits[1 + guess], position + depth[guess]))
    last = max(depth, key=lambda guess: depth[guess])  # the first of equals
    yield from ((draft.tokens[guess], 1 + guess) for guess in path_to(last, parents))
    yield choices.draw(probs[last]), 0


def likely_enough(probs: Probs) -> float:
    """What a guess must have more of, at a place with these probabilities [n_vocab]."""
    some = probs[probs > 0]
    entropy = -(some * np.log(some)).sum()
    return float(min(ENOUGH, SHARE * np.exp(-entropy)))
