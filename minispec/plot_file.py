"""The curves of `plot` as a picture, PNG or SVG, by matplotlib, which comes with the extra `notebooks`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minispec.plot import Curve
from minispec.whole_file import check_place, write_whole

KINDS = (".png", ".svg")


def check_plot_file(path: Path) -> None:
    """Raise ValueError, before anything is worked out, where no picture could be written."""
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"the plot file is {str(path)!r}: give it a name that ends in {' or '.join(KINDS)}")
    if find_spec("matplotlib") is None:
        raise ValueError("a plot file needs matplotlib: pip install 'minispec[notebooks]', or plot in the terminal")
    check_place(path, "the plot file", "plot.png")


def write_plot(
    path: Path, panels: Mapping[str, Sequence[Curve]], x_name: str, y_name: str, compare: float, legend: str
) -> None:
    """Write panels side by side, with one scale of y: for each its title, and its curves at x = 0, 1, 2, ...

    Raises ValueError as check_plot_file, and for a place that cannot be written to.
    """
    check_plot_file(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(panels), 4.2), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, curves) in zip(all_axes, panels.items(), strict=True):
        for curve in curves:
            axes.plot(range(len(curve.y)), curve.y, label=curve.name)
        axes.axhline(compare, color="grey", linestyle=":")
        axes.set(title=title, xlabel=x_name, xlim=(0, None))
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel(y_name)
    figure.legend(*all_axes[0].get_legend_handles_labels(), title=legend, loc="outside right upper")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """The same curves make the same file."""
    from matplotlib import rc_context

    picture = io.BytesIO()
    kind = path.suffix.lower()[1:]
    with rc_context({"svg.hashsalt": "minispec"}):
        figure.savefig(picture, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    try:
        write_whole(path, picture.getvalue())
    except OSError as error:
        raise ValueError(f"the plot file {path} cannot be written ({error.strerror}): name another place") from None
