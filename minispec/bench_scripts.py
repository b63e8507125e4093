"""Scripts for a pair: where its draft is right, with a chance that is chosen, and a draft that is right just there.

A scripted model writes what its position embeddings point at (see `made_up`), so another script is another array of
these, and the weights that cost time stay the same.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minispec.made_up import CALL, scripts
from minispec.model import GPT2
from minispec.theory import expected_tokens

PROMPT = 4  # tokens
SEEDS = 1000  # patterns of agreement to choose from
SCRIPTS = 2  # of a rate: AUTO has to find out what others are told, and that depends on luck
FEWEST_ROUNDS = 25  # of the longest draft, in each
SHORTEST_HALF = 2  # rounds of the longest draft

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Script:
    """n tokens. The draft is right where agree [n_ctx] says so; others are further such places. rate is the chance of
    that, None where it changes.
    """

    name: str
    rate: float | None
    n: int
    agree: Bools
    others: tuple[Bools, ...] = ()


def agreeing(draft: GPT2, target: GPT2, agree: Bools) -> GPT2:
    """The draft of a scripted pair with another script: the target's token where `agree` [n_ctx] says so."""
    own, other = scripts(target.config, 0.0)
    script = np.where(agree, own, other)[: draft.n_ctx]
    w = draft.weights
    embeddings = draft.ops.columns(w.wte, w.wte_scale, script)
    twin = copy.copy(draft)
    twin.weights = w._replace(wpe=np.float32(CALL) * embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True))
    return twin


def scripted_text(rate: float, lengths: Sequence[int], n: int, n_ctx: int) -> Script:
    """A text of this rate: of n tokens, or more where rounds write more, so that there are enough of them."""
    n = max(n, int(FEWEST_ROUNDS * expected_tokens(rate, max(lengths))))
    n = min(n, n_ctx - PROMPT)
    agree, *others = patterns(rate, lengths, n, n_ctx)
    return Script(f"{rate:g}", rate, n, agree, tuple(others))


def changing_text(first: float, then: float, lengths: Sequence[int], n: int, n_ctx: int) -> Script:
    """A text of 2 n tokens whose first half has one rate, and the second another."""
    n = min(max(n, SHORTEST_HALF * (max(lengths) + 1)), (n_ctx - PROMPT) // 2)
    halves = zip(*(patterns(rate, lengths, n, n_ctx) for rate in (first, then)), strict=True)
    agree, *others = (np.concatenate([one[: PROMPT - 1 + n], other[PROMPT - 1 :]])[:n_ctx] for one, other in halves)
    return Script(f"{first:g}, then {then:g}", None, 2 * n, agree, tuple(others))


def patterns(rate: float, lengths: Sequence[int], n: int, n_ctx: int) -> list[Bools]:
    """Places where the draft is right, each with chance `rate`: of many such throws the few in which rounds of all
    these lengths come nearest to the tokens that they write on average. A short text would else have its own luck.
    """

    def luck(agree: Bools) -> float:
        """How far tokens a round are from what they should be, at worst, without the first round."""
        means = [np.mean(round_sizes(agree, k, n)[1:]) / expected_tokens(rate, k) for k in lengths]
        return float(max(abs(mean - 1) for mean in means))

    throws = (np.random.default_rng(seed).random(n_ctx) < rate for seed in range(SEEDS))
    return sorted(throws, key=luck)[:SCRIPTS]


def round_sizes(agree: Bools, k: int, n: int) -> list[int]:
    """The tokens of each round of k guesses, until n are written."""
    place, sizes = 0, []
    right = agree[PROMPT - 1 :].tolist()
    while place < n:
        kept = 0
        while kept < min(k, n - place - 1) and right[place + kept]:
            kept += 1
        sizes.append(kept + 1)
        place += kept + 1
    return sizes
