"""A sweep's results by drafter, temperature and draft length, as a table to read, CSV, or one JSON object.

A row is a sum of counts over texts, with the rates that follow from it. JSON has the counts and the seconds in groups
of their own: the counts of the same sweep are the same wherever it ran. CSV has a line for each row.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minispec.sweep import Job, Result
from minispec.sweep_counts import (
    Counts,
    Seconds,
    accept_by_place,
    expected_tokens,
    measured_speedup,
    predicted_speedup,
    ratio,
)
from minispec.tables import Column, table, two_places
from minispec.viz import number, rate

ALL = "all"


@dataclass(frozen=True)
class Row:
    """Everything of one drafter, temperature and draft length, of all prompts or of one kind."""

    draft: str
    temperature: float
    num_draft_tokens: Any  # a number: jobs have no other
    kind: str
    counts: Counts
    seconds: Seconds

    @property
    def accept_by_position(self) -> list[float | None]:
        """The chance that a guess at each place is kept, given that all before it were."""
        return accept_by_place(self.counts)

    @property
    def rates(self) -> dict[str, float | None]:
        """What follows from the counts and the seconds."""
        counts, seconds = self.counts, self.seconds
        drafts = self.num_draft_tokens > 0
        return {
            "accept_rate": ratio(sum(counts.kept), counts.drafted),
            "kept_of_judged": ratio(sum(counts.kept), sum(counts.judged)),
            "tokens_per_pass": ratio(counts.tokens, counts.passes),
            "expected_tokens": expected_tokens(self.accept_by_position),
            "predicted_speedup": predicted_speedup(counts, seconds, self.num_draft_tokens) if drafts else None,
            "speedup": measured_speedup(counts, seconds) if drafts else None,
            "tokens_per_second": ratio(counts.tokens, seconds.speculative),
        }

    def as_json(self) -> dict[str, Any]:
        """The row as one object."""
        about = {"draft": None if self.draft == "none" else self.draft, "temperature": self.temperature}
        about |= {"num_draft_tokens": self.num_draft_tokens, "kind": self.kind}
        figures = {"counts": asdict(self.counts), "accept_by_position": self.accept_by_position}
        return about | figures | self.rates | {"seconds": asdict(self.seconds)}


def make_rows(jobs: Iterable[Job], results: Mapping[str, Result], by_kind: bool) -> list[Row]:
    """Sums over the jobs' prompts, in the order of the jobs; with by_kind, a row for every kind before all of them."""
    kinds: dict[tuple[str, float, int | str], dict[str, list[Result]]] = {}
    for job in jobs:
        one = job.settings
        of_kind = kinds.setdefault((one.draft or "none", one.temperature, one.num_draft_tokens), {})
        of_kind.setdefault(job.prompt.kind, []).append(results[job.key])
    rows = []
    for cell, of_kind in kinds.items():
        groups = list(of_kind.items()) if by_kind else []
        groups.append((ALL, [result for group in of_kind.values() for result in group]))
        for kind, group in groups:
            counts = sum((result.counts for result in group), Counts())
            rows.append(Row(*cell, kind, counts, sum((result.seconds for result in group), Seconds())))
    return rows


# --- formats ---------------------------------------------------------------------------------------


def as_json(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """One object: what the sweep was of, and its rows."""
    return json.dumps(about | {"rows": [row.as_json() for row in rows]})


def as_csv(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """A line for each row, with columns for the judged and the kept guesses of every place."""
    most = max(len(row.counts.judged) for row in rows)
    names = [name for name in asdict(Counts()) if name not in ("judged", "kept", "later", "later_plain")]
    places = [f"{name}_{place}" for name in ("judged", "kept") for place in range(1, most + 1)]
    times = ["plain", "speculative", "draft", "target"]
    head = ["target", "draft", "temperature", "num_draft_tokens", "kind", *names, *rows[0].rates]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*head, *places, *(f"{name}_seconds" for name in times)])
    for row in rows:
        counts, missing = row.counts, [0] * (most - len(row.counts.judged))
        line = [about["target"], row.draft, row.temperature, row.num_draft_tokens, row.kind]
        line += [getattr(counts, name) for name in names]
        line += ["" if value is None else value for value in row.rates.values()]
        line += [*counts.judged, *missing, *counts.kept, *missing]
        writer.writerow([*line, *(getattr(row.seconds, name) for name in times)])
    return out.getvalue().rstrip("\n")


@dataclass(frozen=True)
class Line:
    """A row as the table shows it."""

    draft: str
    temperature: float
    k: int
    kind: str
    texts: int
    tokens: int
    tokens_per_pass: float | None
    kept_of_judged: float | None
    predicted_speedup: float | None
    speedup: float | None
    by_place: str


COLUMNS = [
    Column("draft", "draft"),
    Column("temperature", "temperature", number),
    Column("k", "k"),
    Column("kind", "kind"),
    Column("texts", "texts"),
    Column("tokens", "tokens"),
    Column("tokens a pass", "tokens_per_pass", two_places),
    Column("kept", "kept_of_judged", rate),
    Column("speed-up predicted", "predicted_speedup", two_places),
    Column("measured", "speedup", two_places),
    Column("kept by place, %", "by_place"),
]


def as_markdown(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """A sentence on what was written, and the table."""
    lines = []
    for row in rows:
        rates = row.rates
        places = " ".join("-" if chance is None else f"{100 * chance:.0f}" for chance in row.accept_by_position)
        lines.append(
            Line(
                draft=row.draft,
                temperature=row.temperature,
                k=row.num_draft_tokens,
                kind=row.kind,
                texts=row.counts.texts,
                tokens=row.counts.tokens,
                tokens_per_pass=rates["tokens_per_pass"],
                kept_of_judged=rates["kept_of_judged"],
                predicted_speedup=rates["predicted_speedup"],
                speedup=rates["speedup"],
                by_place=places or "n/a",
            )
        )
    columns = [column for column in COLUMNS if column.field != "kind" or any(row.kind != ALL for row in rows)]
    head = f"{about['target']} ({about['weights']}), up to {about['max_new_tokens']} tokens after each prompt, "
    head += f"seed {about['seed']}. Kept: of the guesses that were judged."
    return "\n".join([head, "", *table(columns, lines)])
