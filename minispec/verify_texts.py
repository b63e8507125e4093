"""Trials of texts and of bytes for `minispec verify`: speculative against plain, many passes against one.

A trial puts the real code to a random case, raises `Mismatch` at the first difference, and counts what it compared.
All that is random comes from the generator it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.costs import Costs
from minispec.draft_length import AutoLength
from minispec.drafters import SmallModelDrafter, SmallModelTreeDrafter
from minispec.drafters.models import models_of
from minispec.gumbel import Gumbel
from minispec.kv_cache import KVCache
from minispec.model import GPT2
from minispec.plain import generate
from minispec.protocols import Draft, Drafter, Sampler
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.speculative import speculate
from minispec.trace import Run, run_all

Rng = np.random.Generator
Counts = dict[str, int]  # what a trial compared, and how much of it

TEXTS = (
    "Once upon a time",
    "The cat sat on the",
    "Lily and Tom went to the park. They saw a big",
    "one, two, three, four, five,",
    'x = "!"\n\n\tcaf\u00e9 %% 1234 \U0001f40d',
)


class Mismatch(Exception):  # noqa: N818  # a finding, not a fault of the program
    """Two things that must be equal differ; the message says which, where, and both values."""


# --- cases -----------------------------------------------------------------------------------------


def random_prompt(pair: Pair, rng: Rng, longest: int = 40) -> list[int]:
    """The ids of a text, or any ids: at most half of the context window."""
    ids = pair.tokenizer.encode(TEXTS[rng.integers(len(TEXTS))])
    if rng.random() < 0.5:
        ids = rng.integers(pair.target.n_vocab, size=rng.integers(1, longest + 1)).tolist()
    return ids[: max(1, min(longest, pair.target.n_ctx // 2))]


def near_the_end(pair: Pair, rng: Rng) -> list[int]:
    """Any ids that fill the context window but for a few tokens."""
    n_ctx = pair.target.n_ctx
    ids: list[int] = rng.integers(pair.target.n_vocab, size=max(1, n_ctx - int(rng.integers(2, 12)))).tolist()
    return ids


def random_sampling(rng: Rng) -> Sampling:
    """Any temperature; top-k and top-p each in half of the cases."""
    with_top_k, with_top_p = rng.random(2) < 0.5
    temperature, top_p = np.round(rng.uniform([0.3, 0.3], [1.5, 1.0]), 3).tolist()
    return Sampling(temperature, int(rng.integers(1, 51)) if with_top_k else 0, top_p if with_top_p else 1.0)


def thread_counts(model: GPT2, rng: Rng) -> tuple[int, int]:
    """Two numbers of threads, different where there is a choice; every machine takes as much from the generator."""
    first, further = rng.integers(1 << 16, size=2).tolist()
    most = 1
    if model.backend == "numba":
        import numba

        most = numba.get_num_threads()
    return first % most + 1, (first % most + 1 + further % max(most - 1, 1)) % most + 1


@contextmanager
def threads(model: GPT2, n: int) -> Iterator[None]:
    """Let the kernels use n threads meanwhile, or as many as there are."""
    if model.backend != "numba":
        yield
        return
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(min(n, int(numba.config.NUMBA_NUM_THREADS)))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        numba.set_num_threads(before)


class RandomGuesses:
    """A drafter without a model: most of its guesses are the text's own tokens, the others are random."""

    def __init__(self, n_vocab: int, text: Sequence[int], rng: Rng) -> None:
        self.n_vocab, self.text, self.rng = n_vocab, text, rng

    def start(self, cache: object = None) -> RandomGuesses:
        """Begin a text; nothing is remembered."""
        return self

    def draft(self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: object, *_: object) -> Draft:
        """Up to n_draft guesses, each with certainty."""
        tokens = self.rng.integers(self.n_vocab, size=self.rng.integers(n_draft + 1)).tolist()
        own = self.text[len(ids) :][: len(tokens)]
        right = self.rng.random(len(own)) < 0.8
        tokens[: len(own)] = [token if yes else other for token, other, yes in zip(own, tokens, right, strict=False)]
        probs = np.zeros((len(tokens), self.n_vocab))
        probs[np.arange(len(tokens)), tokens] = 1.0
        return Draft(tokens, list(probs))


# --- texts -----------------------------------------------------------------------------------------


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
    drafters: dict[str, Drafter | None] = {
        "the drafter": pair.drafter,
        "random guesses": RandomGuesses(pair.target.n_vocab, [*prompt, *plain.ids], rng),
        "the target drafting for itself": SmallModelDrafter(pair.target),
    }
    further = rng.spawn(1)[0]
    way = ("chain", "block", "tree")[further.integers(3)]
    if way == "tree":
        widths = random_widths(further)
        model = next(iter(models_alike(pair)), pair.target)
        drafters |= {f"a tree {widths}": SmallModelTreeDrafter(model, widths)}
    guesses = 0
    for name, drafter in drafters.items():
        if drafter is None:
            continue
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


def models_alike(pair: Pair) -> list[Any]:
    """The models that draft and have the target's vocabulary: some have tokens of their own besides."""
    return [model for model in models_of(pair.drafter) if model.n_vocab == pair.target.n_vocab]


def random_widths(rng: Rng) -> tuple[int, ...]:
    """The widths of a tree, up to 3 levels of up to 3 guesses for a place, 39 guesses at most."""
    return tuple(rng.integers(1, 4, size=rng.integers(1, 4)).tolist())


def random_costs(rng: Rng) -> Costs:
    """Prices at which it pays to guess far, or hardly at all."""
    steps = rng.uniform(0, 0.3, size=16)
    steps[0] = 1.0
    return Costs(float(rng.uniform(0, 0.5)), (0.0, *map(float, steps.cumsum())), float(rng.uniform(0, 0.1)), 1.0)


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


# --- bits ------------------------------------------------------------------------------------------


def same_bits(pair: Pair, rng: Rng) -> Counts:
    """Logits and cache of random ids do not depend on how they are cut into passes, nor on guesses beside them.

    A quarter of the texts may be as long as the context window, the others up to 100 tokens.
    """
    models = {"target": pair.target} | {f"draft model {i}": model for i, model in enumerate(models_of(pair.drafter), 1)}
    counts = Counter[str]()
    for name, model in models.items():
        if isinstance(model, GPT2):
            counts.update(_same_bits(name, model, rng))
    return dict(counts)


def _same_bits(name: str, model: GPT2, rng: Rng) -> Counts:
    longest = model.n_ctx if rng.random() < 0.25 else min(model.n_ctx, 100)
    ids = rng.integers(model.n_vocab, size=rng.integers(1, longest + 1))
    passes, further = 0, rng.spawn(1)[0]
    whole, cut = model.new_cache(), model.new_cache()
    expected = model.forward(ids.tolist(), whole)
    while cut.length < len(ids):
        with threads(model, thread_counts(model, rng)[0]):
            rubbish = rng.integers(model.n_vocab, size=rng.integers(1, 9))[: model.n_ctx - cut.length]
            model.forward(rubbish.tolist(), cut, n_logits=0)
            past = cut.length - len(rubbish)
            cut.truncate(past if rng.random() < 0.8 else int(rng.integers(max(0, past - 7), past + 1)))
            past, n_new = cut.length, 1 + int(rng.exponential(8))
            case = f"rows {past} to {min(past + n_new, len(ids)) - 1} of ids {ids.tolist()}"
            if further.random() < 0.3:
                logits = tree_pass(model, ids[past : past + n_new].tolist(), cut, further)
                first = cut.length - len(logits)
                _compare_bytes(logits, expected[first : cut.length], first, f"logits ({name}, a tree over {case})")
                cut.truncate(cut.length if further.random() < 0.5 and cut.length < len(ids) else past)
                passes += 1
            past = cut.length
            logits = model.forward(ids[past : past + n_new].tolist(), cut)
            passes += 1
        case = f"{name}, a pass over rows {past} to {cut.length - 1} of ids {ids.tolist()}"
        _compare_bytes(logits, expected[past : cut.length], past, f"logits ({case})")
    for layer, (one, other) in enumerate(zip(whole.layers, cut.layers, strict=True)):
        fetched = zip(
            model.ops.fetch(*one, len(ids)), model.ops.fetch(*other, len(ids)), ("keys", "values"), strict=True
        )
        for whole_rows, cut_rows, kind in fetched:  # [n_head, n_row, d_head]
            rows, expected_rows = (side.transpose(1, 0, 2).reshape(len(ids), -1) for side in (cut_rows, whole_rows))
            _compare_bytes(rows, expected_rows, 0, f"{kind} of layer {layer} ({name}, ids {ids.tolist()})")
    return {"rows": len(ids), "passes": passes}


def tree_pass(model: GPT2, ids: Sequence[int], cache: KVCache, rng: Rng) -> NDArray[Any]:
    """Append ids, all but the first ones as guesses of a tree among others, of which their path is kept.

    The logits of as many of the last of them as there are.
    """
    n = int(rng.integers(max(0, len(ids) - 9), len(ids))) + 1
    path, tokens, parents = [-1], [], []
    for token in ids[n:]:
        for _ in range(rng.integers(3)):  # guesses that lead nowhere, from anywhere on the path but its end
            tokens.append(int(rng.integers(model.n_vocab)))
            parents.append(path[rng.integers(len(path))])
        path.append(len(tokens))
        tokens.append(token)
        parents.append(path[-2])
    logits = model.forward_tree(ids[:n], tokens, parents, cache)
    cache.keep(path[1:])
    return logits[[1 + guess for guess in path]]


def _compare_bytes(rows: NDArray[Any], expected: NDArray[Any], first: int, case: str) -> None:
    """Raise Mismatch where rows [n_row, n] are other bytes than expected; first is the position of row 0."""
    differ = np.ascontiguousarray(rows).view(np.uint32) != np.ascontiguousarray(expected).view(np.uint32)
    if differ.any():
        row, column = np.argwhere(differ)[0]
        one, other = float(rows[row, column]), float(expected[row, column])
        raise Mismatch(f"position {first + row}, column {column}: {one!r}, in one pass over all {other!r}: {case}")
