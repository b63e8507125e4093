"""The same logits as transformers on the same files. Needs the extra `bench` (torch and transformers)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minispec import load_model, load_tokenizer
from minispec.hub import find_model

REASON = "needs torch and transformers: pip install -e .[bench]"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

SHAPES = {
    "tiny and odd": {"n_layer": 3, "n_head": 3, "n_embd": 21, "n_positions": 45, "vocab_size": 71, "n_inner": 50},
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "gpt2-medium": {"n_layer": 24, "n_head": 16, "n_embd": 1024},
}


def save_random(shape: dict[str, Any], folder: Path) -> Any:
    """A random model of transformers, saved. Weights are larger than at the start of training, so rows differ."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(**shape, initializer_range=0.05, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model


def their_logits(model: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def relative_error(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_random_checkpoints_give_the_logits_of_transformers(shape: str, tmp_path: Path) -> None:
    theirs = save_random(SHAPES[shape], tmp_path)
    n_vocab = theirs.config.vocab_size
    ids = [int(i) for i in np.random.default_rng(0).integers(0, n_vocab, 40)]
    expected = their_logits(theirs, ids)
    del theirs
    for backend in ("numba", "numpy"):
        model = load_model(tmp_path, backend=backend)
        cache = model.new_cache()
        rows = [model.forward(ids[:17], cache), model.forward(ids[17:18], cache), model.forward(ids[18:], cache)]
        assert relative_error(np.concatenate(rows), expected) < 1e-4
        if shape == "gpt2-medium":
            break  # the plain NumPy has shown itself on the smaller ones


@pytest.mark.parametrize("name", ["story-target", "story-draft"])
def test_the_pair_loads_in_transformers_as_it_is(name: str) -> None:
    folder = find_model(name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = 'Once upon a time, there was a little girl named Lily. She said, "I don\'t know!"'
    ids = load_tokenizer(name).encode(text)
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text
    model = load_model(name)
    assert relative_error(model.forward(ids, model.new_cache()), their_logits(theirs, ids)) < 1e-4
