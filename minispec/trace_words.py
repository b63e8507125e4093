"""A traced run in words: why each token is there, and what its figures come to. For the page, and for who reads JSON.

In words p is the target's probability of a token and q the draft's, as on the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minispec.viz import counted, ending, number, rate

if TYPE_CHECKING:
    from minispec.settings import Settings
    from minispec.trace_reasons import Guess, Own, Round

Json = dict[str, Any]
KINDS = {  # of tokens, in the order of the page's legend
    "kept": "guessed and kept",
    "refused": "guessed, refused",
    "replaced": "corrected by the target",
    "bonus": "bonus",
    "plain": "the target's, nothing guessed",
    "lost": "never judged",
}
SAME = {
    True: "The same text, token for token.",
    False: "ANOTHER TEXT: where they differ is marked.",
    None: "Another draw of the same law: with dice thrown anew the texts may differ, and neither is more right.",
}


def chance(value: float) -> str:
    """A probability with three digits that count."""
    if value in (0, 1):
        return f"{value:.0f}"
    if 0.001 <= value < 0.9995:
        return f"{value:.3f}"
    return f"{value:.7f}" if value > 0.5 else f"{value:.1e}".replace("e-0", "e-")


def seconds(value: float) -> str:
    """A time with three digits: 32.1 ms."""
    return f"{number(value)} s" if value >= 1 else f"{number(1000 * value)} ms"


# --- why a token is there ----------------------------------------------------------------------------


def why_own(own: Own) -> str:
    """How the target's own token came."""
    drawn = f"it had probability {chance(own.prob)} there, and the draw fell at {chance(own.coin)}."
    if own.kind == "bonus":
        return f"No guess was left to follow the last that was kept, so the pass gives one more token, from p: {drawn}"
    if own.kind == "plain":
        return f"Nothing was guessed: one token from p, as in plain decoding: {drawn}"
    return f"In place of a refused guess, from what the target has over the draft: {drawn}"


def why_guess(guess: Guess, ended: bool, block: bool) -> str:
    """What became of a guess. ended: the text ended with a guess; block: guesses are judged as a block."""
    if guess.target_prob is None:
        reason = "the text had ended" if ended else "an earlier guess was refused, or another kept in its place"
        return f"q = {chance(guess.draft_prob)}. Never judged: {reason}."
    figures, kept = f"p = {chance(guess.target_prob)}, q = {chance(guess.draft_prob)}.", guess.fate == "kept"
    if guess.chance is None or guess.coin is None:
        if block:
            return f"{figures} Judged as part of a block: {'a longer beginning was kept' if kept else 'refused'}."
        return f"{figures} Judged by a rule of this method's own, which throws no coin and is lossy: {guess.fate}."
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


def in_text(one: Round) -> list[list[Any]]:
    """What the page's text shows of a round, in order: the number of a guess, or -1 for the target's own; its kind.

    Of a tree, refused guesses stand before what was kept in their place, and those never judged are left out.
    """
    shown = []
    for i, guess in enumerate(one.guesses):
        if one.step.parents is None or guess.fate == "refused":
            shown.append(((guess.depth, guess.fate == "kept"), [i, guess.fate]))
        elif guess.fate == "kept":
            shown.append(((guess.depth, True), [i, guess.fate]))
    ordered = [what for _, what in sorted(shown, key=lambda one: one[0])]
    return ordered + ([[-1, one.own.kind]] if one.own else [])


# --- what a run comes to -------------------------------------------------------------------------------


def words(settings: Settings, data: Json) -> Json:
    """What the page says above and between its pictures."""
    pair = f"{data['draft']} guesses, {settings.target} checks"
    told = {
        "kinds": KINDS,
        "models": pair if data["drafts"] else f"{settings.target} alone",
        "end": ending(data["ids"], data["finish"], data["end_of_text"]),
        "idea": "Nothing guesses here: each token takes a pass of the target.",
        "figures": figures(data),
        "time": time_words(data),
        "kept": kept_words(data),
        "plain": "",
    }
    if not data["ids"]:
        told["idea"] = "No token was written."
    elif data["drafts"]:
        told["idea"] = (
            "A round is one pass of the target: it checks all guesses at once, keeps them up to the first that it "
            "refuses, and adds a token of its own. The small numbers are the seams between rounds."
        )
    if data["plain"]:
        n_tokens, n_passes = len(data["plain"]["ids"]), data["plain"]["passes"]
        told["plain"] = f"{counted(n_tokens, 'token')} in {counted(n_passes, 'pass')}. {SAME[data['identical']]}"
    return told


def figures(data: Json) -> list[tuple[str, str]]:
    """The figures at the head: each with what it is."""
    told = [
        (str(len(data["ids"])), "new tokens"),
        (str(data["passes"]), "passes of the target"),
        (number(data["tokens_per_pass"]), "tokens a pass"),
    ]
    if data["drafted"]:
        told.append((rate(data["accept_rate"]), f"of {data['drafted']} guesses kept"))
    if data["speedup"]:
        told.append((f"{data['speedup']:.2f} ×", "plain decoding's speed, here"))  # noqa: RUF001
    if data["identical"] is not None:
        told.append(("same text", "as plain decoding") if data["identical"] else ("OTHER TEXT", "than plain decoding"))
    return told


def time_words(data: Json) -> str:
    """Where the time went."""
    draft, check = (sum(one[f"{what}_seconds"] for one in data["rounds"]) for what in ("draft", "target"))
    told = f"{seconds(check)} in {counted(data['passes'], 'pass')}."
    if data["drafts"]:
        told = f"Speculative: {seconds(draft + check)}, {seconds(draft)} for guesses and {seconds(check)} for checks."
    if data["plain"]:
        plain = sum(one["target_seconds"] for one in data["plain"]["rounds"])
        told += f" Plain decoding: {seconds(plain)} for {counted(len(data['plain']['ids']), 'token')}."
    return f"{told} Only drafter and target are timed; the first round reads the prompt."


def kept_words(data: Json) -> str:
    """How often guesses were kept, and how often they should have been."""
    if not data["running"]:
        return ""
    (judged, kept, _), theory = data["running"][-1], data["theory"]
    told = (
        f"Of {counted(data['drafted'], 'guess')} {judged} were judged and {kept} kept: "
        f"{rate(theory['judged_accept_rate'])} of those judged, {rate(data['accept_rate'])} of all."
    )
    if theory["expected_accept_rate"] is not None:
        told += f" Theory, the mean of sum(min(p, q)) over those judged: {rate(theory['expected_accept_rate'])}."
    if theory["tokens_per_pass"] is not None:
        told += (
            f" Were each kept with one chance a, (1 - a^(k+1)) / (1 - a) would give "
            f"{number(theory['tokens_per_pass'])} tokens a pass; this run wrote {number(data['tokens_per_pass'])}."
        )
    return told
