"""The ids of a text so far, and where it ends: the same for plain and for speculative decoding.

And what may be an id, or a count: the checks of arguments that the whole package uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minispec.protocols import Target

Stop = Callable[[Sequence[int]], bool]  # given the new tokens so far: does the text end after the last?


class Text:
    """A prompt and what was written after it."""

    def __init__(self, target: Target, ids: Sequence[int], max_new_tokens: int, stop: Stop | None) -> None:
        """Raises ValueError for a prompt that is empty or does not fit, and for a negative max_new_tokens."""
        check_count("max_new_tokens", max_new_tokens)
        if isinstance(ids, str):
            raise ValueError(f"the prompt is the text {ids!r:.40}: give token ids, as tokenizer.encode(text) does")
        if not len(ids):
            raise ValueError("the prompt has no tokens: give at least one")
        if isinstance(ids[0], list | tuple | np.ndarray):
            raise ValueError("the prompt is a list of prompts: a batch goes to speculate_batch or generate_batch")
        if len(ids) > target.n_ctx:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and the context window holds {target.n_ctx}: shorten the prompt"
            )
        self.ids = [checked_id(token, target.n_vocab) for token in ids]
        self.n_prompt = len(ids)
        self.n_ctx = target.n_ctx
        self.limit = self.n_prompt + int(max_new_tokens)
        self.stop = stop

    @property
    def room(self) -> int:
        """How many more tokens may be written."""
        return min(self.limit, self.n_ctx) - len(self.ids)

    def commit(self, token: int) -> str | None:
        """Add a token; why the text ends with it, or None."""
        self.ids.append(token)
        return self.finish()

    def finish(self) -> str | None:
        """Why the text ends here, or None: a stop comes before a limit that is reached with the same token."""
        n_new = len(self.ids) - self.n_prompt
        if self.stop is not None and n_new and self.stop(self.ids[self.n_prompt :]):
            return "stop"
        if len(self.ids) >= self.limit:
            return "length"
        return "context" if len(self.ids) >= self.n_ctx else None


def checked_id(token: Any, n_vocab: int) -> int:
    """A token id as an int. Raises ValueError for what is none, or lies outside the vocabulary."""
    if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token < n_vocab:
        raise ValueError(f"token id {token!r} is outside the vocabulary: ids are integers from 0 to {n_vocab - 1}")
    return int(token)


def check_count(name: str, value: object) -> None:
    """Raise ValueError unless value is an integer from 0 up."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} is {value!r}: give an integer, 0 or more")
