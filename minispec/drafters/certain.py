"""What drafters without a model share: guesses made with certainty, and a text that is followed as it grows.

A guess that is not drawn but looked up has a one-hot law: the rule then keeps it with the target's own probability of
it, and a refused one is replaced by a draw from all the others. So the law is kept, whatever is looked up, and however
badly; a count is no probability that a guess was drawn with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from minispec.protocols import Choices, Draft, GoOn, Probs, Sampler, always

Guess = tuple[int, float]  # a token, and how sure the drafter is of it: a share of counts, from 0 to 1


def one_hot(token: int, n_vocab: int) -> Probs:
    """The distribution [n_vocab] of a guess made with certainty."""
    probs = np.zeros(n_vocab)
    probs[token] = 1.0
    return probs


def certain_draft(guesses: Iterable[Guess], n_draft: int, n_vocab: int, go_on: GoOn) -> Draft:
    """Up to n_draft of these guesses, as far as go_on goes."""
    tokens: list[int] = []
    for token, surety in islice(guesses, max(n_draft, 0)):
        tokens.append(token)
        if not go_on(partial(float, surety)):
            break
    return Draft(tokens, [one_hot(token, n_vocab) for token in tokens])


class TextDrafting:
    """A drafter without a model at work on one text, which it reads once: each draft takes in what is new.

    To write one: `forget` and `read` keep what is to be known of the text, `guesses` looks it up.
    """

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self.ids: list[int] = []  # that were read
        self.forget()

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Up to n_draft tokens after ids, each with certainty; none where nothing is found."""
        self.follow(ids)
        return certain_draft(self.guesses(n_draft), n_draft, self.n_vocab, go_on)

    def follow(self, ids: Sequence[int]) -> None:
        """Read what is new of a text. One that is not the last one grown is read from its beginning."""
        ids = [int(token) for token in ids[len(self.ids) :]] if self.goes_on(ids) else self.anew(ids)
        for token in ids:
            self.read(token)
            self.ids.append(token)

    def goes_on(self, ids: Sequence[int]) -> bool:
        """Whether ids begin with all that was read. (Lists are compared without a line of Python a token.)"""
        return list(ids[: len(self.ids)]) == self.ids

    def anew(self, ids: Sequence[int]) -> list[int]:
        """Forget what was read; all of ids is new."""
        self.ids = []
        self.forget()
        return [int(token) for token in ids]

    def forget(self) -> None:
        """Begin with an empty text."""

    def read(self, token: int) -> None:
        """Take in the next token, which follows self.ids."""

    def guesses(self, n_draft: int) -> Iterator[Guess]:
        """What may follow self.ids, one after the other; more than n_draft are not looked at."""
        raise NotImplementedError
