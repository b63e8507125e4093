"""Trials of bytes for `minispec verify`: many passes against one.

A trial puts the real model to a random case, raises `Mismatch` at the first difference, and counts what it compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters.models import models_of
from minispec.kv_cache import KVCache
from minispec.model import GPT2
from minispec.session import Pair
from minispec.verify_cases import Counts, Mismatch, Rng, thread_counts, threads


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
            guess_and_roll_back(model, cut, rng)
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
    _compare_caches(name, model, ids, whole, cut)
    return {"rows": len(ids), "passes": passes}


def guess_and_roll_back(model: GPT2, cache: KVCache, rng: Rng) -> None:
    """Append random ids and take them back; in a fifth of the cases, up to 7 rows of the text with them."""
    rubbish = rng.integers(model.n_vocab, size=rng.integers(1, 9))[: model.n_ctx - cache.length]
    model.forward(rubbish.tolist(), cache, n_logits=0)
    past = cache.length - len(rubbish)
    cache.truncate(past if rng.random() < 0.8 else int(rng.integers(max(0, past - 7), past + 1)))


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


def _compare_caches(name: str, model: GPT2, ids: NDArray[Any], whole: KVCache, cut: KVCache) -> None:
    """Raise Mismatch where the caches of two ways to read ids hold other bytes."""
    for layer, (one, other) in enumerate(zip(whole.layers, cut.layers, strict=True)):
        fetched = zip(
            model.ops.fetch(*one, len(ids)), model.ops.fetch(*other, len(ids)), ("keys", "values"), strict=True
        )
        for whole_rows, cut_rows, kind in fetched:  # [n_head, n_row, d_head]
            rows, expected_rows = (side.transpose(1, 0, 2).reshape(len(ids), -1) for side in (cut_rows, whole_rows))
            _compare_bytes(rows, expected_rows, 0, f"{kind} of layer {layer} ({name}, ids {ids.tolist()})")


def _compare_bytes(rows: NDArray[Any], expected: NDArray[Any], first: int, case: str) -> None:
    """Raise Mismatch where rows [n_row, n] are other bytes than expected; first is the position of row 0."""
    differ = np.ascontiguousarray(rows).view(np.uint32) != np.ascontiguousarray(expected).view(np.uint32)
    if differ.any():
        row, column = np.argwhere(differ)[0]
        one, other = float(rows[row, column]), float(expected[row, column])
        raise Mismatch(f"position {first + row}, column {column}: {one!r}, in one pass over all {other!r}: {case}")
