"""Prompt lookup: find where the last few tokens stood before, and guess what followed them there.

The rule: of the last `longest` tokens, then of one less, down to the last alone, look for the most recent place (or the
first) where they stand earlier in prompt or text. What came after it are the guesses. A copy that reaches the end of
the text goes on with its own guesses, so whatever goes round in circles is guessed as far as one likes.

The most recent place is the default: what a text is about changes, and its last mention is nearest to what comes next.

Cost: a dictionary entry for each length and token of the text, and a look at `longest` of them a round; no pass. Law:
kept, each guess is certain. Training: none. It pays where the text repeats its prompt or itself, and hardly in stories.

Surety: after m matching tokens m / (m + 1), the guesses before counted as matching.

Source: Saxena 2023, prompt lookup decoding (the first place, 3 tokens); llama.cpp's ngram-simple (the most recent).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from minispec.drafters.certain import Guess, TextDrafting

LONGEST = 3
SENSIBLE = 32  # of longest: it takes an entry for each length and token of the text
PLACES = ("recent", "first")


class PromptLookupDrafter:
    """Drafts with what followed the same tokens before."""

    def __init__(self, n_vocab: int, longest: int = LONGEST, which: str = PLACES[0]) -> None:
        """longest: tokens that are looked for, at most. which: of several places the most "recent", or the "first".

        Raises ValueError for fewer than one token, and for another word.
        """
        if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
            raise ValueError(f"longest is {longest!r}: give the tokens to look for, 1 or more")
        if which not in PLACES:
            raise ValueError(f"which is {which!r}: choose {' or '.join(PLACES)}")
        self.n_vocab, self.longest, self.which = n_vocab, longest, which

    def describe(self) -> str:
        """Its name with its parameters."""
        return f"PromptLookupDrafter(longest={self.longest}, which={self.which!r})"

    def start(self, cache: Any = None) -> PromptLookupDrafting:
        """Begin a text; the target's cache is not looked at."""
        return PromptLookupDrafting(self.n_vocab, self.longest, self.which)


class PromptLookupDrafting(TextDrafting):
    """Prompt lookup in one text: `after` has, for each run of tokens that another one follows, the other's place."""

    def __init__(self, n_vocab: int, longest: int, which: str) -> None:
        self.longest, self.which = longest, which
        super().__init__(n_vocab)

    def forget(self) -> None:
        """No run of tokens has been followed by anything."""
        self.after: dict[tuple[int, ...], int] = {}

    def read(self, token: int) -> None:
        """The runs that end the text so far now have a follower; so no run ever finds itself."""
        place = len(self.ids)
        for n in range(1, min(self.longest, place) + 1):
            run = tuple(self.ids[place - n :])
            if self.which == "recent" or run not in self.after:
                self.after[run] = place

    def guesses(self, n_draft: int) -> Iterator[Guess]:
        """A copy from the longest match on."""
        for n in range(min(self.longest, len(self.ids)), 0, -1):
            place = self.after.get(tuple(self.ids[-n:]))
            if place is not None:
                return self._copy(place, n)
        return iter(())

    def _copy(self, place: int, n_match: int) -> Iterator[Guess]:
        period = len(self.ids) - place  # from here on the copy is of itself
        for i in count():
            matching = n_match + i
            yield self.ids[place + i % period], matching / (matching + 1)
