"""EAGLE-2: EAGLE's block guesses a tree, and puts its guesses where it trusts them most.

The rule: what a guess is worth is the block's own probability of the whole path to it, which tells well how often the
target keeps it. The tree **grows** where that is greatest: of all tokens that might be guessed next, anywhere, the
likeliest is taken as read, and the likeliest tokens after it join them. At the end the best of all that were seen are
**kept** as guesses, whether they were read or not. A path's probability only falls along it, so those are a tree.

Cost: each token taken as read is a pass of the block over the path to it, and costs what a guess of a chain costs,
however wide the tree is; and each guess is a row of the target's pass. Here they are read one by one, the best first,
because on a CPU each pass counts; on a GPU, EAGLE-2 reads as many as it wants of one depth at a time.

The law is kept: guesses are made with certainty, so each has a one-hot law, and is kept with the target's probability
of it, less what went to its elder siblings. Training: none of its own.

Source: Li, Wei, Zhang, Zhang 2024 (EAGLE-2, arXiv 2406.16858).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minispec.drafters.certain import one_hot
from minispec.drafters.eagle import EagleDrafter, EagleDrafting
from minispec.drafters.on_features import Floats
from minispec.drafters.small_model import usable
from minispec.protocols import Choices, Draft, GoOn, Sampler, always
from minispec.trees import MOST_NODES

WIDTH = 4  # tokens that join the others when one is taken as read: the fifth is hardly ever among the best


@dataclass(frozen=True)
class Node:
    """A token that may be guessed. rows [depth, n_small]: what the block reads of the path to it, itself included."""

    token: int
    chance: float  # the block's own probability of the path
    parent: int  # the number of the node before it, or -1 for the text
    rows: Floats


class EagleTreeDrafter:
    """Trees of up to n_node guesses from `drafter`'s block, in n_pass passes of it or fewer."""

    branches = True

    def __init__(self, drafter: EagleDrafter, n_node: int = 8, n_pass: int = 4) -> None:
        """Raises ValueError for sizes that are none."""
        if not (1 <= n_node <= MOST_NODES and n_pass >= 1):
            raise ValueError(f"a tree of {n_node} guesses in {n_pass} passes: give 1 to {MOST_NODES}, and 1 or more")
        self.drafter, self.n_node, self.n_pass = drafter, n_node, n_pass

    def describe(self) -> str:
        """What a guess costs depends on this."""
        return f"{self.drafter.describe()}, trees of {self.n_node} in {self.n_pass} passes"

    def warm_up(self) -> None:
        """Compile what a guess needs, or load it from the cache on disk."""
        self.drafter.warm_up()

    @property
    def n_vocab(self) -> int:
        """The target's tokens."""
        return self.drafter.n_vocab

    @property
    def taps(self) -> tuple[int, ...]:
        """The depths that the target must be tapped at."""
        return self.drafter.taps

    def start(self, cache: Any) -> EagleTreeDrafting:
        """Begin a text. Raises ValueError for a target's cache without the features."""
        return EagleTreeDrafting(self.drafter.start(cache), self.n_node, self.n_pass)


class EagleTreeDrafting:
    """The block at work on one text."""

    def __init__(self, chain: EagleDrafting, n_node: int, n_pass: int) -> None:
        self.chain, self.n_node, self.n_pass = chain, n_node, n_pass

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """A tree at most n_draft deep after ids: none before the target has read, a flatter one at the window's end."""
        n_draft = min(n_draft, self.chain.room(ids))
        if n_draft < 1:
            return Draft([], [])
        nodes = self._grow(ids, n_draft, go_on)
        best = sorted(range(len(nodes)), key=lambda i: (-nodes[i].chance, i))[: self.n_node]
        place = {-1: -1} | {node: i for i, node in enumerate(best)}  # a node comes after its parent in either order
        tokens = [nodes[i].token for i in best]
        probs = [one_hot(token, self.chain.ways.n_vocab) for token in tokens]
        return Draft(tokens, probs, [place[nodes[i].parent] for i in best])

    def _grow(self, ids: Sequence[int], n_draft: int, go_on: GoOn) -> list[Node]:
        """All tokens that were seen, each after the one that it follows."""
        nodes = self._after(self.chain.read(ids), np.empty((0, self.chain.block.config.n_embd), np.float32), -1, 1.0)
        unread = list(range(len(nodes)))
        for _ in range(self.n_pass - 1):
            unread = [i for i in unread if len(nodes[i].rows) < n_draft]
            i = max(unread, key=[node.chance for node in nodes].__getitem__, default=-1)
            if i < 0 or not go_on(partial(float, nodes[i].chance)):
                break
            unread.remove(i)
            self.chain.cache.truncate(len(ids) - 1)  # another branch's guesses
            out = self.chain.go_on_with(nodes[i].rows)
            more = self._after(out, nodes[i].rows, i, nodes[i].chance)
            unread += range(len(nodes), len(nodes) + len(more))
            nodes += more
        return nodes

    def _after(self, out: Floats, rows: Floats, parent: int, chance: float) -> list[Node]:
        """The likeliest tokens after a node, or the text, by what the block gave for it; none where that is broken."""
        ways = self.chain.ways
        logits = out[: len(ways.tokens)]
        if not usable(logits):
            return []
        probs = np.exp(logits - logits.max())
        probs *= chance / probs.sum()
        best = np.argsort(-probs, kind="stable")[:WIDTH]
        tokens = ways.tokens[best].tolist()
        return [
            Node(token, float(probs[i]), parent, np.concatenate([rows, ways.again(token, out)]))
            for token, i in zip(tokens, best, strict=True)
        ]
