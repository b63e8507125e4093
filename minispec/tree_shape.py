"""Which tree to guess: the shape that pays best for measured chances and measured prices.

accept[depth][rank] is the chance that the target writes the drafter's guess of this rank (0 is the likeliest) at this
depth, given that it wrote all guesses above: a table of counts. A guess is reached and kept with the product of these
along its path, and a tree writes one token and the sum of them on average. That a guess at a place is as good below
one branch as below another is supposed, as in every such table.

So the best tree of n guesses has the n largest products, and it grows guess by guess: each next one is the child, or
the next sibling, with the largest. What it costs is the drafter's guess for each level, somewhat more for each further
guess of a level, and the check's curve for each further row. The tree is cut where tokens over price are most; as the
curve may have steps, a guess that does not pay alone may pay with the next, so all sizes up to the budget are looked
at, and all depths.

Source: Cai et al. 2024, Medusa (arXiv 2401.10774), greedy from a table of ranks; Chen et al. 2024, Sequoia (arXiv
2402.12374), for the price.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise

from minispec.costs import Costs
from minispec.protocols import Step

Accept = Sequence[Sequence[float]]
MANY = 2**53  # more guesses than anyone counts; above, a float may not hold the number


@dataclass(frozen=True)
class Shape:
    """A tree without tokens: of each guess its parent (-1: the text) and its rank among the guesses for its place.

    expected: the tokens that a round writes on average, its own one included. price: of a round, in plain passes.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    expected: float
    price: float

    @property
    def is_chain(self) -> bool:
        """Whether each guess follows the one before; so it is where there is none."""
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @property
    def speedup(self) -> float:
        """Tokens over price: how many times as fast as plain decoding."""
        return self.expected / self.price


def shape(accept: Accept, costs: Costs, budget: int) -> Shape:
    """The shape of at most `budget` guesses that pays best; without guesses where none pays.

    Raises ValueError for chances that are none: outside 0..1, or rising with rank, or more than 1 in all at a depth.
    """
    check_chances(accept)
    best = Shape((), (), 1.0, 1.0)
    for deepest in range(1, len(accept) + 1):
        parents, ranks, depths, chances = grow(accept[:deepest], budget)
        expected = 1.0
        for n, chance in enumerate(chances, 1):
            expected += chance
            deep = max(depths[:n])
            price = costs.first + deep * costs.guess + (n - deep) * costs.beside + costs.curve(n + 1)
            one = Shape(tuple(parents[:n]), tuple(ranks[:n]), expected, price)
            best = one if one.speedup > best.speedup else best
    return best


def grow(accept: Accept, budget: int) -> tuple[list[int], list[int], list[int], list[float]]:
    """Parents, ranks, depths and chances of the likeliest guesses, each after its parent and its elder sibling."""
    parents: list[int] = []
    ranks: list[int] = []
    depths: list[int] = []
    chances: list[float] = []
    waiting: list[tuple[float, int, int, int]] = []  # minus the chance, then depth, parent and rank decide

    def offer(parent: int, depth: int, rank: int) -> None:
        if depth <= len(accept) and rank < len(accept[depth - 1]) and accept[depth - 1][rank] > 0:
            above = chances[parent] if parent >= 0 else 1.0
            heappush(waiting, (-above * accept[depth - 1][rank], depth, parent, rank))

    offer(-1, 1, 0)
    while waiting and len(parents) < budget:
        chance, depth, parent, rank = heappop(waiting)
        parents.append(parent)
        ranks.append(rank)
        depths.append(depth)
        chances.append(-chance)
        offer(parent, depth, rank + 1)
        offer(len(parents) - 1, depth + 1, 0)
    return parents, ranks, depths, chances


@dataclass(frozen=True)
class RankCounts:
    """What became of guesses, by depth and rank: how many were judged, their elder siblings having been refused, and
    how many of these were kept.
    """

    by_depth: tuple[tuple[tuple[int, int], ...], ...]

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be counts."""
        for judged, kept in (pair for row in self.by_depth for pair in row):
            if not (type(judged) is type(kept) is int and 0 <= kept <= judged < MANY):
                raise ValueError(f"of {judged!r} guesses {kept!r} were kept: give counts, the second no larger")

    def chances(self, prior: float = 0.0) -> list[list[float]]:
        """The chances by depth and rank; a chance by luck above that of the rank before is held at that one.

        prior: so many guesses count as judged, and kept as at the depth before, so that few at a depth say little.
        """
        table: list[list[float]] = []
        shallower: list[float] = []
        for row in self.by_depth:
            own, left, chances = [], 1.0, []
            for rank, (judged, kept) in enumerate(row):
                weight = prior if rank < len(shallower) else 0.0
                if not judged + weight:
                    break
                share = (kept + (weight * shallower[rank] if weight else 0.0)) / (judged + weight)
                own.append(share)
                chances.append(left * share)
                left *= 1 - share
            shallower = own
            table.append(list(accumulate(chances, min)))
        return table


def count_ranks(steps: Iterable[Step]) -> RankCounts:
    """Count the guesses of a run's rounds that were trees. A place counts where its guesses were judged."""
    counts: list[list[list[int]]] = []
    for step in steps:
        parents, guess = step.parents or (), -1
        judged = len(step.path) + (len(step.committed) > len(step.path))
        for depth in range(judged):
            siblings = [child for child, parent in enumerate(parents) if parent == guess]
            if not siblings:
                break
            if depth == len(counts):
                counts.append([])
            counts[depth] += [[0, 0] for _ in siblings[len(counts[depth]) :]]
            guess = step.path[depth] if depth < len(step.path) else -1
            for count, child in zip(counts[depth], siblings, strict=False):
                count[0] += 1
                if child == guess:
                    count[1] += 1
                    break
    return RankCounts(tuple(tuple((judged, kept) for judged, kept in row) for row in counts))


def accept_table(steps: Iterable[Step]) -> list[list[float]]:
    """The chances by depth and rank that the rounds of a run show."""
    return count_ranks(steps).chances()


def expected_tokens(parents: Sequence[int], ranks: Sequence[int], accept: Accept) -> float:
    """Tokens of a round with this tree on average: one, and each guess with the chance that it is reached and kept."""
    chances: list[float] = []
    depths: list[int] = []
    for parent, rank in zip(parents, ranks, strict=True):
        depths.append(1 if parent < 0 else depths[parent] + 1)
        chances.append((1.0 if parent < 0 else chances[parent]) * accept[depths[-1] - 1][rank])
    return 1.0 + sum(chances)


def check_chances(accept: Accept) -> None:
    """Raise ValueError unless the chances of each depth are from 0 to 1, fall with rank, and are at most 1 in all."""
    for depth, row in enumerate(accept, 1):
        falling = all(one >= other for one, other in pairwise(row))
        if not falling or not all(0 <= chance <= 1 for chance in row) or sum(row) > 1 + 1e-9:
            raise ValueError(
                f"the chances at depth {depth} are {list(row)!r:.60}: give those of the ranks, which fall from the "
                "first on and are 1 at most in all"
            )
