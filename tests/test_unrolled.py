"""The recipe of EAGLE and MTP on toy targets: what is trained is what drafts. Needs the extra `train` (torch)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoints import write_checkpoint
from small_heads import KINDS
from test_on_features import ANY, Forced, read

from minispec import load_model
from minispec.drafters import EagleDrafter, MTPDrafter
from minispec.heads import read_heads
from minispec.parameters import GPT2Config
from minispec.speculative import speculate

REASON = "needs torch and tokenizers: pip install -e .[train]"
torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("tokenizers", reason=REASON)

TARGET = GPT2Config(n_layer=3, n_head=2, n_embd=16, n_ctx=32, n_vocab=300, n_inner=64)
STORIES = [f"Once upon a time, {who} had a {what}. {who} was happy!" for who in ("Tom", "Lily", "Ben", "Mia") for what
           in ("dog", "cat", "ball", "boat", "tree", "kite", "hat", "cake")]  # fmt: skip
MODULES = ("train", "frozen_target", "head", "train_heads", "unrolled", *(f"heads_{kind}" for kind in KINDS))
SMALL = ["--width", "12", "--guessable", "100", "--batch", "2", "--tokens", str(4 * 2 * 32)]
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The recipe as a function of a method: it returns the heads file."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "weights"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    train, train_heads = import_module("train"), import_module("train_heads")
    monkeypatch.setattr(train, "N_VOCAB", 300)
    monkeypatch.setattr(train_heads, "SAVE_EVERY", 2)
    monkeypatch.setattr(train_heads, "N_HELD", 2)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "stories.txt").write_text("\n<|endoftext|>\n".join(STORIES), encoding="utf-8")
    write_checkpoint(tmp_path / "target", TARGET)
    train.train_tokenizer(STORIES, tmp_path / "target")

    def run(method: str) -> Path:
        out = tmp_path / f"{method}.safetensors"
        where = ["--out", str(out), "--work", str(tmp_path / "work"), "--threads", "1"]
        train_heads.main([method, str(tmp_path / "target"), str(tmp_path / "corpus"), *where, *SMALL])
        return out

    yield run
    for name in MODULES:
        sys.modules.pop(name, None)


@kinds
def test_what_is_trained_is_what_drafts(kind: str, recipe: Any, tmp_path: Path) -> None:
    """From a file of the recipe: guesses along a text, each after the text's own tokens, have the module's logits."""
    path = recipe(kind)
    plain = load_model(tmp_path / "target")
    drafter: Any = (MTPDrafter if kind == "mtp" else EagleDrafter).of(plain, read_heads(path, kind, plain))
    target = plain.tapped(drafter.taps)
    frozen = import_module("frozen_target").FrozenTarget(tmp_path / "target")
    options = SimpleNamespace(target=tmp_path / "target", corpus=tmp_path / "corpus", width=12, guessable=100,
                              heads=None if kind == "mtp" else 3, layers=2)  # fmt: skip
    head = import_module(f"heads_{kind}").build(frozen, options).eval()
    checkpoint = torch.load(tmp_path / "work" / f"{kind}.pt", weights_only=True)["head"]
    head.load_state_dict({name: tensor.half().float() for name, tensor in checkpoint.items()})
    ids = np.random.default_rng(0).integers(0, 300, 20).tolist()
    with torch.no_grad():
        guesses = [guess[0].numpy() for guess in head.guesses(frozen, frozen.see(torch.tensor([ids])))]
    assert len(guesses) == 4
    may = drafter.ways.tokens
    assert len(may) == 100
    for t in (0, 3, 11, 15):  # the target has read up to here
        forced = Forced(ids[t + 2 :])
        drafter.start(read(target, ids[: t + 2])).draft(ids[: t + 2], min(4, 18 - t), forced, forced)
        assert len(forced.logits) == min(4, 18 - t)
        for ours, guess in zip(forced.logits, guesses, strict=False):
            assert (np.isfinite(ours) == np.isfinite(guess[t])).all()
            assert np.abs(ours[may] - guess[t, may]).max() < 1e-3 * max(1, np.abs(ours[may]).max())
    steps = list(speculate(target, drafter, ids, max_new_tokens=8, sampling=ANY, n_draft=3))
    assert any(len(step.drafted) == 3 for step in steps)


@kinds
def test_training_learns_to_guess(kind: str, recipe: Any, tmp_path: Path) -> None:
    """On one batch, over and over: every number is moved, and what its guesses lack of the target's law halves."""
    frozen = import_module("frozen_target").FrozenTarget(tmp_path / "target")
    tokens = torch.arange(0, 300, 3)
    module = import_module(f"heads_{kind}")
    torch.manual_seed(0)
    head = {
        "eagle": lambda: module.Eagle(frozen, (1, 3), 12, 3, tokens),
        "eagle1": lambda: module.Eagle1(frozen, 12, 3, tokens),
        "mtp": lambda: module.MTP(frozen, 2, 12, 2, tokens),
    }[kind]()
    seen = frozen.see(torch.randint(0, 300, (2, 24)))
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)

    def lacking() -> float:
        """Of the first guess: nats over the least there can be."""
        with torch.no_grad():
            (z,) = head.states(frozen, seen, 1)
            label = head.label(seen, 0)
            least = import_module("unrolled").soft_cross_entropy(label.log(), label)
            own = import_module("unrolled").soft_cross_entropy(head.logits(frozen, z), label)
        return float(own - least)

    before = lacking()
    for _ in range(60):
        torch.manual_seed(1)
        loss = head.loss(frozen, seen)
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in head.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0 or name.endswith("wpe.weight"), name
        optimizer.step()
    assert 0 <= lacking() < 0.5 * before


@kinds
def test_a_damaged_file_is_refused_in_one_line(kind: str, recipe: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    plain = load_model(tmp_path / "target")
    heads = read_heads(recipe(kind), kind, plain)
    make: Any = MTPDrafter if kind == "mtp" else EagleDrafter
    tensors = load_file(heads.path)
    for name in tensors:
        for changed in ({}, {name: tensors[name][:-1].clone()}):
            save_file(
                {k: v for k, v in tensors.items() if k != name} | changed, heads.path, metadata=dict(heads.metadata)
            )
            if kind == "eagle1" and name == "tokens" and changed:
                continue  # its output layer is the target's, whatever tokens it guesses
            with pytest.raises(ValueError, match=r"^[^\n]*(damaged|belong to another)[^\n]*$"):
                make.of(plain, read_heads(heads.path, kind, plain))
