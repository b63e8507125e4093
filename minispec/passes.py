"""How rows go through a model: together in one compiled call, or text after text by the wiring.

A pass may hold rows of several texts, each with a cache of its own, or a tree of guesses, as the runs of `trees.py`.
Here nothing is checked, and nothing is counted as cached: `model.py` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minispec.kv_cache import NO_FEATURES, KVCache
from minispec.trees import Run

if TYPE_CHECKING:
    from minispec.model import GPT2

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Request(NamedTuple):
    """Rows that a pass is to append to a cache, and of how many of the last of these it is to give logits."""

    ids: Ints
    cache: KVCache
    n_logits: int


def cut(requests: Iterable[Request], most_rows: int) -> Iterator[list[Request]]:
    """The same rows in the same order as passes of at most most_rows: a request that is cut goes on in the next."""
    together: list[Request] = []
    room = most_rows
    for ids, cache, n_logits in requests:
        first = 0
        while first < len(ids):
            rows = ids[first : first + room]
            first, room = first + len(rows), room - len(rows)
            n_after = len(ids) - first
            together.append(Request(rows, cache, min(len(rows), max(0, n_logits - n_after))))
            if not room:
                yield together
                together, room = [], most_rows
    if together:
        yield together


# --- texts ---------------------------------------------------------------------------------------


def run_requests(model: GPT2, requests: list[Request], logits: Floats) -> None:
    """Store the rows of requests on caches of one block, and fill logits [n_logits, n_vocab]."""
    run = _requests_together if hasattr(model.ops, "forward") else _requests_in_turn
    run(model, requests, logits)


def _requests_together(model: GPT2, requests: list[Request], logits: Floats) -> None:
    """All rows by one compiled call. Features are put where they belong afterwards."""
    (ids, block, _), *others = requests
    if others:
        ids = np.concatenate([new for new, _, _ in requests])
    sequences = [(cache.slot, cache.length, len(new), n_logits) for new, cache, n_logits in requests]
    features = _compiled(model, ids, sequences, block, logits)
    if model.taps:
        ends = [0, *accumulate(len(new) for new, _, _ in requests)]
        for (_, cache, _), (first, end) in zip(requests, pairwise(ends), strict=True):
            cache.features[:, cache.length : cache.length + end - first] = features[:, first:end]


def _requests_in_turn(model: GPT2, requests: list[Request], logits: Floats) -> None:
    """One request after the other."""
    done = 0
    for ids, cache, n_logits in requests:
        logits[done : done + n_logits] = model.wiring.forward(ids, cache, n_logits)
        done += n_logits


# --- a tree --------------------------------------------------------------------------------------


def run_tree(model: GPT2, runs: list[Run], cache: KVCache, logits: Floats) -> None:
    """Store the rows of a tree, each guess's beyond the window as well, and fill logits in the order of the runs."""
    run = _runs_together if hasattr(model.ops, "forward") else _runs_in_turn
    run(model, runs, cache, logits)


def _runs_together(model: GPT2, runs: list[Run], cache: KVCache, logits: Floats) -> None:
    """All runs by one compiled call, which takes those of one slot in their order."""
    ids = np.concatenate([run.ids for run in runs])
    sequences = [(cache.slot, run.n_past, len(run.ids), run.n_logits) for run in runs]
    places = np.concatenate([run.aside(cache.n_ctx) for run in runs])
    features = _compiled(model, ids, sequences, cache, logits, aside=places)
    if model.taps:
        n_text = len(runs[0].ids) - len(runs[0].guesses)
        places[:n_text] = cache.length + np.arange(n_text)
        cache.features[:, places] = features


def _runs_in_turn(model: GPT2, runs: list[Run], cache: KVCache, logits: Floats) -> None:
    """One run after the other, each copied aside before the next lies over it. The cache's length is what it was."""
    done, length = 0, cache.length
    for run in runs:
        cache.length = run.n_past
        logits[done : done + run.n_logits] = model.wiring.forward(run.ids, cache, run.n_logits)
        done += run.n_logits
        places = run.aside(cache.n_ctx)
        new = np.flatnonzero(places >= 0)
        model.ops.copy_rows(cache.keys, cache.values, run.n_past + new, places[new])
        if model.taps:
            cache.features[:, places[new]] = cache.features[:, run.n_past + new]
    cache.length = length


# --- the compiled call ---------------------------------------------------------------------------


def _compiled(
    model: GPT2, ids: Ints, sequences: list[tuple[int, int, int, int]], block: KVCache, logits: Floats, **more: Ints
) -> Floats:
    """`kernels.forward`: features [n_tap, n_new, n_embd], nothing where no depth is tapped."""
    epsilon = model.config.layer_norm_epsilon
    arguments = model.weights, epsilon, ids, sequences, block.block_keys, block.block_values, logits
    if not model.taps:
        model.ops.forward(*arguments, most_crew=model.n_crew, **more)
        nothing: Floats = NO_FEATURES[0]
        return nothing
    features = np.empty((len(model.taps), len(ids), model.config.n_embd), np.float32)
    taps = np.array(model.taps, np.int64)
    model.ops.forward(*arguments, most_crew=model.n_crew, taps=taps, features=features, **more)
    return features
