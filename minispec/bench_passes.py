"""The cost of a pass: by rows (the curve v), far into the context, and over a whole prompt.

A pass reads all weights, and the keys and values of the rows before it. Divided by memory's speed, these bytes
are the least time that it can take; a pass that checks several rows reads no more than one that writes a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from minispec.bench_machine import Probe, Timed, seconds_of, time_in_turn
from minispec.bench_worker import Worker

if TYPE_CHECKING:
    from minispec.model import GPT2
    from minispec.parameters import GPT2Config

MOST_ROWS = 16
CONTEXT, FAR = 64, 1000  # rows before the pass, as far as the context window goes
PROMPT = 512

Pair = tuple[Timed, Timed]  # a pass of one row, and the pass after it


@dataclass(frozen=True)
class PassTime:
    """A pass over `rows` new rows after `context` others: medians of seconds, of the share of memory's speed at which
    it read weights and cache, and of v, its seconds over those of a pass of one row just before."""

    model: str
    weights: str
    rows: int
    context: int
    seconds: float
    bandwidth_share: float
    v: float


@dataclass(frozen=True)
class ContextCost:
    """What one row costs more far into the context than near its start, in seconds and in bytes of keys and values,
    and the share of memory's speed at which these were read (None where the difference drowned in noise)."""

    model: str
    weights: str
    near: int
    far: int
    added_seconds: float
    added_bytes: int
    bandwidth_share: float | None


@dataclass(frozen=True)
class Prefill:
    """A pass over a prompt, and NumPy's BLAS on the same products: `blas_share` is the BLAS's time over ours."""

    model: str
    weights: str
    rows: int
    seconds: float
    gflop_s: float
    blas_gflop_s: float
    blas_share: float


def token_ids(n_vocab: int, n: int) -> list[int]:
    """n tokens, no matter which."""
    ids: list[int] = np.random.default_rng(0).integers(n_vocab, size=n).tolist()
    return ids


def time_passes(
    model: GPT2, name: str, weights: str, probe: Probe, repetitions: int, quiet: bool
) -> tuple[list[PassTime], ContextCost]:
    """A model's passes of 1 to 16 rows near the start of a context, and of one row far into it.

    Every other pass comes right after one of one row, as memory may be faster a second later.
    """
    near, far = min(CONTEXT, model.n_ctx // 2), min(FAR, model.n_ctx - 1)
    cases = [(rows, near) for rows in range(1, min(MOST_ROWS, model.n_ctx - near) + 1)] + [(1, far)]
    ids = token_ids(model.n_vocab, model.n_ctx)
    caches = {context: model.new_cache() for context in (near, far)}
    for context, cache in caches.items():
        model.forward(ids[:context], cache, n_logits=0)

    def one_pass(rows: int, context: int) -> None:
        model.forward(ids[context : context + rows], caches[context])
        caches[context].truncate(context)

    one, *others = [partial(one_pass, *case) for case in cases]
    works = [work for other in others for work in (one, other)]
    turns: list[list[Pair]] = []
    for _ in tqdm(range(1 + repetitions), desc=f"passes of {name} {weights}", leave=False, disable=quiet or None):
        timings = time_in_turn(works, probe)
        turns.append(list(zip(timings[::2], timings[1::2], strict=True)))
    del turns[0]  # the warm-up
    n_bytes = [model.weight_bytes + model.cache_bytes(context + rows) for rows, context in cases]
    passes = summarize_passes(name, weights, cases, n_bytes, turns)
    return passes, context_cost(name, weights, (near, far), n_bytes[-1] - n_bytes[0], [turn[-1] for turn in turns])


def summarize_passes(
    name: str, weights: str, cases: Sequence[tuple[int, int]], n_bytes: Sequence[int], turns: Sequence[Sequence[Pair]]
) -> list[PassTime]:
    """Medians over all turns. The first case is the pass of one row; a turn has a pair for each of the others."""
    ones = [one for turn in turns for one, _ in turn]
    pairs = [[(one, one) for one in ones], *(list(pairs_of_case) for pairs_of_case in zip(*turns, strict=True))]
    return [
        PassTime(
            name,
            weights,
            rows,
            context,
            seconds=median(timed.seconds for _, timed in timings),
            bandwidth_share=median(timed.share(size) for _, timed in timings),
            v=median(timed.seconds / one.seconds for one, timed in timings),
        )
        for (rows, context), size, timings in zip(cases, n_bytes, pairs, strict=True)
    ]


def context_cost(
    name: str, weights: str, contexts: tuple[int, int], added_bytes: int, pairs: Sequence[Pair]
) -> ContextCost:
    """A row far into the context against one near its start, timed one after the other."""
    seconds = median(far.seconds - near.seconds for near, far in pairs)
    least = median(2 * added_bytes / (near.bandwidth + far.bandwidth) for near, far in pairs)
    return ContextCost(name, weights, *contexts, seconds, added_bytes, least / seconds if seconds > 0 else None)


# --- a prompt ----------------------------------------------------------------------------------------


def products(config: GPT2Config) -> list[tuple[int, int]]:
    """The products of one layer, as [n_in, n_out]."""
    n_embd, n_inner = config.n_embd, config.n_inner
    return [(n_embd, 3 * n_embd), (n_embd, n_embd), (n_embd, n_inner), (n_inner, n_embd)]


def block_flops(config: GPT2Config, rows: int) -> int:
    """Multiplications and additions in the products of all layers."""
    return 2 * rows * config.n_layer * sum(n_in * n_out for n_in, n_out in products(config))


def time_prefill(model: GPT2, name: str, weights: str, threads: int, repetitions: int, quiet: bool) -> Prefill:
    """A pass over a prompt, in turn with a BLAS in a process of its own: its threads go on spinning after a product."""
    config, rows = model.config, min(PROMPT, model.n_ctx)
    ids, cache = token_ids(model.n_vocab, rows), model.new_cache()

    def one_pass() -> None:
        cache.truncate(0)
        model.forward(ids, cache, n_logits=1)

    settings = {"shapes": products(config), "n_layer": config.n_layer, "rows": rows}
    turns = []
    with Worker("blas", settings, threads) as blas:
        one_pass()  # warm-up
        blas.ask()
        for _ in tqdm(range(repetitions), desc=f"prefill of {name} {weights}", leave=False, disable=quiet or None):
            turns.append((seconds_of(one_pass), float(blas.ask()["seconds"])))
    flops = block_flops(config, rows)
    head = 2 * config.n_embd * config.n_vocab  # of the last row alone
    return Prefill(
        name,
        weights,
        rows,
        median(ours for ours, _ in turns),
        median((flops + head) / ours for ours, _ in turns) / 1e9,
        median(flops / theirs for _, theirs in turns) / 1e9,
        median((flops + head) / ours / (flops / theirs) for ours, theirs in turns),
    )


def serve_blas(shapes: list[list[int]], n_layer: int, rows: int) -> Callable[[], dict[str, Any]]:
    """In the worker: the products of all layers by NumPy. Two layers' weights stand for all."""
    rng = np.random.default_rng(0)
    layers = [[rng.standard_normal(shape, np.float32) for shape in shapes] for _ in range(min(n_layer, 2))]
    inputs = [rng.standard_normal((rows, n_in), np.float32) for n_in, _ in shapes]

    def multiply() -> None:
        for layer in range(n_layer):
            for x, weight in zip(inputs, layers[layer % len(layers)], strict=True):
                x @ weight

    return lambda: {"seconds": seconds_of(multiply)}
