"""A question about speculation, its answer by one or two views of costs, and that as JSON, CSV or curves.

With measured costs there are two views: the textbook's, which shares their cost of a guess, and the whole of them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minispec.plot import Curve
from minispec.theory import (
    MOST_DRAFT,
    Memory,
    PassCosts,
    Prediction,
    Textbook,
    expected_tokens,
    kept_share,
    predict,
    reply_seconds,
    speedup,
)

CURVE_ROWS = 16  # of a measured curve that are printed
SHORT_PLOT = 16  # the least draft length at the right end of a plot
CELL = ("accept", "num_draft_tokens", "expected_tokens", "kept_share")


@dataclass(frozen=True)
class Question:
    """Accept rates, from high to low, and draft lengths; what a pass costs, and what else is asked.

    target_ms: a target pass over one row, None where only ratios are known. measured: costs of a real pair, or None.
    memory: name, kind of weights and memory of the target, and of the draft if there is one.
    """

    accepts: Sequence[float]
    lengths: Sequence[int]
    guess: float
    target_ms: float | None
    max_new_tokens: int
    measured: PassCosts | None
    memory: Sequence[tuple[str, str, Memory]]
    most: int = MOST_DRAFT

    @property
    def views(self) -> dict[str, PassCosts]:
        """The costs by where they come from."""
        textbook: dict[str, PassCosts] = {"textbook": Textbook(self.guess)}
        return textbook if self.measured is None else textbook | {"measured": self.measured}

    @property
    def single(self) -> bool:
        """Whether there is one accept rate and one draft length."""
        return len(self.accepts) == len(self.lengths) == 1


Predictions = Mapping[str, Mapping[tuple[float, int], Prediction]]  # by view, then by accept rate and draft length


def answer(question: Question) -> Predictions:
    """All predictions, by every view."""
    q = question
    return {name: predict(q.accepts, q.lengths, costs, q.most) for name, costs in q.views.items()}


def seconds_of(question: Question, speed: float) -> float | None:
    """Seconds for the reply at a speed-up, or None where no pass has a time."""
    ms = question.target_ms
    return None if ms is None else reply_seconds(question.max_new_tokens, ms / 1e3, speed)


# --- for programs ------------------------------------------------------------------------------------


def as_dict(question: Question) -> dict[str, Any]:
    """The object of `--json`: the answer itself if there is only one, and `cells`, one for each pair, in any case.

    The textbook's figures stand in a cell itself; those with measured costs have the same names, in `measured`.
    """
    q, found = question, answer(question)
    cells = []
    for key in found["textbook"]:
        first = dict(zip(CELL, (*key, expected_tokens(*key), kept_share(*key)), strict=True))
        views = {name: asdict(all_of[key]) | _seconds(q, all_of[key]) for name, all_of in found.items()}
        cells.append(first | views.pop("textbook") | views)
    target_ms, costs = q.target_ms, q.measured
    return (cells[0] if q.single else {}) | {
        "target_ms": target_ms,
        "draft_ms": None if target_ms is None else target_ms * q.guess,
        "cost_ratio": q.guess,
        "max_new_tokens": q.max_new_tokens,
        "plain_seconds": seconds_of(q, 1.0),
        "most_draft_tokens": q.most,
        "cells": cells,
        "curve": None if costs is None else [{"rows": n, "v": costs.curve(n)} for n in range(1, CURVE_ROWS + 1)],
        "reread": None if costs is None else costs.reread,
        "first": None if costs is None else costs.first,
        "memory": [{"model": name, "weights": kind} | asdict(held) for name, kind, held in q.memory],
    }


def _seconds(question: Question, prediction: Prediction) -> dict[str, float | None]:
    return {"seconds": seconds_of(question, prediction.speedup)}


def as_json(question: Question) -> str:
    """One JSON object in one line."""
    return json.dumps(as_dict(question))


def as_csv(question: Question) -> str:
    """A line for every accept rate and draft length; columns of measured costs have that word before their names."""
    lines = []
    for cell in as_dict(question)["cells"]:
        measured = cell.pop("measured", {})
        lines.append(cell | {f"measured_{name}": value for name, value in measured.items()})
    out = io.StringIO()
    writer = csv.DictWriter(out, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue().rstrip("\n")


def panels(question: Question) -> dict[str, list[Curve]]:
    """For each view a curve for each accept rate: speed-up at draft lengths from 0 on."""
    last = max(SHORT_PLOT, *question.lengths)
    return {
        name: [
            Curve(f"{accept:g}", [speedup(accept, n_draft, costs) for n_draft in range(last + 1)])
            for accept in question.accepts
        ]
        for name, costs in question.views.items()
    }
