"""Checkpoints that are made up: they load, they write their script, and a draft agrees as often as it was asked to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minispec import Sampling, generate, load_model, load_tokenizer, made_up, speculate
from minispec.drafters import SmallModelDrafter
from minispec.model import GPT2
from minispec.parameters import GPT2Config

TARGET = GPT2Config(n_layer=3, n_head=4, n_embd=128, n_ctx=256, n_vocab=700, n_inner=512)
DRAFT = GPT2Config(n_layer=1, n_head=2, n_embd=64, n_ctx=256, n_vocab=700, n_inner=256)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_scripted_model_writes_its_script_after_any_prompt(temperature: float) -> None:
    script, _ = made_up.scripts(TARGET, 1.0)
    model = GPT2(TARGET, made_up.scripted_tensors(TARGET, script))
    for prompt in ([1], [5, 600, 7]):
        steps = generate(model, prompt, max_new_tokens=200, sampling=Sampling(temperature))
        new = [token for step in steps for token in step.committed]
        assert new == script[len(prompt) - 1 : len(prompt) + 199].tolist()


def test_a_pair_from_its_files_agrees_with_the_chance_that_was_asked_for(tmp_path: Path) -> None:
    """Every place of the window once; binomial, so 0.8 +- 0.15 has false-alarm odds far below 1e-6. Seeded."""
    folders = tmp_path / "target", tmp_path / "draft"
    made_up.write_scripted_pair(folders, (TARGET, DRAFT), 0.8)
    target, draft = (load_model(str(folder)) for folder in folders)
    assert (target.config, draft.config) == (TARGET, DRAFT)
    tops = [np.argmax(model.forward([9] * 256, model.new_cache()), axis=1) for model in (target, draft)]
    same = np.mean(tops[0] == tops[1])
    assert abs(same - 0.8) < 0.15
    one, other = made_up.scripts(TARGET, 0.8)
    assert same == np.mean(one == other)
    steps = list(speculate(target, SmallModelDrafter(draft), [3], max_new_tokens=100, n_draft=4, sampling=Sampling()))
    assert [token for step in steps for token in step.committed] == one[:100].tolist()
    for step in steps[:-1]:
        assert step.n_accepted < len(step.drafted) or len(step.committed) == 5


@pytest.mark.parametrize(("accept", "same"), [(0.0, 0.0), (1.0, 1.0)])
def test_scripts_that_never_or_always_agree(accept: float, same: float) -> None:
    one, other = made_up.scripts(TARGET, accept)
    assert np.mean(one == other) == same
    assert 0 <= min(one.min(), other.min()) <= max(one.max(), other.max()) < TARGET.n_vocab - 1


def test_the_vocabulary_is_one(tmp_path: Path) -> None:
    made_up.write_random(tmp_path, DRAFT)
    tokenizer = load_tokenizer(str(tmp_path))
    for text in ("Once upon a time", "\u00e9\U0001f40d\n\t "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    model = load_model(str(tmp_path))
    assert model.forward(tokenizer.encode("Once"), model.new_cache()).shape[1] == DRAFT.n_vocab


def test_a_random_checkpoint_is_the_same_for_a_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        made_up.write_random(tmp_path / name, DRAFT, seed)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]


def test_shapes_and_nonsense(tmp_path: Path) -> None:
    assert made_up.shape_of("gpt2-medium") == GPT2Config(24, 16, 1024, 1024, 50257, 4096)
    with pytest.raises(ValueError, match="no shape is called 'gpt3': choose one of distilgpt2, gpt2"):
        made_up.shape_of("gpt3")
    for accept in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="the chance of acceptance is"):
            made_up.scripts(TARGET, accept)
    with pytest.raises(ValueError, match="has 257 to 65793 tokens, not 200"):
        made_up.write_random(tmp_path, GPT2Config(1, 1, 4, 8, 200, 4))
