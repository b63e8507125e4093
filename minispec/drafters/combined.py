"""Several drafters in turn: the first that proposes anything drafts the round.

Put the pickiest first: one that guesses seldom and is mostly right then, such as prompt lookup, before one that always
has a guess, such as a small model, which is spared its passes where a copy will do.

Cost: that of the one that guesses, and of those before it that found nothing. Law: kept, as each one's is. Whether a
drafter proposes follows from the text alone, and no guess is ever thrown away for one of the next. Training: none.

Source: the order of drafters is llama.cpp's and ArcticInference's (suffix first, then a model); the rule is the loop's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minispec.drafters.models import describe
from minispec.protocols import Choices, Draft, Drafter, Drafting, GoOn, Sampler, always


class CombinedDrafter:
    """Drafts with the first of `drafters` that proposes anything."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        """Raises ValueError for none at all, and for drafters of different vocabularies."""
        sizes = {drafter.n_vocab for drafter in drafters}
        if len(sizes) != 1:
            raise ValueError(f"the drafters have vocabularies of {sorted(sizes)} tokens: give drafters of one")
        self.drafters = list(drafters)

    @property
    def n_vocab(self) -> int:
        """Tokens in their vocabulary."""
        return self.drafters[0].n_vocab

    def describe(self) -> str:
        """All of them, in order."""
        return f"CombinedDrafter({', '.join(map(describe, self.drafters))})"

    def start(self, cache: Any = None) -> CombinedDrafting:
        """Begin a text with each of them."""
        return CombinedDrafting([drafter.start(cache) for drafter in self.drafters])


class CombinedDrafting:
    """All of them at work on one text; those that are not asked in a round catch up in the next."""

    def __init__(self, draftings: Sequence[Drafting]) -> None:
        self.draftings = draftings

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Up to n_draft tokens after ids, all of one drafter."""
        for drafting in self.draftings:
            draft = drafting.draft(ids, n_draft, sampling, choices, go_on)
            if draft.tokens:
                return draft
        return Draft([], [])
