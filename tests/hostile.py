"""For tests of hostile files: a tiny model, a verdict that watches what is opened and taken, ways to break files."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from checkpoints import write_checkpoint
from hypothesis import settings
from hypothesis import strategies as st

from minispec.parameters import GPT2Config
from minispec.vocabulary import byte_letters

T = TypeVar("T")

SMALLEST = GPT2Config(n_layer=1, n_head=1, n_embd=2, n_ctx=3, n_vocab=260, n_inner=3)
PAIRS = ("h e", "l l", "he ll")
THOROUGH = settings().max_examples > 1000  # then time is looked at too
MEMORY = 100_000_000  # bytes beyond the file's size
SECONDS = 1.0  # of the processor, which a busy machine does not change much; the slowest known cases take 0.7
LONGEST_LINE = 900
NAMES = ["config.json", "model.safetensors", "vocab.json", "merges.txt", "tokenizer.json"]  # that a folder may lack


def ids() -> dict[str, int]:
    """The smallest vocabulary: bytes, three pairs, the end of a text."""
    return {token: i for i, token in enumerate([*sorted(byte_letters()), "he", "ll", "hell", "<|endoftext|>"])}


def tokenizer_json() -> dict[str, Any]:
    """The same as a tokenizer.json."""
    return {
        "added_tokens": [{"id": 259, "content": "<|endoftext|>", "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": ids(), "merges": list(PAIRS)},
    }


def write_model(folder: Path, n_shards: int = 1) -> Path:
    """A whole model of a few kilobytes."""
    write_checkpoint(folder, SMALLEST, n_shards=n_shards)
    (folder / "vocab.json").write_text(json.dumps(ids(), ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_bytes("\n".join(["#version: 0.2", *PAIRS, ""]).encode())
    return folder


# --- the verdict -----------------------------------------------------------------------------------

_opened: list[str] | None = None
_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str | bytes | os.PathLike):
        _opened.append(os.fsdecode(arguments[0]))


@contextmanager
def watched() -> Iterator[list[str]]:
    """The paths that Python opens meanwhile, and with one more hook for good those of the whole process."""
    global _opened, _hooked
    if not _hooked:
        sys.addaudithook(_hook)  # there is no way to take it off
        _hooked = True
    paths: list[str] = []
    _opened = paths
    try:
        yield paths
    finally:
        _opened = None


def verdict(load: Callable[[], T], folder: Path, size: int = 0) -> T | str:
    """What a load gives, or the one line it is refused with; nothing else may happen.

    Nothing outside the folder is opened, and memory and (in the thorough profile) time are within their bounds.
    """
    seconds = processor_time(load) if THOROUGH else 0.0
    tracemalloc.start()
    try:
        with watched() as opened:
            try:
                result: T | str = load()
            except ValueError as error:
                result = refusal(error, folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    home = folder.resolve()
    outside = [path for path in opened if not Path(path).resolve().is_relative_to(home)]
    assert all(path.endswith((".py", ".pyc", ".so", ".pyd")) for path in outside), outside  # imports
    assert peak < size + MEMORY
    assert seconds < SECONDS
    return result


def processor_time(load: Callable[[], object]) -> float:
    """Seconds that a load takes, with nothing counted beside it: the less of two, if the first are too many."""
    least = math.inf
    for _ in range(2):
        began = time.process_time()
        with suppress(ValueError):
            load()
        least = min(least, time.process_time() - began)
        if least < SECONDS:
            break
    return least


CHILD = """
import re, sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from minispec.json_file import read_json
from minispec.safetensors_file import read_header
from minispec.vocabulary import read_vocabulary

def peak_kb():  # ru_maxrss would begin with the parent's peak
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

readers = {"header": read_header, "json": partial(read_json, max_bytes=1 << 24), "vocabulary": read_vocabulary}
read = readers[sys.argv[1]]
read(Path(sys.argv[2]))  # imports are not what is measured
before = peak_kb()
with suppress(ValueError):
    read(Path(sys.argv[3]))
print(peak_kb() - before)
"""


def growth(reader: str, small: Path, large: Path) -> int:
    """Bytes by which a process grows that has read a small file and reads a large one, whoever asks for them."""
    command = [sys.executable, "-c", CHILD, reader, str(small), str(large)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(child.stdout) * 1024


def refusal(error: ValueError, folder: Path) -> str:
    """An error's text, which must be one line of plain characters, not too long, that names a file of the folder.

    Where the folder itself is at fault it names the files that should be there, or should not.
    """
    assert type(error) is ValueError, repr(error)
    line = str(error)
    assert line.isprintable(), repr(line)
    assert len(line) < LONGEST_LINE + 3 * len(str(folder)), line
    assert str(folder) in line, line
    told = line.replace(str(folder), "")
    assert any(name in told for name in {*os.listdir(folder), *NAMES}), line
    return line


def broken(path: Path, content: bytes, load: Callable[[], T], *beside: str) -> T | str:
    """The verdict on a load while a file has another content; then it is as before.

    The file is named, or one of those beside it that no longer fits it.
    """
    whole = path.read_bytes()
    path.write_bytes(content)
    try:
        found = verdict(load, path.parent, len(content))
    finally:
        path.write_bytes(whole)
    if isinstance(found, str):
        told = found.replace(str(path.parent), "")
        assert any(name in told for name in (path.name, *beside)), found
    return found


# --- ways to break -----------------------------------------------------------------------------------


class Pairs(list[tuple[str, Any]]):
    """An object of JSON whose keys may be there twice."""


def render(value: Any) -> str:
    """JSON of a value in which objects may be `Pairs`, and raw text `Raw`."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Pairs | dict):
        items = value.items() if isinstance(value, dict) else value
        return "{" + ",".join(f"{json.dumps(key)}:{render(item)}" for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(render, value)) + "]"
    return json.dumps(value)


class Raw:
    """Text that stands in JSON as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Raw({self.text[:40]!r}, {len(self.text)})"


DEEP = [Raw("[" * 100_000), Raw("[" * 900 + "]" * 900), Raw('{"a":' * 200 + "1" + "}" * 200)]
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    10**30,
    1.0,
    0.5,
    1e308,
]
ODD: list[Any] = [
    None,
    True,
    False,
    "",
    "1",
    "\0",
    "\n",
    "é",
    "\ud800",
    "\U0001f917",
    "a" * 5000,
    [],
    [[]],
    {},
    {"a": [1]},
]
WORDS = [Raw("NaN"), Raw("Infinity"), Raw("-0"), Raw("1e400"), Raw("9" * 5000), Raw("01"), Raw("nul"), Raw("'a'")]
junk = st.sampled_from([*NUMBERS, *ODD, *WORDS, *DEEP]) | st.integers() | st.text(max_size=5)

ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252", "utf-7"]


def encoded(text: str, encoding: str) -> bytes:
    """A text in an encoding that may lack some of its characters."""
    return text.encode(encoding, "replace")


PUT_IN = [b"\0", b"\xff", b'"', b"{", b"}", b"[", b",", b"\n", b"9", b"\xef\xbb\xbf"]


@st.composite
def damaged(draw: Any, whole: bytes) -> bytes:
    """A file with bytes changed, cut out, put in, doubled or exchanged."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.sampled_from([1, 1, 2, 8, 100])))
        how = draw(st.sampled_from(["change", "cut", "put", "double", "zero", "end"]))
        if how == "change":
            content[at:end] = draw(st.binary(min_size=end - at, max_size=end - at))
        elif how == "cut":
            del content[at:end]
        elif how == "put":
            content[at:at] = draw(
                st.sampled_from([b"\0", b"\xff", b'"', b"{", b"}", b"[", b",", b"\n", b"9", b"\xef\xbb\xbf"])
            )
        elif how == "double":
            content[at:at] = content[at:end]
        elif how == "zero":
            content[at:end] = bytes(end - at)
        else:
            del content[at:]
    return bytes(content)


@st.composite
def edited(draw: Any, whole: Mapping[str, Any], known: Sequence[str] = ()) -> Pairs:
    """An object with keys changed, taken out, put in and doubled, at any depth. known: keys that may be put in, too."""
    pairs = Pairs((key, value) for key, value in whole.items())
    for _ in range(draw(st.integers(1, 3))):
        how = draw(st.sampled_from(["change", "change", "take", "put", "double", "into"]))
        at = draw(st.integers(0, max(len(pairs) - 1, 0)))
        if how == "put" or not pairs:
            key = st.sampled_from([*known, "", "a", "é", "x" * 300, "\n"]) | st.text(max_size=3)
            pairs.insert(at, (draw(key), draw(junk)))
        elif how == "change":
            pairs[at] = (pairs[at][0], draw(junk))
        elif how == "take":
            del pairs[at]
        elif how == "double":
            pairs.append((pairs[at][0], draw(st.sampled_from([pairs[at][1]]) | junk)))
        elif isinstance(pairs[at][1], dict):
            pairs[at] = (pairs[at][0], draw(edited(pairs[at][1])))
        elif isinstance(pairs[at][1], list) and pairs[at][1]:
            values = list(pairs[at][1])
            values[draw(st.integers(0, len(values) - 1))] = draw(junk)
            pairs[at] = (pairs[at][0], values)
    return pairs


def with_header(header: str | bytes, data: bytes, length: int | None = None) -> bytes:
    """A safetensors file with this header, whatever it may say."""
    text = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data
