"""The examples in the documents: found, run, and compared with what stands beneath them.

A block of `console` holds lines of `$ command`, each with what it prints beneath it; a line of `...` stands for any
lines. A block of `python` is run after those before it in its document; a block of `text` that follows at once is what
it prints. `sh` is for what is not compared.
A comment on the line before a block says what is special about it:

    <!-- not run: why -->        it is left alone
    <!-- slow: why -->           `refresh.py --slow` runs it, the tests do not
    <!-- a file: name -->        it is no example by itself: a test takes it as this file
    <!-- numbers vary -->        its numbers are another machine's: they are not compared
    <!-- exit 2 -->              the status that its commands end with
    <!-- only run -->            a block of `sh` that is run line by line; what it prints does not matter

Speeds and seconds are never compared. Everything else is: so what the pair writes stands here as it writes it.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/*.md")
FENCE = re.compile(r"^(?:<!-- (?P<note>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = "..."
MASK = "#"
SPEEDS = [  # what no two runs agree on
    r"[\d,.]+(?= tokens/s)",
    r"[\d.]+(?= s\b)",
    r"[\d.]+(?= million a second)",
    r"(?<=speed-up )[\d.]+ \([\d.]+ to [\d.]+ over \d+\)",
    r"(?<= %)\s+[\d.]+\s+[\d,.]+$|(?<=n/a)\s+[\d.]+\s+[\d,.]+$",  # the last two columns of compare
]
ADVICE = "why: ", "try: "  # what `compare` adds where speculation happened not to pay


@dataclass(frozen=True)
class Block:
    """A fenced block of a document: where its body stands in the text, and what the comment before it says."""

    path: Path
    line: int
    kind: str
    body: str
    note: str
    start: int

    @property
    def left_out(self) -> bool:
        """Whether the tests do not run it."""
        return (self.kind == "sh" and self.note != "only run") or self.note.startswith(
            ("not run: ", "slow: ", "a file: ")
        )

    @property
    def status(self) -> int:
        """The exit status that is expected."""
        return int(self.note.removeprefix("exit ")) if self.note.startswith("exit ") else 0

    def commands(self) -> list[tuple[str, str]]:
        """Each command with what it should print."""
        if self.kind == "sh":
            return [(line, ANY) for line in self.body.splitlines()]
        parts = re.split(r"^\$ (.*)\n", self.body, flags=re.MULTILINE)
        return list(zip(parts[1::2], parts[2::2], strict=True))

    def same(self, one: str, other: str) -> bool:
        """Whether a run printed what stands there, but for what varies. one: what stands there."""
        return alike(mask(one, self.note == "numbers vary"), mask(other, self.note == "numbers vary"))


def documents() -> list[Path]:
    """The documents, in order."""
    return [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]


def blocks(path: Path) -> Iterator[Block]:
    """All fenced blocks of a document."""
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("body"))
        yield Block(path, line, found["kind"], found["body"], found["note"] or "", found.start("body"))


# --- comparing -------------------------------------------------------------------------------------


def mask(text: str, numbers_vary: bool = False) -> list[str]:
    """The lines of a text without speeds, or without any numbers and the widths of columns that they make."""
    lines = [line.rstrip() for line in text.strip("\n").splitlines() if not line.startswith(ADVICE)]
    if numbers_vary:
        words = (re.sub(r"-?\d[\d,.]*", MASK, line) for line in lines)
        return [re.sub(r" +", " ", re.sub(r"-{2,}", "--", line)) for line in words]
    for speed in SPEEDS:
        lines = [re.sub(speed, MASK, line) for line in lines]
    return lines


def alike(pattern: list[str], lines: list[str]) -> bool:
    """Whether these are the lines, where a line of `...` in the pattern stands for any number of them."""
    if not pattern:
        return not lines
    if pattern[0] == ANY:
        return any(alike(pattern[1:], lines[skip:]) for skip in range(len(lines) + 1))
    return bool(lines) and pattern[0] == lines[0] and alike(pattern[1:], lines[1:])


# --- running ---------------------------------------------------------------------------------------


def run_command(line: str, folder: Path) -> tuple[int, str]:
    """Run a line as a shell would, in this process: exit status, and all that it prints.

    Lines are `minispec ...`, `echo TEXT | minispec ...` and `echo TEXT > FILE`. Raises ValueError for others.
    """
    words, given = shlex.split(line, comments=True), ""
    if words[0] == "echo":
        given, sign, words = words[1] + "\n", words[2], words[3:]
        if sign == ">":
            (folder / words[0]).write_text(given, encoding="utf-8")
            return 0, ""
    if words[0] != "minispec":
        raise ValueError(f"no way to run {line!r} here: mark its block <!-- not run: why -->")
    return _minispec(words[1:], given, folder)


def _minispec(arguments: list[str], given: str, folder: Path) -> tuple[int, str]:
    from minispec.cli import main
    from minispec.commands import shared

    said, stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.TextIOWrapper(io.BytesIO(given.encode()))
    with ExitStack() as around:
        around.enter_context(chdir(folder))
        around.enter_context(redirect_stdout(said))
        around.enter_context(redirect_stderr(said))
        around.enter_context(patch.object(sys, "stdin", stdin))
        around.enter_context(patch.object(shared, "PATIENCE", 60.0))  # on a busy machine nothing is said of loading
        around.enter_context(patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}))
        try:
            main(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
    said.seek(0)
    return status, said.read()


def run_python(code: str, names: dict[str, Any], folder: Path) -> str:
    """Run a block of Python among the names of those before it: what it prints."""
    said = io.StringIO()
    with chdir(folder), redirect_stdout(said):
        exec(compile(code, "<example>", "exec"), names)
    return said.getvalue()
