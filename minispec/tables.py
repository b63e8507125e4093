"""Tables in Markdown, wide enough for what they hold: what every report is printed with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of a table: its head, the field of a row that it shows, and how."""

    head: str
    field: str
    show: Callable[[Any], str] = str


def two_places(ratio: float | None) -> str:
    """A ratio to two places."""
    return "n/a" if ratio is None else f"{ratio:.2f}"


def table(columns: Sequence[Column], rows: Sequence[Any]) -> list[str]:
    """The lines of a table with a row of fields for each of `rows`; figures stand to the right, words to the left."""
    cells = [[column.show(getattr(row, column.field)) for column in columns] for row in rows]
    words = [isinstance(getattr(rows[0], column.field), str) for column in columns]
    return markdown([column.head for column in columns], cells, words)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[bool] | None = None) -> list[str]:
    """The lines of a table whose columns stand to the right, but for those of words."""
    words = [False] * len(head) if words is None else words
    widths = [max(3, *(len(line[i]) for line in (head, *rows))) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(cells, widths, words, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    dashes = ["-" * (width - 1) for width in widths]
    rule = [f":{some}" if left else f"{some}:" for some, left in zip(dashes, words, strict=True)]
    return [line(head), line(rule), *map(line, rows)]
