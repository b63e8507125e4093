"""Ways to draft by name: what -d takes, in every command, and one line for what it does not."""

from __future__ import annotations

import csv
import io
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from checkpoints import TINY
from test_verify import Letters

from minispec.commands.shared import hints
from minispec.costs import measure_costs
from minispec.draft_option import help_lines, is_lossy, is_model, models_in, parts_of, takes_draft_weights, usage
from minispec.drafters import CombinedDrafter, NgramDrafter, PromptLookupDrafter, SmallModelDrafter, SuffixDrafter
from minispec.drafters.models import describe, models_of
from minispec.drafters.ngram import FILE, table_of
from minispec.hub import find_model
from minispec.kept_costs import file_of
from minispec.methods import METHODS
from minispec.prompts import Prompt
from minispec.protocols import Draft
from minispec.session import Pair, open_pair
from minispec.settings import Settings
from minispec.sweep import job_key, make_jobs
from minispec.verify_bits import same_bits
from minispec.verify_cases import Mismatch
from minispec.verify_laws import joint_law
from minispec.verify_texts import same_text

PROMPT = "Once upon a time there was a big dog. The dog was very"
FREE = ["prompt-lookup", "prompt-lookup:2,first", "suffix", "ngram", "self-int8", "prompt-lookup+story-draft",
        "suffix+ngram"]  # fmt: skip


def drafter_named(draft: str) -> Any:
    return open_pair(Settings(draft=draft)).drafter


# --- names -------------------------------------------------------------------------------------------


def test_names_and_what_they_mean() -> None:
    lookup = drafter_named("prompt-lookup:4,first")
    assert isinstance(lookup, PromptLookupDrafter)
    assert (lookup.longest, lookup.which) == (4, "first")
    assert describe(drafter_named("prompt-lookup")) == "PromptLookupDrafter(longest=3, which='recent')"
    assert isinstance(drafter_named("suffix"), SuffixDrafter)
    assert isinstance(drafter_named("ngram"), NgramDrafter)
    assert isinstance(drafter_named(f"ngram:{table_of(find_model('story-target'))}"), NgramDrafter)
    itself = drafter_named("self-int8")
    assert isinstance(itself, SmallModelDrafter)
    assert itself.model.stored == "int8"  # type: ignore[attr-defined]
    both = drafter_named("suffix+story-draft+ngram")
    assert isinstance(both, CombinedDrafter)
    assert [type(one) for one in both.drafters] == [SuffixDrafter, SmallModelDrafter, NgramDrafter]
    assert [model.config.n_layer for model in models_of(both)] == [1]


def test_what_a_draft_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models_in("suffix+story-draft+ngram:x") == ["story-draft"]
    assert models_in("org/name") == ["org/name"]
    assert models_in(None) == models_in("ngram") == []
    assert is_model("gpt2")
    assert not is_model("suffix+gpt2")
    assert not is_model(None)
    assert not any(is_lossy(draft) for draft in [*FREE, "gpt2", None])
    odd = tmp_path / "a+b:c"
    odd.mkdir()
    assert models_in(str(odd)) == [str(odd)]
    (tmp_path / "suffix").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parts_of("suffix")[0].method is METHODS["suffix"]  # as gpt2 is always the hub's
    assert parts_of("./suffix")[0].method is None


def test_lossy_methods_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "guesswork", replace(METHODS["suffix"], lossy=True))
    assert is_lossy("guesswork")
    with pytest.raises(ValueError, match="has guesswork among others, and that judges guesses by a rule of its own"):
        parts_of("suffix+guesswork")
    assert " ".join(" ".join(help_lines()).split()).endswith("(lossy: another law than the target)")


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("sufix", "no model is called 'sufix', and no method: did you mean suffix? (minispec generate --help lists"),
        ("n-gram", "did you mean ngram?"),
        ("promptlookup:3", "no model is called 'promptlookup:3', and no method: did you mean prompt-lookup?"),
        ("story-drift", "did you mean story-draft"),
        ("xyzzy", "choose one of story-target, story-draft, gpt2"),
        ("suffix+", "no model is called ''"),
        ("suffix+none", "no model is called 'none'"),
        ("suffix:3", "gives suffix an argument, and it takes none: leave out :3"),
        ("ngram:", "ends in a colon: leave it out, or give ngram[:PATH]"),
        ("prompt-lookup:0", "has '0': give the tokens to look for, 1 to 32, or recent or first"),
        ("prompt-lookup:3,last", "has 'last': give the tokens to look for"),
        ("ngram:nowhere.safetensors", "names no file: give one that weights/ngram.py"),
        ("suffix+./nowhere", "nowhere"),
        ("self-int8 --weights int8", "self-int8 drafts with the 8-bit copy of story-target, which is kept in 8 bits"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "sweep"])
def test_a_wrong_draft_is_one_line(run: Any, command: str, draft: str, said: str) -> None:
    rest = ["--per-kind", "1", "-k", "2", "-n", "4"] if command == "sweep" else [PROMPT]
    status, out, err = run(command, *rest, "-d", *draft.split())
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert said in line


def test_a_target_without_a_table_says_how_to_make_one(run: Any, tmp_path: Path) -> None:
    for file in find_model("story-draft").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    status, _, err = run("generate", PROMPT, "-m", str(tmp_path), "-d", "ngram")
    assert status == 2
    (line,) = err.strip().splitlines()
    assert f"{FILE} is missing, so ngram has nothing to look up: make it anew with python weights/ngram.py" in line


# --- in every command --------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", FREE)
def test_every_method_writes_the_text_of_plain_decoding(run: Any, draft: str) -> None:
    texts = []
    for name, more in ((draft, ["-k", "4"]), (draft, []), ("none", [])):
        status, out, _ = run("generate", PROMPT, "-n", "40", "-d", name, "--json", *more)
        assert status == 0
        texts.append(json.loads(out))
    assert len({text["text"] for text in texts}) == 1
    assert texts[0]["draft"] == draft
    assert texts[0]["accepted"] > 0
    assert texts[0]["draft_weights"] == ("f32" if "story-draft" in draft else None)


def test_texts_written_together_are_those_written_alone(run: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\nOne day\n", encoding="utf-8")
    for draft in ("suffix", "self-int8", "prompt-lookup+story-draft"):
        rest = ["-n", "30", "-d", draft, "--json", "-k", "3", "-t", "1"]
        _, out, _ = run("generate", "--prompts", str(tmp_path / "prompts.txt"), *rest)
        together = [json.loads(line)["ids"] for line in out.splitlines()]
        alone = [json.loads(run("generate", prompt, *rest)[1])["ids"] for prompt in (PROMPT, "One day")]
        assert together == alone


def test_the_help_text_lists_the_methods(run: Any) -> None:
    for command in ("generate", "compare", "verify", "bench"):
        status, out, _ = run(command, "--help")
        assert status == 0
        methods = out[out.index("Methods of -d:") :].splitlines()
        assert max(map(len, methods)) <= 80
        assert all(any(line.startswith(f"    {usage(name)} ") for line in methods) for name in METHODS)


def test_compare_and_sweep_take_methods(run: Any) -> None:
    status, out, _ = run("compare", PROMPT, "-n", "30", "-d", "ngram", "--repetitions", "1", "--json")
    assert status == 0
    assert json.loads(out)["identical"] is True
    drafts = [word for draft in ("suffix", "ngram", "none") for word in ("-d", draft)]
    status, out, _ = run("sweep", *drafts, "--per-kind", "1", "-k", "2", "-n", "12", "--output", "csv", "-q")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["draft"] for row in rows] == ["suffix", "ngram", "none"]


def test_verify_takes_methods(run: Any) -> None:
    status, out, _ = run("verify", "-d", "suffix", "--quick", "--only", "golden", "--json")
    assert status == 0
    assert json.loads(out)["draft"] == "suffix"
    model = toys.tiny_model(TINY)
    pair = Pair(model, Letters(model.n_vocab), SuffixDrafter(model.n_vocab))  # type: ignore[arg-type]
    for seed in range(3):
        assert same_text(pair, np.random.default_rng(seed))["guesses"] > 0
        assert same_bits(pair, np.random.default_rng(seed))["rows"] > 0


@pytest.mark.parametrize("copies", [True, False])
def test_the_law_that_verify_walks_is_of_the_methods_own_guesses(copies: bool) -> None:
    """And a drafter that claims less certainty than it has is found out."""
    model, asked = toys.table(4, 0), list[int]()

    class Watched(PromptLookupDrafter):
        def start(self, cache: Any = None) -> Any:
            inner = super().start(cache)
            certain = inner.draft

            def draft(*case: Any) -> Draft:
                found = certain(*case)
                asked.append(len(found.tokens))
                unsure = [(probs + 1 / model.n_vocab) / 2 for probs in found.probs]
                return found if copies else Draft(found.tokens, unsure)

            inner.draft = draft  # type: ignore[method-assign, assignment]
            return inner

    pair = Pair(model, Letters(model.n_vocab), Watched(model.n_vocab))  # type: ignore[arg-type]
    with nullcontext() if copies else pytest.raises(Mismatch, match="from the target alone"):
        for seed in range(9):
            assert joint_law(pair, np.random.default_rng(seed)) > 0
    assert sum(asked) > 0


def test_bench_times_texts_by_a_method(run: Any) -> None:
    options = ["--repetitions", "1", "-n", "20", "-k", "3", "--json", "-q"]
    parts = ["--only", "end-to-end", "--only", "costs", "--only", "batch", "--batch", "2", "--only", "short"]
    status, out, _ = run("bench", "-d", "prompt-lookup+ngram", *parts, *options)
    assert status == 0
    result = json.loads(out)
    assert [row["same_text"] for row in result["end_to_end"]] == [True, True]
    assert result["batch"][0]["same_text"]
    assert (result["draft"], result["draft_weights"], len(result["costs"])) == ("prompt-lookup+ngram", None, 15)


def test_bench_names_the_models_of_a_method() -> None:
    from minispec.bench_models import Model
    from minispec.bench_plan import Plan, draft_models, load_pair

    def models(draft: str) -> list[tuple[str, str]]:
        both = Model("story-target", "f32", "story-target"), Model(draft, "int8", draft)
        plan = Plan(Settings(), both, [], [1], [], 1)
        assert describe(load_pair(plan).drafter) == describe(drafter_named(draft))
        return [(model.name, model.weights) for model in draft_models(plan)]

    assert models("story-draft") == [("story-draft", "int8")]
    assert models("suffix+story-draft") == [("story-draft", "int8")]
    assert models("self-int8") == [("story-target", "int8")]
    assert models("ngram") == []


# --- prices and keys ---------------------------------------------------------------------------------


def test_prices_are_kept_for_each_way_to_draft() -> None:
    drafts = [*FREE, "story-draft", "none", "prompt-lookup:4"]
    files = {file_of(open_pair(Settings(draft=draft))) for draft in drafts}
    assert len(files) == len(drafts)


def test_a_free_guess_costs_next_to_nothing() -> None:
    for draft in ("suffix", "ngram"):
        pair = open_pair(Settings(draft=draft))
        assert measure_costs(pair.target, pair.drafter, turns=1, rows=(2,)).guess < 0.5


def test_a_key_knows_the_method_and_the_bytes_of_its_table(tmp_path: Path) -> None:
    keys = [job_key(Prompt("a"), Settings(draft=draft)) for draft in [*FREE, "prompt-lookup:3", "none"]]
    assert len(set(keys)) == len(keys)
    table = table_of(find_model("story-target"))
    for name in ("same", "other"):
        (tmp_path / name).write_bytes(table.read_bytes())
    (tmp_path / "other").write_bytes(table.read_bytes()[:-1] + b"\x01")
    same, other = (job_key(Prompt("a"), Settings(draft=f"ngram:{tmp_path / name}")) for name in ("same", "other"))
    assert same == job_key(Prompt("a"), Settings(draft="ngram")) != other


def test_draft_weights_are_for_models_alone() -> None:
    jobs = make_jobs(Settings(draft_weights="int8"), [Prompt("a")], ["suffix", "suffix+story-draft"], [2], [0.0])
    assert [job.settings.draft_weights for job in jobs] == ["f32", "int8"]


def test_draft_weights_are_for_a_model_of_heads_too() -> None:
    assert [takes_draft_weights(draft) for draft in ("suffix", "medusa", "suffix+parallel", "story-draft", None)] == [
        False, False, True, True, False,
    ]  # fmt: skip
    asked = Settings(draft="suffix+parallel:x", draft_weights="int8")
    assert asked.as_json()["draft_weights"] == "int8"
    assert not list(hints(asked, ""))


def test_draft_weights_without_a_model_are_noted(run: Any) -> None:
    _, _, err = run("generate", PROMPT, "-n", "3", "-d", "suffix", "--draft-weights", "int8", "-k", "2")
    assert "note: --draft-weights has no effect without a draft model: suffix is made of none" in err
