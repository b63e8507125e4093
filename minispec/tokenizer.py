"""Vocabulary files to tiktoken.Encoding, and a decoder for streams that knows where to stop.

GPT-2's text is UTF-8 bytes, cut into pieces by a pattern; in each piece the pair that was learnt first
is joined, until none is left. The files write a byte as a printable letter and list one pair a line;
tiktoken wants {bytes: rank}, and joins any neighbours whose sum has a rank. Both give the same ids if
the vocabulary is sound, which `_token_bytes` checks on every load. No other kind of tokenizer is read here.

Control tokens such as <|endoftext|> never come out of `encode`: written in a text they are
the characters they are made of. `decode` shows them as their own text; `TextStream` hides end_of_text.

Source: Radford et al. 2019; Sennrich et al. 2016; openai/gpt-2 encoder.py for the files and the pattern.
"""

from __future__ import annotations

import codecs
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"

# GPT-2's pattern. ++ never gives back, and \s++$ takes white space at the end at once: both spare
# the engine from stepping back. The last \s needs no +, since one is all that \s+(?!\S) leaves.
SPLIT = r"'(?:[sdmt]|ll|re|ve)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# The engine's stack ends at a million steps of \s+(?!\S), so `encode` cuts long white space itself where the
# pattern would: before its last character. (Python's \s has four characters more than the engine's.)
LONG_SPACE = re.compile(r"[^\S\x1c-\x1f]{1000,}")

# What a control token looks like. The pattern above cuts such a text up, so no merge can have made it.
CONTROL = re.compile(r"<.*[A-Za-z].*>|\[.*[A-Za-z].*\]")


def byte_letters() -> list[str]:
    """The letter that stands for each byte, [256]: its own if it prints, else the next from U+0100 on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    free = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(free)) for byte in range(256)]


def well_formed(text: str) -> str:
    """The text with split surrogate pairs joined and lone surrogates as U+FFFD, so that it has UTF-8."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(frozen=True)
class _Vocabulary:
    """What the files say: ids of tokens, pairs in order (the first on line `first_line`), added tokens."""

    path: Path
    merges_path: Path
    first_line: int
    ids: dict[str, int]
    pairs: list[str]
    added: dict[str, int]


def _damaged(path: Path, fault: str) -> ValueError:
    return ValueError(f"{path}: {fault}; the file is damaged or not GPT-2's kind: fetch it again")


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, f"cannot be read ({error})") from None


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) < len(items):
        twice = Counter(key for key, _ in items).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} occurs twice")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"is not sound JSON ({error})") from None
    if not isinstance(value, dict):
        raise _damaged(path, f"holds a {type(value).__name__}, not a JSON object")
    return value


def _read_merges(path: Path) -> tuple[list[str], int]:
    """The pairs of merges.txt and the line of the first; LF or CRLF ends a line, "#version" may be missing."""
    lines = [line.removesuffix("\r") for line in _read_text(path).removesuffix("\n").split("\n")]
    first = 1 if lines[0].startswith("#version") else 0
    return lines[first:], first + 1


def _read_tokenizer_json(path: Path) -> _Vocabulary:
    """The parts of a tokenizer.json; anything in it that GPT-2's does not have is refused by name."""
    whole = _read_json(path)
    parts = whole.get("model"), whole.get("pre_tokenizer")
    model, splitter = (part if isinstance(part, dict) else {} for part in parts)
    for name, value, wanted in (
        ("normalizer", whole.get("normalizer"), None),
        ("pre_tokenizer.type", splitter.get("type"), "ByteLevel"),
        ("pre_tokenizer.add_prefix_space", splitter.get("add_prefix_space"), False),
        ("pre_tokenizer.use_regex", splitter.get("use_regex", True), True),
        ("model.type", model.get("type", "BPE"), "BPE"),
        ("model.dropout", model.get("dropout") or None, None),
        ("model.byte_fallback", model.get("byte_fallback", False), False),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix") or "", ""),
        ("model.end_of_word_suffix", model.get("end_of_word_suffix") or "", ""),
    ):
        if value != wanted:
            raise _damaged(path, f"{name} is {value!r:.80}, not {wanted!r} as GPT-2 has it")
    ids, pairs, added = model.get("vocab"), model.get("merges"), whole.get("added_tokens") or []
    if not isinstance(ids, dict) or not isinstance(pairs, list) or not isinstance(added, list):
        raise _damaged(path, "model.vocab, model.merges or added_tokens is missing or of the wrong type")
    try:
        pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]
        return _Vocabulary(path, path, 1, ids, pairs, {str(token["content"]): token["id"] for token in added})
    except (TypeError, KeyError) as error:
        raise _damaged(path, f"an entry of model.merges or added_tokens is malformed ({error!r})") from None


def _read_vocabulary(folder: Path) -> _Vocabulary | None:
    """What the folder's vocabulary files say, vocab.json + merges.txt first, else None."""
    path, merges_path, single = (folder / name for name in ("vocab.json", "merges.txt", "tokenizer.json"))
    if path.exists() and merges_path.exists():
        pairs, first_line = _read_merges(merges_path)
        more = folder / "added_tokens.json"
        added = _read_json(more) if more.exists() else {}
        return _Vocabulary(path, merges_path, first_line, _read_json(path), pairs, added)
    if single.exists():
        return _read_tokenizer_json(single)
    if path.exists() or merges_path.exists():
        there, missing = (path, merges_path) if path.exists() else (merges_path, path)
        raise ValueError(f"{there} needs {missing.name} beside it, which is missing: fetch both files")
    return None


def _all_ids(vocabulary: _Vocabulary) -> dict[str, int]:
    """Every token with its id, the ids checked to be 0, 1, 2, … with none missing and none doubled."""
    ids = dict(vocabulary.ids)
    for token, added in vocabulary.added.items():
        if ids.setdefault(token, added) != added:
            raise _damaged(vocabulary.path, f"{token!r} has id {ids[token]} but is added as {added!r}")
    seen: dict[int, str] = {}
    for token, i in ids.items():
        if type(i) is not int or i < 0:
            raise _damaged(vocabulary.path, f"{token!r} has the id {i!r}, not a whole number from 0 on")
        if seen.setdefault(i, token) != token:
            raise _damaged(vocabulary.path, f"id {i} is given twice, to {seen[i]!r} and to {token!r}")
    missing = next((i for i in range(len(seen)) if i not in seen), None)
    if missing is not None:
        raise _damaged(vocabulary.path, f"id {missing} is missing")
    return ids


def _joins_across(left: str, right: str, ids: dict[str, int], halves: dict[str, tuple[str, str]]) -> bool:
    """Whether joining the bytes of left + right in order of ids crosses the seam before both are whole.

    Takes the two tokens at the seam apart, the later join first (of equal ones the right, since joins go
    from left to right), and asks each time whether the seam itself would have been joined before that.
    """
    left_id, right_id = ids[left], ids[right]
    while left in halves or right in halves:
        if left_id > right_id:
            limit, left = left_id, halves[left][1]
            left_id = ids[left]
        else:
            limit, right = right_id + 1, halves[right][0]
            right_id = ids[right]
        if ids.get(left + right, limit) < limit:
            return True
    return False


def _token_bytes(vocabulary: _Vocabulary, ids: dict[str, int]) -> dict[str, bytes]:
    """Letters -> bytes of all tokens made of bytes, if tiktoken's merging equals that of the pairs.

    That is so if ids ascend from the bytes along the pairs, and if no token's bytes can come together
    in another way than by its own pair. Raises ValueError naming file, line and fault.
    """
    made = {letter: bytes([byte]) for byte, letter in enumerate(byte_letters())}
    lacking = [letter for letter in made if letter not in ids]
    if lacking:
        raise _damaged(vocabulary.path, f"the byte written {lacking[0]!r} has no token")
    halves: dict[str, tuple[str, str]] = {}
    last = max(ids[letter] for letter in made)
    for line, pair in enumerate(vocabulary.pairs, vocabulary.first_line):
        left, _, right = pair.partition(" ")
        token = left + right
        if left not in made or right not in made:
            fault = "is not two tokens that come before it"
        elif token not in ids:
            fault = f"makes {token!r}, which {vocabulary.path.name} lacks"
        elif (i := ids[token]) <= last:
            fault = f"makes {token!r} with id {i}, out of order after id {last}"
        elif _joins_across(left, right, ids, halves):
            fault = "cannot happen, since pairs before it join its bytes in another way"
        else:
            made[token], halves[token], last = made[left] + made[right], (left, right), i
            continue
        raise _damaged(vocabulary.merges_path, f"pair {pair!r:.80} on line {line} {fault}")
    return made


class Tokenizer:
    """Text to ids and back.

    Attributes: encoding, the tiktoken.Encoding; n_vocab, how many ids there are; end_of_text, the id of
    <|endoftext|>, or None.
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
            i = -1 if isinstance(token_id, bool) else operator.index(token_id)
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
    """The tokenizer of a folder in Hugging Face form. Raises ValueError for missing or damaged files."""
    vocabulary = _read_vocabulary(folder)
    if vocabulary is None:
        raise ValueError(
            f"{folder}: neither vocab.json + merges.txt nor tokenizer.json is there: give a folder with them"
        )
    ids = _all_ids(vocabulary)
    made = _token_bytes(vocabulary, ids)
    control = {token: i for token, i in ids.items() if token not in made}
    for token, i in control.items():
        if not token or token != well_formed(token):
            raise _damaged(vocabulary.path, f"token {token!r} (id {i}) is empty or no Unicode text")
        if token not in vocabulary.added and not CONTROL.fullmatch(token):
            fault = f"no pair makes token {token!r} (id {i}) of {vocabulary.path.name}"
            raise _damaged(vocabulary.merges_path, fault)
    return Tokenizer({made[token]: ids[token] for token in made}, control, folder.name)


def load_tokenizer(name: str | Path, offline: bool = False) -> Tokenizer:
    """The tokenizer of a model by name, or of a folder. Raises ValueError as read_tokenizer does."""
    from minispec.hub import find_model

    return read_tokenizer(name if isinstance(name, Path) else find_model(name, offline))


def count_tokens(folder: Path) -> int | None:
    """How many token ids the folder's vocabulary has, None if it has no vocabulary. Raises ValueError."""
    vocabulary = _read_vocabulary(folder)
    return None if vocabulary is None else len(_all_ids(vocabulary))


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
        raise ValueError("a stop text is empty, so text would stop before it starts: leave it out")
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
