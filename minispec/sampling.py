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
            probs = np.zeros(len(logits))
            probs[top] = 1.0
            return probs
        with np.errstate(over="ignore", under="ignore"):
            scores = (logits.astype(np.float64) - float(logits[top])) / self.temperature
            probs = np.exp(scores)
        if 0 < self.top_k < len(logits):
            probs = _keep_top_k(logits, probs, int(self.top_k))
        probs /= probs.sum()
        if self.top_p < 1:
            probs = _keep_top_p(logits, probs, self.top_p)
        return probs


def _keep_top_k(logits: NDArray[Any], probs: Probs, top_k: int) -> Probs:
    """probs with all but the top_k largest logits set to 0. (Probabilities may be equal by rounding.)"""
    smallest = np.partition(logits, len(logits) - top_k)[len(logits) - top_k]
    keep = logits > smallest
    ties = np.flatnonzero(logits == smallest)
    keep[ties[: top_k - np.count_nonzero(keep)]] = True
    return np.where(keep, probs, 0.0)


def _keep_top_p(logits: NDArray[Any], probs: Probs, top_p: float) -> Probs:
    """probs with all but the smallest set that reaches top_p set to 0, rescaled.

    Tokens below (1 - top_p) / n_vocab weigh less than 1 - top_p together, so the set holds none of them;
    half of that leaves room for rounding. Only the rest is sorted.
    """
    likely = np.flatnonzero(probs >= (1 - top_p) / (2 * len(probs)))
    order = likely[np.argsort(-logits[likely], kind="stable")]
    mass = np.cumsum(probs[order])
    kept = order[: np.searchsorted(mass, top_p - ROUNDING) + 1]
    out = np.zeros_like(probs)
    out[kept] = probs[kept] / probs[kept].sum()
    return out
