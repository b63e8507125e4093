"""A traced run in words: what its figures come to. For the page, and for who reads JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minispec.viz import counted, ending, number, rate

if TYPE_CHECKING:
    from minispec.settings import Settings
    from minispec.trace_reasons import Round

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


def seconds(value: float) -> str:
    """A time with three digits: 32.1 ms."""
    return f"{number(value)} s" if value >= 1 else f"{number(1000 * value)} ms"


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
        "seed": str(settings.seed),  # JavaScript rounds large numbers
    }
    if not data["ids"]:
        told["idea"] = "No token was written."
    elif data["drafts"]:
        trees = any(one["tree"] for one in data["rounds"])
        kept = "those of one branch, as far as it agrees" if trees else "them up to the first that it refuses"
        told["idea"] = (
            f"A round is one pass of the target: it checks all guesses at once, keeps {kept}, and adds a token of its "
            "own. The small numbers are the seams between rounds."
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
    timed = "Only drafter and target are timed; the first round reads the prompt."
    return f"{told} {timed} Each bar is a round, or a plain pass: click it."


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
            f" Were each kept with one chance a, k guesses would write (1 - a^(k+1)) / (1 - a) tokens on average: "
            f"{number(theory['tokens_per_pass'])} a pass for these drafts; this run wrote "
            f"{number(data['tokens_per_pass'])}."
        )
    return told
