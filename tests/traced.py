"""Traces of the pair in the box for tests, and what must be true of each: its figures agree with one another."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

from minispec.session import Pair, open_pair
from minispec.settings import Settings
from minispec.trace_data import trace_data
from minispec.trace_run import Trace, trace_plain

PROMPT = "Once upon a time"
HOSTILE = (
    "</script><img src=x onerror='window.hit=1'><!--<script>window.hit=2</script> &lt;b&gt; @DATA@ ${hit} `\n"
    "\u2028\u2029\r\n\tשלום عالم \u202eevil\u202c 🦊é\u200b\x00\x1b[31m"  # noqa: RUF001
)
WRITTEN = {"kept", "replaced", "bonus", "plain"}  # kinds of tokens that are in the text; others were only guessed


@cache
def pair_for(draft: str | None = None, tree: tuple[int, ...] = ()) -> Pair:
    """A loaded pair."""
    return open_pair(Settings(draft=draft, tree=tree))


def traced(prompt: str = PROMPT, **settings: Any) -> dict[str, Any]:
    """The data of a run with these settings."""
    chosen = Settings(**({"num_draft_tokens": 4, "max_new_tokens": 40} | settings))
    pair = pair_for(chosen.draft, chosen.tree)
    ids = pair.tokenizer.encode(prompt)
    return trace_data(chosen, pair, prompt, Trace(chosen, pair, ids).finish(), trace_plain(chosen, pair, ids))


def check_figures(data: dict[str, Any]) -> None:
    """Text, rounds, laws, coins and rates of a trace agree."""
    for run in filter(None, (data, data["plain"])):
        assert [token for one in run["rounds"] for token in one["committed"]] == run["ids"]
        assert len(run["rounds"]) == run["passes"]
        assert sum(len(one["guesses"]) for one in run["rounds"]) == run["drafted"]
        for one in run["rounds"]:
            check_round(one, data)
    judged = [guess for one in data["rounds"] for guess in one["guesses"] if guess["fate"] != "lost"]
    kept = sum(guess["fate"] == "kept" for guess in judged)
    assert kept == data["accepted"]
    places = data["accept_by_place"]
    assert (sum(one["judged"] for one in places), sum(one["kept"] for one in places)) == (len(judged), kept)
    for one in places:
        here = [guess for guess in judged if guess["depth"] == one["place"]]
        assert (one["judged"], one["kept"]) == (len(here), sum(guess["fate"] == "kept" for guess in here))
    if judged:
        assert data["running"][-1][:2] == [len(judged), kept]
        assert data["theory"]["judged_accept_rate"] == kept / len(judged)
        assert all(before[0] <= after[0] and before[1] <= after[1] for before, after in pairwise(data["running"]))
    expected = data["theory"]["expected_accept_rate"]
    if expected is not None:
        assert abs(expected - sum(guess["overlap"] for guess in judged) / len(judged)) < 1e-12


def check_round(one: dict[str, Any], data: dict[str, Any]) -> None:
    """What is shown is what was written; fates follow from chances and coins; laws are laws, and their tokens named."""
    guesses, own = one["guesses"], one["own"]
    shown = [((own if i < 0 else guesses[i])["token"], kind) for i, kind in one["shown"]]
    assert [token for token, kind in shown if kind in WRITTEN] == one["committed"]
    assert [i for i, guess in enumerate(guesses) if guess["fate"] == "kept"] == sorted(one["path"])
    assert len({i for i, _ in one["shown"]}) == len(shown)
    for guess in guesses:
        assert guess["fate"] in ("kept", "refused", "lost")
        assert (guess["parent"] < 0) == (guess["depth"] == 1)
        check_laws(guess, ("draft", "target", "residual"), data)
        if guess["fate"] == "lost":
            assert "coin" not in guess
            assert "target" not in guess
        elif "overlap" in guess:  # judged one by one
            p, q, coin = guess["target_prob"], guess["draft_prob"], guess["coin"]
            assert abs(guess["chance"] - min(1, p / q)) < 1e-12
            assert (guess["fate"] == "kept") == (coin < guess["chance"])
            assert f"{guess['chance']:.3f}"[:4] in guess["why"] or guess["chance"] < 0.001 or guess["chance"] > 0.999
            check_residual(guess)
    if own is not None:
        assert own["token"] == one["committed"][-1]
        assert 0 <= own["coin"] < 1
        assert own["prob"] > 0
        check_laws(own, ("law",), data)


def check_laws(thing: dict[str, Any], names: tuple[str, ...], data: dict[str, Any]) -> None:
    """The tops of laws: at most five tokens, each named, the most likely first."""
    for law in (thing[key] for name in names for key in (name, f"{name}_model") if key in thing):
        assert len(law) <= 5
        probs = [prob for _, prob in law]
        assert probs == sorted(probs, reverse=True)
        assert all(0 < prob <= 1 for prob in probs)
        assert sum(probs) < 1 + 1e-5
        assert all(str(token) in data["tokens"] for token, _ in law)


def check_residual(guess: dict[str, Any]) -> None:
    """What replaces a guess has for each token in all three tops max(0, p - q) over 1 - overlap."""
    target, draft = dict(map(tuple, guess["target"])), dict(map(tuple, guess["draft"]))
    left = 1 - guess["overlap"]
    for token, prob in guess["residual"] if left > 1e-3 else ():
        if token in target and token in draft:
            assert abs(prob - max(0.0, target[token] - draft[token]) / left) < 1e-3, guess
    if guess["fate"] == "refused":
        assert guess["residual"]
