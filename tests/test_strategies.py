"""The strategies make what they promise: each kind of edge is found, and no distribution is off by a hair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from strategies import histories, row_pairs, rows, samplings, toys
from toys import Table


@given(rows(4, 3, tiny=True))
def test_rows_are_distributions(row: Any) -> None:
    assert sum(row) == 1
    assert all(p >= 0 for p in row)
    assert 1 <= sum(p > 0 for p in row) <= 3
    assert abs(sum(map(float, row)) - 1) < 1e-15


@pytest.mark.parametrize(
    "kind",
    [
        lambda p, q: p == q,
        lambda p, q: not any(a and b for a, b in zip(p, q, strict=True)),
        lambda p, q: p != q and all(abs(a - b) < 1e-15 for a, b in zip(p, q, strict=True)),
        lambda p, q: p.count(1) == 1 and q.count(1) == 0,
        lambda p, q: p.count(p[0]) == 3,
        lambda p, q: any(0 < float(b) < 1e-300 for b in q),
        lambda p, q: any(a and not b for a, b in zip(p, q, strict=True)),
        lambda p, q: any(b and not a for a, b in zip(p, q, strict=True)),
    ],
    ids=["equal", "disjoint", "near", "one-hot", "tied", "denormal", "target alone", "draft alone"],
)
def test_every_kind_of_pair_is_found(kind: Callable[[Any, Any], bool]) -> None:
    find(row_pairs(3, 3, tiny=True), lambda pair: kind(*pair))


@given(toys(tiny=True), samplings)
def test_toys_are_models_that_a_sampler_can_use(toy: Any, sampling: Any) -> None:
    for rule in (toy.target, toy.draft):
        probs = sampling.probs(Table(rule, toy.n_vocab).logits(toy.prompt))
        assert abs(probs.sum() - 1) < 1e-12


def test_toys_look_at_the_whole_context() -> None:
    find(toys(), lambda toy: not np.array_equal(toy.target((0, 1, 1)), toy.target((1, 1, 1))))


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), histories(n))))
def test_histories_make_a_text_of_the_right_length(made: Any) -> None:
    n, history = made
    assert sum(rows for _, rows in history) == n
    assert all(rows >= 1 and rubbish >= 0 for rubbish, rows in history)
