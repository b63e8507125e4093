"""Predictions for readers: in lines, as a Markdown table, as a plot for the terminal.

One accept rate and one draft length are answered in lines, more of either in a table: accept rates down, draft lengths
across. With measured costs both views stand side by side, the textbook's first.
"""

from __future__ import annotations

from collections.abc import Sequence

from minispec.plot import draw, value_range
from minispec.tables import markdown
from minispec.theory import Memory, PassCosts, Prediction, expected_tokens, kept_share
from minispec.theory_report import CURVE_ROWS, Predictions, Question, answer, panels, seconds_of

X_NAME, Y_NAME = "guesses a round (k)", "speed-up over plain decoding"


def as_text(question: Question) -> str:
    """What was asked, the answer in lines or as a Markdown table, the measured curve, and memory."""
    body = _lines if question.single else _table
    parts = ["\n".join(body(question, answer(question)))]
    if question.measured is not None:
        parts.append("\n".join(_curve(question.measured, [name for name, _, _ in question.memory])))
    return "\n\n".join([*parts, "\n".join(_memory(question.memory))])


def _passes(question: Question) -> str:
    if question.target_ms is None:
        return f"a guess costs {question.guess:.3g} of a target pass"
    draft_ms = question.target_ms * question.guess
    return f"a target pass takes {question.target_ms:.3g} ms, a draft pass {draft_ms:.3g} ms"


def _slashed(figures: Sequence[str]) -> str:
    return " / ".join(figures)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def _even(accept: float | None) -> str:
    return "never" if accept is None else f"{accept:.4f}"


def _best(prediction: Prediction) -> str:
    return f"{prediction.best_k}: {prediction.best_speedup:.2f}"


def _seconds_text(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def _lines(question: Question, found: Predictions) -> list[str]:
    """One accept rate and one draft length: a figure a line."""
    q, (accept, n_draft) = question, (question.accepts[0], question.lengths[0])
    views = [cells[accept, n_draft] for cells in found.values()]
    tokens, share = expected_tokens(accept, n_draft), kept_share(accept, n_draft)
    unit, scale = ("passes", 1.0) if q.target_ms is None else ("ms", q.target_ms)
    rows = {
        "tokens a round": f"{tokens:.3f}" + ("" if share is None else f"  ({100 * share:.0f} % of all guesses kept)"),
        "a round": f"{_slashed([_figure(scale * view.round_cost) for view in views])} {unit}, "
        f"plainly {_figure(scale * tokens)} {unit}",
        "speed-up": _slashed([f"{view.speedup:.2f}" for view in views]),
        "best draft length": _slashed([_best(view) for view in views]),
        "breaks even at": _slashed([_even(view.break_even_accept) for view in views]),
    }
    if q.target_ms is not None:
        reply = _slashed([_seconds_text(seconds_of(q, view.speedup)) for view in views])
        rows[f"{q.max_new_tokens} tokens"] = f"{reply} s, plainly {_seconds_text(seconds_of(q, 1.0))} s"
    head = f"{n_draft} guess{'' if n_draft == 1 else 'es'} a round, each kept with chance {accept:g}; {_passes(q)}"
    sides = [] if len(views) == 1 else ["textbook / with the measured curve"]
    width = max(map(len, rows))
    return [head, *sides, "", *(f"{name:{width}}  {value}" for name, value in rows.items())]


def _table(question: Question, found: Predictions) -> list[str]:
    """Accept rates down, draft lengths across; then the best length, and the reply with it."""
    q = question
    columns = ["accept rate", *(f"k={n_draft}" for n_draft in q.lengths), "best k"]
    timed = q.target_ms is not None
    rows = []
    for accept in q.accepts:
        cells = [[view[accept, n_draft] for view in found.values()] for n_draft in q.lengths]
        row = [f"{accept:g}", *(_slashed([f"{view.speedup:.2f}" for view in views]) for views in cells)]
        row.append(_slashed([_best(view) for view in cells[0]]))
        if timed:
            row.append(_slashed([_seconds_text(seconds_of(q, view.best_speedup)) for view in cells[0]]))
        rows.append(row)
    evens = [[view[q.accepts[0], n_draft].break_even_accept for view in found.values()] for n_draft in q.lengths]
    rows.append(["breaks even at", *(_slashed([_even(even) for even in one]) for one in evens), ""] + [""] * timed)
    columns += [f"{q.max_new_tokens} tokens, s"] * timed
    plainly = f"; {q.max_new_tokens} tokens take {_seconds_text(seconds_of(q, 1.0))} s plainly" if timed else ""
    sides = "" if len(found) == 1 else " (textbook / with the measured curve)"
    return [f"Speed-up by draft length k{sides}; {_passes(q)}{plainly}.", "", *markdown(columns, rows)]


def _curve(costs: PassCosts, models: Sequence[str]) -> list[str]:
    rows = range(1, CURVE_ROWS + 1)
    reread = f"a token more for the draft to read costs {costs.reread:.3f} passes"
    title = f"{' with '.join(models)}, measured: v, a pass by its rows (k + 1 for k guesses), over one of one row"
    cells = ["v", *(f"{costs.curve(n):.2f}" for n in rows)]
    return [f"{title}; {reread}:", "", *markdown(["rows", *map(str, rows)], [cells])]


def _memory(models: Sequence[tuple[str, str, Memory]]) -> list[str]:
    lines = [
        f"{name} {kind}: {m.parameters / 1e6:.0f} M parameters, {m.weight_bytes / 1e9:.3f} GB, "
        f"and {m.cache_bytes / 1e9:.3f} GB for a full cache"
        for name, kind, m in models
    ]
    total = sum(m.weight_bytes + m.cache_bytes for _, _, m in models)
    return [*lines, *([f"together: {total / 1e9:.3f} GB"] if len(models) > 1 else [])]


def as_plot(question: Question, width: int, plain: bool) -> str:
    """A plot for each view, with one scale, for a terminal of this width."""
    drawn = panels(question)
    scale = value_range([curve for curves in drawn.values() for curve in curves])
    plots = []
    for name, curves in drawn.items():
        title = f"{Y_NAME}, {name}, by accept rate"
        plots.append(draw(curves, X_NAME, title, width, plain, compare=1.0, y_range=scale))
    return "\n\n".join(plots)
