"""Would drafting while checking pay? `event_simulation` as a table, as JSON and CSV, and as a picture of a run.

A table has the best draft length of each schedule and what it gains over plain decoding, by accept rate, and by how
much drafter and target slow each other down. One accept rate and one draft length are also simulated and drawn.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minispec.event_simulation import PRE, Run, overlapped_speedup, simulate_schedule
from minispec.tables import markdown
from minispec.theory import PassCosts, speedup

N_TOKENS = 20_000  # of a simulation
SHOWN = 5.0  # target passes of it that are drawn
DRAWN = ("sequential", "overlapped")
LEGEND = (
    "(rows of the target's pass, guesses of the draft; x: a round that threw guesses away unjudged; tokens written)"
)


@dataclass(frozen=True)
class Overlap:
    """Accept rates, from high to low; the draft lengths that may be chosen; interferences; what passes cost."""

    accepts: Sequence[float]
    lengths: Sequence[int]
    interferences: Sequence[float]
    costs: PassCosts
    source: str  # of the costs, in words

    @property
    def single(self) -> bool:
        """Whether there is one accept rate and one draft length."""
        return len(self.accepts) == len(self.lengths) == 1

    def simulated(self, schedule: str, interference: float) -> Run:
        """A run of the only accept rate and draft length."""
        (accept,), (n_draft,) = self.accepts, self.lengths
        return simulate_schedule(schedule, accept, n_draft, self.costs, interference=interference, n_tokens=N_TOKENS)


def best(speeds: dict[int, float]) -> tuple[int, float]:
    """The draft length with the highest speed-up, the first of equals, and that speed-up."""
    length = max(speeds, key=lambda n_draft: speeds[n_draft])
    return length, speeds[length]


def sequentially(question: Overlap, accept: float) -> tuple[int, float]:
    """The best draft length where each waits for the other, and its speed-up."""
    return best({k: speedup(accept, k, question.costs) for k in question.lengths})


def beside(question: Overlap, accept: float, interference: float) -> tuple[int, float]:
    """The best draft length where both work at once, and its speed-up."""
    return best({k: overlapped_speedup(accept, k, question.costs, interference) for k in question.lengths})


# --- for programs ------------------------------------------------------------------------------------


def cells(question: Overlap) -> list[dict[str, Any]]:
    """One for each accept rate and interference."""
    q, names = question, ("accept", "interference", "sequential_k", "sequential_speedup", "overlapped_k",
                          "overlapped_speedup")  # fmt: skip
    return [
        dict(zip(names, (a, s, *sequentially(q, a), *beside(q, a, s)), strict=True))
        for a in q.accepts
        for s in q.interferences
    ]


def as_json(question: Overlap) -> str:
    """One JSON object in one line: `cells`, and `timelines` where there is one accept rate and one draft length."""
    q, timelines = question, []
    for schedule in DRAWN if q.single else ():
        run = q.simulated(schedule, q.interferences[0])
        spans = [span._asdict() | {"mode": run.rounds[span.round].mode} for span in run.spans if span.start < SHOWN]
        timelines.append({"schedule": schedule, "interference": q.interferences[0], "spans": spans})
    found = {"cost_ratio": q.costs.guess, "cells": cells(q), "timelines": timelines}
    return json.dumps(found)


def as_csv(question: Overlap) -> str:
    """A line for every accept rate and interference."""
    lines, out = cells(question), io.StringIO()
    writer = csv.DictWriter(out, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue().rstrip("\n")


# --- for readers -------------------------------------------------------------------------------------


def as_text(question: Overlap, width: int = 100) -> str:
    """What was asked, a Markdown table, and for a single case its simulation, drawn."""
    q = question
    head = ["accept rate", "sequential", *(f"overlapped, x{s:g}" for s in q.interferences)]
    rows = []
    for accept in q.accepts:
        both = [sequentially(q, accept), *(beside(q, accept, s) for s in q.interferences)]
        rows.append([f"{accept:g}", *(f"{k}: {speed:.2f}" for k, speed in both)])
    title = (
        f"Best draft length and its speed-up over plain decoding; {q.source}. x1: drafter and target have a processor "
        "each; x2: they take turns on one."
    )
    parts = [title, "\n".join(markdown(head, rows))]
    if q.single:
        parts += [*(drawn(q, schedule, width) for schedule in DRAWN), LEGEND]
    return "\n\n".join(parts)


def drawn(question: Overlap, schedule: str, width: int) -> str:
    """The first rounds of a simulated run as two lines, and what the whole of it came to."""
    run, columns = question.simulated(schedule, question.interferences[0]), max(width - 8, 20)
    lines = {"target": [" "] * columns, "draft": [" "] * columns, "written": [" "] * columns}
    for span in run.spans:
        start, end = (round(at / SHOWN * columns) for at in (span.start, span.end))
        this = run.rounds[span.round]
        if start >= columns or end == start:
            continue
        label = str(this.rows if span.worker == "target" else this.n_guess)
        fill = "-" if span.worker == "target" or not this.n_lost else "x"
        bar = ("|" + label + fill * columns)[: end - start]
        lines[span.worker][start : min(end, columns)] = bar[: columns - start]
        mark = f"+{this.n_new}"
        done = round(max(one.end for one in run.spans if one.round == span.round) / SHOWN * columns) - len(mark)
        if span.worker == "target" and done + len(mark) <= columns:
            lines["written"][done : done + len(mark)] = mark
    modes = "" if schedule == "sequential" else f", {share_of_post(run):.0%} of its rounds post-verify"
    title = (
        f"{schedule}: speed-up {run.speedup:.2f} over {run.n_new:,} simulated tokens, {run.n_lost / run.n_new:.2f} "
        f"guesses a token thrown away unjudged{modes}"
    )
    picture = [f"{name:8}{''.join(line)}".rstrip() for name, line in lines.items()]
    return "\n".join([title, *picture])


def share_of_post(run: Run) -> float:
    """Of the rounds, those that checked a block."""
    return sum(this.mode != PRE for this in run.rounds) / max(len(run.rounds), 1)
