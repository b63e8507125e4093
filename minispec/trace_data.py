"""A traced run as one JSON object: the keys that every command prints for a run, and every round with its reasons.

    rounds          a step each: guesses, own, committed, path, draft_seconds, target_seconds
    plain           the same text, or one of the same law, by plain decoding; null where the run is that already
    words           what the page says; and of each guess and each own token `why`, in a sentence
    tokens          the text of each token that is named anywhere; {"bytes": "f0 9f"} where it is no whole UTF-8
    joined          where several tokens make up a character: the place of each in the text, and what it completes
    accept_by_place, running, theory   how often guesses were kept, and how often they should have been

A law is a list of [token, probability], the most likely first; `..._model` is what the model itself gives where the law
has a single token in it. Seconds are of the drafter and of the target's pass alone.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from minispec import __version__
from minispec.theory import expected_tokens
from minispec.trace_reasons import Guess, Law, Own, Round
from minispec.trace_whys import pick_of, why_guess, why_lost, why_own
from minispec.trace_words import in_text, words

if TYPE_CHECKING:
    from minispec.session import Pair
    from minispec.settings import Settings
    from minispec.tokenizer import Tokenizer
    from minispec.trace_run import Trace

FORMAT = "minispec trace 1"
DIGITS = 6  # of probabilities that are only looked at
PACKAGES = ("numpy", "numba", "tiktoken", "safetensors")
OF_DRAFTS = ("num_draft_tokens", "draft_weights", "schedule", "tree", "verification")  # settings that need a draft
Json = dict[str, Any]


def trace_data(
    settings: Settings, pair: Pair, prompt: str, main: Trace, plain: Trace | None, speedup: float | None = None
) -> Json:
    """All that a page shows. speedup: plain seconds over speculative ones, measured elsewhere; else of this run."""
    from minispec.bench_machine import describe_machine

    tokenizer = pair.tokenizer
    data = run_data(settings, tokenizer, main)
    same = None
    if plain is not None and settings.determined:
        same = (plain.run.ids, plain.run.finish) == (main.run.ids, main.run.finish)
    if plain is not None and speedup is None and main.run.ids and plain.run.ids:
        speedup = (main.run.tokens_per_second or 0.0) / (plain.run.tokens_per_second or 1.0)
    data |= {
        "format": FORMAT,
        "prompt": prompt,
        "drafts": not main.plain,
        "identical": same,
        "speedup": speedup,
        "plain": None if plain is None else run_data(settings, tokenizer, plain),
        **acceptance(main.rounds),
    }
    data["tokens"] = {str(token): token_text(tokenizer, token) for token in sorted(named_tokens(data))}
    data["end_of_text"] = tokenizer.end_of_text
    told = asdict(settings) | settings.as_json()
    data["settings"] = {name: value for name, value in told.items() if not (main.plain and name in OF_DRAFTS)}
    data["versions"] = {"minispec": __version__, "python": sys.version.split()[0], **dict(versions(PACKAGES))}
    data["machine"] = asdict(describe_machine(settings.backend))
    data["words"] = words(settings, data)
    return data


def run_data(settings: Settings, tokenizer: Tokenizer, trace: Trace) -> Json:
    """The keys of `--json` for one of the two texts, and its rounds."""
    from minispec.tokenizer import TextStream

    stream = TextStream(tokenizer, settings.stop)
    text = "".join(stream.push(token) for token in trace.run.ids) + stream.flush()
    told = settings.as_json() | ({"draft": None, "num_draft_tokens": 0, "schedule": None} if trace.plain else {})
    return trace.run.as_json(text, told) | {
        "rounds": [round_data(one, settings) for one in trace.rounds if one.step.committed],
        "joined": dict(joined(tokenizer, trace.run.ids)),
    }


def versions(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Of those packages that are there."""
    for name in packages:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


# --- rounds ----------------------------------------------------------------------------------------


def round_data(one: Round, settings: Settings) -> Json:
    """A round of a run with these settings."""
    step, pick, block = one.step, pick_of(settings), settings.verification == "block"
    lossy = not block and any(guess.target is not None and guess.chance is None for guess in one.guesses)
    whys = [
        why_lost(one.guesses, i) if guess.fate == "lost" else why_guess(guess, pick, block)
        for i, guess in enumerate(one.guesses)
    ]
    return {
        "guesses": list(map(guess_data, one.guesses, whys)),
        "own": None if one.own is None else own_data(one.own, why_own(one.own, pick, lossy)),
        "shown": in_text(one),
        "committed": list(step.committed),
        "path": list(step.path),
        "tree": step.parents is not None,
        "draft_seconds": round(step.draft_seconds, 7),
        "target_seconds": round(step.target_seconds, 7),
    }


def guess_data(guess: Guess, why: str) -> Json:
    """A guess, its laws side by side; what is None is left out."""
    told = {name: value for name, value in vars(guess).items() if not isinstance(value, Law) and value is not None}
    told["why"] = why
    for name in ("draft", "target", "residual"):
        told |= law_data(name, getattr(guess, name))
    return told


def own_data(own: Own, why: str) -> Json:
    """The target's own token."""
    told = {"token": own.token, "kind": own.kind, "prob": own.prob, "coin": own.coin, "why": why}
    return told | law_data("law", own.law)


def law_data(name: str, law: Law | None) -> Json:
    """Its top, and its model's."""
    tops = {} if law is None else {name: law.top, f"{name}_model": law.model}
    return {key: [[i, significant(prob)] for i, prob in top] for key, top in tops.items() if top is not None}


def significant(value: float) -> float:
    """The first digits of a number. Of a probability below 1 they are below 1."""
    digits = float(f"{value:.{DIGITS}g}")
    return value if value < 1 == digits else digits


# --- how often guesses are kept ----------------------------------------------------------------------


def acceptance(rounds: Sequence[Round]) -> Json:
    """Judged guesses, those kept, and those that should have been: by place, and from round to round in all (running).

    What should be: of a guess that is drawn from q and judged by p, the chance sum(min(p, q)); null where guesses are
    judged by another rule, and where both sides pick one token, so that it would say 0 or 1 as it happened.
    theory: the tokens a pass that the formula gives for these draft lengths, supposing that each judged guess is kept
    with the same chance.
    """
    places: dict[int, list[Guess]] = {}
    running, kept, expected = [], 0, 0.0
    judged: list[Guess] = []
    for one in rounds:
        for guess in one.guesses:
            if guess.fate != "lost":
                places.setdefault(guess.depth, []).append(guess)
                judged.append(guess)
                kept += guess.fate == "kept"
                expected += guess.overlap or 0.0
        running.append([len(judged), kept, significant(expected)])
    one_by_one = all(guess.overlap is not None for guess in judged)
    foretold = one_by_one and all(guess.target is None or guess.target.model is None for guess in judged)
    rate = kept / len(judged) if judged else None
    lengths = [len(one.guesses) for one in rounds if one.step.committed]
    chains = one_by_one and all(one.step.parents is None for one in rounds)
    return {
        "accept_by_place": [place_data(place, guesses, foretold) for place, guesses in sorted(places.items())],
        "running": [[*counts, chance if foretold else None] for *counts, chance in running] if judged else [],
        "theory": {
            "judged_accept_rate": rate,
            "expected_accept_rate": expected / len(judged) if judged and foretold else None,
            "tokens_per_pass": sum(expected_tokens(rate, n) for n in lengths) / len(lengths)
            if rate is not None and chains
            else None,
        },
    }


def place_data(place: int, guesses: Sequence[Guess], foretold: bool) -> Json:
    """The judged guesses of one place in the draft, counted from 1."""
    kept = sum(guess.fate == "kept" for guess in guesses)
    expected = sum(guess.overlap or 0.0 for guess in guesses) / len(guesses) if foretold else None
    return {"place": place, "judged": len(guesses), "kept": kept, "expected": expected}


# --- tokens ------------------------------------------------------------------------------------------


def named_tokens(data: Json) -> set[int]:
    """Every token that is written, guessed, or in a law; the prompt is shown as text."""
    named: set[int] = set()
    for run in (data, data["plain"] or {"rounds": [], "ids": []}):
        named |= set(run["ids"])
        for one in run["rounds"]:
            for thing in [*one["guesses"], *([one["own"]] if one["own"] else [])]:
                named.add(thing["token"])
                named |= {token for law in thing.values() if isinstance(law, list) for token, _ in law}
    return named


def token_text(tokenizer: Tokenizer, token: int) -> str | dict[str, str]:
    """A token's text, or its bytes where these are not whole characters."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"bytes": data.hex(" ")}


def joined(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Of each token that is no whole text in itself: its place, and the characters that are whole with it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for place, token in enumerate(ids):
        data = tokenizer.token_bytes(token)
        whole = decoder.decode(data)
        if data.decode("utf-8", errors="replace") != whole or not isinstance(token_text(tokenizer, token), str):
            yield str(place), whole
