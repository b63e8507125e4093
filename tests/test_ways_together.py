"""Ways to draft, ways to judge and schedules: which go together, in `verify`, in prices, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY, tiny_tensors
from heads_files import medusa_tensors, parallel_parts, write_heads
from small_heads import drafter_on
from test_verify import Letters
from toys import ids_of, tiny_model

from minispec import load_model
from minispec.commands.bench import drafts_of
from minispec.decoding import decode
from minispec.draft_option import parts_of
from minispec.drafters import CombinedDrafter, MedusaDrafter, ParallelDrafter, SmallModelDrafter, SmallModelTreeDrafter
from minispec.drafters.eagle_tree import EagleTreeDrafter
from minispec.drafters.models import branches, describe, warm_up
from minispec.heads import read_heads
from minispec.model import GPT2
from minispec.prompts import Prompt
from minispec.session import Pair, check_drafter, open_pair
from minispec.settings import Settings
from minispec.sweep import make_jobs, model_digest
from minispec.verify_laws import same_law
from minispec.verify_texts import same_text

FEW = replace(TINY, n_vocab=12)
MASKS = 3


def pair_of(target: GPT2, drafter: Any) -> Pair:
    return Pair(target, Letters(target.n_vocab), drafter)  # type: ignore[arg-type]


def parallel_pair(target: GPT2) -> Pair:
    config = replace(target.config, n_vocab=target.n_vocab + MASKS)
    return pair_of(target, ParallelDrafter(GPT2(config, tiny_tensors(config, 1)), MASKS))


def eagle_tree_pair(target: GPT2) -> Pair:
    tapped, drafter = drafter_on("eagle", target)
    return pair_of(tapped, EagleTreeDrafter(drafter))


def wide_pair(target: GPT2) -> Pair:
    return pair_of(target, SmallModelTreeDrafter(tiny_model(target.config, 1), (5,)))


# --- who guesses trees -----------------------------------------------------------------------------


def test_who_guesses_trees(tmp_path: Path) -> None:
    target = tiny_model(FEW)
    tapped = target.tapped((FEW.n_layer,))
    heads = read_heads(write_heads(tmp_path / "x", "medusa", target, medusa_tensors(FEW)), "medusa", target)
    chain = SmallModelDrafter(target)
    assert eagle_tree_pair(target).has_trees
    assert wide_pair(target).has_trees
    assert pair_of(target, CombinedDrafter([chain, SmallModelTreeDrafter(target, (2,))])).has_trees
    assert [branches(MedusaDrafter(tapped, heads, tree)) for tree in ((), (-1, -1))] == [False, True]
    assert not any(map(branches, (None, chain, CombinedDrafter([chain]), drafter_on("eagle", target)[1])))
    assert describe(SmallModelTreeDrafter(target, (3, 1))) != describe(SmallModelTreeDrafter(target, (2, 1)))


@pytest.mark.parametrize("kind", [eagle_tree_pair, parallel_pair, wide_pair])
def test_verify_can_check_every_way(kind: Callable[[GPT2], Pair]) -> None:
    """Trees are judged as such, masks are nobody's tokens, and a place may have more guesses than likely tokens."""
    pair = kind(tiny_model(FEW))
    for seed in range(20):
        assert same_text(pair, np.random.default_rng(seed))["guesses"] > 0
    for seed in range(3):
        assert same_law(pair, np.random.default_rng(seed), top_k=3)["probabilities"] > 0


# --- what is refused -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Drafts with made-up heads for the target in the box."""
    target, folder = load_model("story-target"), tmp_path_factory.mktemp("heads")
    config = replace(target.config, n_layer=1, n_head=2, n_embd=8, n_inner=32)
    tensors, told = parallel_parts(config)
    files = {
        "medusa": write_heads(folder / "m", "medusa", target, medusa_tensors(target.config)),
        "parallel": write_heads(folder / "p", "parallel", target, tensors, **told),
    }
    return {name: f"{name}:{path}" for name, path in files.items()} | {"medusa-typical": f"medusa-typical:{folder}/m"}


@pytest.mark.parametrize(
    ("draft", "more", "said"),
    [
        ("early-exit:2", ["--schedule", "overlapped"], "early-exit:2 looks at that: leave it out"),
        ("medusa", ["--schedule", "overlapped"], "looks at that: leave it out, or take another draft"),
        ("suffix+medusa", ["--schedule", "overlapped"], "looks at that: leave it out, or take another draft"),
        ("medusa-typical", ["--verification", "block"], "has a rule of its own: leave it out"),
        ("suffix+medusa-typical", [], "has medusa-typical among others, and that judges guesses by a rule of its own"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    run: Any, heads: dict[str, str], draft: str, more: list[str], said: str
) -> None:
    named = "+".join(heads.get(part, part) for part in draft.split("+"))
    status, out, err = run("generate", "Once upon a time", "-n", "9", "-q", "-d", named, *more)
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert said in line


def test_blocks_are_for_chains() -> None:
    with pytest.raises(ValueError, match="block judges chains, and eagle-tree guesses trees: leave it out"):
        check_drafter(Settings(draft="eagle-tree", verification="block"), eagle_tree_pair(tiny_model(FEW)))


def test_a_lossy_way_says_so(run: Any, heads: dict[str, str]) -> None:
    said = "is lossy: what is written has another law than the target's"
    arguments = ["generate", "Once upon a time", "-n", "3", "-k", "2", "-d", heads["medusa-typical"]]
    assert said in run(*arguments, "-t", "1")[2]
    assert said not in run(*arguments)[2]  # greedily it writes the target's text
    assert said not in run(*arguments[:-1], heads["medusa"], "-t", "1")[2]


def test_the_words_of_an_argument_are_no_drafts() -> None:
    assert drafts_of("suffix,prompt-lookup:4,first,story-draft", "story-target") == [
        "suffix", "prompt-lookup:4,first", "story-draft",
    ]  # fmt: skip
    assert drafts_of("prompt-lookup:first,4+suffix,ngram", "story-target") == ["prompt-lookup:first,4+suffix", "ngram"]
    assert parts_of("ngram:C:\\tables\\x.safetensors")[0].argument == "C:\\tables\\x.safetensors"


# --- beside a pass, and in 8 bits ------------------------------------------------------------------


def test_a_drafter_keeps_its_kind_beside_the_target(heads: dict[str, str]) -> None:
    settings = Settings(draft=heads["parallel"], schedule="overlapped", max_new_tokens=12, num_draft_tokens=2)
    pair = open_pair(settings)
    ids = pair.tokenizer.encode("Once upon a time")
    assert ids_of(decode(settings, pair, ids)) == ids_of(decode(settings, pair, ids, plain=True))


def test_draft_weights_are_for_models_of_methods_too(run: Any, heads: dict[str, str]) -> None:
    settings = Settings(draft=heads["parallel"], draft_weights="int8")
    assert settings.as_json()["draft_weights"] == "int8"
    (job,) = make_jobs(settings, [Prompt("a")], [settings.draft], [2], [0.0])
    assert job.settings.draft_weights == "int8"
    arguments = ["generate", "Once upon a time", "-n", "3", "-k", "2", "--draft-weights", "int8"]
    assert "--draft-weights" not in run(*arguments, "-d", heads["parallel"])[2]


def test_heads_beside_a_model_are_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr("minispec.sweep.find_model", lambda *_: tmp_path)
    model_digest.cache_clear()
    before = model_digest("x", False)
    (tmp_path / "eagle.safetensors").write_bytes(b"heads")
    model_digest.cache_clear()
    assert model_digest("x", False) == before
    (tmp_path / "model.safetensors").write_bytes(b"others")
    model_digest.cache_clear()
    assert model_digest("x", False) != before
    model_digest.cache_clear()


@pytest.mark.parametrize("kind", ["eagle", "mtp"])
def test_a_block_and_its_way_in_are_compiled_before_the_first_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's own kernels may be others: of 8 bits."""
    _, drafter = drafter_on(kind, tiny_model(FEW, 0, "numba", "int8"))
    warmed: list[str] = []
    monkeypatch.setattr(GPT2, "warm_up", lambda model: warmed.append(model.stored))
    monkeypatch.setattr(type(drafter.ways), "warm_up", lambda ways: warmed.append("ways"))
    warm_up(CombinedDrafter([drafter]))
    assert warmed == (["ways", "f32"] if kind == "eagle" else ["ways"])
    if kind == "eagle":
        warm_up(EagleTreeDrafter(drafter))
        assert warmed == ["ways", "f32"] * 2


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_the_way_in_can_be_warmed_up(backend: str) -> None:
    drafter_on("eagle", tiny_model(FEW, 0, backend))[1].warm_up()
