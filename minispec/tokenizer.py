"""Text to ids and back: a tiktoken.Encoding from a checkpoint's own files, and a stream that never breaks a character.

GPT-2's text is UTF-8 bytes, cut into pieces by a pattern; in each piece the pair that was learnt first
is joined, until none is left.

Control tokens such as <|endoftext|> never come out of `encode`: written in a text they are
the characters they are made of. `decode` shows them as their own text; `TextStream` hides end_of_text.

Source: Radford et al. 2019; Sennrich et al. 2016; openai/gpt-2 encoder.py for the pattern.
"""

from __future__ import annotations

import codecs
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np

from minispec.json_file import read_json
from minispec.model_files import is_there
from minispec.vocabulary import read_vocabulary, well_formed

END_OF_TEXT = "<|endoftext|>"

# GPT-2's pattern. ++ never gives back, and \s++$ takes white space at the end at once: both spare
# the engine from stepping back. The last \s needs no +, since one is all that \s+(?!\S) leaves.
SPLIT = r"'(?:[sdmt]|ll|re|ve)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# The engine's stack ends at a million steps of \s+(?!\S), so `encode` cuts long white space itself where the
# pattern would: before its last character. (Python's \s has four characters more than the engine's.)
LONG_SPACE = re.compile(r"[^\S\x1c-\x1f]{1000,}")


class Tokenizer:
    """Text to ids and back.

    Attributes: encoding, the tiktoken.Encoding; n_vocab, how many ids there are; end_of_text, the id that
    ends a text, <|endoftext|> unless the checkpoint says otherwise, or None.
    """

    def __init__(self, ranks: Mapping[bytes, int], control: Mapping[str, int], name: str = "gpt2") -> None:
        """Tokens made of bytes and control tokens, each with its id; all ids are 0 to n_vocab - 1."""
        import tiktoken

        self.encoding: tiktoken.Encoding = tiktoken.Encoding(
            name, pat_str=SPLIT, mergeable_ranks=dict(ranks), special_tokens=dict(control)
        )
        self.n_vocab = len(ranks) + len(control)
        self.end_of_text = control.get(END_OF_TEXT)
        self._bytes = [b""] * self.n_vocab
        for token, i in (*ranks.items(), *((text.encode(), i) for text, i in control.items())):
            self._bytes[i] = token

    def __repr__(self) -> str:
        return f"<Tokenizer {self.encoding.name}, {self.n_vocab} tokens>"

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the bytes of all tokens in order: tables of another vocabulary are known by it."""
        digest = sha256()
        for token in self._bytes:
            digest.update(len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text; it never fails, and no control token comes out, whatever the text says.

        Split surrogate pairs are joined and lone surrogates become U+FFFD, since neither has UTF-8.
        """
        text, start, ids = well_formed(text), 0, list[int]()
        for run in LONG_SPACE.finditer(text):
            if run.end() < len(text):
                ids += self.encoding.encode_ordinary(text[start : run.end() - 1])
                start = run.end() - 1
        return ids + self.encoding.encode_ordinary(text[start:])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; a control token's are its own text. Raises ValueError if there is none."""
        try:
            i = -1 if isinstance(token_id, bool | np.bool_) else operator.index(token_id)
        except TypeError:
            i = -1
        if not 0 <= i < self.n_vocab:
            raise ValueError(f"token id {token_id!r} is not a whole number from 0 to {self.n_vocab - 1}")
        return self._bytes[i]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, [n] -> str, control tokens as their own text, bytes that are no UTF-8 as U+FFFD.

        Raises ValueError naming an id that is out of range, a float or a bool.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder in Hugging Face form. Raises ValueError for missing or damaged files.

    end_of_text is the eos_token_id of config.json where it names a token, else <|endoftext|>.
    """
    tokenizer = Tokenizer(*read_vocabulary(folder), folder.name)
    config = folder / "config.json"
    eos = read_json(config, 1 << 20).get("eos_token_id") if is_there(config) else None
    eos = eos[0] if isinstance(eos, list) and len(eos) == 1 else eos
    if eos is not None and type(eos) is not int:
        raise ValueError(f"{config}: eos_token_id is {eos!r:.80}: it must be one token id, or null")
    if eos is not None and 0 <= eos < tokenizer.n_vocab:  # else the default of another vocabulary's size
        tokenizer.end_of_text = eos
    return tokenizer


def load_tokenizer(name: str | Path, offline: bool = False) -> Tokenizer:
    """The tokenizer of a model by name, or of a folder. Raises ValueError as read_tokenizer does."""
    from minispec.hub import find_model

    return read_tokenizer(name if isinstance(name, Path) else find_model(name, offline))


def check_same_vocabulary(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise ValueError, naming the sizes or the first id that differs, unless all ids mean the same to both."""
    remedy = "take a draft model with the target's vocabulary"
    if target.n_vocab != draft.n_vocab:
        raise ValueError(f"the target has {target.n_vocab} tokens, the draft {draft.n_vocab}: {remedy}")
    for i in range(target.n_vocab):
        ours, theirs = target.token_bytes(i), draft.token_bytes(i)
        if ours != theirs:
            raise ValueError(f"token id {i} is {ours!r} for the target, {theirs!r} for the draft: {remedy}")


def _stop_bytes(texts: Sequence[str]) -> list[bytes]:
    stops = [well_formed(text).encode() for text in ([texts] if isinstance(texts, str) else texts)]
    if b"" in stops:
        raise ValueError("a stop text (--stop) is empty, so text would stop before it starts: leave it out")
    return stops


def stop_rule(tokenizer: Tokenizer, texts: Sequence[str], end_of_text: bool = True) -> Callable[[Sequence[int]], bool]:
    """A pure function of the new ids so far: does generation end after the last of them?

    It does if the last id is end_of_text (unless end_of_text is False), or if a stop text ends inside the
    last token; the stop must start in the new ids, so one that starts in the prompt does not count.
    Raises ValueError for an empty stop text. TextStream with the same stops cuts at that token.
    """
    stops = _stop_bytes(texts)
    reach = max(map(len, stops), default=1) - 1

    def stop_after(ids: Sequence[int]) -> bool:
        if len(ids) == 0 or ids[-1] == tokenizer.end_of_text:
            return len(ids) > 0 and end_of_text
        before, i = b"", len(ids) - 2
        while len(before) < reach and i >= 0:
            if ids[i] != tokenizer.end_of_text:
                before = tokenizer.token_bytes(ids[i]) + before
            i -= 1
        text = before + tokenizer.token_bytes(ids[-1])
        return any(text.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in stops)

    return stop_after


class TextStream:
    """Text of a growing list of ids, each piece as soon as it is certain.

    The pieces together are decode(ids) less end_of_text, which is hidden, cut before the first stop text:
    the one that is complete first, the longest of several that end together. A piece never ends
    inside a character, nor in what could be the beginning of a stop. `stopped` tells that a stop was met.
    Raises ValueError for an empty stop text.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._stops = _stop_bytes(stops)
        self._held = b""  # could be the beginning of a stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Add one id and return the text that is certain now, often "". Raises ValueError as decode does."""
        data = self._tokenizer.token_bytes(token_id)
        if self.stopped or token_id == self._tokenizer.end_of_text:
            return ""
        data = self._held + data
        found = [(at + len(stop), at) for stop in self._stops if (at := data.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, b""
            return self._decoder.decode(data[: min(found)[1]], final=True)
        certain = 0
        while certain < len(data) and not any(stop.startswith(data[certain:]) for stop in self._stops):
            certain += 1
        self._held = data[certain:]
        return self._decoder.decode(data[:certain])

    def flush(self) -> str:
        """The text that was held back, at the end of the ids; half a character becomes U+FFFD."""
        held, self._held = self._held, b""
        return self._decoder.decode(held, final=True)
