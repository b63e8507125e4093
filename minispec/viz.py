"""Data as text for a terminal: colours, figures, the closing line, a comparison and why it came out so."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import click

from minispec.trace import Run

STYLES: dict[str, dict[str, Any]] = {
    "accepted": {"fg": "green"},
    "replaced": {"fg": "red", "bold": True},
    "bonus": {"fg": "cyan", "underline": True},
    "refused": {"fg": "red", "strikethrough": True},
    "plain": {},
}
ENDS = {
    "length": "cut at -n",
    "stop": "stopped before --stop",
    "context": "the context window is full",
    None: "unfinished",
}
LEGEND = {"accepted": "guessed and kept", "replaced": "corrected", "bonus": "bonus"}


def style(text: str, kind: str) -> str:
    """Text in the colour of its kind; line ends stay bare, so that no style runs on to the margin."""
    return "\n".join(click.style(line, **STYLES[kind]) if line else "" for line in text.split("\n"))


def legend() -> str:
    """What the colours mean."""
    return "  ".join(style(meaning, kind) for kind, meaning in LEGEND.items())


def rate(value: float | None) -> str:
    """A share as per cent, or n/a."""
    return "n/a" if value is None else f"{100 * value:.0f} %"


def number(value: float | None) -> str:
    """A figure with about three digits, or n/a."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def counted(n: int, thing: str) -> str:
    """A number of things: 1 pass, 2 passes."""
    return f"{n} {thing}{'' if n == 1 else 'es' if thing.endswith('s') else 's'}"


def ending(ids: Sequence[int], finish: str | None, end_of_text: int | None) -> str:
    """Why a text of these new ids ended, in words: if the model said so, by its own token."""
    return "ended by itself" if finish == "stop" and [*ids][-1:] == [end_of_text] else ENDS[finish]


def closing_line(run: Run, end_of_text: int | None, sampled_seed: int | None = None) -> str:
    """How many passes, tokens a pass, accept rate, tokens a second, the seed of dice, and why the text ended."""
    end = ending(run.ids, run.finish, end_of_text)
    if not run.ids:
        return f"no tokens: {end}"
    parts = [f"{counted(len(run.ids), 'token')} in {counted(run.passes, 'pass')}: {number(run.tokens_per_pass)} a pass"]
    if run.drafted:
        parts.append(f"{rate(run.accept_rate)} of {run.drafted} guesses kept")
    parts.append(f"{number(run.tokens_per_second)} tokens/s")
    if sampled_seed is not None:
        parts.append(f"seed {sampled_seed}")
    parts.append(end)
    return ", ".join(parts)


def batch_line(runs: Sequence[Run], seconds: float) -> str:
    """Tokens of all texts, and tokens a second of them together. (Texts share passes, so these are counted in none.)"""
    n_tokens, drafted = sum(len(run.ids) for run in runs), sum(run.drafted for run in runs)
    kept = f", {rate(sum(run.accepted for run in runs) / drafted)} of {drafted} guesses kept" if drafted else ""
    return f"{counted(len(runs), 'text')}, {n_tokens} tokens{kept}, {number(n_tokens / seconds)} tokens/s in all"


def comparison(
    plain: Run,
    speculative: Run,
    same: bool | None,
    speedup: float,
    pairs: Sequence[float] = (),
    sampled_seed: int | None = None,
) -> str:
    """Both ways of writing side by side, and the verdict; `pairs` are the speed-ups of single repetitions, sorted."""
    rows = [f"{'':12} {'tokens':>7} {'passes':>7} {'a pass':>7} {'kept':>6} {'seconds':>8} {'tokens/s':>9}"]
    for name, run in (("plain", plain), ("speculative", speculative)):
        rows.append(
            f"{name:12} {len(run.ids):7} {run.passes:7} {number(run.tokens_per_pass):>7} {rate(run.accept_rate):>6} "
            f"{run.seconds:8.3f} {number(run.tokens_per_second):>9}"
        )
    verdicts = {True: "same text, token for token", False: "THE TEXTS DIFFER", None: "sampled: two draws of one law"}
    seeded = "" if sampled_seed is None else f"; seed {sampled_seed}"
    spread = f" ({pairs[0]:.2f} to {pairs[-1]:.2f} over {len(pairs)})" if pairs else ""
    rows.append(f"{verdicts[same]}; speed-up {speedup:.2f}{spread}{seeded}")
    return "\n".join(rows)


def why_slower(plain: Run, speculative: Run) -> str:
    """Where the time went when speculation lost, and what to try: accept rate, cost ratio, cost of a check."""
    if not speculative.drafted:
        return "why: no guesses were made\ntry: -k 1 or more, and a draft model whose context window has room"
    one_row = median(step.target_seconds for step in plain.steps)
    check = median(step.target_seconds for step in speculative.steps)
    guess = sum(step.draft_seconds for step in speculative.steps) / max(speculative.drafted, 1)
    cost, gain = guess / one_row, speculative.tokens_per_pass or 0.0
    reason = (
        f"why: {rate(speculative.accept_rate)} of the guesses were kept, so a round wrote {number(gain)} tokens; "
        f"a guess cost {cost:.2f} of a plain pass and a check {check / one_row:.2f}"
    )
    hints = ["a cheaper draft model"] if cost > 0.5 else []
    hints += ["a draft model that is closer to the target"] if (speculative.accept_rate or 0) < 0.5 else []
    hints += ["a smaller -k"] if max(len(step.drafted) for step in speculative.steps) > 1 else []
    return f"{reason}\ntry: {', '.join([*hints, '-d none (plain decoding)'])}"
