"""The KV cache: what attention has to remember, as two arrays that are written and cut back.

Keys and values of a position never change once they are computed, so a pass only adds its own rows.
Rolling back is a matter of the length alone: rows past it are never read, and the next pass writes
over them. Speculation needs exactly this, since a rejected guess leaves rows behind.

The caches of a batch are slots of one block, so that one pass can reach them all. Each has a length of its own.

A tree of guesses (see `trees.py`) leaves its rows beyond the window, and `keep` takes over those of one path.

A drafter may guess from what the target has seen. For that a cache keeps features, too: the residual stream of each
position after so many layers (0: the embeddings; n_layer: what the last norm is applied to), for the depths that
`GPT2.tapped` asks for. They are rows like keys and values: added by passes, cut back by the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.trees import check_path

Floats = NDArray[np.float32]
CopyRows = Callable[[Floats, Floats, Any, Any], None]  # (keys, values, from, to)
NO_FEATURES: Floats = np.empty((1, 0, 0, 0), np.float32)


@dataclass
class KVCache:
    """Keys and values of every layer, in a slot of a block that may hold other caches, too."""

    block_keys: Floats  # of all slots: [n_slot, n_layer, n_head, n_ctx + MOST_NODES, d_head] in the reference's layout
    block_values: Floats  # the same
    n_ctx: int  # positions there is room for
    owner: object = None  # the model that it belongs to
    slot: int = 0  # its place in the block
    length: int = 0  # how many positions are filled
    copy_rows: CopyRows | None = None  # how the layout copies some
    on_trial: Sequence[int] = ()  # parents of the guesses whose rows lie beyond the window, after a pass over a tree
    taps: tuple[int, ...] = ()  # depths whose features are kept, ascending
    block_features: Floats = field(default_factory=lambda: NO_FEATURES)  # [n_slot, n_tap, n_ctx + MOST_NODES, n_embd]

    @property
    def keys(self) -> Floats:
        """Its own keys [n_layer, ...]."""
        own: Floats = self.block_keys[self.slot]
        return own

    @property
    def values(self) -> Floats:
        """Its own values [n_layer, ...]."""
        own: Floats = self.block_values[self.slot]
        return own

    @property
    def layers(self) -> list[tuple[Floats, Floats]]:
        """Keys and values of each layer."""
        return list(zip(self.keys, self.values, strict=True))

    @property
    def features(self) -> Floats:
        """Its own features [n_tap, n_ctx + MOST_NODES, n_embd], of which `length` rows are filled."""
        own: Floats = self.block_features[self.slot if self.taps else 0]
        return own

    def features_at(self, depth: int) -> Floats:
        """Features of one depth, [length, n_embd]: a view. Raises ValueError for a depth that is not kept."""
        check_taps(self, (depth,))
        at: Floats = self.features[self.taps.index(depth), : self.length]
        return at

    def tap(self, depth: int, x: Floats) -> None:
        """Keep the residual stream x [n_new, n_embd] of the rows after `length`, if this depth is tapped."""
        if depth in self.taps:
            self.features[self.taps.index(depth), self.length : self.length + len(x)] = x

    def check(self, owner: object, n_new: int) -> None:
        """Raise ValueError unless this cache belongs to `owner` and n_new more positions fit.

        Another model's rows mean nothing here, and compiled code would read past the end of another's arrays.
        """
        if self.owner is not owner:
            raise ValueError("this cache belongs to another model: use model.new_cache()")
        if self.length + n_new > self.n_ctx:
            raise ValueError(
                f"{self.length} cached + {n_new} new positions do not fit the context window of {self.n_ctx}: "
                "shorten the text or truncate the cache"
            )

    def append(self, n_new: int) -> None:
        """Count n_new positions, whose rows every layer has stored, as filled."""
        self.length += int(n_new)
        self.on_trial = ()

    def keep(self, path: Sequence[int]) -> None:
        """Take over these guesses of the tree that the last pass was over, each following the one before.

        Raises ValueError for what is no path from the text, and where another pass or a truncation came between.
        """
        check_path(path, self.on_trial)
        if len(path):
            assert self.copy_rows is not None
            places = self.length + np.arange(len(path))
            self.copy_rows(self.keys, self.values, self.n_ctx + np.array(path), places)
            if self.taps:
                self.features[:, places] = self.features[:, self.n_ctx + np.array(path)]
        self.append(len(path))

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` positions. Raises ValueError outside 0..self.length."""
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} positions to {length!r}")
        self.length = int(length)
        self.on_trial = ()


def check_taps(cache: Any, depths: Iterable[int]) -> None:
    """Raise ValueError unless the cache keeps the features of these depths: any object may be a target's cache."""
    wanted = tuple(depths)
    if not set(wanted) <= set(getattr(cache, "taps", ())):
        raise ValueError(f"this drafter looks at what the target has seen: give it target.tapped({wanted})")
