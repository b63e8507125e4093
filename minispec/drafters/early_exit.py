"""The target's own first layers guess, with its last norm and output layer: no second model, and no second cache.

The rule: a guess is what the model says that ends after n layers. Its keys and values are the target's, of which it
borrows the first layers' part: what the target has read need not be read again, and guesses write their rows past the
end of the target's, where the check writes the same bits once more. So nothing has to be rolled back.

What a guess costs: n of n_layer layers and the whole output layer, 0.4 of a pass for 2 layers of story-target's 6.
(The check could begin behind the first n layers of the guessed rows, if these were kept. That would save arithmetic
and not a byte of reading, and reading is what a pass costs here; so it does not.)

The law is kept, as with any small model. Training: none is needed, and without any it does not pay: a model that was
never asked to speak after n layers guesses badly. Targets trained with a loss at every layer's end do well.

Source: Elhoushi et al. 2024, "LayerSkip" (arXiv 2404.16710).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minispec.drafters.small_model import SmallModelDrafter, SmallModelDrafting
from minispec.model import GPT2


class EarlyExitDrafter(SmallModelDrafter):
    """Drafts with the first n_layers of the target."""

    def __init__(self, target: GPT2, n_layers: int) -> None:
        """Raises ValueError unless n_layers is 1 or more, and fewer than the target has."""
        if n_layers == target.config.n_layer:
            raise ValueError(f"{n_layers} layers are all of the target's: give 1 to {n_layers - 1}")
        part = target.first_layers(n_layers)
        super().__init__(part)
        self.borrow = part.borrow  # of the model itself, where a batch puts a stand-in into its place

    def __repr__(self) -> str:
        return f"<early exit after {self.borrow.__self__.config.n_layer} layers>"  # type: ignore[attr-defined]

    def start(self, cache: Any = None) -> EarlyExitDrafting:
        """Begin a text on its target's cache. Raises ValueError for the cache of another model."""
        return EarlyExitDrafting(self.model, self.borrow(cache), cache)


class EarlyExitDrafting(SmallModelDrafting):
    """The first layers at work on one text: `cache` are the rows that they share with the target's, `target_cache`."""

    def __init__(self, model: Any, cache: Any, target_cache: Any) -> None:
        self.model, self.cache, self.target_cache = model, cache, target_cache
        self.cached: list[int] = []

    def _roll_back(self, ids: Sequence[int]) -> None:
        """What the target has read, its first layers have; the guesses of the last round are its own rows by now."""
        self.cache.length = min(self.target_cache.length, len(ids) - 1)
        self.cached = list(ids[: self.cache.length])
