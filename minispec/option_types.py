"""The kinds of numbers that options take: one, several with commas between them, and limits to them."""

from __future__ import annotations

import math
from typing import Any

import click

from minispec.settings import AUTO


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.3 on
    """A finite float, or an integer, within limits."""

    def __init__(self, kind: type[int] | type[float], low: float = 0, high: float = math.inf) -> None:
        self.kind, self.low, self.high = kind, low, high
        self.name = "integer" if kind is int else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = self.kind(value)
        except ValueError:
            number = None
        if number is None or (self.kind is float and not math.isfinite(number)) or not self.low <= number <= self.high:
            limits = f"{self.low} or more" if self.high == math.inf else f"from {self.low} to {self.high}"
            kind = "an integer" if self.kind is int else "a number"
            self.fail(f"{value!r} cannot be used: give {kind}, {limits}", param, ctx)
        return number


class DraftTokens(Number):
    """A draft length, or the word for one that chooses itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == AUTO:
            return value
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} cannot be used: give an integer, 0 or more, or {AUTO}", param, ctx)


class Numbers(Number):
    """Numbers with commas between them, each once, in order; integers, unless another kind is asked for."""

    def __init__(self, low: float = 0, high: float = math.inf, kind: type[int] | type[float] = int) -> None:
        super().__init__(kind, low, high)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        words = value.split(",") if isinstance(value, str) else value
        return tuple(sorted({super(Numbers, self).convert(word, param, ctx) for word in words}))


class Widths(Number):
    """The widths of a tree, depth by depth, with commas between them, or the word for one that is chosen."""

    def __init__(self) -> None:
        super().__init__(int, 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == AUTO:
            return value
        words = value.split(",") if isinstance(value, str) else value
        return tuple(super(Widths, self).convert(word, param, ctx) for word in words)
