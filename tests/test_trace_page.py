"""A run as a page, without a browser: whatever a text says is data, and the figures are those of the real loop."""

from __future__ import annotations

import json
import re
import runpy
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heads_files import medusa_tensors, parallel_parts, write_heads
from hypothesis import example, given
from hypothesis import strategies as st
from small_heads import KINDS, drafter_tensors
from traced import HOSTILE, PROMPT, check_figures, pair_for, traced

from minispec.decoding import decode
from minispec.drafters.eagle import three_depths
from minispec.methods import METHODS
from minispec.protocols import Step
from minispec.session import open_pair
from minispec.settings import Settings
from minispec.trace_data import joined, token_text, trace_data
from minispec.trace_page import SCRIPTS, as_script, data_of, hashed, page, part, script
from minispec.trace_run import Trace, trace_plain

FREE = ["story-draft", "prompt-lookup", "suffix", "ngram", "self-int8", "early-exit:2", "suffix+story-draft"]
TRAINED = ["medusa", "medusa-typical", "parallel", "eagle", "eagle-tree", "eagle1", "mtp"]
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "num_draft_tokens": 7},
    {"temperature": 1.0, "coupling": "gumbel", "seed": 5},
    {"temperature": 1.0, "verification": "block", "num_draft_tokens": 6},
    {"temperature": 1.0, "tree": (3, 2, 1), "num_draft_tokens": 3},
    {"tree": (2, 2), "num_draft_tokens": 2},
    {"num_draft_tokens": "auto"},
    {"draft": "none"},
]
EDGES: list[dict[str, Any]] = [
    {"max_new_tokens": 0},
    {"max_new_tokens": 1},
    {"max_new_tokens": 2, "temperature": 1.0},
    {"num_draft_tokens": 0},
    {"num_draft_tokens": 63, "max_new_tokens": 100},
    {"stop": (" was", ".")},
    {"draft": "none", "max_new_tokens": 0},
]


class Elements(HTMLParser):
    """The elements of a page, their attributes, and the text in each style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.names and self.names[-1] in ("style", "script") and data.strip():
            self.inside.append((self.names[-1], data))


# --- data in a page ----------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=())))
@example("</script><img src=x onerror=alert(1)>")
@example("<!--<script>")
@example("]]>&amp;\u2028\u2029\ud800\udc00\ud83e")
@example("@DATA@@SCRIPT@\\u003c")
def test_whatever_a_text_says_it_is_data(text: str) -> None:
    script = as_script({"text": text, text: [text]})
    assert script.isascii()
    assert not set(script) & set("<>&")
    same = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # JSON joins split pairs
    assert json.loads(script) == {"text": same, same: [same]}


@given(st.floats(allow_nan=True))
def test_numbers_are_the_same_again_and_no_number_is_nothing(number: float) -> None:
    if number - number == 0:
        assert json.loads(as_script({"x": number})) == {"x": number}
    else:
        with pytest.raises(ValueError, match="not JSON compliant"):
            as_script({"x": number})


def test_a_page_has_the_same_elements_whatever_the_text_says() -> None:
    harmless, hostile = (Elements(page(traced(text, max_new_tokens=5))) for text in (PROMPT, HOSTILE))
    assert hostile.names == harmless.names
    assert hostile.names.count("script") == 2
    assert [name for name in hostile.names if name in ("img", "iframe", "object", "embed", "base", "form")] == []
    assert not any(name.startswith("on") for name, _ in hostile.attributes)
    assert {value for name, value in hostile.attributes if name in ("src", "href")} == {"data:,"}


def test_the_policy_lets_nothing_in_but_the_pages_own_style_and_script() -> None:
    elements = Elements(page(traced(HOSTILE, max_new_tokens=5)))
    (policy,) = (value for name, value in elements.attributes if name == "content" and "default-src" in (value or ""))
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == "'none'"
    texts = dict(reversed(elements.inside))  # the first of each element
    (style,) = (text for name, text in elements.inside if name == "style")
    data, script = (text for name, text in elements.inside if name == "script")
    for rule, text in (("style-src", style), ("script-src", script)):
        assert rules[rule] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" == hashed(text)
    assert json.loads(data)["prompt"] == HOSTILE
    assert set(texts) == {"style", "script"}


def test_the_script_reads_no_data_as_html_and_asks_nobody() -> None:
    code, style = script(), part("page.css")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch(",
                 "XMLHttpRequest", "import(", "WebSocket", "sendBeacon"):  # fmt: skip
        assert word not in code
    assert set(re.findall(r"https?://[^\"'` ]+", code + style + part("page.html"))) <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in style
    assert "@import" not in style


def test_a_page_is_small() -> None:
    parts = len((part("page.html") + part("page.css") + script()).encode())
    assert parts < 32_000
    data = traced(max_new_tokens=100, temperature=1.0)
    assert len(page(data).encode()) < parts + 10_000 + 3_000 * (len(data["ids"]) + data["drafted"])


def test_data_comes_back_from_its_page() -> None:
    for data in (traced(HOSTILE, max_new_tokens=8), traced(max_new_tokens=0)):
        assert data_of(page(data)) == json.loads(json.dumps(data))
    with pytest.raises(ValueError, match="has no data of a trace: give a page"):
        data_of("<html></html>")


# --- what is in the data -----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [*WAYS, *EDGES], ids=str)
def test_notes_change_nothing_and_figures_agree(settings: dict[str, Any]) -> None:
    chosen = Settings(**({"num_draft_tokens": 4, "max_new_tokens": 30} | settings))
    data = check_untouched(chosen)
    check_figures(data)
    pair = pair_for(chosen.draft, chosen.tree)
    assert data["text"].startswith(pair.tokenizer.decode(data["ids"][:2])[:3])
    plain = settings.get("draft") == "none"
    assert (data["plain"] is None) == plain
    assert data["identical"] is (None if plain or not chosen.determined else True)
    assert data["settings"]["seed"] == chosen.seed
    assert data["settings"]["stop"] == chosen.stop
    for name in ("num_draft_tokens", "draft_weights", "schedule", "tree", "verification"):
        assert (name in data["settings"]) == data["drafts"]  # a page of plain decoding has no settings of drafts
    assert {"minispec", "python", "numpy"} <= set(data["versions"])
    assert data["machine"]["cpu"]
    if settings.get("num_draft_tokens") == 0 or plain or not data["ids"]:
        assert data["running"] == data["accept_by_place"] == []
        assert data["theory"]["judged_accept_rate"] is None
    theory = data["theory"]["expected_accept_rate"]
    assert (theory is None) == (not data["drafted"] or chosen.verification == "block" or chosen.determined)
    page(data)


def test_the_top_of_each_law_is_five_of_the_models_own_where_one_token_is_certain() -> None:
    for settings in ({"temperature": 0.0}, {"temperature": 1.0, "coupling": "gumbel"}):
        data = traced(**settings)
        for one in data["rounds"]:
            for guess in one["guesses"]:
                assert len(guess["draft"]) == 1
                assert len(guess["draft_model"]) == 5
                if guess["fate"] != "lost":
                    assert (len(guess["target"]), len(guess["target_model"])) == (1, 5)
    assert all(len(guess["target"]) == 5 for one in traced(temperature=1.0)["rounds"] for guess in one["guesses"]
               if guess["fate"] != "lost")  # fmt: skip


def test_a_greedy_trace_takes_the_likeliest_token_of_the_model() -> None:
    for one in traced()["rounds"]:
        for guess in one["guesses"]:
            assert guess["draft"][0][0] == guess["draft_model"][0][0] == guess["token"]
        if one["own"] is not None:
            assert one["own"]["token"] == one["own"]["law_model"][0][0]


@pytest.mark.parametrize("settings", [
    {"max_new_tokens": 60}, {"coupling": "gumbel", "temperature": 1.0}, {"tree": (3, 2, 1), "num_draft_tokens": 3},
    {"verification": "block", "num_draft_tokens": 6}, {"draft": "none"}, {"draft": "prompt-lookup"},
    {"draft": "medusa-typical"},
], ids=str)  # fmt: skip
def test_where_the_text_is_determined_nothing_is_said_of_coins_and_draws(settings: dict[str, Any]) -> None:
    data = traced(**settings)
    whys = set()
    for one in data["rounds"]:
        for thing in [*one["guesses"], *([one["own"]] if one["own"] else [])]:
            why = thing["why"]
            for word in ("coin fell", "draw fell", "with chance", "probability 1"):
                assert word not in why
            law = dict(map(tuple, thing.get("target_model", thing.get("law_model", []))))
            if thing["token"] in law and thing.get("fate") != "lost":
                told = re.search(r"p = (\d(?:\.\d+)?(?:e-\d+)?)", why)
                assert told is not None
                assert float(told[1]) == pytest.approx(law[thing["token"]], rel=0.06, abs=6e-4)
            whys.add(why.split(": ")[-1] if "fate" in thing else thing["kind"])
            if thing.get("fate") == "refused" and settings.get("verification") != "block":
                assert "is another: refused. No coin decides." in why
    assert len(whys) > 1 or settings == {"draft": "none"}


def test_what_replaces_a_guess_by_a_rule_of_a_methods_own_is_said_to_be_from_p() -> None:
    data = traced("a dog. The dog was a big dog. a", draft="medusa-typical", temperature=1.0)
    whys = [one["own"]["why"] for one in data["rounds"] if one["own"] and one["own"]["kind"] == "replaced"]
    assert whys
    assert all(why.startswith("In place of a refused guess, from p: it had probability") for why in whys)
    other = [one["own"]["why"] for one in traced(temperature=1.0)["rounds"] if one["own"]]
    assert any("from what the target has over the draft" in why for why in other)


def test_a_large_seed_is_told_to_its_last_digit() -> None:
    assert traced(max_new_tokens=1, seed=2**53 + 1)["words"]["seed"] == "9007199254740993"


# --- the loop is what it was -------------------------------------------------------------------------


def without_times(steps: list[Step]) -> list[Step]:
    return [replace(step, draft_seconds=0.0, target_seconds=0.0) for step in steps]


def check_untouched(chosen: Settings, prompt: str = PROMPT) -> dict[str, Any]:
    """A traced text is that which is written without notes, step for step, plain decoding's too."""
    pair = open_pair(chosen) if ":" in (chosen.draft or "") else pair_for(chosen.draft, chosen.tree)
    ids = pair.tokenizer.encode(prompt)
    main, plain = Trace(chosen, pair, ids).finish(), trace_plain(chosen, pair, ids)
    assert without_times(main.run.steps) == without_times(list(decode(chosen, pair, ids)))
    if plain is not None:
        assert without_times(plain.run.steps) == without_times(list(decode(chosen, pair, ids, plain=True)))
    return trace_data(chosen, pair, prompt, main, plain)


@pytest.mark.parametrize("draft", FREE)
def test_notes_change_nothing_whatever_guesses(draft: str) -> None:
    prompt = PROMPT + " there was a big dog. The dog was very"
    for way in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 1}, {"temperature": 1.0, "coupling": "gumbel"}):
        data = check_untouched(Settings(draft=draft, num_draft_tokens=5, max_new_tokens=30, **way), prompt)
        check_figures(data)
        assert data["drafted"] or draft == "suffix"


def some_tokens(tensors: dict[str, Any]) -> dict[str, Any]:
    """Heads that guess only tokens whose numbers are whole in 16 bits."""
    few = tensors["tokens"] < 2048
    less = {name: tensors[name][few] for name in ("tokens", "head.weight") if name in tensors}
    return tensors | less


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Random heads for the target in the box, of every kind."""
    folder, target = tmp_path_factory.mktemp("heads"), pair_for("none").target
    parts: dict[str, Any] = {kind: (some_tokens(drafter_tensors(kind, target)), {}) for kind in KINDS}
    three, into = three_depths(target.config.n_layer), parts["eagle"][0]["into.weight"]
    deep = {"depths": np.array(three, np.float32), "into.weight": np.resize(into, (3 * target.config.n_embd, 12))}
    parts["eagle"] = (parts["eagle"][0] | deep, {})
    parts |= {"medusa": (medusa_tensors(target.config), {}), "parallel": parallel_parts(target.config)}
    paths = {
        kind: str(write_heads(folder / f"{kind}.safetensors", kind, target, tensors, **more))
        for kind, (tensors, more) in parts.items()
    }
    return paths | {"medusa-typical": paths["medusa"], "eagle-tree": paths["eagle"]}


@pytest.mark.parametrize("draft", TRAINED)
def test_notes_change_nothing_where_heads_guess(draft: str, heads: dict[str, str]) -> None:
    for temperature in (0.0, 1.0):
        chosen = Settings(draft=f"{draft}:{heads[draft]}", num_draft_tokens=3, max_new_tokens=16,
                          temperature=temperature)  # fmt: skip
        data = check_untouched(chosen)
        check_figures(data)
        assert data["drafted"]
        assert data["identical"] is (True if temperature == 0 else None)


def test_every_method_is_traced_here() -> None:
    assert {draft.split(":")[0] for draft in [*FREE, *TRAINED]} >= set(METHODS)


def test_what_is_not_traced_is_said_in_one_line() -> None:
    pair = pair_for()
    with pytest.raises(ValueError, match="--schedule overlapped does both at once: leave it out"):
        Trace(Settings(schedule="overlapped"), pair, [1, 2])


# --- tokens ------------------------------------------------------------------------------------------


def test_half_a_character_is_its_bytes_and_the_whole_stands_where_it_is_whole() -> None:
    tokenizer = pair_for().tokenizer
    for text in ("🦊", "a é 日本", "🏴\u200d☠️"):
        ids = tokenizer.encode(text)
        whole = dict(joined(tokenizer, ids))
        shown = [whole.get(str(place), token_text(tokenizer, token)) for place, token in enumerate(ids)]
        assert "".join(map(str, shown)) == text
        for place, token in enumerate(ids):
            alone = token_text(tokenizer, token)
            assert isinstance(alone, str) or bytes.fromhex(alone["bytes"]) == tokenizer.token_bytes(token)
            assert (str(place) in whole) or isinstance(alone, str)
    fox = tokenizer.encode("🦊")
    assert len(fox) > 1
    assert dict(joined(tokenizer, fox))[str(len(fox) - 1)] == "🦊"


def test_parts_of_a_page_are_files_of_the_package() -> None:
    for name in ("page.html", "page.css", *SCRIPTS):
        assert Path(part.__globals__["__file__"]).with_name("page").joinpath(name).is_file()
        assert part(name).strip()


# --- the picture of one round --------------------------------------------------------------------------


def test_the_picture_is_of_a_round_whose_chances_can_be_worked_out_from_it() -> None:
    path = Path(__file__).resolve().parents[1] / "notebooks" / "figures" / "one_round.py"
    telling = runpy.run_path(str(path))["telling"]

    def round_of(fates: str, *probs: float) -> dict[str, Any]:
        told = [{"draft_prob": p, "target_prob": p} for p in probs]
        return {"tree": False, "guesses": [one | {"fate": fate} for one, fate in zip(told, fates.split(), strict=True)]}

    whole, early = "kept kept refused lost", "kept refused lost lost"
    rounds = [
        round_of(early, 0.5, 0.5, 0.5, 0.5),
        round_of(whole, 0.5, 0.001, 0.5, 0.5),
        round_of(whole, 0.5, 0.5, 0.5, 0.001),
    ]
    assert telling({"rounds": rounds}) == 2
    with pytest.raises(ValueError, match="take another seed"):
        telling({"rounds": rounds[:2]})
