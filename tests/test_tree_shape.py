"""The shape of a tree: against every shape there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minispec.costs import Costs
from minispec.protocols import Step, depths
from minispec.tree_shape import accept_table, expected_tokens, grow, shape

MOST = 5


def every_tree(accept: Any, most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Parents and ranks of all trees, some several times; siblings take the ranks in order."""
    for n in range(most + 1):
        for parents in product(*(range(-1, i) for i in range(n))):
            ranks = tuple(sum(other == parent for other in parents[:i]) for i, parent in enumerate(parents))
            deep = depths(parents)
            if all(d <= len(accept) and rank < len(accept[d - 1]) for d, rank in zip(deep, ranks, strict=True)):
                yield parents, ranks


@st.composite
def tables(draw: Any) -> list[list[float]]:
    def row() -> list[float]:
        shares = sorted(draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 1.0]), min_size=1, max_size=3)))
        total = max(sum(shares), 1.0)
        return [share / total for share in shares[::-1]]

    return [row() for _ in range(draw(st.integers(0, 3)))]


steps = st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.6]), min_size=MOST, max_size=MOST)


@given(tables(), steps, st.sampled_from([0.0, 0.05, 0.4]), st.integers(0, MOST))
def test_no_shape_pays_better(accept: list[list[float]], steps: list[float], guess: float, budget: int) -> None:
    check = [0.0, 1.0]
    for step in steps:
        check.append(check[-1] + step)
    costs = Costs(guess, tuple(check), 0.0, 1.0)
    best = shape(accept, costs, budget)
    assert best.expected == pytest.approx(expected_tokens(best.parents, best.ranks, accept))
    assert len(best.parents) <= budget
    for parents, ranks in every_tree(accept, budget):
        deep = max(depths(parents), default=0)
        other = expected_tokens(parents, ranks, accept) / (deep * guess + costs.curve(len(parents) + 1))
        assert best.speedup >= other - 1e-12


def test_a_shape_worked_by_hand() -> None:
    accept = [[0.6, 0.2, 0.1], [0.5, 0.3]]
    parents, ranks, deep, chances = grow(accept, 5)
    assert parents == [-1, 0, -1, 0, -1]
    assert ranks == [0, 0, 1, 1, 2]
    assert deep == [1, 2, 1, 2, 1]
    assert chances == pytest.approx([0.6, 0.3, 0.2, 0.18, 0.1])
    free = Costs(0.0, (0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 0.0, 1.0)
    assert shape(accept, free, 5).speedup == pytest.approx(2.38)
    dear = Costs(0.0, (0.0, 1.0, 1.1, 1.2, 1.9), 0.0, 1.0)
    assert shape(accept, dear, 5).parents == (-1, 0)
    hopeless = Costs(1.0, (0.0, 1.0, 1.0), 0.0, 1.0)
    assert shape(accept, hopeless, 5).parents == ()


def test_a_table_worked_by_hand() -> None:
    """A tree of two guesses and two more after the second; a chain has no parents and tells nothing."""
    tree: Any = {"parents": (-1, -1, 1, 1)}
    steps = [
        Step((5, 6, 7, 8), 2, (6, 7, 9), None, path=(1, 2), **tree),
        Step((5, 6, 7, 8), 1, (6, 9), None, path=(1,), **tree),
        Step((5, 6, 7, 8), 1, (5, 9), None, path=(0,), **tree),  # a leaf: no place at depth 2
        Step((5, 6, 7, 8), 0, (9,), None, **tree),
        Step((5, 6, 7, 8), 1, (6,), "stop", path=(1,), **tree),  # what follows was not judged
        Step((5, 6), 2, (5, 6, 7), None, path=(0, 1)),
    ]
    assert accept_table(steps) == [[1 / 5, 1 / 5], [1 / 2, 0]]  # 3 / 5 for the second guess, held at the first's
    assert accept_table([]) == []


@pytest.mark.parametrize("row", [[0.2, 0.3], [1.1], [-0.1], [0.6, 0.5]])
def test_chances_that_are_none_are_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match=r"the chances at depth 2 are .*: give those of the ranks"):
        shape([[0.5], row], Costs(0.1, (0.0, 1.0), 0.0, 1.0), 4)
