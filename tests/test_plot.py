"""Plots: the dots are where the values are, names stand beside their curves, a file is a picture or one clear line."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minispec.plot import HEIGHT, MOST_CURVES, Curve, can_show, draw, nice_ticks, value_range
from minispec.plot_file import check_plot_file, write_plot

BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # Unicode's numbering of the dots of braille
values = st.floats(-1e3, 1e3).map(lambda y: round(y, 3))


def dots(text: str) -> set[tuple[int, int]]:
    """(column, row) of every dot of braille in the lines of the plotting area, from its upper left."""
    found = set()
    for row, line in enumerate(text.splitlines()[1 : HEIGHT + 1]):
        start = min(line.index(axis) for axis in "┤│" if axis in line) + 1
        for column, letter in enumerate(line[start:]):
            bits = ord(letter) - 0x2800
            for y in range(4) if 0 < bits < 256 else ():
                found |= {(2 * column + x, 4 * row + y) for x in range(2) if bits & BITS[y][x]}
    return found


def test_a_plain_plot_letter_by_letter() -> None:
    text = draw([Curve("up", [0, 1, 2, 3]), Curve("down", [3, 0, 0, 0])], "x", "y", 40, plain=True, compare=2.25)
    assert text.splitlines() == [
        "y",
        "3 +b                          aa a up",
        "  | bb                      aa",
        "  |  b                    aa",
        "  |  bb                  a",
        "  |- -b- - - - - - - - aa- - - -",
        "2 +   b              aa",
        "  |    bb          aa",
        "  |     b         a",
        "  |     bb      aa",
        "  |      b    aa",
        "1 +      bb aa",
        "  |       ba",
        "  |      ab",
        "  |    aa  bb",
        "  |  aa     b",
        "0 +aa       bbbbbbbbbbbbbbbbbbbb b down",
        "  ++------------------+---------",
        "   0                  2",
        "                 x",
    ]


@given(st.lists(values, min_size=2, max_size=40), st.integers(20, 140))
def test_dots_are_where_the_values_are(y: list[float], width: int) -> None:
    """Each value has a dot at most one dot from its place, and each dot lies between the values beside it."""
    text = draw([Curve("it", y)], "x", "y", width)
    found = dots(text)
    ticks = nice_ticks(*value_range([Curve("it", y)]), HEIGHT // 3)
    low, high = ticks[0], ticks[-1]
    n_columns = 2 * (len(text.splitlines()[HEIGHT + 1].split("└")[1]))
    assert {x for x, _ in found} == set(range(n_columns))

    def row(value: float) -> float:
        return (high - value) / (high - low) * 4 * HEIGHT

    for x, dot in found:
        i = x / (n_columns - 1) * (len(y) - 1)
        near = y[max(0, math.floor(i - (len(y) - 1) / n_columns)) : math.ceil(i + (len(y) - 1) / n_columns) + 1]
        assert row(max(near)) - 2 <= dot <= row(min(near)) + 1
    for x, value in ((0, y[0]), (n_columns - 1, y[-1])):
        assert any(column == x and abs(dot + 0.5 - row(value)) <= 1.5 for column, dot in found)
    assert max(map(len, text.splitlines())) <= max(40, min(width, 100))


@given(st.lists(st.lists(values, min_size=5, max_size=5), min_size=1, max_size=MOST_CURVES), st.booleans())
def test_every_curve_is_named_once_in_the_order_of_their_ends(ys: list[list[float]], plain: bool) -> None:
    curves = [Curve(f"<{i}>", y) for i, y in enumerate(ys)]
    text = draw(curves, "x", "y", 60, plain)
    ends = [next(c for c in curves if line.endswith(c.name)) for line in text.splitlines() if line.endswith(">")]
    assert sorted(curve.name for curve in ends) == sorted(curve.name for curve in curves)
    low, high = value_range(curves)
    for above, below in pairwise(ends):
        assert above.y[-1] >= below.y[-1] - (high - low) / 8  # in one line of text they may stand either way
    assert plain is text.isascii()


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e6), st.integers(2, 10))
def test_ticks_are_round_and_cover_the_range(place: float, span: float, most: int) -> None:
    low = place * span
    ticks = nice_ticks(low, low + span, most)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step
    assert ticks[-1] >= low + span - 1e-6 * step
    assert 2 <= len(ticks) <= most + 2
    assert ticks[0] > low - 1.001 * step
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5, 10)


def test_a_flat_curve_has_room_above_and_below() -> None:
    text = draw([Curve("it", [2.0, 2.0])], "x", "y")
    assert "1.6" in text
    assert "2.4" in text


def test_which_encodings_show_it() -> None:
    assert can_show("utf-8")
    assert can_show("utf-16")
    for encoding in ("ascii", "latin-1", "cp437", "cp1252", "no-such-encoding", None):
        assert not can_show(encoding)


@pytest.mark.parametrize("n", [0, MOST_CURVES + 1])
def test_too_many_curves_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"{n} curves are to be drawn: give 1 to {MOST_CURVES}"):
        draw([Curve("it", [0, 1])] * n, "x", "y")


# --- files -------------------------------------------------------------------------------------------


PANELS = {"one": [Curve("0.5", [1, 1.2, 1.1])], "other": [Curve("0.5", [1, 1.1, 1.0])]}


@pytest.mark.parametrize(("name", "head"), [("it.png", b"\x89PNG"), ("it.SVG", b"<?xml")])
def test_a_file_is_a_picture_and_the_same_each_time(tmp_path: Path, name: str, head: bytes) -> None:
    pytest.importorskip("matplotlib")
    pictures = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_plot(tmp_path / folder / name, PANELS, "x", "y", 1.0, "legend")
        pictures.append((tmp_path / folder / name).read_bytes())
    assert pictures[0].startswith(head)
    assert len(pictures[0]) > 3000
    same = pictures[0] == pictures[1]
    assert same


def test_files_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"is 'it.pdf': give it a name that ends in .png or .svg"):
        check_plot_file(Path("it.pdf"))
    monkeypatch.setattr("minispec.plot_file.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"needs matplotlib: pip install 'minispec\[notebooks\]'"):
        check_plot_file(tmp_path / "it.png")
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere: make it first"):
        check_plot_file(tmp_path / "nowhere" / "it.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match=r"folder.png is a folder: name a file in it"):
        write_plot(tmp_path / "folder.png", PANELS, "x", "y", 1.0, "legend")
