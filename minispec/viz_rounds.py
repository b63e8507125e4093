"""A run round by round, a line each: what was guessed, how much was kept, and the target's own token."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from minispec.trace import Run, token_kinds
from minispec.viz import style

if TYPE_CHECKING:
    from minispec.protocols import Step
    from minispec.tokenizer import Tokenizer

WIDTH = 80  # columns of a round's line
LONG_TOKEN = 24  # columns of a token in it


def rounds(
    run: Run, tokenizer: Tokenizer, color: bool = False, width: int = WIDTH, block: bool = False
) -> Iterator[str]:
    """A line for every round: what was guessed, how much was kept, and the target's own token.

    At most `width` columns: guesses are cut, those not judged first and then those kept. The one refused, and the
    target's own token beside it, are what a round is about. block: guesses are judged as one, so that all are judged.
    """
    for i, step in enumerate(run.steps, 1):
        own = [(token, kind) for token, kind in token_kinds(step) if kind != "accepted"]
        parts = {
            "head": [(f"{i:4} {step.n_accepted} of {len(step.drafted)}:", "")],
            **guesses(step, tokenizer, block),
            "own": [piece for token, kind in own for piece in ((f" {kind} ", ""), (shown(token, tokenizer), kind))],
        }
        for name in ("not judged", "kept", "refused"):
            others = sum(columns(text) for other, part in parts.items() if other != name for text, _ in part)
            parts[name] = list(cut(parts[name], width - others))
        pieces = (piece for part in parts.values() for piece in part)
        yield "".join(style(text, kind) if color and kind else text for text, kind in pieces)


def guesses(step: Step, tokenizer: Tokenizer, block: bool) -> dict[str, list[tuple[str, str]]]:
    """The guesses of a round in pieces, each with its kind: those kept (or a whole tree), those refused, the rest."""
    if step.parents or not step.drafted:
        kept = [(" tree ", ""), *tree(step, tokenizer)] if step.parents else [(" no guesses", "")]
        return {"kept": kept, "refused": [], "not judged": []}
    n_kept, n_judged = step.n_accepted, len(step.committed)  # a refused guess is judged, too, and replaced
    if block and n_judged > n_kept:  # else the text ended with a guess
        n_judged = len(step.drafted)
    return {
        "kept": listed("kept", "accepted", step.drafted[:n_kept], tokenizer),
        "refused": listed("refused", "refused", step.drafted[n_kept:n_judged], tokenizer),
        "not judged": listed("not judged", "", step.drafted[n_judged:], tokenizer),
    }


def listed(words: str, kind: str, tokens: Sequence[int], tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Tokens in brackets, with words before them; nothing where there are none."""
    pieces = [piece for token in tokens for piece in (("|", ""), (shown(token, tokenizer), kind))]
    return [(f" {words} [", ""), *pieces[1:], ("]", "")] if tokens else []


def tree(step: Step, tokenizer: Tokenizer, guess: int = -1) -> Iterator[tuple[str, str]]:
    """The guesses after one, or after the text: siblings with a bar between them, kept ones with a star before."""
    children = [child for child, parent in enumerate(step.parents or ()) if parent == guess]
    for i, child in enumerate(children):
        kept = child in step.path
        yield "|" if i else "[", ""
        yield "*" * kept + shown(step.drafted[child], tokenizer), "accepted" if kept else "refused"
        yield from tree(step, tokenizer, child)
    if children:
        yield "]", ""


def shown(token: int, tokenizer: Tokenizer) -> str:
    """A token in quotes, what is not printed as its escape; the bytes of one that is no whole text; long ones cut."""
    data = tokenizer.token_bytes(token)
    try:
        text = repr(data.decode("utf-8"))
    except UnicodeDecodeError:
        text = repr(data)
    return text if columns(text) <= LONG_TOKEN else fitting(text, LONG_TOKEN - 2) + "…" + text[-1]


def columns(text: str) -> int:
    """The columns that a terminal gives a text: two for wide letters, none for accents that stand on another."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def fitting(text: str, room: int) -> str:
    """As much of a text as fits."""
    while columns(text) > room:
        text = text[:-1]
    return text


def cut(pieces: Sequence[tuple[str, str]], room: int) -> Iterator[tuple[str, str]]:
    """Pieces with their kinds, whole where they fit, else cut with an ellipsis; their first is never in part."""
    if not pieces or sum(columns(text) for text, _ in pieces) <= room:
        yield from pieces
        return
    room -= 1
    if room <= columns(pieces[0][0]):
        yield " …", ""
        return
    for text, kind in pieces:
        yield fitting(text, room), kind
        room -= columns(text)
        if room <= 0:
            break
    yield "…", ""
