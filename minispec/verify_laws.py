"""Trials of probabilities for `minispec verify`: the exact law of what the loop writes is the target's.

As in verify_texts, a trial raises `Mismatch` at the first difference and counts what it compared. What makes a walk
through all outcomes cheap is in verify_stand_ins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minispec.drafters import SmallModelDrafter, SmallModelTreeDrafter
from minispec.drafters.models import models_of, sees_target, with_models
from minispec.enumeration import Script, law
from minispec.protocols import Draft, Drafter, Target
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.speculative import Judge, judge, speculate
from minispec.trace import run_all
from minispec.verify_cases import Counts, Mismatch, Rng, models_alike, random_prompt
from minispec.verify_stand_ins import TOLERANCE, AsTheyAre, Blurred, OneBlock, Remembered, Verdict


def same_law(pair: Pair, rng: Rng, top_k: int = 0) -> Counts:
    """The exact law of the loop is the target's: of a few tokens, then of one over the vocabulary.

    top_k bounds the tokens of the second part, 0 for all of them.
    """
    n = joint_law(pair, rng) + one_place_law(pair, rng, top_k)
    return {"probabilities": n + law_of_blocks_and_trees(pair, rng)}


def joint_law(pair: Pair, rng: Rng) -> int:
    """What `speculate` writes along every path of choices, against products of the target's own probabilities."""
    n_draft = int(rng.integers(1, 3 if pair.has_trees else 5))
    n_new = 3 if n_draft < 3 else n_draft + 1
    drafter = SmallModelDrafter(Blurred(pair.target)) if pair.drafter is None else pair.drafter
    seen = takes_real_passes(drafter)  # all paths do then, and there should be few
    sampling = Sampling(round(float(rng.uniform(0.5, 1.5)), 3), top_k=3 if n_new == 3 and not seen else 2)
    prompt = random_prompt(pair, rng, longest=12)
    if not models_of(drafter):
        prompt += prompt[: len(prompt) // 2]  # such as those who copy find something in
    one_block = seen or n_draft > 2 or pair.has_trees
    return walk(pair, prompt, sampling, drafter, n_draft, n_new, getattr(drafter, "judge", "token"), one_block)


def takes_real_passes(drafter: Drafter) -> bool:
    """Whether it needs the target's real cache, or a model whose outputs are not the laws of its guesses."""
    return sees_target(drafter) or any(model.n_vocab != drafter.n_vocab for model in models_of(drafter))


def law_of_blocks_and_trees(pair: Pair, rng: Rng) -> int:
    """The same with a model that guesses, judged as a block or as a tree, half of the time each."""
    temperature, prompt = round(float(rng.uniform(0.5, 1.5)), 3), random_prompt(pair, rng, longest=12)
    model = draft_model(pair)
    if rng.random() < 0.5:
        n_draft, sampling = int(rng.integers(2, 4)), Sampling(temperature, top_k=2)
        return walk(pair, prompt, sampling, SmallModelDrafter(model), n_draft, n_draft + 1, "block", one_block=True)
    widths = ((2,), (3,), (2, 1), (1, 2))[rng.integers(4)]
    sampling = Sampling(temperature, top_k=3 if len(widths) == 1 else 2)
    return walk(pair, prompt, sampling, SmallModelTreeDrafter(model, widths), len(widths), len(widths) + 1)


def draft_model(pair: Pair) -> Target:
    """The model that drafts, or one to stand in for it."""
    return next(iter(models_alike(pair)), Blurred(pair.target))


def walk(
    pair: Pair, prompt: list[int], sampling: Sampling, drafter: Drafter, n_draft: int, n_new: int,
    verification: str | Judge = "token", one_block: bool = False,
) -> int:  # fmt: skip
    """All outcomes of the loop with this drafter; returns how many there are."""
    options: Any = {"n_draft": n_draft, "sampling": AsTheyAre(), "verification": verification}
    remembered = target = Remembered(pair.target, sampling)
    if takes_real_passes(drafter):
        target, options["sampling"] = pair.target, sampling  # type: ignore[assignment]
        n_new += 1  # before the first it has seen nothing, and may guess nothing
    else:
        drafter = with_models(drafter, lambda model: Remembered(model, sampling))
    if one_block:
        drafter = OneBlock(drafter)

    def written(choices: Script) -> tuple[int, ...]:
        steps = speculate(target, drafter, prompt, max_new_tokens=n_new, choices=choices, **options)
        return tuple(run_all(prompt, steps).ids)

    judged = getattr(verification, "__name__", verification)
    case = f"{n_new} new tokens, {n_draft} guesses a round by {drafter!r:.60}, judged by {judged}, {sampling!r}, "
    return compare_laws(law(written), own_law(remembered, prompt, n_new), f"{case}prompt ids {prompt}")


def own_law(target: Remembered, prompt: Sequence[int], n_new: int) -> dict[tuple[int, ...], float]:
    """The target's probability of every text of n_new tokens: a product along the text."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(min(n_new, target.n_ctx - len(prompt))):
        longer: dict[tuple[int, ...], float] = {}
        for new, chance in chances.items():
            probs = target.probs([*prompt, *new])
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


def one_place_law(pair: Pair, rng: Rng, top_k: int = 0) -> int:
    """Every guess with a chance of being made goes through `judge`: what is written has the target's law."""
    model, sampling = draft_model(pair), Sampling(1.0, top_k)
    prompt = random_prompt(pair, rng, min(40, model.n_ctx))
    case = f"one token, {sampling!r}, prompt ids {prompt}"
    row = pair.target.forward(prompt, pair.target.new_cache(), n_logits=1)[-1]
    target_probs = sampling.probs(row, len(prompt))
    rows = np.stack([target_probs, target_probs[::-1]])  # the bonus token's row is never looked at
    draft_probs = sampling.probs(model.forward(prompt, model.new_cache(), n_logits=1)[-1], len(prompt))
    got, kept = np.zeros(pair.target.n_vocab), 0.0
    for token in np.flatnonzero(draft_probs).tolist():
        draft = Draft([token], [draft_probs])
        for verdict in (Verdict(True), Verdict(False)):
            written, _ = next(judge(draft, rows, len(prompt), AsTheyAre(), verdict))
            chance = draft_probs[token] * (verdict.chance if verdict.accepted else 1 - verdict.chance)
            if verdict.accepted:
                got[written] += chance
                kept += chance
            elif chance > 0:
                got += chance * (verdict.drawn_from if verdict.drawn_from is not None else math.nan)
    overlap = float(np.minimum(target_probs, draft_probs).sum())
    compare_laws({"kept": kept}, {"kept": overlap}, case)
    return compare_laws(dict(enumerate(got.tolist())), dict(enumerate(target_probs.tolist())), case)
