"""Trials of texts for `minispec verify`: speculative against plain.

A trial puts the real code to a random case, raises `Mismatch` at the first difference, and counts what it compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minispec.draft_length import AutoLength
from minispec.drafters import SmallModelDrafter, SmallModelTreeDrafter
from minispec.gumbel import Gumbel
from minispec.plain import generate
from minispec.protocols import Drafter, Sampler
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.speculative import speculate
from minispec.trace import Run, run_all
from minispec.verify_cases import (
    Counts,
    Mismatch,
    RandomGuesses,
    Rng,
    models_alike,
    near_the_end,
    random_costs,
    random_prompt,
    random_sampling,
    random_widths,
    thread_counts,
    threads,
)


def same_text(pair: Pair, rng: Rng, sampled: bool = False) -> Counts:
    """Speculative ids and finish equal plain ones, whoever guesses.

    Texts are greedy, or `sampled` with noise that is tied to places. A quarter may stop early, and a quarter
    reaches the end of the context window. Plain and speculative decoding run on different numbers of threads.
    In a third of the trials a model guesses a tree as well, and in a third the drafter's guesses are judged as a block.
    """
    n_draft, n_new = int(rng.integers(1, 9)), int(rng.integers(2, 61))
    length: int | AutoLength = AutoLength(random_costs(rng)) if rng.random() < 0.25 else n_draft
    prompt = near_the_end(pair, rng) if rng.random() < 0.25 else random_prompt(pair, rng)
    inner, seed = random_sampling(rng), int(rng.integers(1 << 31))
    sampling: Sampler = Gumbel(inner, seed) if sampled else Sampling()
    stop_at = int(rng.integers(64))  # ends at an id that leaves this rest by 16: never, if it is 16 or more
    settings: dict[str, Any] = {
        "max_new_tokens": n_new, "sampling": sampling, "stop": lambda new: new[-1] % 16 == stop_at
    }  # fmt: skip
    few, many = thread_counts(pair.target, rng)
    with threads(pair.target, few):
        plain = run_all(prompt, generate(pair.target, prompt, **settings))
    further = rng.spawn(1)[0]
    way = ("chain", "block", "tree")[further.integers(3)]
    widths = random_widths(further) if way == "tree" else ()
    guesses = 0
    for name, drafter in who_guesses(pair, [*prompt, *plain.ids], widths, rng).items():
        judged = "block" if way == "block" and name == "the drafter" and not pair.has_trees else "token"
        case = (
            f"{name}, {length} guesses a round, judged by {judged}, {n_new} new tokens, {sampling!r}, threads {few} "
            f"(plain) and {many}, prompt ids {prompt}"
        )
        with threads(pair.target, many):
            steps = speculate(pair.target, drafter, prompt, n_draft=length, verification=judged, **settings)
            run = run_all(prompt, steps)
        compare_runs(plain, run, case)
        guesses += run.drafted
        if name == "the target drafting for itself" and length == n_draft:
            check_all_kept(run, n_draft, min(n_new, pair.target.n_ctx - len(prompt)), case)
    return {"tokens": len(plain.ids), "guesses": guesses}


def who_guesses(pair: Pair, text: Sequence[int], widths: tuple[int, ...], rng: Rng) -> dict[str, Drafter]:
    """What drafts in a trial, by name; `text` is the one to guess at. With widths, a model guesses a tree as well."""
    drafters: dict[str, Drafter | None] = {
        "the drafter": pair.drafter,
        "random guesses": RandomGuesses(pair.target.n_vocab, text, rng),
        "the target drafting for itself": SmallModelDrafter(pair.target),
    }
    if widths:
        model = next(iter(models_alike(pair)), pair.target)
        drafters |= {f"a tree {widths}": SmallModelTreeDrafter(model, widths)}
    return {name: drafter for name, drafter in drafters.items() if drafter is not None}


def compare_runs(plain: Run, run: Run, case: str) -> None:
    """Raise Mismatch where ids or finish of the two runs differ."""
    pairs = zip(plain.ids, run.ids, strict=False)
    place = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(plain.ids), len(run.ids)))
    if plain.ids != run.ids:
        one, other = ((ids[place] if place < len(ids) else "the end") for ids in (plain.ids, run.ids))
        raise Mismatch(f"new token {place} is {other}, plain decoding writes {one} ({case})")
    if plain.finish != run.finish:
        raise Mismatch(f"the text ends by {run.finish!r}, plain decoding ends by {plain.finish!r} ({case})")


def check_all_kept(run: Run, n_draft: int, room: int, case: str) -> None:
    """Raise Mismatch where the target, drafting for itself, guessed too little or refused a guess.

    room is the number of tokens that could be written. Guesses after a stop were never judged.
    """
    for i, step in enumerate(run.steps):
        if step.committed and len(step.drafted) != min(n_draft, room - 1):
            raise Mismatch(f"round {i} has {len(step.drafted)} guesses with room for {room} tokens ({case})")
        if step.n_accepted < len(step.drafted) and step.finish != "stop":
            guess, own = step.drafted[step.n_accepted], step.committed[step.n_accepted]
            raise Mismatch(f"round {i} refused its own guess {guess} and wrote {own} ({case})")
        room -= len(step.committed)
