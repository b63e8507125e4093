"""Vocabulary files to the bytes of every token, checked.

The files write a byte as a printable letter and list the pairs to join, one a line, in the order in which
they were learnt. tiktoken wants {bytes: rank} and joins any neighbours whose sum has a rank. Both give the
same ids if the vocabulary is sound, which is checked here on every load, pair by pair.

Source: Radford et al. 2019; openai/gpt-2 encoder.py for the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minispec.json_file import read_json
from minispec.model_files import is_there, read_text

MOST_BYTES = 1 << 24  # of a vocabulary file, many times the size of GPT-2's
MOST_TOKENS = 120_000  # more than twice as many as GPT-2's: to check them takes most of a second and of 100 MB
MOST_LETTERS = 1 << 21  # of all pairs, six times as many as GPT-2's have
MOST_IN_TOKEN = 512  # letters of a token; GPT-2's longest has 128

# What a control token looks like. GPT-2's pattern cuts such a text up, so no merge can have made it.
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
    added_path: Path
    first_line: int
    ids: dict[str, int]
    pairs: list[str]
    added: dict[str, int]

    def path_of(self, token: str) -> Path:
        """The file that a token's id is from: an added one may be in both, with one id."""
        return self.path if token in self.ids else self.added_path


def _damaged(path: Path, fault: str) -> ValueError:
    return ValueError(f"{path}: {fault}; the file is damaged or not GPT-2's kind: fetch it again")


def _read_text(path: Path) -> str:
    try:
        return read_text(path, MOST_BYTES, "\n")
    except (OSError, ValueError) as error:
        raise _damaged(path, f"cannot be read ({error})") from None


def _read_merges(path: Path) -> tuple[list[str], int]:
    """The pairs of merges.txt and the line of the first; LF or CRLF ends a line, "#version" may be missing."""
    lines = [line.removesuffix("\r") for line in _read_text(path).removesuffix("\n").split("\n")]
    first = 1 if lines[0].startswith("#version") else 0
    return lines[first:], first + 1


def _read_tokenizer_json(path: Path) -> _Vocabulary:
    """The parts of a tokenizer.json; anything in it that GPT-2's does not have is refused by name."""
    whole = read_json(path, MOST_BYTES)
    parts = whole.get("model"), whole.get("pre_tokenizer")
    model, splitter = (part if isinstance(part, dict) else {} for part in parts)
    last = whole.get("post_processor") or {"type": "ByteLevel"}
    for name, value, wanted in (
        ("normalizer", whole.get("normalizer"), None),
        ("pre_tokenizer.type", splitter.get("type"), "ByteLevel"),
        ("pre_tokenizer.add_prefix_space", splitter.get("add_prefix_space"), False),
        ("pre_tokenizer.use_regex", splitter.get("use_regex", True), True),
        ("post_processor.type", last.get("type", "ByteLevel") if isinstance(last, dict) else last, "ByteLevel"),
        ("truncation", whole.get("truncation"), None),
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
    return _Vocabulary(path, path, path, 1, ids, [_pair(path, pair) for pair in pairs], _added(path, added))


def _pair(path: Path, pair: object) -> str:
    """A pair as merges.txt has it: tokenizer.json may also give its halves in a list."""
    if isinstance(pair, list) and len(pair) == 2 and all(isinstance(half, str) for half in pair):
        return " ".join(pair)
    if not isinstance(pair, str):
        raise _damaged(path, f"the entry {pair!r:.80} of model.merges is malformed")
    return pair


def _added(path: Path, entries: list[Any]) -> dict[str, int]:
    """Ids of the added tokens of a tokenizer.json; whether they are whole numbers is asked with all the others."""
    added: dict[str, Any] = {}
    for entry in entries:
        content, i = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(content, str) or added.setdefault(content, i) is not i:
            raise _damaged(path, f"the entry {entry!r:.80} of added_tokens is malformed, or there twice")
    return added


def _read_vocabulary(folder: Path) -> _Vocabulary | None:
    """What the folder's vocabulary files say, vocab.json + merges.txt first, else None."""
    path, merges_path, single = (folder / name for name in ("vocab.json", "merges.txt", "tokenizer.json"))
    settings_path = folder / "tokenizer_config.json"
    settings = read_json(settings_path, MOST_BYTES) if is_there(settings_path) else {}
    for name in ("add_prefix_space", "add_bos_token", "add_eos_token"):
        if settings.get(name):
            raise ValueError(f"{settings_path}: {name} is {settings[name]!r:.80}: only GPT-2's false is supported")
    if path.exists() and merges_path.exists():
        pairs, first_line = _read_merges(merges_path)
        more = folder / "added_tokens.json"
        added = read_json(more, MOST_BYTES) if is_there(more) else {}
        return _Vocabulary(path, merges_path, more, first_line, read_json(path, MOST_BYTES), pairs, added)
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
            fault = f"{token!r:.80} has id {ids[token]!r:.80} but is added as {added!r:.80}"
            raise _damaged(vocabulary.added_path, fault)
    if len(ids) > MOST_TOKENS:
        path = vocabulary.path if len(vocabulary.ids) > MOST_TOKENS else vocabulary.added_path
        raise _damaged(path, f"{len(ids)} tokens are more than the {MOST_TOKENS} that are checked")
    seen: dict[int, str] = {}
    for token, i in ids.items():
        if type(i) is not int or i < 0:
            fault = f"{token!r:.80} has the id {i!r:.80}, not a whole number from 0 on"
            raise _damaged(vocabulary.path_of(token), fault)
        if seen.setdefault(i, token) != token:
            fault = f"id {i!r:.80} is given twice, to {seen[i]!r:.80} and to {token!r:.80}"
            raise _damaged(vocabulary.path_of(token), fault)
    missing = next((i for i in range(len(seen)) if i not in seen), None)
    if missing is not None:  # one after all of the vocabulary's own is the added tokens' fault
        path = vocabulary.path if missing < len(vocabulary.ids) else vocabulary.added_path
        raise _damaged(path, f"id {missing} is missing")
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
        raise _damaged(vocabulary.path, f"the byte written {lacking[0]!r:.80} has no token")
    longest, n_letters = max(map(len, vocabulary.pairs), default=0), sum(map(len, vocabulary.pairs))
    if longest > MOST_IN_TOKEN + 1 or n_letters > MOST_LETTERS:
        limits = f"more than {MOST_IN_TOKEN} in one and {MOST_LETTERS} in all are not checked"
        raise _damaged(vocabulary.merges_path, f"pairs of up to {longest} letters, {n_letters} in all: {limits}")
    halves: dict[str, tuple[str, str]] = {}
    last = max(ids[letter] for letter in made)
    for line, pair in enumerate(vocabulary.pairs, vocabulary.first_line):
        left, _, right = pair.partition(" ")
        token = left + right
        if left not in made or right not in made:
            fault = "is not two tokens that come before it"
        elif token not in ids:
            fault = f"makes {token!r:.80}, which {vocabulary.path.name} lacks"
        elif (i := ids[token]) <= last:
            fault = f"makes {token!r:.80} with id {i}, out of order after id {last}"
        elif _joins_across(left, right, ids, halves):
            fault = "cannot happen, since pairs before it join its bytes in another way"
        else:
            made[token], halves[token], last = made[left] + made[right], (left, right), i
            continue
        raise _damaged(vocabulary.merges_path, f"pair {pair!r:.80} on line {line} {fault}")
    return made


def read_vocabulary(folder: Path) -> tuple[dict[bytes, int], dict[str, int]]:
    """Ids of tokens by their bytes, and of control tokens by their text, from a folder in Hugging Face form.

    Raises ValueError for missing or damaged files.
    """
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
            raise _damaged(vocabulary.path_of(token), f"token {token!r:.80} (id {i}) is empty or no Unicode text")
        if token not in vocabulary.added and not CONTROL.fullmatch(token):
            fault = f"no pair makes token {token!r:.80} (id {i}) of {vocabulary.path.name}"
            raise _damaged(vocabulary.merges_path, fault)
    return {made[token]: ids[token] for token in made}, control


def count_tokens(folder: Path) -> int | None:
    """How many token ids the folder's vocabulary has, None if it has no vocabulary. Raises ValueError."""
    vocabulary = _read_vocabulary(folder)
    return None if vocabulary is None else len(_all_ids(vocabulary))
