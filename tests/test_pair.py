"""The pair in the box is what its card says."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest

from minispec import Sampling, generate, load_model, load_tokenizer, speculate
from minispec.drafters import SmallModelDrafter
from minispec.hub import find_model
from minispec.tokenizer import check_same_vocabulary

CARD = find_model("story-target").parent / "README.md"


def test_files_have_the_hashes_of_the_card() -> None:
    rows = re.findall(r"\| `(\S+)` \| ([\d,]+) \| `([0-9a-f]{64})` \|", CARD.read_text(encoding="utf-8"))
    assert {name for name, _, _ in rows} == {f"{model}/model.safetensors" for model in ("story-target", "story-draft")}
    for name, size, digest in rows:
        data = (CARD.parent / name).read_bytes()
        assert len(data) == int(size.replace(",", ""))
        assert hashlib.sha256(data).hexdigest() == digest


def test_shapes_and_vocabulary() -> None:
    target, draft = load_model("story-target"), load_model("story-draft")
    assert (target.config.n_layer, target.config.n_head, target.config.n_embd) == (6, 6, 384)
    assert (draft.config.n_layer, draft.config.n_head, draft.config.n_embd) == (1, 3, 192)
    for model in (target, draft):
        assert (model.n_ctx, model.n_vocab) == (512, 4096)
    check_same_vocabulary(load_tokenizer("story-target"), load_tokenizer("story-draft"))


def test_files_stay_small() -> None:
    folders = [CARD.parent / name for name in ("story-target", "story-draft")]
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) < 60e6


@pytest.mark.parametrize("prompt", ["Once upon a time", "Lily and Tom went to the park.", "zq\u00e9 %% 123"])
@pytest.mark.parametrize("n_draft", [1, 4, 8])
def test_greedy_text_of_the_pair_is_identical(prompt: str, n_draft: int) -> None:
    target, drafter = load_model("story-target"), SmallModelDrafter(load_model("story-draft"))
    ids = load_tokenizer("story-target").encode(prompt)
    plain = generate(target, ids, max_new_tokens=60, sampling=Sampling())
    steps = list(speculate(target, drafter, ids, max_new_tokens=60, n_draft=n_draft, sampling=Sampling()))
    assert [t for step in steps for t in step.committed] == [t for step in plain for t in step.committed]
    assert len(steps) < 60


def test_the_draft_agrees_with_the_target_as_the_card_says() -> None:
    """On the target's own greedy text the guesses are right about as often as on held-out stories."""
    (same,) = re.findall(r"most likely token in (0\.\d+) of places", CARD.read_text(encoding="utf-8"))
    target, draft, tokenizer = load_model("story-target"), load_model("story-draft"), load_tokenizer("story-target")
    ids = tokenizer.encode("Once upon a time, there was a little girl named Lily. She loved to play in the park.")
    ids += [t for step in generate(target, ids, max_new_tokens=150, sampling=Sampling()) for t in step.committed]
    tops = [np.argmax(model.forward(ids, model.new_cache()), axis=1) for model in (target, draft)]
    assert np.mean(tops[0] == tops[1]) > float(same) - 0.2
