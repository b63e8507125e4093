"""The recipe for heads, on a toy corpus and toy targets. Needs the extra `train` (torch and tokenizers)."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_checkpoint

from minispec import load_model
from minispec.drafters import MedusaDrafter, ParallelDrafter
from minispec.heads import read_heads
from minispec.parameters import GPT2Config
from minispec.sampling import Sampling
from minispec.speculative import speculate

REASON = "needs torch and tokenizers: pip install -e .[train]"
torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("tokenizers", reason=REASON)

TARGET = GPT2Config(n_layer=3, n_head=2, n_embd=16, n_ctx=32, n_vocab=300, n_inner=64)
DRAFT = GPT2Config(n_layer=1, n_head=1, n_embd=8, n_ctx=32, n_vocab=300, n_inner=32)
STORIES = [f"Once upon a time, {who} had a {what}. The {what} was {how}. {who} was happy!" for who in
           ("Tom", "Lily", "Ben", "Mia", "Sam", "Zoe", "Max", "Anna") for what in
           ("dog", "cat", "ball", "boat", "tree", "kite", "hat", "cake") for how in ("big", "red", "old")]  # fmt: skip
MODULES = ("train", "frozen_target", "head", "train_heads", "heads_medusa", "heads_parallel")
STEPS = 6


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe as a function of a method, a name for its work and options: it returns the heads file."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "weights"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    train, train_heads = import_module("train"), import_module("train_heads")
    monkeypatch.setattr(train, "N_VOCAB", 300)
    monkeypatch.setattr(train_heads, "SAVE_EVERY", 2)
    monkeypatch.setattr(train_heads, "N_HELD", 2)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "stories.txt").write_text("\n<|endoftext|>\n".join(STORIES), encoding="utf-8")
    for name, config in (("story-target", TARGET), ("story-draft", DRAFT)):
        write_checkpoint(tmp_path / name, config)
        train.train_tokenizer(STORIES, tmp_path / name)

    def run(method: str, name: str, *options: str) -> Path:
        out = tmp_path / f"{name}.safetensors"
        where = ["--out", str(out), "--work", str(tmp_path / f"{name}-work")]
        small = ["--tokens", str(STEPS * 2 * 32), "--batch", "2", "--threads", "1"]
        train_heads.main([method, str(tmp_path / "story-target"), str(tmp_path / "corpus"), *where, *small, *options])
        return out

    run.module = train_heads  # type: ignore[attr-defined]
    yield run
    for name in MODULES:
        sys.modules.pop(name, None)


def drafter_of(method: str, path: Path, target: Any) -> Any:
    heads = read_heads(path, method, target)
    return MedusaDrafter(target, heads) if method == "medusa" else ParallelDrafter.of(target, heads)


@pytest.mark.parametrize("method", ["medusa", "parallel"])
def test_heads_are_trained_and_go_on_where_they_were_interrupted(
    method: str, recipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = recipe(method, "whole")
    real, left = recipe.module.batch, [5, 4, 1000]

    def cut(*arguments: Any) -> Any:
        if not left[0]:
            left.pop(0)
            raise KeyboardInterrupt
        left[0] -= 1
        return real(*arguments)

    monkeypatch.setattr(recipe.module, "batch", cut)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            recipe(method, "parts")
    assert recipe(method, "parts").read_bytes() == whole.read_bytes()
    target = load_model(tmp_path / "story-target").tapped((3,))
    drafter = drafter_of(method, whole, target)
    steps = list(speculate(target, drafter, [1, 2, 3], max_new_tokens=20, sampling=Sampling(1.0), n_draft=3))
    assert any(len(step.drafted) == 3 for step in steps)
    with pytest.raises(SystemExit, match=rf"{method}\.pt was begun with another seed \(0, not 1\)"):
        recipe(method, "whole", "--seed", "1")


@pytest.mark.parametrize("method", ["medusa", "parallel"])
def test_what_is_trained_is_what_drafts(method: str, recipe: Any, tmp_path: Path) -> None:
    """The logits of the torch module are those of the drafter, place by place; its target's, those of ours."""
    path = recipe(method, "one")
    frozen = import_module("frozen_target").FrozenTarget(tmp_path / "story-target")
    options = type("Options", (), {"target": tmp_path / "story-target", "draft": None, "masks": 3, "guesses": 4})
    head = import_module(f"heads_{method}").build(frozen, options)
    checkpoint = torch.load(tmp_path / "one-work" / f"{method}.pt", weights_only=True)
    head.load_state_dict({name: tensor.half().float() for name, tensor in checkpoint["head"].items()})
    target = load_model(tmp_path / "story-target").tapped((3,))
    drafter, cache = drafter_of(method, path, target), target.new_cache()
    ids = np.random.default_rng(0).integers(0, 300, 20).tolist()
    logits = target.forward(ids, cache)
    with torch.no_grad():
        seen = frozen.see(torch.tensor([ids]))
        guesses = head.guesses(frozen, seen)
    assert np.abs(seen.logits[0].numpy() - logits).max() < 1e-3
    for t in (3, 11, 17):
        cache.truncate(t + 1)
        if method == "medusa":
            ours, tolerance = drafter.logits(cache.features_at(3)[-1:], 4), 0.05  # its output layer is of 8 bits
        else:
            model = drafter.model
            ours, tolerance = model.forward([*ids[: t + 2], 300, 301, 302], model.new_cache(), 4)[:, :300], 1e-3
        for row, guess in zip(ours, guesses, strict=True):
            assert np.abs(row - guess[0, t].numpy()).max() < tolerance * np.abs(row).max()
        cache.truncate(0)
        target.forward(ids, cache)


def test_rates_compare_a_guess_with_the_targets_law_of_the_same_token(recipe: Any, tmp_path: Path) -> None:
    frozen = import_module("frozen_target").FrozenTarget(tmp_path / "story-target")
    head = import_module("head")
    seen = frozen.see(torch.randint(0, 300, (2, 12), generator=torch.Generator().manual_seed(0)))
    for place in range(3):
        right = torch.full_like(seen.logits, -9.0)
        right[:, : 11 - place] = seen.logits[:, 1 + place :]
        assert head.rates(right, seen, place) == pytest.approx((1.0, 1.0), abs=1e-6)
        assert head.rates(seen.logits, seen, place)[0] < 0.9
        law = seen.logits[:, 1 + place :].softmax(-1)
        entropy = -(law * law.log()).sum(-1).mean().item()
        assert head.soft_loss(right, seen, place).item() == pytest.approx(entropy, abs=1e-4)


def test_what_cannot_be_trained_is_refused_in_one_line(recipe: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"train_heads: .*none is not a folder"):
        recipe.module.main(["medusa", str(tmp_path / "none"), str(tmp_path / "corpus")])
    write_checkpoint(tmp_path / "story-target", TARGET, changes={"scale_attn_by_inverse_layer_idx": True})
    with pytest.raises(SystemExit, match=r"train_heads: .*heads are trained on .* alone"):
        recipe("medusa", "odd")
