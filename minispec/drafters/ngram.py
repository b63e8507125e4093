"""A back-off table drafts: after the last few tokens, the one that mostly came in the text it was counted from.

The rule: guess what the table says, then what it says after that guess, and so on. It always has a guess.

Cost: up to five binary searches a guess, no pass. Law: kept, each guess is certain: a share of counts is no chance that
a guess was drawn with. Training: a count over some text, in seconds (`weights/ngram.py`), best over the target's own
training text, as that is what the target has learnt to say.

Surety: the token's share.

Source: n-gram drafts as in Fu et al. 2024 (arXiv 2402.02057) and llama.cpp's lookup decoding; the table is
`ngram_table.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minispec.drafters.certain import Guess, certain_draft
from minispec.model_files import check_inside
from minispec.ngram_table import REMEDY, NgramTable, load_table
from minispec.protocols import Choices, Draft, GoOn, Sampler, always

if TYPE_CHECKING:
    from minispec.tokenizer import Tokenizer

FILE = "ngram.safetensors"  # beside the weights of the target


class NgramDrafter:
    """Drafts with a table of the target's vocabulary."""

    def __init__(self, table: NgramTable, stop: float = 0.0) -> None:
        """stop: the draft ends before the guess with which the product of shares falls below it; 0 for never.

        Raises ValueError for a stop outside 0..1.
        """
        if not 0 <= stop <= 1:
            raise ValueError(f"stop is {stop}: give a share from 0 (never) to 1")
        self.table, self.stop = table, stop

    @property
    def n_vocab(self) -> int:
        """Tokens in the table's vocabulary."""
        return self.table.n_vocab

    def describe(self) -> str:
        """Its name with its parameters."""
        return f"NgramDrafter(longest={self.table.longest}, stop={self.stop})"

    def start(self, cache: Any = None) -> NgramDrafter:
        """Begin a text: nothing is remembered of it, and the target's cache is not looked at."""
        return self

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Up to n_draft tokens after ids, each with certainty."""
        return certain_draft(self._guesses(ids), n_draft, self.n_vocab, go_on)

    def _guesses(self, ids: Sequence[int]) -> Iterator[Guess]:
        end = [int(token) for token in ids[max(len(ids) - self.table.longest, 0) :]]
        product = 1.0
        while True:
            token, share = self.table.guess(end)
            product *= share
            if product < self.stop:
                return
            yield token, share
            end = [*end, token][-self.table.longest :] if self.table.longest else []


def table_of(folder: Path) -> Path:
    """The table that comes with a model. Raises ValueError where there is none."""
    path = folder / FILE
    if not path.is_file():
        raise ValueError(f"{path} is missing, so ngram has nothing to look up: {REMEDY}, or name a table: ngram:PATH")
    check_inside(path)
    return path


def open_ngram(path: Path, tokenizer: Tokenizer) -> NgramDrafter:
    """The drafter of a table's file. Raises ValueError as `load_table`."""
    return NgramDrafter(load_table(path, tokenizer))
