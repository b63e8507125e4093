"""What is told of a traced round: the laws that the rule saw, the chance it gave, the coin that fell.

Of a distribution the five most likely tokens are kept, so a long run stays small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minispec.protocols import Probs, Step

TOP = 5  # tokens that are kept of a distribution
Top = tuple[tuple[int, float], ...]  # tokens with their probabilities, the most likely first


@dataclass(frozen=True)
class Law:
    """A distribution's five most likely tokens; of the law that a model has before one token is picked, `model` too."""

    top: Top
    model: Top | None = None


@dataclass(frozen=True)
class Guess:
    """A guess and what became of it.

    fate: "kept"; "refused", where it was judged; "lost", where it never was. parent, depth: its place in the draft.
    draft is the law that it was drawn from. Where it was judged, target is the law it was judged by. Where guesses are
    judged one by one, residual is what replaces it if it is refused, and overlap the chance that a guess drawn so is
    kept. chance is that of keeping this one, or with blocks all guesses so far; coin is the uniform number that fell:
    None where none was thrown.
    """

    token: int
    parent: int
    depth: int
    fate: str
    draft_prob: float
    draft: Law
    target_prob: float | None = None
    target: Law | None = None
    residual: Law | None = None
    overlap: float | None = None
    chance: float | None = None
    coin: float | None = None


@dataclass(frozen=True)
class Own:
    """The target's own token: as `kind` says a replacement, a bonus or plain; its probability, law and the draw."""

    token: int
    kind: str
    prob: float
    law: Law
    coin: float


@dataclass(frozen=True)
class Round:
    """A step with its reasons; own is None where the text ended before."""

    step: Step
    guesses: tuple[Guess, ...]
    own: Own | None


def top_of(probs: Probs) -> Top:
    """The most likely tokens [TOP] that are possible at all, the lower id first of equals."""
    n = min(TOP, len(probs))
    least = np.partition(probs, -n)[-n]
    ids = np.flatnonzero((probs >= least) & (probs > 0))
    ids = ids[np.argsort(-probs[ids], kind="stable")][:n]
    return tuple((int(i), float(probs[i])) for i in ids)
