"""The strategies make what they promise: each kind of edge is found, and no distribution is off by a hair."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from strategies import cases, histories, mixed, row_pairs, rows, samplings
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


@given(cases(tiny=True), samplings)
def test_cases_are_models_that_a_sampler_can_use(case: Any, sampling: Any) -> None:
    for rule in (case.target, case.draft):
        probs = sampling.probs(Table(rule, case.n_vocab).logits(case.prompt))
        assert abs(probs.sum() - 1) < 1e-12


def test_a_rule_looks_at_the_whole_context() -> None:
    pool = [(Fraction(1), Fraction(0)), (Fraction(0), Fraction(1))]
    rules = [mixed(pool, salt) for salt in range(9)]
    assert any(rule((0, 1, 1))[0] != rule((1, 1, 1))[0] for rule in rules)
    assert len({tuple(rule((0, 1))[0] for rule in rules) for _ in range(3)}) == 1


@given(st.integers(1, 40), st.data())
def test_histories_make_a_text_of_the_right_length(n: int, data: Any) -> None:
    length = 0
    for rubbish, kept, new in data.draw(histories(n, 45)):
        assert 0 <= kept <= length
        assert new >= 1
        assert length + rubbish <= 45
        assert length < kept + new <= n
        length = kept + new
    assert length == n


def test_histories_roll_back_into_the_text() -> None:
    def rolls_back(history: list[tuple[int, int, int]]) -> bool:
        return any(kept < before + new for (_, before, new), (_, kept, _) in pairwise(history))

    find(histories(9, 45), rolls_back)
