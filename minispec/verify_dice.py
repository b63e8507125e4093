"""Trials of dice for `minispec verify`: frequencies of the loop and of single throws, where every one is known.

`verify_laws` computes what the loop does with fair dice; that the dice of use are fair has to be seen by throwing them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters import SmallModelDrafter
from minispec.kv_cache import KVCache
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.speculative import Dice, speculate
from minispec.trace import run_all
from minispec.verify_cases import Counts, Mismatch, Rng

FALSE_ALARM = 1e-9  # the chance, at most, that right dice fail one trial
TARGET_PROBS, DRAFT_PROBS = np.array([0.15, 0.35, 0.10, 0.40]), np.array([0.50, 0.20, 0.20, 0.10])
COINS = ((0.3, 0.8), (0.05, 0.5), (0.9, 1.0))  # target's and draft's probability of a guess
N_FREQUENCIES = 1 + 4 + 4 + 16 + len(COINS) + 4  # that fair_dice looks at
THROWS = 5  # single throws for each text
Frequencies = dict[str, tuple[float, float]]  # by name, what was seen and what it should be


@dataclass(frozen=True)
class FixedRow:
    """Four tokens that have the same probabilities at every place."""

    row: NDArray[np.float64]
    n_ctx: int = 8
    n_vocab: int = 4

    def new_cache(self) -> KVCache:
        """A cache that counts."""
        nothing = np.zeros(0, np.float32)
        return KVCache(nothing, nothing, self.n_ctx, self)

    def forward(self, ids: Sequence[int], cache: KVCache, n_logits: int | None = None) -> NDArray[Any]:
        """The logarithms of the probabilities, row by row."""
        cache.append(len(ids))
        return np.tile(np.log(self.row), (len(ids) if n_logits is None else n_logits, 1))


def bound(n: int) -> float:
    """How far a frequency among n may be off: all N_FREQUENCIES together go beyond with chance FALSE_ALARM at most.

    Source: Hoeffding 1963, P(|f - p| >= t) <= 2 exp(-2 n t**2).
    """
    return math.sqrt(math.log(2 * N_FREQUENCIES / FALSE_ALARM) / (2 * n))


def fair_dice(_: Pair, rng: Rng, n_texts: int = 20_000) -> Counts:
    """Frequencies where every one is known: of texts of the loop, each with a seed of its own, and of single throws."""
    seed, n_throws = int(rng.integers(1 << 31)), THROWS * n_texts
    in_texts, in_throws = loop_frequencies(seed, n_texts), dice_frequencies(seed, n_throws)
    assert len(in_texts) + len(in_throws) == N_FREQUENCIES
    for seen, n in ((in_texts, n_texts), (in_throws, n_throws)):
        for what, (frequency, probability) in seen.items():
            if not abs(frequency - probability) <= bound(n):
                raise Mismatch(
                    f"{what}: {frequency:.4f} of {n}, {probability:.4f} expected within {bound(n):.4f} "
                    f"(dice from seed {seed}; false alarms below {FALSE_ALARM:g})"
                )
    return {"texts": n_texts, "throws": n_throws * (len(COINS) + 1)}


def loop_frequencies(seed: int, n_texts: int) -> Frequencies:
    """The first two tokens of texts, apart and together, and the first guess, with 1 and 2 guesses a round in turn."""
    target, drafter = FixedRow(TARGET_PROBS), SmallModelDrafter(FixedRow(DRAFT_PROBS))
    pairs, kept = np.zeros((4, 4)), 0
    for text in range(n_texts):
        steps = speculate(
            target, drafter, [0], max_new_tokens=3, n_draft=1 + text % 2, sampling=Sampling(1.0), seed=seed + text
        )
        run = run_all([0], steps)
        pairs[run.ids[0], run.ids[1]] += 1 / n_texts
        kept += run.steps[0].n_accepted > 0
    expected = np.outer(TARGET_PROBS, TARGET_PROBS)
    seen: Frequencies = {"first guess kept": (kept / n_texts, float(np.minimum(TARGET_PROBS, DRAFT_PROBS).sum()))}
    for axis, place in ((1, "first"), (0, "second")):
        for token, values in enumerate(zip(pairs.sum(axis), expected.sum(axis), strict=True)):
            seen[f"{place} token {token}"] = values
    return seen | {f"tokens {ids}": (float(pairs[ids]), float(expected[ids])) for ids in np.ndindex(4, 4)}


def dice_frequencies(seed: int, n: int) -> Frequencies:
    """Coins and draws, one after another from one seed."""
    dice = Dice(seed)
    seen: Frequencies = {}
    for p, q in COINS:
        seen[f"a coin of {p} for {q}"] = sum(dice.accept(p, q) for _ in range(n)) / n, p / q
    counts = np.bincount([dice.draw(TARGET_PROBS) for _ in range(n)], minlength=4)
    return seen | {f"token {i} drawn": (counts[i] / n, float(TARGET_PROBS[i])) for i in range(4)}
