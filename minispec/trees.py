"""Trees of guesses, as lists of parents: how a pass takes one without a mask.

Guess i of a tree follows guess parents[i], which comes before it, or the text itself where that is -1. What it may
see is the text, its ancestors and itself. The well-known way is to lay all guesses side by side and to hide by a mask
what is none of a guess's ancestors. Here no mask is needed: take the guesses **depth first**, and cut that order into
runs, each from a guess to its first child, and so on to a leaf. A run is a piece of text like any other: its keys and
values go where those of a chain would, over an earlier branch's, and below them lie its ancestors', in their order.
So each row is computed as in a chain, and has a chain's bits.

What is kept of the tree is known only after the pass, when branches have been overwritten. So each guess's row is
stored a second time, beyond the context window, in the place of its number; `KVCache.keep` fetches a path from there.

Source: Miao et al. 2023, SpecInfer (arXiv 2305.09781), for trees and the mask; depth first instead of it is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minispec.protocols import check_parents, depths

Ints = NDArray[np.int64]
MOST_NODES = 64  # guesses of a tree: so many rows a cache has to spare beyond its window


class Run(NamedTuple):
    """A piece of text in a tree's pass: the first one has the text's own new tokens, the others guesses alone."""

    ids: Ints  # [n_new]
    n_past: int  # positions before it
    guesses: Ints  # [n_guess]: the numbers of the guesses that the last of its rows are

    @property
    def n_logits(self) -> int:
        """Rows whose logits are wanted: the guesses', and before them the last token's of the text."""
        return len(self.guesses) + (len(self.guesses) < len(self.ids))

    def aside(self, n_ctx: int) -> Ints:
        """Where each row [n_new] is stored as well: beyond the window in the place of its guess, or -1 for nowhere."""
        places = np.full(len(self.ids), -1, np.int64)
        places[len(self.ids) - len(self.guesses) :] = n_ctx + self.guesses
        return places


def branches(parents: Sequence[int]) -> list[list[int]]:
    """The guesses depth first, in runs: each from a guess to its first child, and so on to a leaf."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]  # the last: of the text
    for guess, parent in enumerate(parents):
        children[parent].append(guess)
    runs, waiting = [], children[-1][::-1]
    while waiting:
        run = [waiting.pop()]
        while children[run[-1]]:
            first, *others = children[run[-1]]
            waiting += others[::-1]
            run.append(first)
        runs.append(run)
    return runs


def lay_out_tree(ids: Ints, guesses: Ints, parents: Sequence[int], n_past: int) -> list[Run]:
    """The runs of a pass over ids and a tree of one guess or more, after n_past positions."""
    deep, n_text = depths(parents), n_past + len(ids)
    first, *others = (np.array(run, np.int64) for run in branches(parents))
    runs = [Run(np.concatenate([ids, guesses[first]]), n_past, first)]
    return runs + [Run(guesses[run], n_text + deep[run[0]] - 1, run) for run in others]


def tree_parents(tree: Sequence[int]) -> tuple[int, ...]:
    """The parents of a tree that is given by them, the first of which is -1, or by its widths.

    Raises ValueError for what is neither, and for more than MOST_NODES guesses.
    """
    if not len(tree) or not np.array_equal(tree[0], -1):  # what is no number is for check_widths to refuse
        return of_widths(check_widths(tree))
    check_parents(tree, len(tree))
    if len(tree) > MOST_NODES:
        raise ValueError(f"a tree of {len(tree)} guesses, and {MOST_NODES} are the most: make it smaller")
    return tuple(map(int, tree))


def depth_of(tree: Sequence[int] | str) -> int:
    """How deep a tree is that is given by its parents or widths; 0 without any, or before it is chosen."""
    return 0 if isinstance(tree, str) or not len(tree) else max(depths(tree_parents(tree)))


def of_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """The shape in which each guess of a depth, and the text, is followed by so many."""
    starts = [-1, *accumulate(accumulate(widths[:-1], mul), initial=0)]  # of each level, the text being the first
    sizes = [1, *accumulate(widths, mul)]
    levels = zip(starts, sizes, widths, strict=False)
    return tuple(start + i for start, size, width in levels for i in range(size) for _ in range(width))


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """The widths of a tree. Raises ValueError where there are none, one is below 1, or the tree is too large."""
    if not len(widths) or not all(isinstance(width, int | np.integer) and width > 0 for width in widths):
        shown = np.array(widths, object).tolist()  # also of an array on one line
        raise ValueError(f"the widths of the tree are {shown!r:.60}: give integers, 1 or more, as in 3,2,1")
    n_guess = sum(accumulate(map(int, widths), mul))
    if n_guess > MOST_NODES:
        raise ValueError(
            f"a tree of widths {','.join(map(str, widths))} has {n_guess} guesses, and {MOST_NODES} are the most: "
            "make it narrower or shallower"
        )
    return tuple(map(int, widths))


def families(parents: Sequence[int]) -> list[dict[int, list[int]]]:
    """Level by level, the guesses of a shape by their parents: those that follow one guess, or the text, together."""
    deep = depths(parents)
    levels: list[dict[int, list[int]]] = [{} for _ in range(max(deep, default=0))]
    for guess, (parent, depth) in enumerate(zip(parents, deep, strict=True)):
        levels[depth - 1].setdefault(parent, []).append(guess)
    return levels


def path_to(guess: int, parents: Sequence[int]) -> list[int]:
    """The guesses from the text to this one, which is the last; none for -1."""
    return [*path_to(parents[guess], parents), guess] if guess >= 0 else []


def check_path(path: Sequence[int], parents: Sequence[int]) -> None:
    """Raise ValueError unless each guess of path follows the one before, and the first the text."""
    before = -1
    for guess in path:
        if not 0 <= guess < len(parents) or parents[guess] != before:
            raise ValueError(
                f"{list(path)!r:.80} is no path from the text: a cache keeps guesses of the tree that was read last, "
                "before anything else is done to it"
            )
        before = guess
