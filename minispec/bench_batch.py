"""Under load: batches of texts, plain against speculative, and what the cost of their passes predicts.

Speculation spends arithmetic that is idle while weights are read. A batch spends it, too: with B texts, a plain pass
has B rows and a check B (k + 1). Where rows are no longer free, a check costs more than it saves.

In a turn every way to write a batch comes after the other, and then the passes that these are made of. Ratios are
taken within a turn; what counts are their medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

from tqdm import tqdm

from minispec.batch import generate_batch, speculate_batch
from minispec.bench_batch_speed import BatchSpeed, Text, Written, compare
from minispec.bench_machine import mean_seconds
from minispec.bench_passes import token_ids
from minispec.drafters.models import models_of
from minispec.model import GPT2
from minispec.plain import generate
from minispec.protocols import Drafter, Step
from minispec.sampling import Sampling

STEP = 3  # tokens by which a prompt grows each time it comes again, so that lengths differ
GREEDY = Sampling(temperature=0.0)


class CountedModel:
    """A model that counts its batches of passes."""

    def __init__(self, model: GPT2) -> None:
        self.model = model
        self.n_ctx, self.n_vocab, self.forward = model.n_ctx, model.n_vocab, model.forward
        self.new_cache, self.new_caches = model.new_cache, model.new_caches
        self.passes = 0

    def forward_batch(self, requests: Sequence[Any]) -> Any:
        """The model's own, counted."""
        self.passes += 1
        return self.model.forward_batch(requests)


def time_batches(
    target: GPT2, drafter: Drafter, prompts: Sequence[Sequence[int]], n: int, lengths: Sequence[int],
    sizes: Sequence[int], repetitions: int, quiet: bool,
) -> list[BatchSpeed]:  # fmt: skip
    """A row for every batch size and draft length: n greedy tokens after each prompt."""
    total = len(sizes) * repetitions * (1 + len(lengths))
    rows: list[BatchSpeed] = []
    with tqdm(total=total, desc="batches", leave=False, disable=quiet or None) as bar:
        all_texts = make_texts(target, prompts, n, max(sizes))
        for size in sizes:
            texts = all_texts[:size]
            turns = [one_turn(target, drafter, texts, n, lengths, bar.update) for _ in range(repetitions)]
            rows += [compare(texts, n_draft, [turn[0] for turn in turns], [turn[n_draft] for turn in turns])
                     for n_draft in lengths]  # fmt: skip
    return rows


def make_texts(target: GPT2, prompts: Sequence[Sequence[int]], n: int, size: int) -> list[Text]:
    """Prompts in turn; each time round, they have STEP more tokens of what the target writes after them."""
    rounds = -(-size // len(prompts))

    def grown() -> Iterator[list[Text]]:
        for prompt in prompts:
            room = target.n_ctx - len(prompt) - n
            more = [min(STEP * turn, room) for turn in range(rounds)]
            steps = generate(target, prompt, max_new_tokens=n + more[-1], sampling=GREEDY)
            ids = [token for step in steps for token in step.committed]
            yield [Text([*prompt, *ids[:offset]], tuple(ids[offset : offset + n])) for offset in more]

    by_prompt = list(grown())
    return [texts[i // len(prompts)] for i, texts in enumerate(islice(cycle(by_prompt), size))]


def one_turn(
    target: GPT2, drafter: Drafter, texts: Sequence[Text], n: int, lengths: Sequence[int], done: Callable[[], object]
) -> dict[int, tuple[Written, float, float]]:
    """By draft length, 0 for plain: the batch, the seconds of a pass of the target, and of the drafts before it."""
    turn = {}
    for n_draft in (0, *lengths):
        written = write(target, drafter, texts, n, n_draft)
        turn[n_draft] = written, *time_round(target, drafter, texts, n, n_draft)
        done()
    return turn


def write(target: GPT2, drafter: Drafter, texts: Sequence[Text], n: int, n_draft: int) -> Written:
    """Write all texts together, timed."""
    counted, prompts = CountedModel(target), [text.prompt for text in texts]
    ids: list[list[int]] = [[] for _ in texts]
    n_steps = 0
    began = time.perf_counter()
    steps: Iterator[tuple[int, Step]]
    if n_draft:
        steps = speculate_batch(counted, drafter, prompts, max_new_tokens=n, n_draft=n_draft, sampling=GREEDY)
    else:
        steps = generate_batch(counted, prompts, max_new_tokens=n, sampling=GREEDY)
    for row, step in steps:
        ids[row] += step.committed
        n_steps += 1
    seconds = time.perf_counter() - began
    return Written(tuple(map(tuple, ids)), seconds, counted.passes, n_steps)


def time_round(target: GPT2, drafter: Drafter, texts: Sequence[Text], n: int, n_draft: int) -> tuple[float, float]:
    """Seconds of a check of all texts, half-way through them, and of the draft passes before it.

    A drafter without a model has none. They are timed as they come in a loop: the draft's weights have left the
    processor's cache when a check is done.
    """
    check = passes_of(target, texts, n, 1 + n_draft)
    guesses = [passes_of(model, texts, n, 1) for model in models_of(drafter)] if n_draft else []
    in_drafts = rounds = 0.0

    def one_round() -> None:
        nonlocal in_drafts, rounds
        began = time.perf_counter()
        for _ in range(n_draft):
            for guess in guesses:
                guess()
        in_drafts += time.perf_counter() - began
        rounds += 1
        check()

    one_round()  # warm-up
    in_drafts = rounds = 0.0
    whole = mean_seconds(one_round)
    return whole - in_drafts / rounds, in_drafts / rounds


def passes_of(model: GPT2, texts: Sequence[Text], n: int, rows: int) -> Callable[[], None]:
    """A pass with so many rows of each text, half-way through it, to be made again and again."""
    caches, lengths = model.new_caches(len(texts)), [len(text.prompt) + n // 2 for text in texts]
    lengths = [min(length, model.n_ctx - rows) for length in lengths]
    for cache, length in zip(caches, lengths, strict=True):
        model.forward(token_ids(model.n_vocab, length), cache, n_logits=0)
    new = token_ids(model.n_vocab, rows)

    def one_pass() -> None:
        model.forward_batch([(new, cache, None) for cache in caches])
        for cache, length in zip(caches, lengths, strict=True):
            cache.truncate(length)

    return one_pass
