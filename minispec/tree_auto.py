"""`--tree auto`: counts and prices to the tree that pays best for this pair on this machine.

Counts say which guesses are kept, prices what they and their checks cost, and `tree_shape.py` finds the shape that
writes the most tokens for its price. Where no tree beats the best chain, it is chains, and -k says how long; where no
guess pays, it is plain decoding. Greedy text is the target's with any tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minispec.costs import Costs
from minispec.drafters.models import is_combined, with_tree
from minispec.kept_costs import tree_costs
from minispec.protocols import depths
from minispec.settings import AUTO
from minispec.tree_counts import WIDE, counts_of
from minispec.tree_shape import Accept, Shape, shape
from minispec.trees import MOST_NODES

if TYPE_CHECKING:
    from minispec.session import Pair
    from minispec.settings import Settings

PRIOR = 8.0  # guesses that a depth is taken to have been judged, and kept as at the depth before


@dataclass(frozen=True)
class Choice:
    """What pays best: a tree, a chain, or nothing; and the best chain, which a tree has to beat."""

    best: Shape
    chain: Shape
    others: bool = False  # whether other drafters guess in turn with it, of which counts of trees say nothing

    @property
    def tree(self) -> tuple[int, ...]:
        """The parents of the tree; none where it is a chain, or nothing."""
        return () if self.best.is_chain else self.best.parents

    @property
    def depth(self) -> int:
        """How far the guesses reach into the text."""
        return max(depths(self.best.parents), default=0)

    def line(self) -> str:
        """What was chosen, and why."""
        if not self.best.parents and self.others:
            return "tree: none is seen to pay, so there are chains, as long as -k says"
        if not self.best.parents:
            return "tree: none, and no chain either: no guess pays here, so decoding is plain"
        if self.best.is_chain:
            return f"tree: none pays more than a chain of {self.depth} ({foretold(self.best)})"
        levels = depths(self.best.parents)
        by_depth = ", ".join(str(levels.count(depth)) for depth in range(1, self.depth + 1))
        if not self.chain.parents:
            return f"tree: by depth {by_depth} guesses ({foretold(self.best)}); no chain pays"
        other = f"a chain of {len(self.chain.parents)}: {foretold(self.chain)}"
        return f"tree: by depth {by_depth} guesses ({foretold(self.best)}; {other})"


def foretold(one: Shape) -> str:
    """The figures that a shape is chosen by."""
    return f"{one.expected:.2f} tokens a round expected for {one.price:.2f} plain passes, {one.speedup:.2f} x"


def choose(accept: Accept, costs: Costs, deepest: int | None = None) -> Choice:
    """The choice for chances by depth and rank, at these prices, with guesses no deeper than `deepest`."""
    accept = accept[:deepest]
    return Choice(shape(accept, costs, MOST_NODES), shape(first_ranks(accept), costs, MOST_NODES))


def first_ranks(accept: Accept) -> list[Sequence[float]]:
    """The chances of the likeliest guess of each depth, which chains are made of."""
    return [row[:1] for row in accept]


def with_best_tree(
    settings: Settings, pair: Pair, n_text: int = 1, anew: bool = False
) -> tuple[Settings, Pair, Choice | None]:
    """Settings and a pair of the tree that pays best, where --tree is auto; the same ones, and no choice, elsewhere.

    The pair is as `open_pair` gives it, with the wide tree. With -k N guesses reach no deeper than N; a chain is as
    long as -k auto says. n_text: texts that share passes, and chains, as no pass over trees is shared. anew:
    counts and prices are measured, whatever is kept.
    """
    if settings.tree != AUTO:
        return settings, pair, None
    asked = settings.num_draft_tokens
    if pair.drafter is None or asked == 0:
        return replace(settings, tree=()), chains(pair), None
    accept: Accept = counts_of(settings, pair, anew).chances(PRIOR)
    if n_text > 1:
        accept = first_ranks(accept)
    plain = chains(pair)
    costs = tree_costs(pair, plain, anew).of_batch(n_text)
    choice = choose(accept, costs, None if asked == AUTO else int(asked))
    choice = replace(choice, others=is_combined(pair.drafter))
    chosen = replace(settings, tree=choice.tree, num_draft_tokens=length_for(choice, asked))
    return chosen, chains(pair, choice.tree) if choice.tree else plain, choice


def length_for(choice: Choice, asked: int | str) -> int | str:
    """What -k is for a choice: its depth, or still auto where it is a chain.

    Drafters that guess in turn with it are neither held to that depth nor silenced where there is none: for them -k is
    as it was asked. But auto goes by prices of chains: beside a tree it is the depth of the texts that were counted.
    """
    if choice.others:
        return len(WIDE) if asked == AUTO and choice.tree else asked
    return AUTO if asked == AUTO and choice.best.is_chain and choice.best.parents else choice.depth


def chains(pair: Pair, tree: Sequence[int] = ()) -> Pair:
    """The same pair with chains in place of trees, or with trees of this shape."""
    return replace(pair, drafter=with_tree(pair.drafter, tree))
