"""Tables of figures, made from what `minispec bench --json` and `minispec sweep --json` have written.

A table stands between <!-- figures NAME --> and <!-- end -->; its file is docs/figures/NAME.json, and COMMANDS has the
command that makes it. A file may have a `note` of its own, on how its figures came about, and a `label`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from blocks import ROOT

FOLDER = ROOT / "docs" / "figures"
TABLE = re.compile(r"(?<=<!-- figures )(?P<name>[\w-]+) -->\n\n(?:\|.*\n)*\n?(?=<!-- end -->)")
COMMANDS = {
    "against": "minispec bench --scripted 0.8 --repetitions 7 -k 3,4,5,6 --only end-to-end --against transformers "
    "--against llama.cpp --gguf TARGET.gguf --gguf-draft DRAFT.gguf --json",
    "drafters": "minispec bench --drafters --json",
    "batch": "minispec bench --batch 1,2,4,8,16 --only batch -k 2,4,6 --json",
    "kinds": "minispec sweep -n 64 -k 4 --by kind --json",
    "curve": "minispec bench --random gpt2-medium --only passes --json",  # curve-*.json: one for each machine
}
DRAFT_WEIGHTS = {"transformers": "float32", "llama.cpp": "q8_0"}  # of other programs


def number(value: float) -> str:
    """A figure to three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(value: float | None) -> str:
    """A ratio to two places."""
    return "" if value is None else f"{value:.2f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is of words, and the others of figures."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


# --- the tables ------------------------------------------------------------------------------------


def against(report: dict[str, Any]) -> str:
    """Programs by how fast they write, plainly and speculatively."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report["end_to_end"]:
        rows.setdefault(row["program"], {})[row["mode"]] = row
    head = ["", "plain, tokens/s", "minispec over it", "speculative, tokens/s", "minispec over it",
            "speculative over its own plain", "draft"]  # fmt: skip
    lines = []
    for name, by_mode in rows.items():
        plain, fast = by_mode["plain"], by_mode["speculative"]
        over = ["", ""] if name == "minispec" else [ratio(row["minispec_over_it"]) for row in (plain, fast)]
        own, draft = ratio(fast["speedup"]), DRAFT_WEIGHTS.get(name, report.get("draft_weights", ""))
        speeds = [f"{row['tokens_per_second']:.1f}" for row in (plain, fast)]
        lines.append([name, speeds[0], over[0], speeds[1], over[1], f"**{own}**" if name == "minispec" else own, draft])
    return markdown(head, lines)


def drafters(report: dict[str, Any]) -> str:
    """Ways to draft by what they cost and gain."""
    head = ["`-d`", "MB", "a guess", "tokens a pass", "at temperature 1", "kept by place, %", "over plain",
            "with `-k auto`", "training"]  # fmt: skip
    lines = []
    for row in sorted(report["drafters"], key=lambda row: -(row["speedup"] or 0)):
        chances = row["accept_by_position"] or []
        places = " ".join("-" if chance is None else f"{100 * chance:.0f}" for chance in chances)
        guess = "" if row["guess_cost"] is None else f"{row['guess_cost']:.3f}"
        names = "tokens_per_pass", "sampled_tokens_per_pass", "speedup", "auto_speedup"
        ratios = [ratio(row[name]) for name in names]
        name = f"`{row['draft']}`" + ("" if row["keeps_law"] else " (lossy)")
        lines.append([name, f"{row['bytes'] / 1e6:.1f}", guess, *ratios[:2], places, *ratios[2:], row["training"]])
    return markdown(head, lines)


def batch(report: dict[str, Any]) -> str:
    """Batches by how much is left of the gain, each at its best draft length."""
    head = ["texts", "k", "rows of a check", "plain tokens/s", "tokens/s", "a check and its drafts, in plain passes",
            "over plain"]  # fmt: skip
    best: dict[int, dict[str, Any]] = {}
    for row in report["batch"]:
        if row["speedup"] > best.get(row["texts"], {"speedup": 0})["speedup"]:
            best[row["texts"]] = row
    lines = [
        [str(row["texts"]), str(row["num_draft_tokens"]), str(row["rows"]), number(row["plain_tokens_per_second"]),
         number(row["tokens_per_second"]), f"{ratio(row['check_cost'])} + {ratio(row['draft_cost'])}",
         ratio(row["speedup"])]
        for row in best.values()
    ]  # fmt: skip
    return markdown(head, lines)


def kinds(report: dict[str, Any]) -> str:
    """Kinds of text by tokens a pass, the most first: all but the speed-up are counts, the same on every run."""
    rows = [row for row in report["rows"] if row["kind"] != "all"]
    lines = [
        [row["kind"], ratio(row["tokens_per_pass"]), ratio(row["speedup"]), f"{100 * row['kept_of_judged']:.0f} %",
         " ".join(f"{100 * chance:.0f}" for chance in row["accept_by_position"])]
        for row in sorted(rows, key=lambda row: -row["tokens_per_pass"])
    ]  # fmt: skip
    return markdown(["kind of text", "tokens a pass", "over plain", "judged guesses kept", "kept by place, %"], lines)


def curve(reports: Sequence[dict[str, Any]]) -> str:
    """The time of a pass by its rows, over that of one row: a line for each machine, or for what multiplies."""
    lines: list[tuple[str, dict[int, float]]] = []
    for report in reports:
        first = report["passes"][0]
        same = [row for row in report["passes"] if (row["model"], row["weights"]) == (first["model"], first["weights"])]
        label = report.get("label") or (
            f"{first['model']} {first['weights']}, memory at {report['read_bandwidth_gb_s']:.0f} GB/s"
        )
        lines.append((label, {row["rows"]: row["v"] for row in reversed(same)}))
    counts = sorted({rows for _, by_rows in lines for rows in by_rows})
    cells = [[label, *(ratio(by_rows.get(rows)) for rows in counts)] for label, by_rows in lines]
    return markdown(["rows", *map(str, counts)], cells)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "against": against, "drafters": drafters, "batch": batch, "kinds": kinds,
}  # fmt: skip


# --- the documents ---------------------------------------------------------------------------------


def make(name: str) -> str:
    """The table of this name. Raises ValueError, with the command that helps, where its file is missing."""
    paths = sorted(FOLDER.glob("curve-*.json")) if name == "curve" else [FOLDER / f"{name}.json"]
    if name not in COMMANDS or not paths or not all(path.is_file() for path in paths):
        raise ValueError(f"docs/figures/{name}.json is missing: {COMMANDS.get(name, 'no command')} > docs/figures/...")
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return curve(reports) if name == "curve" else TABLES[name](reports[0])


def refreshed(text: str) -> str:
    """A document with its tables made anew from their files."""
    return TABLE.sub(lambda found: f"{found['name']} -->\n\n{make(found['name'])}\n", text)


def missing() -> list[str]:
    """What to run for each file that is not there."""
    there = [path.stem for path in FOLDER.glob("*.json")]
    lacking = [name for name in COMMANDS if not any(stem == name or stem.startswith(f"{name}-") for stem in there)]
    return [f"docs/figures/{name}.json is missing: {COMMANDS[name]} > docs/figures/{name}.json" for name in lacking]
