"""Curves as text for a terminal: axes, a line of comparison, and each curve's name at its right end.

Braille letters have 2 x 4 dots, so a plot of 60 x 16 letters has 120 x 64. Where they cannot be shown, every letter is
one dot, and a curve is drawn with a letter that its name begins with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HEIGHT = 16  # letters
MOST_CURVES = HEIGHT  # each has a name in a line of its own
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # of curves in plain plots
NARROW, WIDE = 40, 100  # letters
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # the bit of a dot, by row and column
_BLANK = 0x2800
_LINES = {"corner": "└", "across": "─", "up": "│", "tick": "┬", "mark": "┤", "compare": "·"}
_PLAIN_LINES = {"corner": "+", "across": "-", "up": "|", "tick": "+", "mark": "+", "compare": "-"}


@dataclass(frozen=True)
class Curve:
    """y at x = 0, 1, 2, ... and what it is called."""

    name: str
    y: Sequence[float]


def can_show(encoding: str | None) -> bool:
    """Whether an encoding has the letters of a plot that is not plain ASCII."""
    try:
        (chr(_BLANK) + "".join(_LINES.values())).encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def draw(
    curves: Sequence[Curve],
    x_name: str,
    y_name: str,
    width: int = 80,
    plain: bool = False,
    compare: float | None = None,
    y_range: tuple[float, float] | None = None,
) -> str:
    """Curves of the same length, 2 points or more, in lines of up to `width` letters, between 40 and 100.

    compare: a height at which a faint line is drawn. y_range: the least and the greatest y, of all curves by default.
    Raises ValueError for more curves than there are lines to name them in.
    """
    if not 1 <= len(curves) <= MOST_CURVES:
        raise ValueError(f"{len(curves)} curves are to be drawn: give 1 to {MOST_CURVES}")
    ticks = nice_ticks(*(y_range or value_range(curves)), HEIGHT // 3)
    low, high = ticks[0], ticks[-1]
    labels = [f"{tick:g}" for tick in ticks]
    names = [f"{LETTERS[i]} {curve.name}" if plain else curve.name for i, curve in enumerate(curves)]
    margin = max(map(len, labels))
    n_columns = min(max(width, NARROW), WIDE) - margin - 3 - max(map(len, names)) - 1
    lines = _PLAIN_LINES if plain else _LINES

    def row_of(y: float) -> int:
        return min(int((high - y) / (high - low) * HEIGHT), HEIGHT - 1)

    area = [[" "] * n_columns for _ in range(HEIGHT)]
    if compare is not None and low <= compare <= high:
        area[row_of(compare)] = [lines["compare"] if column % 2 == 0 else " " for column in range(n_columns)]
    _draw_curves(area, curves, (low, high), plain)
    marks = {row_of(tick): label for tick, label in zip(ticks, labels, strict=True)}
    named = _spread([row_of(curve.y[-1]) for curve in curves], names)
    text = [y_name]
    for row, letters in enumerate(area):
        axis = lines["mark"] if row in marks else lines["up"]
        text.append(f"{marks.get(row, ''):>{margin}} {axis}{''.join(letters)} {named.get(row, '')}".rstrip())
    return "\n".join([*text, *_x_axis(len(curves[0].y) - 1, n_columns, margin, lines, x_name)])


def value_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """The least and the greatest y of all curves."""
    values = [y for curve in curves for y in curve.y]
    return min(values), max(values)


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Up to most + 2 round numbers, evenly spaced, the first not above low and the last not below high."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, last + 1)]


def _draw_curves(area: list[list[str]], curves: Sequence[Curve], limits: tuple[float, float], plain: bool) -> None:
    """Write curves into an area [HEIGHT, n_columns]: as dots of braille, or each with a letter of its own."""
    across, down = (1, 1) if plain else (2, 4)
    n_x, n_y, (low, high) = across * len(area[0]), down * HEIGHT, limits
    for letter, curve in zip(LETTERS, curves, strict=False):
        before = None
        for x in range(n_x):
            y = _interpolate(curve.y, x / (n_x - 1) * (len(curve.y) - 1))
            dot = min(max(int((high - y) / (high - low) * n_y), 0), n_y - 1)
            # a steep piece goes down or up all the way from where the one before it ended
            first, last = (dot, dot) if before is None or abs(dot - before) < 2 else sorted((dot, before))
            before = dot
            for y_dot in range(first, last + 1):
                row, column = y_dot // down, x // across
                if plain:
                    area[row][column] = letter
                else:
                    old = ord(area[row][column])
                    bits = old - _BLANK if old >= _BLANK else 0
                    area[row][column] = chr(_BLANK + (bits | _BRAILLE[y_dot % down][x % across]))


def _interpolate(y: Sequence[float], place: float) -> float:
    i = min(int(place), len(y) - 2)
    return y[i] + (place - i) * (y[i + 1] - y[i])


def _spread(rows: Sequence[int], names: Sequence[str]) -> dict[int, str]:
    """Names near their rows, each in a row of its own and in the order of the rows."""
    order = sorted(range(len(rows)), key=lambda i: rows[i])
    places: list[int] = []
    for i in order:  # down, where one is taken
        places.append(max(rows[i], places[-1] + 1 if places else 0))
    limit = HEIGHT - 1
    for n in reversed(range(len(places))):  # and up again from the floor
        places[n] = limit = min(places[n], limit)
        limit -= 1
    return {place: names[i] for place, i in zip(places, order, strict=True)}


def _x_axis(last: int, n_columns: int, margin: int, lines: dict[str, str], name: str) -> list[str]:
    """The axis with its marks, the numbers below them, and the axis' name."""
    ticks = [int(tick) for tick in nice_ticks(0, last, max(2, n_columns // 10)) if tick <= last and tick == int(tick)]
    axis, numbers = [lines["across"]] * n_columns, [" "] * (n_columns + 12)
    for tick in ticks:
        column = round(tick / last * (n_columns - 1))
        axis[column] = lines["tick"]
        for i, digit in enumerate(str(tick)):
            numbers[column + i] = digit
    indent = " " * (margin + 1)
    return [
        f"{indent}{lines['corner']}{''.join(axis)}",
        f"{indent} {''.join(numbers).rstrip()}",
        f"{indent} {name:^{n_columns}}".rstrip(),
    ]
