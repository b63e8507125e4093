"""Logits to the distribution that a token is drawn from: temperature, then top-k, then top-p.

One order and one tie rule everywhere: the temperature scales, top-k keeps the k most likely tokens,
top-p keeps the smallest set of the most likely that reaches the mass, and what is kept is rescaled to
one. Of equal tokens the lower id comes first, as in argmax. Greedy decoding (temperature 0) is the
distribution with the argmax alone, so the speculative rule needs no special case.

Source: Fan, Lewis, Dauphin 2018 (top-k); Holtzman et al. 2020 (top-p).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[np.float64]
ROUNDING = 1e-12  # how far below top_p a sum may be by rounding alone and still reach it
RARE = 2e-4  # at most 5,000 tokens have this probability, and these are soon sorted
BIN = 47  # a positive float64's bits from this one on are an integer that grows with it: in 32 steps an octave


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    temperature: 0 is greedy, 1 the model's own law, in units of logits.
    top_k: tokens kept, 0 is off. top_p: mass kept, 1 is off, 0 keeps the most likely token.
    Raises ValueError for values that are not finite, negative, or (top_p) above 1.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}: give a finite number, 0 or more")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int | np.integer) or self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k!r}: give an integer, 0 (off) or more")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}: give a number from 0 to 1 (off)")

    def probs(self, logits: NDArray[Any], position: int = 0) -> Probs:
        """Logits [n_vocab] to probabilities [n_vocab] in float64, the same at every position of the text.

        Raises ValueError for NaN or +infinity, and where every logit is -infinity.
        """
        top = int(np.argmax(logits))  # a NaN, where there is one
        if not np.isfinite(logits[top]):
            raise ValueError(f"the model's largest logit is {logits[top]} (token {top}): its weights are broken")
        if self.temperature == 0:
            return _spread(top, 1.0, len(logits))
        if 0 < self.top_k < len(logits):
            ids = _top_k(logits, int(self.top_k))
            return _spread(ids, self._probs(logits[ids]), len(logits))
        return self._probs(logits)

    def _probs(self, logits: NDArray[Any]) -> Probs:
        """Temperature and top-p. Weights are made in one array: to get memory for more takes most of the time."""
        with np.errstate(over="ignore", under="ignore"):
            weights: Probs = np.subtract(logits, logits.max(), dtype=np.float64)
            if self.temperature != 1:
                weights /= self.temperature
            np.exp(weights, out=weights)
        if self.top_p < 1:
            ids = _top_p(logits, weights, self.top_p)
            return _spread(ids, weights[ids] / weights[ids].sum(), len(logits))
        weights /= weights.sum()
        return weights


def _spread(ids: Any, probs: Any, n_vocab: int) -> Probs:
    """Probabilities [n_vocab]: these for these ids, 0 for all others."""
    spread = np.zeros(n_vocab)
    spread[ids] = probs
    return spread


def _top_k(logits: NDArray[Any], top_k: int) -> NDArray[np.intp]:
    """The ids of the top_k largest logits, largest first, the lower id first of equals.

    Deal the logits into four times top_k groups. Of the groups' largest, top_k reach some bound: then so do the top_k
    largest of all, and few others. Only these are sorted.
    """
    in_group = max(1, len(logits) // (4 * top_k))
    groups = logits[: len(logits) // in_group * in_group].reshape(in_group, -1)
    bound = np.partition(groups.max(axis=0), -top_k)[-top_k]
    ids = np.flatnonzero(logits >= bound)
    return ids[np.argsort(-logits[ids], kind="stable")[:top_k]]


def _top_p(logits: NDArray[Any], weights: Probs, top_p: float) -> NDArray[np.intp]:
    """The ids of the smallest set that has a share of top_p in weights: the largest logits, the lower id of equals.

    Mostly the tokens that are not rare have that share together, and are few enough to sort. Where they have not,
    all are put into bins, and only those of the bin where the share is reached are sorted.
    """
    total = weights.sum()
    enough = max(top_p - ROUNDING, 0.0) * total
    surely, mass_before = np.zeros(0, np.intp), 0.0
    perhaps = np.flatnonzero(weights >= RARE * total)
    if weights[perhaps].sum() <= enough:  # equal where all are rare and top_p is 0
        bins = np.float64(1).view(np.int64) - weights.view(np.int64)  # the most likely token has weight 1 and bin 0
        bins >>= BIN
        mass = np.bincount(bins, weights).cumsum()
        last = int(mass.searchsorted(enough))
        surely, perhaps = np.flatnonzero(bins < last), np.flatnonzero(bins == last)
        mass_before = mass[last - 1] if last else 0.0
    perhaps = perhaps[np.argsort(-logits[perhaps], kind="stable")]
    n_kept = (mass_before + weights[perhaps].cumsum()).searchsorted(enough) + 1
    return np.concatenate([surely, perhaps[:n_kept]])
