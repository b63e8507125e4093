"""Trials of probabilities for `minispec verify`: the exact law of the loop, and the dice that it throws.

`same_law` computes what the real loop writes with which probability, and compares that with the target alone;
`fair_dice` throws dice where every frequency is known. As in verify_texts, a trial raises `Mismatch`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters import SmallModelDrafter
from minispec.enumeration import Script, law
from minispec.kv_cache import KVCache
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.speculative import Dice, Draft, Probs, Sampler, Target, judge, speculate
from minispec.trace import run_all
from minispec.verify_texts import Mismatch, Rng, random_prompt

TOLERANCE = 1e-12  # of probabilities that are computed in two ways
FALSE_ALARM = 1e-9  # the chance, at most, that right dice fail one trial


# --- laws ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blurred:
    """The model with fixed noise on its logits: a draft model for a pair that has none."""

    model: Target

    @property
    def n_ctx(self) -> int:
        """The model's context window."""
        return self.model.n_ctx

    @property
    def n_vocab(self) -> int:
        """The model's vocabulary."""
        return self.model.n_vocab

    def new_cache(self) -> Any:
        """The model's empty cache."""
        return self.model.new_cache()

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> NDArray[Any]:
        """The model's logits, and the same noise on every row."""
        noise = 2 * np.random.default_rng(0).standard_normal(self.n_vocab)
        return self.model.forward(ids, cache, n_logits) + noise


def draft_model(pair: Pair) -> Target:
    """The model that drafts, or one to stand in for it."""
    return pair.drafter.model if isinstance(pair.drafter, SmallModelDrafter) else Blurred(pair.target)


def same_law(pair: Pair, rng: Rng, top_k: int = 0) -> int:
    """The exact law of the loop is the target's: of a few tokens, then of one over the vocabulary.

    Returns the number of probabilities. top_k bounds the tokens of the second part, 0 for all of them.
    """
    return joint_law(pair, rng) + one_place_law(pair, rng, top_k)


def joint_law(pair: Pair, rng: Rng) -> int:
    """What `speculate` writes along every path of choices, against products of the target's own probabilities."""
    n_new, n_draft = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    sampling = Sampling(round(float(rng.uniform(0.5, 1.5)), 3), top_k=3 if n_new == 2 else 2)
    prompt = random_prompt(pair, rng, longest=12)
    drafter = pair.drafter or SmallModelDrafter(draft_model(pair))

    def written(choices: Script) -> tuple[int, ...]:
        steps = speculate(
            pair.target, drafter, prompt, max_new_tokens=n_new, n_draft=n_draft, sampling=sampling, choices=choices
        )
        return tuple(run_all(prompt, steps).ids)

    case = f"{n_new} new tokens, {n_draft} guesses a round, {sampling!r}, prompt ids {prompt}"
    return compare_laws(law(written), own_law(pair.target, prompt, n_new, sampling), case)


def own_law(target: Target, prompt: Sequence[int], n_new: int, sampling: Sampler) -> dict[tuple[int, ...], float]:
    """The target's probability of every text of n_new tokens, each context read afresh."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for position in range(len(prompt), min(len(prompt) + n_new, target.n_ctx)):
        longer: dict[tuple[int, ...], float] = {}
        for new, chance in chances.items():
            logits = target.forward([*prompt, *new], target.new_cache(), n_logits=1)
            probs = sampling.probs(logits[-1], position)
            longer |= {(*new, int(token)): chance * float(probs[token]) for token in np.flatnonzero(probs)}
        chances = longer
    return chances


def compare_laws(got: Mapping[Any, float], expected: Mapping[Any, float], case: str) -> int:
    """Raise Mismatch where two laws differ by more than TOLERANCE; returns the number of outcomes."""
    for outcome in {**expected, **got}:
        one, other = float(got.get(outcome, 0)), float(expected.get(outcome, 0))
        if not abs(one - other) <= TOLERANCE:
            raise Mismatch(f"{outcome} has probability {one!r}, from the target alone {other!r} ({case})")
    return len(expected)


@dataclass
class Verdict:
    """Choices that accept or refuse as they are told, and keep the chance of it and what was drawn from."""

    accepted: bool
    chance: float = math.nan
    drawn_from: Probs | None = None

    def accept(self, target_prob: float, draft_prob: float) -> bool:
        """As told; notes the probability of accepting."""
        self.chance = 1.0 if target_prob >= draft_prob > 0 else target_prob / draft_prob
        return self.accepted

    def draw(self, probs: Probs) -> int:
        """Any token; notes the distribution."""
        self.drawn_from = probs
        return 0


class Remembered:
    """A sampler that computes the distribution of each row of logits once."""

    def __init__(self, sampling: Sampler) -> None:
        self.sampling = sampling
        self.known: dict[tuple[int, int], Probs] = {}

    def probs(self, logits: NDArray[Any], position: int) -> Probs:
        """The distribution; rows are told apart by their place in memory."""
        key = logits.ctypes.data, position
        if key not in self.known:
            self.known[key] = self.sampling.probs(logits, position)
        return self.known[key]


def one_place_law(pair: Pair, rng: Rng, top_k: int = 0) -> int:
    """Every guess with a chance of being made goes through `judge`: what is written has the target's law."""
    model, sampling = draft_model(pair), Sampling(1.0, top_k)
    prompt = random_prompt(pair, rng, min(40, model.n_ctx))
    case = f"one token, {sampling!r}, prompt ids {prompt}"
    row = pair.target.forward(prompt, pair.target.new_cache(), n_logits=1)[-1]
    logits = np.stack([row, row[::-1]])  # the bonus token's are never looked at
    sampler = Remembered(sampling)
    target_probs = sampler.probs(logits[0], len(prompt))
    draft_probs = sampling.probs(model.forward(prompt, model.new_cache(), n_logits=1)[-1], len(prompt))
    got, kept = np.zeros(pair.target.n_vocab), 0.0
    for token in np.flatnonzero(draft_probs).tolist():
        draft = Draft([token], [draft_probs])
        for verdict in (Verdict(True), Verdict(False)):
            written, _ = next(judge(draft, logits, len(prompt), sampler, verdict))
            chance = draft_probs[token] * (verdict.chance if verdict.accepted else 1 - verdict.chance)
            if verdict.accepted:
                got[written] += chance
                kept += chance
            elif chance > 0:
                got += chance * (verdict.drawn_from if verdict.drawn_from is not None else math.nan)
    overlap = float(np.minimum(target_probs, draft_probs).sum())
    compare_laws({"kept": kept}, {"kept": overlap}, case)
    return compare_laws(dict(enumerate(got.tolist())), dict(enumerate(target_probs.tolist())), case)


# --- dice ------------------------------------------------------------------------------------------

TARGET_PROBS, DRAFT_PROBS = np.array([0.15, 0.35, 0.10, 0.40]), np.array([0.50, 0.20, 0.20, 0.10])


@dataclass(frozen=True)
class Toy:
    """Four tokens that have the same probabilities at every place."""

    row: NDArray[np.float64]
    n_ctx: int = 8
    n_vocab: int = 4

    def new_cache(self) -> KVCache:
        """A cache that counts."""
        return KVCache((), self.n_ctx, self)

    def forward(self, ids: Sequence[int], cache: KVCache, n_logits: int | None = None) -> NDArray[Any]:
        """The logarithms of the probabilities, row by row."""
        cache.append(len(ids))
        return np.tile(np.log(self.row), (len(ids) if n_logits is None else n_logits, 1))


def fair_dice(_: Pair, rng: Rng, n_texts: int = 20_000) -> int:
    """Frequencies of the loop's tokens, of pairs of them, and of kept guesses, where every one is known.

    Each may be off by Hoeffding's bound, at which all together raise a false alarm with chance FALSE_ALARM at most.
    Source: Hoeffding 1963, P(|f - p| >= t) <= 2 exp(-2 n t**2).
    """
    seed = int(rng.integers(1 << 31))
    dice, target, drafter = Dice(seed), Toy(TARGET_PROBS), SmallModelDrafter(Toy(DRAFT_PROBS))
    pairs, kept = np.zeros((4, 4)), 0
    settings: dict[str, Any] = {"max_new_tokens": 3, "sampling": Sampling(1.0), "choices": dice}
    for text in range(n_texts):
        run = run_all([0], speculate(target, drafter, [0], n_draft=1 + text % 2, **settings))
        pairs[run.ids[0], run.ids[1]] += 1 / n_texts
        kept += run.steps[0].n_accepted > 0
    expected = np.outer(TARGET_PROBS, TARGET_PROBS)
    seen: dict[str, tuple[float, float]] = {"first guess kept": (kept / n_texts, 0.55)}
    for axis, place in ((1, "first"), (0, "second")):
        for token, values in enumerate(zip(pairs.sum(axis), expected.sum(axis), strict=True)):
            seen[f"{place} token {token}"] = values
    for ids in np.ndindex(4, 4):
        seen[f"tokens {ids}"] = float(pairs[ids]), float(expected[ids])
    bound = math.sqrt(math.log(2 * len(seen) / FALSE_ALARM) / (2 * n_texts))
    for what, (frequency, probability) in seen.items():
        if not abs(frequency - probability) <= bound:
            raise Mismatch(
                f"{what}: {frequency:.4f} of {n_texts} texts, {probability:.4f} expected within {bound:.4f} "
                f"(false alarms below {FALSE_ALARM:g}; Dice({seed}), 1 and 2 guesses a round in turn)"
            )
    return n_texts
