"""A simulation as text for people: a table of tokens for one rule, a table of rules for several."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from minispec.rules import RULES
from minispec.simulation_outcome import Outcome, overlap, z_score
from minispec.trials import Floats
from minispec.viz import counted

SHOWN = 12  # tokens that a table lists; of more, the likeliest, and the others as one line
HEAD = f"{'target':>10} {'draft':>10} {'measured':>10} {'error':>10} {'z':>8}"


def one_rule(outcome: Outcome, names: Sequence[str]) -> str:
    """What a rule does, its tokens, its accept rate, and whether the law is the target's. names [n] are the tokens'."""
    chi, rule = outcome.chi_square, RULES[outcome.rule]
    lines = [*explained(outcome.rule), "", *token_table(outcome, names), ""]
    lines.append(
        f"guesses kept {outcome.accept_rate:.6f}, sum(min(p, q)) = {outcome.overlap:.6f} (z {signed(outcome.accept_z)})"
    )
    if outcome.exact.accept_rate != outcome.overlap and rule.remark:
        lines[-1] += f"; in the long run {outcome.exact.accept_rate:.6f}"
    merged = f", {counted(chi.merged, 'rare token')} taken together" if chi.merged else ""
    lines.append(
        f"chi-square {chi.statistic:.4g} with {counted(chi.degrees, 'degree')} of freedom{merged}: "
        f"p-value {chi.p_value:.3g}{verdict(outcome)}"
    )
    lines.append(
        f"distance from the target's law {outcome.distance:.6f} (luck alone: about {outcome.distance_by_luck:.6f}); "
        f"in the long run {outcome.exact_distance:.6f}"
    )
    return "\n".join([*lines, closing_line([outcome])])


def several_rules(outcomes: Sequence[Outcome]) -> str:
    """How far off each rule ends, measured and exact, and what each does."""
    head = f"{'rule':18} {'kept':>8} {'exact':>8} {'distance':>9} {'exact':>9} {'largest error':>14} {'p-value':>8}"
    rows = [
        f"{one.rule:18} {one.accept_rate:8.5f} {one.exact.accept_rate:8.5f} {one.distance:9.5f} "
        f"{one.exact_distance:9.5f} {np.abs(one.errors).max():14.5f} {one.chi_square.p_value:8.2g}"
        for one in outcomes
    ]
    first = outcomes[0]
    note = (
        f"sum(min(p, q)) = {first.overlap:.6f}. distance: total variation from the target's law, of which about "
        f"{first.distance_by_luck:.5f} is luck; p-value: the chance that right draws look as bad."
    )
    words = [line for one in outcomes for line in explained(one.rule)]
    return "\n".join([head, *rows, "", *textwrap.wrap(note, 100), "", *words, "", closing_line(outcomes)])


def explained(name: str) -> list[str]:
    """A rule's sentence, and what is wrong with it."""
    rule = RULES[name]
    return wrapped(f"{name}: {rule.does}", "") + wrapped(rule.remark or "", "  ")


def wrapped(text: str, indent: str) -> list[str]:
    """Lines of at most 100 characters; all but the first are indented."""
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent="  ", break_on_hyphens=False)


def verdict(outcome: Outcome) -> str:
    """What a p-value means, where it means something at once."""
    if outcome.counts[outcome.target_probs == 0].any():
        return " (tokens that the target never writes)"
    return " (one cell: nothing to compare)" if not outcome.chi_square.degrees else ""


def token_table(outcome: Outcome, names: Sequence[str]) -> Iterator[str]:
    """A line for each token, or for the likeliest and one for the others."""
    target, draft, seen = outcome.target_probs, outcome.draft_probs, outcome.frequencies
    likeliest = np.argsort(-np.maximum(target, draft), kind="stable")[:SHOWN]
    shown = np.sort(likeliest) if len(target) <= SHOWN else likeliest
    width = max(len("token"), *(len(names[i]) for i in shown))
    if len(target) > SHOWN:
        width = max(width, len(f"{len(target) - SHOWN} others"))
    yield f"{'token':{width}} {HEAD}"
    for i in shown:
        yield f"{names[i]:{width}} {figures(target[i], draft[i], seen[i], outcome.z_scores[i])}"
    if len(target) > SHOWN:
        rest = np.ones(len(target), bool)
        rest[shown] = False
        due, n_seen = math.fsum(target[rest]), outcome.counts[rest].sum()
        z = z_score(np.array([n_seen]), np.array([due]), outcome.trials)[0]
        others = figures(due, math.fsum(draft[rest]), n_seen / outcome.trials, z)
        yield f"{f'{rest.sum()} others':{width}} {others}"


def figures(target: float, draft: float, seen: float, z: float) -> str:
    """The figures of a line."""
    return f"{target:10.6f} {draft:10.6f} {seen:10.6f} {seen - target:+10.6f} {signed(z):>8}"


def signed(z: float) -> str:
    """A z-score; what luck cannot do is infinite."""
    return f"{z:+.2f}" if abs(z) < 1e4 else f"{z:+.1e}" if math.isfinite(z) else f"{z:+}"


def closing_line(outcomes: Sequence[Outcome]) -> str:
    """Trials, seconds, seed."""
    first, seconds = outcomes[0], sum(one.seconds for one in outcomes)
    each = " each" if len(outcomes) > 1 else ""
    speed = first.trials * len(outcomes) / max(seconds, 1e-9) / 1e6
    return (
        f"{first.trials:,} trials{each} in {seconds:.2f} s ({speed:,.3g} million a second, {first.backend}), "
        f"seed {first.seed}"
    )


def about_models(target_probs: Floats, draft_probs: Floats, target: str, draft: str, n_vocab: int) -> str:
    """Which laws are compared, where they are two models'."""
    return (
        f"next token of {target} (p) and {draft} (q): {len(target_probs)} of {n_vocab} tokens have a probability, "
        f"sum(min(p, q)) = {overlap(target_probs, draft_probs):.6f}"
    )
