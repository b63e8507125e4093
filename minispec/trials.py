"""Trials at one place of a text: a guess, a coin, perhaps a replacement. Millions of them, in plain NumPy.

`trials_numba` is the same as a compiled loop with the same arguments, and gives the same counts to the last trial. It
can, as a trial's dice are a function of the key and the trial's number alone: throw j of trial t is number 3 t + j of
the stream. So it does not matter who makes a trial, and when: pieces may go to any number of threads.

A draw turns a uniform number into a token by cumulated probabilities: it is the first token whose sum exceeds the
number. Sums end at exactly 1 and the number is below, so a token without probability, which adds nothing to the sum,
is never the first.

Source of the stream: SplitMix64, Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PIECE = 1 << 16  # trials that are made at once: what they need stays in the processor's cache
THROWS = 3  # numbers of the stream that belong to a trial: for the guess, the coin and the replacement

# Rows of `sums` and `guides`: what is drawn from. A guess is thrown away unjudged where `accept` is THROWN_AWAY.
GUESS, REPLACEMENT, TARGET = 0, 1, 2
THROWN_AWAY = -1.0
# How a guess is judged: by a new uniform number, by the one that drew it, or by a draw of the target's own.
NEW_COIN, SAME_COIN, OWN_DRAW = 0, 1, 2

# uint64 throughout: products wrap, and a mix with signed integers would become a float.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, to the next odd number
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BY_30, BY_27, BY_31, BY_11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
ONE, THREE = np.uint64(1), np.uint64(THROWS)


def make_key(seed: int) -> np.uint64:
    """The stream's beginning; neighbouring seeds have streams that are far apart. SeedSequence spreads the bits."""
    key: np.uint64 = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
    return key


def uniform(key: Any, trials: Any, throw: Any) -> Any:
    """A throw of these trials: a multiple of 2**-53 from 0 to below 1. All arguments are uint64."""
    z = key + (trials * THREE + throw + ONE) * GOLDEN
    z = (z ^ (z >> BY_30)) * FIRST
    z = (z ^ (z >> BY_27)) * SECOND
    z = z ^ (z >> BY_31)
    return (z >> BY_11) * 2.0**-53


def cumulate(probs: Floats) -> Floats:
    """Growing sums [n] of probs [n] that end at exactly 1."""
    sums: Floats = probs.cumsum()
    sums /= sums[-1]
    return sums


def make_guide(sums: Floats) -> Ints:
    """Where to begin to look: [n_guide], at i the first token whose sum exceeds i / n_guide.

    The compiled loop takes it and goes on token by token, seldom more than one. n_guide is a power of two, so that
    i = floor(uniform * n_guide) is exact.
    Source: Chen and Asau 1974, "On generating random variates from an empirical distribution".
    """
    n_guide = 1 << max(8, (4 * len(sums) - 1).bit_length())
    return sums.searchsorted(np.arange(n_guide) / n_guide, side="right").astype(np.int64)


def count_trials(
    key: np.uint64, first: int, end: int, coin: int, sums: Floats, guides: Ints, accept: Floats, counts: Ints
) -> int:
    """Make trials first to end - 1: counts [n] += the tokens written; how many of them are guesses that were kept.

    Shapes: sums [3, n] and guides [3, n_guide] of GUESS, REPLACEMENT, TARGET; accept [n], the chance to keep a guess.
    """
    kept = 0
    for start in range(first, end, PIECE):
        trials = np.arange(start, min(start + PIECE, end), dtype=np.uint64)
        written, n_kept = _write(key, trials, coin, sums, accept)
        counts += np.bincount(written, minlength=len(counts))
        kept += n_kept
    return kept


def _write(key: np.uint64, trials: NDArray[np.uint64], coin: int, sums: Floats, accept: Floats) -> tuple[Ints, int]:
    """The token that each of these trials writes, and how many are guesses that were kept."""
    number = uniform(key, trials, np.uint64(0))
    guesses = draw(sums[GUESS], number)
    if coin == OWN_DRAW:
        own = draw(sums[TARGET], uniform(key, trials, ONE))
        return own, int((own == guesses).sum())
    if coin == NEW_COIN:
        number = uniform(key, trials, ONE)
    refused = np.flatnonzero(number >= accept[guesses])
    replacements = uniform(key, trials[refused], np.uint64(2))
    thrown_away = accept[guesses[refused]] == THROWN_AWAY
    written = guesses
    written[refused] = np.where(thrown_away, draw(sums[TARGET], replacements), draw(sums[REPLACEMENT], replacements))
    return written, len(trials) - len(refused)


def draw(sums: Floats, numbers: Floats) -> Ints:
    """For each uniform number the first token whose sum exceeds it."""
    return sums.searchsorted(numbers, side="right")
