"""How long the files are, and so how long it takes to read them: the last two columns of a table of files.

A table between <!-- files --> and <!-- end --> has a row for one file or more, named in its first cell in backquotes,
the later ones by the folder of the first. A folder stands for all its Python files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from blocks import ROOT

A_MINUTE = 25  # lines, docstrings and blank lines among them, for someone who wants to understand them
TABLE = re.compile(r"(?<=<!-- files -->\n\n)(?:\|.*\n)+(?=\n<!-- end -->)")
NAME = re.compile(r"`([^`]+)`")
CLOSE = 20, 0.2  # lines, or a share of them, that a table may be off by before a test says so


def files(cell: str) -> list[Path]:
    """The files that a cell names. Raises ValueError for a name that is none."""
    found: list[Path] = []
    folder = ROOT
    for name in NAME.findall(cell):
        path = next((base / name for base in (folder, ROOT) if (base / name).exists()), None)
        if path is None:
            raise ValueError(f"the table of files names {name!r}, and there is no such file: mend or drop its row")
        folder = path.parent if found or "/" in name else folder
        found += sorted(path.glob("*.py")) if path.is_dir() else [path]
    return found


def n_lines(paths: list[Path]) -> int:
    """The lines of some files together."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def rows(text: str) -> Iterator[tuple[list[Path], int]]:
    """The files of each row of a document's tables, and the lines that the row says they have."""
    for found in TABLE.finditer(text):
        for row in found[0].splitlines()[2:]:
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            if NAME.search(cells[0]):
                yield files(cells[0]), int(cells[2].replace(",", "") or 0)


def refreshed(text: str, path: Path) -> str:
    """A document with its tables of files as the files are; lengths that are nearly right stay as they are."""
    return TABLE.sub(lambda found: _table(found[0]), text)


def _table(text: str) -> str:
    head, rule, *lines = text.splitlines()
    total, made = 0, []
    for line in lines:
        first, what, old, _ = (cell.strip() for cell in line.strip("|").split("|"))
        if not NAME.search(first):
            continue  # the sum
        n = n_lines(files(first))
        n = int(old) if old and is_close(int(old), n) else n
        total += n
        made.append(_row(first, what, n))
    return "\n".join([head, rule, *made, _row("", "together", total)]) + "\n"


def _row(first: str, what: str, n: int) -> str:
    return f"| {first} | {what} | {n} | {math.ceil(n / A_MINUTE)} |"


def is_close(one: int, other: int) -> bool:
    """Whether a length is near enough to another."""
    lines, share = CLOSE
    return abs(one - other) <= max(lines, share * other)


def unnamed(documents: list[Path]) -> list[Path]:
    """The files of the package that no table names."""
    named = {file for document in documents for some, _ in rows(document.read_text(encoding="utf-8")) for file in some}
    return sorted(set((ROOT / "minispec").rglob("*.py")) - named)
