"""Suffix decoding: a tree of all that stood in this text, with counts, and guesses as long as what they rest on.

The rule: for the last m tokens, for every m with which they stood somewhere before, walk on by the most frequent next
token (of equals the one seen last). P is the product of the shares of these tokens among all that followed; stop where
P falls below 0.1, and after m guesses: a long match foretells far, a short one does not. Of the walks for all m, the
one with the largest sum of P, so the most guesses expected to be kept, is the draft; of equals the longer match.

The tree holds every run of up to DEPTH tokens, of this text alone. What earlier texts said would help as well, but then
the same seed would write another text after another history: texts here do not depend on each other.

Cost: DEPTH dictionary look-ups for each token of the text, and for each match a walk; no pass. Law: kept, each guess is
certain. Training: none.

Surety: the token's count over that of all followers and one more, so that what was seen once is no certainty.

Source: SuffixDecoding, Oliaro et al. 2024 (arXiv 2411.04975), and Snowflake's ArcticInference for the score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from minispec.drafters.certain import Guess, TextDrafting

DEPTH = 32  # tokens of the longest run: matches and guesses together
LEAST = 0.1  # of P


@dataclass(slots=True)
class Node:
    """A run of tokens: how often it stood in the text, where it ended last, and what followed."""

    count: int = 0
    last: int = 0
    followers: dict[int, Node] = field(default_factory=dict)

    def best(self) -> tuple[int, Node, int]:
        """The most frequent follower, of equals the one seen last; its node; and the count of all followers."""
        token, node = max(self.followers.items(), key=lambda item: (item[1].count, item[1].last))
        return token, node, sum(follower.count for follower in self.followers.values())


class SuffixDrafter:
    """Drafts with what mostly followed the longest and surest matches in the text so far."""

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab

    def start(self, cache: Any = None) -> SuffixDrafting:
        """Begin a text with an empty tree; the target's cache is not looked at."""
        return SuffixDrafting(self.n_vocab)


class SuffixDrafting(TextDrafting):
    """The tree of one text; matches[m] is the node of its last m tokens."""

    def forget(self) -> None:
        """A tree that is its root."""
        self.matches = [Node()]

    def read(self, token: int) -> None:
        """One more token: every run that ended the text grows by it."""
        longer = self.matches[:1]
        for node in self.matches[:DEPTH]:
            if token not in node.followers:
                node.followers[token] = Node()
            node = node.followers[token]
            node.count += 1
            node.last = len(self.ids)
            longer.append(node)
        self.matches = longer

    def guesses(self, n_draft: int) -> Iterator[Guess]:
        """The best walk."""
        best, best_score = list[Guess](), 0.0
        for m, node in enumerate(self.matches):
            if m and not node.followers:
                break  # these tokens have not stood before; then no longer run has
            walk, score = walk_on(node, min(m, n_draft))
            if score >= best_score:
                best, best_score = walk, score
        return iter(best)


def walk_on(node: Node, most: int) -> tuple[list[Guess], float]:
    """Up to `most` guesses from a node on, each with its surety; and the sum of their P."""
    guesses: list[Guess] = []
    chance, score = 1.0, 0.0
    while len(guesses) < most and node.followers:
        token, node, total = node.best()
        chance *= node.count / total
        if chance < LEAST:
            break
        guesses.append((token, node.count / (total + 1)))
        score += chance
    return guesses, score
