"""Predicted and measured speed-ups as a picture: a panel for each accept rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minispec.bench_prediction import Predicted
from minispec.plot_file import check_plot_file, save

PANELS_ACROSS = 3


def write_predictions(path: Path, rows: Sequence[Predicted]) -> None:
    """Write a panel for each accept rate: measured speed-ups by draft length, and the curves of two formulas.

    Raises ValueError as write_plot.
    """
    check_plot_file(path)
    from matplotlib.figure import Figure

    panels: dict[str, list[Predicted]] = {}
    for row in rows:
        if row.by_costs is not None:
            panels.setdefault(row.accept, []).append(row)
    n_columns = min(len(panels), PANELS_ACROSS)
    n_lines = -(-len(panels) // n_columns)
    figure = Figure(figsize=(3.2 * n_columns, 2.8 * n_lines), layout="constrained")
    all_axes = figure.subplots(n_lines, n_columns, squeeze=False).ravel()
    for axes in all_axes[len(panels) :]:
        axes.remove()
    for axes, (accept, of_rate) in zip(all_axes, panels.items(), strict=False):
        lengths = [row.num_draft_tokens for row in of_rate]
        axes.plot(lengths, [row.textbook for row in of_rate], "--", color="tab:orange", label="E / (k c + 1)")
        axes.plot(lengths, [row.by_costs for row in of_rate], "-", color="tab:blue", label="E / (k c + v)")
        axes.plot(lengths, [row.measured for row in of_rate], "ko", markersize=4, label="measured")
        axes.axhline(1.0, color="grey", linestyle=":")
        axes.set(title=f"accept rate {accept}", xlabel="draft length k", ylim=(0, None))
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("speed-up")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, path)
