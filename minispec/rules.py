"""The rule that keeps the target's law, and others that look like it: what each does, and the law that it ends at.

A rule is a `Plan`: what a guess is drawn from, the chance to keep each, what replaces one that is refused. From
these, `exact` computes what is written in closed form, so no rule's fault is a matter of luck.

In formulas p is the target's probability of a token and q the draft's.
Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), appendix A.1, for the right one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minispec.speculative import residual
from minispec.trials import NEW_COIN, OWN_DRAW, SAME_COIN, THROWN_AWAY, Floats, cumulate

UNSURE = 0.4  # the rule "discard" throws a guess away whose draft probability is below


@dataclass(frozen=True)
class Plan:
    """How a trial goes.

    Shapes: guess_probs, replace_probs and target_probs [n] are drawn from; accept [n] is the chance to keep a guess,
    THROWN_AWAY where the target draws without judging it. coin says how a guess is judged: see `trials`.
    """

    guess_probs: Floats
    accept: Floats
    replace_probs: Floats
    target_probs: Floats
    coin: int = NEW_COIN


@dataclass(frozen=True)
class Rule:
    """A rule in words (what it does, and what is wrong with it, if anything is) and as a plan of p and q."""

    does: str
    remark: str | None
    plan: Callable[[Floats, Floats], Plan]


@dataclass(frozen=True)
class Exact:
    """What a rule does in the long run: `probs` [n] of the tokens it writes, and the rate at which guesses are kept."""

    probs: Floats
    accept_rate: float


def exact(plan: Plan) -> Exact:
    """The law of a plan: what is kept, and what is drawn for what is not.

    The same coin twice: a uniform number u draws the tokens between their cumulated sums, so token i is kept where u
    is in its interval and below accept[i]. The target's own draw: it is written whether it equals the guess or not.
    """
    if plan.coin == OWN_DRAW:
        return Exact(plan.target_probs, math.fsum(plan.guess_probs * plan.target_probs))
    thrown_away = plan.accept == THROWN_AWAY
    accept = np.where(thrown_away, 0, plan.accept)
    if plan.coin == SAME_COIN:
        ends = cumulate(plan.guess_probs)
        starts = np.concatenate([[0], ends[:-1]])
        kept = np.clip(np.minimum(accept, ends) - starts, 0, None)
    else:
        kept = plan.guess_probs * accept
    gone = plan.guess_probs - kept
    probs = kept + math.fsum(gone[~thrown_away]) * plan.replace_probs + math.fsum(gone[thrown_away]) * plan.target_probs
    return Exact(probs, math.fsum(kept))


# --- the plans: of target_probs and draft_probs, both [n] ------------------------------------------


def capped_ratio(above: Floats, below: Floats) -> Floats:
    """min(1, above / below), and 1 where both are 0: never a division by zero, nor one that overflows."""
    return np.divide(above, below, out=np.ones_like(above), where=above < below)


def favourite(probs: Floats) -> Floats:
    """All on the most likely token, the first of equals."""
    hot = np.zeros_like(probs)
    hot[probs.argmax()] = 1
    return hot


def right(target: Floats, draft: Floats) -> Plan:
    """The rule of the loop."""
    return Plan(draft, capped_ratio(target, draft), residual(target, draft), target)


def equal(target: Floats, draft: Floats) -> Plan:
    """The target draws as well; its token stands, and the guess is kept if it is the same."""
    return Plan(draft, target, target, target, OWN_DRAW)


def no_residual(target: Floats, draft: Floats) -> Plan:
    """A refused guess is replaced by a draw from the target."""
    return Plan(draft, capped_ratio(target, draft), target, target)


def absolute_residual(target: Floats, draft: Floats) -> Plan:
    """A refused guess is replaced by a draw from the difference, whatever its sign."""
    difference = np.abs(target - draft)
    total = difference.sum()
    return Plan(draft, capped_ratio(target, draft), difference / total if total > 0 else target, target)


def swapped(target: Floats, draft: Floats) -> Plan:
    """The ratio is upside down."""
    return Plan(draft, capped_ratio(draft, target), residual(target, draft), target)


def reuse_uniform(target: Floats, draft: Floats) -> Plan:
    """The uniform number that drew the guess is the coin too."""
    return Plan(draft, capped_ratio(target, draft), residual(target, draft), target, SAME_COIN)


def argmax_draft(target: Floats, draft: Floats) -> Plan:
    """The guess is the draft's favourite, and is judged as if it had been drawn."""
    return Plan(favourite(draft), capped_ratio(target, draft), residual(target, draft), target)


def argmax_target(target: Floats, draft: Floats) -> Plan:
    """The guess is kept if it is the target's favourite, which else replaces it."""
    return Plan(draft, favourite(target), favourite(target), target)


def discard(target: Floats, draft: Floats) -> Plan:
    """A guess that the draft is not sure of is thrown away unseen, and the target draws."""
    accept = np.where(draft < UNSURE, THROWN_AWAY, capped_ratio(target, draft))
    return Plan(draft, accept, residual(target, draft), target)


def keep_all(target: Floats, draft: Floats) -> Plan:
    """No guess is judged."""
    return Plan(draft, np.ones_like(draft), target, target)


RULES = {
    "right": Rule(
        "a guess is kept with chance min(1, p/q), else replaced by a draw from max(0, p - q) rescaled",
        None,
        right,
    ),
    "equal": Rule(
        "the target draws a token of its own, which is written; a guess is kept if it is that token",
        "the law holds, but guesses are kept with chance sum(p q), below sum(min(p, q)): several programs do this",
        equal,
    ),
    "no-residual": Rule(
        "a refused guess is replaced by a draw from the target itself",
        "kept guesses make up min(p, q) of the law already: only what is missing, max(0, p - q), may be added",
        no_residual,
    ),
    "absolute-residual": Rule(
        "a refused guess is replaced by a draw from |p - q| rescaled",
        "half of what replaces goes to tokens that the draft guesses too often as it is",
        absolute_residual,
    ),
    "swapped": Rule(
        "a guess is kept with chance min(1, q/p)",
        "the ratio is upside down: it keeps just the guesses that the draft makes too often",
        swapped,
    ),
    "reuse-uniform": Rule(
        "the uniform number that drew the guess is used again as the coin",
        "it is not uniform any more once the guess is known: early tokens meet small numbers and pass, late ones fail",
        reuse_uniform,
    ),
    "argmax-draft": Rule(
        "the guess is the draft's most likely token, and is judged as if it had been drawn from q",
        "it was guessed with chance 1 and not q, so it is written too often: a certain guess has a one-hot q",
        argmax_draft,
    ),
    "argmax-target": Rule(
        "a guess is kept if it is the target's most likely token, which is written else",
        "this is greedy decoding: what it writes is always the same token",
        argmax_target,
    ),
    "discard": Rule(
        f"a guess with q below {UNSURE} is thrown away unjudged, and the target draws",
        "the guess was thrown away for what it is: what is kept favours the draft's favourites, and p adds to it",
        discard,
    ),
    "keep-all": Rule(
        "every guess is kept",
        "what is written is the draft's law, as far off as p and q are apart",
        keep_all,
    ),
}
