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
from minispec.tree_shape import RankCounts, accept_table, check_chances, count_ranks, expected_tokens, grow, shape

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


@given(tables(), steps, st.sampled_from([(0.0, 0.0), (0.05, 0.05), (0.4, 0.0), (0.4, 0.3)]), st.integers(0, MOST))
def test_no_shape_pays_better(
    accept: list[list[float]], steps: list[float], guesses: tuple[float, float], budget: int
) -> None:
    check = [0.0, 1.0]
    for step in steps:
        check.append(check[-1] + step)
    guess, beside = guesses
    costs = Costs(guess, tuple(check), 0.0, 1.0, beside=beside)
    best = shape(accept, costs, budget)
    assert best.expected == pytest.approx(expected_tokens(best.parents, best.ranks, accept))
    assert len(best.parents) <= budget

    def price(parents: tuple[int, ...]) -> float:
        deep = max(depths(parents), default=0)
        return deep * guess + (len(parents) - deep) * beside + costs.curve(len(parents) + 1)

    assert best.price == pytest.approx(price(best.parents))
    for parents, ranks in every_tree(accept, budget):
        assert best.speedup >= expected_tokens(parents, ranks, accept) / price(parents) - 1e-12


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
    beside = Costs(0.1, (0.0, 1.0, 1.0, 1.0, 1.0), 0.0, 1.0, beside=0.1)
    best = shape(accept, beside, 3)
    assert best.parents == (-1, 0, -1)
    assert best.price == pytest.approx(1 + 2 * 0.1 + 0.1)
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
    assert count_ranks(steps) == RankCounts((((5, 1), (4, 3)), ((2, 1), (1, 0))))


def test_few_guesses_of_a_depth_count_as_those_above_did() -> None:
    """As if 4 more had been judged there; a rank that the depth above lacks, or that was never judged, has none."""
    counts = RankCounts((((10, 5), (5, 2)), ((4, 4), (0, 0), (1, 1), (0, 0)), ((0, 0),)))
    first, second, third = counts.chances(prior=4.0)
    assert first == pytest.approx([0.5, 0.5 * 0.4])
    assert second == pytest.approx([6 / 8, 2 / 8 * 0.4, 2 / 8 * 0.6 * 2 / 3])  # 1.0 for the third, held at the second
    assert third == pytest.approx([6 / 8])
    assert counts.chances() == [first, [1.0], []]


@given(st.data())
def test_counts_of_any_trees_give_chances(data: Any) -> None:
    """Also where only some places have so many ranks: they fall with rank, and are 1 at most in all."""
    steps = []
    for _ in range(data.draw(st.integers(0, 12))):
        parents = tuple(data.draw(st.integers(-1, i - 1)) for i in range(data.draw(st.integers(1, 6))))
        path, guess = [], -1
        while children := [i for i, parent in enumerate(parents) if parent == guess]:
            guess = data.draw(st.sampled_from([-1, *children]))
            if guess < 0:
                break
            path.append(guess)
        tokens = tuple(range(len(parents)))
        steps.append(Step(tokens, len(path), (*path, 9), None, parents=parents, path=tuple(path)))
    for prior in (0.0, 8.0):
        check_chances(count_ranks(steps).chances(prior))


@pytest.mark.parametrize("counts", [((1, 2),), ((-1, -1),), ((2.0, 1),)])
def test_what_are_no_counts_is_refused(counts: Any) -> None:
    with pytest.raises(ValueError, match="give counts, the second no larger"):
        RankCounts((counts,))


@pytest.mark.parametrize("row", [[0.2, 0.3], [1.1], [-0.1], [0.6, 0.5]])
def test_chances_that_are_none_are_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match=r"the chances at depth 2 are .*: give those of the ranks"):
        shape([[0.5], row], Costs(0.1, (0.0, 1.0), 0.0, 1.0), 4)
