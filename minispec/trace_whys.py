"""Why each token of a traced run is there, in a sentence.

In words p is the target's probability of a token and q the draft's, as on the page. Where the text is determined, by
greedy decoding or by the seed's noise, both sides pick one token, and a guess is kept where they pick the same: then no
coin decides, and none is told of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minispec.settings import Settings
    from minispec.trace_reasons import Guess, Law, Own

CAME = {  # how the target's own token came
    "replaced": "In place of a refused guess",
    "bonus": "No guess was left to follow the last that was kept, so the pass gives one more token",
    "plain": "Nothing was guessed: one token, as in plain decoding",
}


def chance(value: float) -> str:
    """A probability with three digits that count."""
    if value in (0, 1):
        return f"{value:.0f}"
    if 0.001 <= value < 0.9995:
        return f"{value:.3f}"
    if 0.5 < value < 1 - 1e-7:
        return f"{value:.7f}"
    return (f"1 - {1 - value:.0e}" if value > 0.5 else f"{value:.1e}").replace("e-0", "e-")


def pick_of(settings: Settings) -> str | None:
    """What a model picks where the text is determined; None where tokens are drawn."""
    if not settings.determined:
        return None
    return "likeliest token" if settings.temperature == 0 else "token that the seed's noise picks"


def why_own(own: Own, pick: str | None = None, lossy: bool = False) -> str:
    """How the target's own token came. pick: see `pick_of`; lossy: by a rule of the method's own."""
    if pick is not None:
        with_prob = ", ".join([f"the target's {pick}", *picked_with("p", own.law, own.token)])
        return f"{CAME[own.kind]}: {with_prob}."
    source = "from what the target has over the draft" if own.kind == "replaced" and not lossy else "from p"
    drawn = f"it had probability {chance(own.prob)} there, and the draw fell at {chance(own.coin)}"
    return f"{CAME[own.kind]}, {source}: {drawn}."


def why_guess(guess: Guess, pick: str | None = None, block: bool = False) -> str:
    """What became of a guess that was judged. block: as part of a block."""
    assert guess.target_prob is not None
    if pick is not None:
        return why_picked(guess, pick)
    if guess.chance is None and not block:
        return f"Judged by a rule of this method's own, which throws no coin and is lossy: {guess.fate}."
    figures, kept = f"p = {chance(guess.target_prob)}, q = {chance(guess.draft_prob)}.", guess.fate == "kept"
    if guess.chance is None or guess.coin is None:
        return f"{figures} Judged as part of a block: {'a longer beginning was kept' if kept else 'refused'}."
    told = [chance(guess.chance), chance(guess.coin)]
    if told[0] == told[1]:  # then with all digits: which is less is to be seen
        told = [repr(guess.chance), repr(guess.coin)]
    thrown = f"{told[0]}; the coin fell at {told[1]}"
    if block:
        verdict = "kept" if kept else "refused, so a shorter beginning was tried"
        return f"{figures} As a block, guesses 1 to {guess.depth} are kept with chance {thrown}: {verdict}."
    if guess.chance in (0, 1):
        verdict = f", which cannot matter: {guess.fate}."
    else:
        verdict = ", below it: kept." if kept else ", not below it: refused."
    return f"{figures} Kept with chance min(1, p/q) = {thrown}{verdict}"


def why_picked(guess: Guess, pick: str) -> str:
    """What became of a guess where the text is determined."""
    assert guess.target is not None
    figures = ", ".join([*picked_with("p", guess.target, guess.token), *picked_with("q", guess.draft, guess.token)])
    verdict = f"The target's {pick} is this one: kept"
    if guess.fate != "kept":
        same = "this one, but not where a guess before it stands" if guess.target_prob else "another"
        verdict = f"The target's {pick} is {same}: refused"
    return " ".join([f"{figures}."] * bool(figures) + [f"{verdict}. No coin decides."])


def picked_with(name: str, law: Law, token: int) -> list[str]:
    """The probability that a token had before the pick, if it is among those that are kept of the law."""
    return [f"{name} = {chance(prob)}" for one, prob in law.model or () if one == token]


def why_lost(guesses: Sequence[Guess], i: int) -> str:
    """Why guess i was never judged."""
    return f"q = {chance(guesses[i].draft_prob)}. Never judged: {lost_by(guesses, i)}."


def lost_by(guesses: Sequence[Guess], i: int) -> str:
    """What came before guess i, or before one that it follows, could be judged."""
    place = "its place"
    while True:
        parent = guesses[i].parent
        if any(other.parent == parent and other.fate == "kept" for other in guesses):
            return f"another guess was kept in {place}"
        if parent < 0 or guesses[parent].fate == "kept":
            return "the text had ended"
        if guesses[parent].fate == "refused":
            return "an earlier guess was refused"
        i, place = parent, "the place of one before it"
