"""A benchmark's report as Markdown to read, CSV for a spreadsheet, or one JSON object.

JSON has every figure in its plain unit (seconds, bytes, shares of one); CSV the same in long form, one figure a line.
Markdown rounds them and says what they are.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from minispec.bench import Report
from minispec.tables import Column, table, two_places
from minispec.viz import number, rate


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _gigabytes(n_bytes: int | None) -> str:
    return "n/a" if n_bytes is None else f"{n_bytes / 1e9:.3f}"


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f} %"


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f}"


def _thousandths(ratio: float | None) -> str:
    return "n/a" if ratio is None else f"{ratio:.3f}"


def _places(accept: Sequence[float | None] | None) -> str:
    return " ".join("-" if chance is None else f"{100 * chance:.0f}" for chance in accept or []) or "n/a"


def _law(keeps: bool) -> str:
    return "yes" if keeps else "NO, lossy"


def _same(same: bool | None) -> str:
    return {True: "yes", False: "NO", None: "n/a"}[same]


MODEL = [Column("model", "model"), Column("weights", "weights")]
TABLES: dict[str, tuple[str, list[Column]]] = {
    "passes": (
        "Passes: v is the time over that of one row",
        [
            *MODEL,
            Column("rows", "rows"),
            Column("context", "context"),
            Column("ms", "seconds", _milliseconds),
            Column("v", "v", two_places),
            Column("share of bandwidth", "bandwidth_share", rate),
        ],
    ),
    "context": (
        "Far into the context: what one row costs more",
        [
            *MODEL,
            Column("from", "near"),
            Column("to", "far"),
            Column("ms more", "added_seconds", _milliseconds),
            Column("GB more", "added_bytes", _gigabytes),
            Column("share of bandwidth", "bandwidth_share", rate),
        ],
    ),
    "costs": (
        "Prices of a round, in passes of one row (kept for -k auto and theory --measured)",
        [
            Column("k", "num_draft_tokens"),
            Column("guesses", "guesses", two_places),
            Column("check", "check", two_places),
            Column("round", "round", two_places),
            Column("breaks even at accept", "break_even_accept", two_places),
        ],
    ),
    "prefill": (
        "Prompts: one pass, and NumPy's BLAS on the same products",
        [
            *MODEL,
            Column("tokens", "rows"),
            Column("ms", "seconds", _milliseconds),
            Column("GFLOP/s", "gflop_s", number),
            Column("BLAS GFLOP/s", "blas_gflop_s", number),
            Column("of BLAS", "blas_share", two_places),
        ],
    ),
    "memory": (
        "Memory: peak with full caches, loading included",
        [
            Column("models", "models"),
            Column("load, s", "load_seconds", number),
            Column("weights + caches, GB", "needed_bytes", _gigabytes),
            Column("before loading, GB", "base_bytes", _gigabytes),
            Column("peak, GB", "peak_bytes", _gigabytes),
            Column("peak over weights + caches", "peak_over_needed", two_places),
        ],
    ),
    "start": ("From the start of the process to the first text", [Column("s", "seconds", number)]),
    "draft_lengths": (
        "Draft lengths that were tried",
        [
            Column("program", "program"),
            Column("k", "num_draft_tokens"),
            Column("tokens/s", "tokens_per_second", number),
            Column("over plain", "speedup", two_places),
        ],
    ),
    "prediction": (
        "Predicted and measured: speed-up over plain decoding",
        [
            Column("accept", "accept"),
            Column("k", "num_draft_tokens"),
            Column("tokens a pass", "tokens_per_pass", two_places),
            Column("E", "expected_tokens", two_places),
            Column("measured", "measured", two_places),
            Column("E / (k c + 1)", "textbook", two_places),
            Column("E / (k c + v)", "by_costs", two_places),
            Column("error", "error", _percent),
            Column("of best fixed k", "of_best_fixed", two_places),
        ],
    ),
    "end_to_end": (
        "Texts: each program at its best draft length",
        [
            Column("program", "program"),
            Column("mode", "mode"),
            Column("k", "num_draft_tokens"),
            Column("tokens", "tokens"),
            Column("s", "seconds", number),
            Column("tokens/s", "tokens_per_second", number),
            Column("over its plain", "speedup", two_places),
            Column("minispec over it", "minispec_over_it", two_places),
            Column("kept", "accept_rate", rate),
            Column("tokens a pass", "tokens_per_pass", two_places),
            Column("outside passes", "outside_share", _percent),
            Column("same text", "same_text", _same),
        ],
    ),
    "drafters": (
        "Drafters: texts after the built-in prompts, greedy but for one column",
        [
            Column("draft", "draft"),
            Column("training", "training"),
            Column("MB", "bytes", _megabytes),
            Column("a guess, in passes", "guess_cost", _thousandths),
            Column("k", "num_draft_tokens"),
            Column("tokens a pass", "tokens_per_pass", two_places),
            Column("at temperature 1", "sampled_tokens_per_pass", two_places),
            Column("kept by place, %", "accept_by_position", _places),
            Column("over plain", "speedup", two_places),
            Column("with -k auto", "auto_speedup", two_places),
            Column("keeps the law", "keeps_law", _law),
        ],
    ),
    "short": (
        "Short replies: from the prompt to the last token, in a running process",
        [
            Column("tokens", "tokens"),
            Column("prompt", "prompt_tokens"),
            Column("k", "num_draft_tokens"),
            Column("plain, ms", "plain_seconds", _milliseconds),
            Column("speculative, ms", "speculative_seconds", _milliseconds),
            Column("over plain", "speedup", two_places),
        ],
    ),
    "batch": (
        "Batches: a check, and the drafts before it, cost so many plain passes of the batch",
        [
            Column("texts", "texts"),
            Column("k", "num_draft_tokens"),
            Column("rows", "rows"),
            Column("plain passes", "plain_passes"),
            Column("passes", "passes"),
            Column("plain tokens/s", "plain_tokens_per_second", number),
            Column("tokens/s", "tokens_per_second", number),
            Column("tokens a pass", "tokens_per_pass", two_places),
            Column("check", "check_cost", two_places),
            Column("drafts", "draft_cost", two_places),
            Column("over plain", "speedup", two_places),
            Column("by passes alone", "predicted_speedup", two_places),
            Column("same text", "same_text", _same),
        ],
    ),
}


def as_dict(report: Report, settings: dict[str, Any]) -> dict[str, Any]:
    """The object of `--json`: the settings, the machine, and a list of rows for every table."""
    rows = {name: [asdict(row) for row in table] for name, table in report.tables.items()}
    head: dict[str, Any] = {"read_bandwidth_gb_s": report.read_bandwidth_gb_s, "passes": rows.pop("passes", [])}
    head["read_range_gb_s"] = list(report.read_range_gb_s)
    return head | rows | settings | {"machine": asdict(report.machine), "notes": report.notes}


def as_json(report: Report, settings: dict[str, Any]) -> str:
    """One JSON object in one line."""
    return json.dumps(as_dict(report, settings))


def as_csv(report: Report, settings: dict[str, Any]) -> str:
    """Lines of table, number of the row in it, name and value of one figure."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["part", "row", "name", "value"])
    for part, content in as_dict(report, settings).items():
        rows = content if isinstance(content, list) else [content]
        for i, row in enumerate(rows, 1):
            for name, value in row.items() if isinstance(row, dict) else [(part, row)]:
                writer.writerow([part, i, name, "" if value is None else value])
    return out.getvalue().rstrip("\n")


def as_markdown(report: Report, settings: dict[str, Any]) -> str:
    """A paragraph on the machine, and a table with a heading for every part that was measured."""
    m, (slow, fast) = report.machine, report.read_range_gb_s
    made_with = f"Python {m.python}, NumPy {m.numpy}"
    if m.numba is not None:
        made_with += f", Numba {m.numba} ({m.threading_layer} threads)"
    threads = f"{m.threads} of {m.cores} core{'' if m.cores == 1 else 's'}"
    lines = [
        f"{m.cpu}, {threads}, {m.instructions}; {m.system}; {made_with}.",
        f"Read bandwidth {report.read_bandwidth_gb_s:.1f} GB/s "
        f"({slow:.1f} to {fast:.1f} in this run; {report.read_by}).",
    ]
    for name, (title, columns) in TABLES.items():
        if report.tables.get(name):
            lines += ["", f"### {title}", "", *table(columns, report.tables[name])]
    if report.notes:
        lines += ["", *(f"Note: {note}." for note in report.notes)]
    return "\n".join(lines)
