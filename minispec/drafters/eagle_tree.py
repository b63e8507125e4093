"""EAGLE-2: EAGLE's block guesses a tree, and puts its guesses where it trusts them most.

Greedily: what a guess is worth is the block's own probability of the whole path to it, which tells well how often the
target keeps it. The tree **grows** where that is greatest: of all tokens that might be guessed next, anywhere, the
likeliest is taken as read, and the likeliest tokens after it join them. At the end the best of all that were seen are
**kept** as guesses, whether they were read or not. A path's probability only falls along it, so those are a tree.

With sampling: such guesses are made with certainty, and kept with the target's own chance of them; one that is drawn is
kept with all that the two laws share. So guesses are **drawn**: for a place one by one, each from what its elder
siblings have left of the block's law. What was drawn is never thrown away, so the tree does not choose among guesses;
before each it chooses a **slot**, a place and its next sibling, by the chance that the target comes there, refuses the
elder siblings and keeps the next, whatever token that will be. Chances are told by a rule that was counted once (`kept`
and `Place.worth`); where they are wrong the tree has a worse shape, and no other law.

Cost: each token taken as read, and each place where guesses are drawn, is a pass of the block over the path to it, and
costs what a guess of a chain costs, however wide the tree is; and each guess is a row of the target's pass. Here they
are read one by one, the best first, because on a CPU each pass counts; on a GPU, EAGLE-2 reads as many as it wants of
one depth at a time.

The law is kept. A guess made with certainty has a one-hot law, and is kept with the target's probability of it, less
what went to its elder siblings. A drawn one states the law that it was drawn from. Whether and where it was drawn may
depend on all that was drawn before, but not on the guess itself; and all that is judged before it, its ancestors and
their and its elder siblings, was drawn before it. So when its turn comes its law is still the stated one. Training:
none of its own.

Source: Li, Wei, Zhang, Zhang 2024 (EAGLE-2, arXiv 2406.16858); draws without replacement: Chen et al. 2024, Sequoia
(arXiv 2402.12374). Drawn slot by slot is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from minispec.drafters.certain import one_hot
from minispec.drafters.eagle import EagleDrafter, EagleDrafting
from minispec.drafters.on_features import Floats
from minispec.drafters.small_model import probability, usable
from minispec.drafters.small_model_tree import siblings
from minispec.protocols import Choices, Draft, GoOn, Probs, Sampler, always
from minispec.trees import MOST_NODES

FIRST = 0.65  # how often the first guess drawn for a place is kept
WIDTH = 4  # guesses that may follow one, or the text: the fifth is hardly ever among the best


@dataclass(frozen=True)
class Node:
    """A token that may be guessed. rows [depth, n_small]: what the block reads of the path to it, itself included."""

    token: int
    chance: float  # the block's own probability of the path
    parent: int  # the number of the node before it, or -1 for the text
    rows: Floats


@dataclass(eq=False)
class Place:
    """Where guesses are drawn one by one: after the text (-1), or after a guess that was drawn.

    rows [depth, n_small]: what the block reads of the path to it; once it is read, out is what it gave, and logits
    [n_vocab] are a part of that. chance: that the target comes here, and refuses all that was drawn here so far.
    """

    guess: int
    rows: Floats
    chance: float
    n_drawn: int = 0
    read: bool = False
    out: Floats = field(init=False)
    logits: Floats = field(init=False)
    guesses: Iterator[tuple[int, Probs]] = field(init=False)

    @property
    def worth(self) -> float:
        """The chance that the target keeps the next guess here, whatever it will be.

        Counted for the first four drawn for a place, where the target came to them: 0.65, 0.32, 0.22, 0.15.
        """
        return self.chance * FIRST / (1 + self.n_drawn)

    def note(self, token: int) -> float:
        """The chance that the target comes to this guess, which was just drawn here, and keeps it."""
        chance = self.chance * kept(probability(self.logits, token), self.n_drawn)
        self.chance -= chance
        self.n_drawn += 1
        return chance


def kept(prob: float, rank: int) -> float:
    """How often a drawn guess is kept to which the block itself gives prob; rank: elder siblings, all refused.

    Counted at 816 places of stories by the pair in the box, at temperature 1, right after what the target had read; by
    fifths of the guesses. Of first ones with mean prob 0.01, 0.08, 0.28, 0.55, 0.87 these shares were kept: 0.35, 0.52,
    0.66, 0.78, 0.93; of second ones with 0.00, 0.01, 0.05, 0.16, 0.48: 0.12, 0.15, 0.32, 0.40, 0.53.
    """
    return 0.35 / (1 + rank) ** 2 + 0.6 * math.sqrt(prob)


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
        if getattr(sampling, "temperature", None) == 0:
            return self._likeliest(ids, n_draft, go_on)
        return self._drawn(ids, n_draft, sampling, choices, go_on)

    def _drawn(self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn) -> Draft:
        """Guess after guess, each where the next one is worth most, which is settled before it is drawn."""
        tokens: list[int] = []
        probs: list[Probs] = []
        parents: list[int] = []
        places, n_read = [Place(-1, self._no_rows(), 1.0)], 0
        while places and len(tokens) < self.n_node:
            place = max(places, key=attrgetter("worth"))
            if not place.read:
                if n_read and not go_on(partial(float, place.chance)):
                    break
                self._open(place, ids, sampling, choices)
                n_read += 1
                if n_read == self.n_pass:
                    places = [one for one in places if one.read]
            drawn = next(place.guesses, None)
            if drawn is None:  # nothing is left of the law, or the block is broken
                places.remove(place)
                continue
            token, law = drawn
            chance = place.note(token)
            if len(place.rows) + 1 < n_draft and n_read < self.n_pass:
                rows = np.concatenate([place.rows, self.chain.ways.again(token, place.out)])
                places.append(Place(len(tokens), rows, chance))
            tokens.append(token)
            probs.append(law)
            parents.append(place.guess)
        return Draft(tokens, probs, parents)

    def _open(self, place: Place, ids: Sequence[int], sampling: Sampler, choices: Choices) -> None:
        """Read the path to a place, so that guesses can be drawn there."""
        place.read, place.out = True, self._read(ids, place.rows)
        place.logits = self.chain.ways.logits(place.out)
        place.guesses = siblings(place.logits, WIDTH, len(ids) + len(place.rows), sampling, choices)

    def _likeliest(self, ids: Sequence[int], n_draft: int, go_on: GoOn) -> Draft:
        """The best guesses of all that were seen, each made with certainty."""
        nodes = self._grow(ids, n_draft, go_on)
        best = sorted(range(len(nodes)), key=lambda i: (-nodes[i].chance, i))[: self.n_node]
        place = {-1: -1} | {node: i for i, node in enumerate(best)}  # a node comes after its parent in either order
        tokens = [nodes[i].token for i in best]
        probs = [one_hot(token, self.chain.ways.n_vocab) for token in tokens]
        return Draft(tokens, probs, [place[nodes[i].parent] for i in best])

    def _grow(self, ids: Sequence[int], n_draft: int, go_on: GoOn) -> list[Node]:
        """All tokens that were seen, each after the one that it follows."""
        nothing = self._no_rows()
        nodes = self._after(self._read(ids, nothing), nothing, -1, 1.0)
        unread = list(range(len(nodes)))
        for _ in range(self.n_pass - 1):
            unread = [i for i in unread if len(nodes[i].rows) < n_draft]
            i = max(unread, key=[node.chance for node in nodes].__getitem__, default=-1)
            if i < 0 or not go_on(partial(float, nodes[i].chance)):
                break
            unread.remove(i)
            more = self._after(self._read(ids, nodes[i].rows), nodes[i].rows, i, nodes[i].chance)
            unread += range(len(nodes), len(nodes) + len(more))
            nodes += more
        return nodes

    def _no_rows(self) -> Floats:
        """The path to the text's end."""
        return np.empty((0, self.chain.block.config.n_embd), np.float32)

    def _read(self, ids: Sequence[int], rows: Floats) -> Floats:
        """The block's output for the token after ids and the guesses that rows are of."""
        if not len(rows):
            return self.chain.read(ids)
        self.chain.cache.truncate(len(ids) - 1)  # another branch's guesses
        return self.chain.go_on_with(rows)

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
