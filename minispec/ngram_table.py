"""A back-off table: after each of many contexts the token that came most often, and its share.

A context is the last 0 to `longest` tokens, packed into one integer of as many bits as they need; the contexts of each
length are sorted, and a look-up is a binary search, from the longest context down to the first that is known. What a
longer context would say like a shorter one is left out, and so is what was seen once: that is most of what there is.

A table belongs to a vocabulary and says so: its file holds the vocabulary's fingerprint.

Source: Katz 1987 for backing off; here without his discounts, as the best token is all that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minispec.tokenizer import Tokenizer
from minispec.whole_file import write_whole

if TYPE_CHECKING:
    from minispec.safetensors_file import StoredTensor

FORMAT = "minispec n-gram table 1"
LONGEST = 4  # tokens of a context, where the vocabulary leaves room for so many
LEAST = 2  # times that the best token must have been seen after a context of two or more
REMEDY = "make it anew with python weights/ngram.py CORPUS --target MODEL"

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """The contexts of one length: keys [n] packed and sorted, the best token [n] after each, its share [n]."""

    keys: Ints
    tokens: NDArray[np.int32]
    shares: NDArray[np.float16]

    def find(self, key: int) -> int | None:
        """The place of a context, or None."""
        place = int(self.keys.searchsorted(key))
        return place if place < len(self.keys) and self.keys[place] == key else None


@dataclass(frozen=True)
class NgramTable:
    """levels[n] has the contexts of n tokens, levels[0] the one that is empty."""

    n_vocab: int
    levels: tuple[Level, ...]

    @property
    def longest(self) -> int:
        """The tokens of the longest contexts."""
        return len(self.levels) - 1

    def guess(self, ids: Sequence[int]) -> tuple[int, float]:
        """The token that mostly came after the longest known end of ids, and its share."""
        bits = bits_of(self.n_vocab)
        for n in range(min(self.longest, len(ids)), -1, -1):
            key = 0
            for token in ids[len(ids) - n :]:
                key = key << bits | int(token)
            place = self.levels[n].find(key)
            if place is not None:
                return int(self.levels[n].tokens[place]), float(self.levels[n].shares[place])
        raise AssertionError("the empty context is in every table")


def bits_of(n_vocab: int) -> int:
    """The bits of a token id."""
    return max(1, (n_vocab - 1).bit_length())


# --- counting --------------------------------------------------------------------------------------


def count_table(
    texts: Sequence[Sequence[int]], n_vocab: int, longest: int | None = None, least: int = LEAST
) -> NgramTable:
    """The table of these texts, none of which goes on in the next.

    longest: tokens of a context, by default LONGEST or as many as fit; least: see LEAST.
    Raises ValueError for contexts that do not fit into 64 bits with the token after them, and where there is no token.
    """
    bits = bits_of(n_vocab)
    longest = min(LONGEST, 64 // bits - 1) if longest is None else longest
    if longest < 0 or (longest + 1) * bits > 64:
        raise ValueError(
            f"contexts of {longest} tokens and the next do not fit into 64 bits with a vocabulary of {n_vocab} "
            f"({bits} bits a token): give 0 to {64 // bits - 1}"
        )
    ids = np.concatenate([np.zeros(0, np.uint64), *(np.asarray(text, np.uint64) for text in texts)])
    if not len(ids):
        raise ValueError("there is not one token to count: give texts")
    text_of = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    table = NgramTable(n_vocab, ())
    for n in range(longest + 1):
        level = _count_level(ids, text_of, n, bits, least if n > 1 else 1)
        table = NgramTable(n_vocab, (*table.levels, _without_echoes(level, table, bits) if n else level))
    return table


def _count_level(ids: NDArray[np.uint64], text_of: Ints, n: int, bits: int, least: int) -> Level:
    """The contexts of n tokens whose best token came `least` times or more."""
    n_window = max(len(ids) - n, 0)
    packed = np.zeros(n_window, np.uint64)
    for i in range(n + 1):
        packed = packed << np.uint64(bits) | ids[i : i + n_window]
    packed = packed[text_of[:n_window] == text_of[n : n + n_window]]
    pairs, counts = np.unique(packed, return_counts=True)  # contexts with what follows, in order
    contexts = (pairs >> np.uint64(bits)).astype(np.int64)
    tokens = (pairs & np.uint64((1 << bits) - 1)).astype(np.int32)
    keys, first, inverse = np.unique(contexts, return_index=True, return_inverse=True)
    totals = np.bincount(inverse, counts, len(keys))
    order = np.lexsort((tokens, -counts, contexts))[first]  # the best of each context, the lower id of equals
    keep = counts[order] >= least
    shares = (counts[order] / totals)[keep].astype(np.float16)
    return Level(keys[keep], tokens[order][keep], shares)


def _without_echoes(level: Level, shorter: NgramTable, bits: int) -> Level:
    """Less the contexts after which the table of shorter ones says the same token anyway."""
    said = np.full(len(level.keys), -1, np.int32)
    for n in range(shorter.longest + 1):  # the longest that is known has the last word
        known, ends = shorter.levels[n], level.keys & ((1 << bits * n) - 1)
        if len(known.keys):
            places = known.keys.searchsorted(ends).clip(max=len(known.keys) - 1)
            found = known.keys[places] == ends
            said[found] = known.tokens[places[found]]
    keep = said != level.tokens
    return Level(level.keys[keep], level.tokens[keep], level.shares[keep])


# --- files -----------------------------------------------------------------------------------------


def save_table(path: Path, table: NgramTable, tokenizer: Tokenizer, figures: Mapping[str, Any]) -> None:
    """Write a table with its vocabulary's fingerprint and what its recipe has to say, whole or not at all."""
    from safetensors.numpy import save

    small = np.uint16 if table.n_vocab <= 1 << 16 else np.int32
    tensors: dict[str, NDArray[Any]] = {}
    for n, level in enumerate(table.levels):
        tensors |= {f"keys.{n}": level.keys, f"tokens.{n}": level.tokens.astype(small), f"shares.{n}": level.shares}
    about = {"format": FORMAT, "vocabulary": tokenizer.fingerprint, "figures": dict(figures)}
    # One entry: several would come in another order each time, and the file is to have the same bytes.
    write_whole(path, save(tensors, {"about": json.dumps(about)}))


def load_table(path: Path, tokenizer: Tokenizer) -> NgramTable:
    """A table from its file. Raises ValueError, in one line, for a damaged file and for another vocabulary's table."""
    from minispec.safetensors_file import read_header, read_metadata

    try:
        stored, metadata = read_header(path), read_metadata(path)
    except ValueError as error:
        raise ValueError(f"{error}, or {REMEDY}") from None
    try:
        about = json.loads(metadata.get("about", "{}"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} does not tell what it is ({error}): {REMEDY}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{path} is no n-gram table of this version: {REMEDY}")
    if about.get("vocabulary") != tokenizer.fingerprint:
        raise ValueError(f"{path} is the n-gram table of another vocabulary than the target's: {REMEDY}")
    levels = tuple(_level(path, stored, n, tokenizer.n_vocab) for n in range(len(stored) // 3))
    if not levels or levels[0].keys.tolist() != [0] or len(levels) * bits_of(tokenizer.n_vocab) > 64:
        raise ValueError(f"{path} lacks the empty context, or has too long ones: {REMEDY}")
    return NgramTable(tokenizer.n_vocab, levels)


def _level(path: Path, stored: Mapping[str, StoredTensor], n: int, n_vocab: int) -> Level:
    """One level, checked: a look-up must find its way, and find a token."""
    from minispec.safetensors_file import read_integers, read_tensor

    lacking = [name for name in (f"keys.{n}", f"tokens.{n}", f"shares.{n}") if name not in stored]
    if lacking:
        raise ValueError(f"{path} lacks {lacking[0]!r}: {REMEDY}")
    try:
        keys, tokens = read_integers(stored[f"keys.{n}"]), read_integers(stored[f"tokens.{n}"])
        shares = read_tensor(stored[f"shares.{n}"])
    except ValueError as error:
        raise ValueError(f"{error}, or {REMEDY}") from None
    sound = keys.ndim == 1 and keys.shape == tokens.shape == shares.shape and keys.dtype == np.int64
    found = sound and (keys[1:] > keys[:-1]).all() and (tokens < n_vocab).all() and (tokens >= 0).all()
    if not (found and (shares >= 0).all() and (shares <= 1).all()):
        raise ValueError(f"{path} is damaged at the contexts of {n} tokens: {REMEDY}")
    return Level(keys.astype(np.int64), tokens.astype(np.int32), shares.astype(np.float16))
