"""Heads files: whose they are, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits
from checkpoints import TINY, tiny_tensors, write_checkpoint
from heads_files import medusa_tensors, parallel_parts, write_heads
from toys import ODD, ids_of, tiny_model

from minispec import load_model
from minispec.costs import measure_costs
from minispec.decoding import decode
from minispec.drafters import MedusaDrafter, ParallelDrafter
from minispec.drafters.medusa import small_output
from minispec.heads import find_heads, fingerprint, fingerprint_of, read_heads
from minispec.model import GPT2
from minispec.packing import packed
from minispec.session import open_pair
from minispec.settings import Settings
from minispec.weights import Checkpoint


def test_copies_of_a_target_have_one_fingerprint_and_others_have_others(tmp_path: Path) -> None:
    one = fingerprint(tiny_model(TINY))
    for backend in ("numba", "numpy"):
        for stored in ("f32", "int8"):
            assert fingerprint(tiny_model(TINY, 0, backend, stored)) == one
    assert fingerprint(tiny_model(TINY).tapped((1,))) == one
    checkpoint = Checkpoint(write_checkpoint(tmp_path / "same", TINY, tiny_tensors(TINY, 0)))
    assert fingerprint_of(checkpoint.config, checkpoint) == one
    nearly = tiny_tensors(TINY, 0)
    nearly["h.1.ln_2.bias"][3] += 1e-3
    others = [tiny_model(TINY, 1), tiny_model(ODD), GPT2(TINY, nearly), GPT2(replace(TINY, n_ctx=32), nearly)]
    others.append(GPT2(replace(TINY, layer_norm_epsilon=1e-6), tiny_tensors(TINY, 0)))
    assert one not in {fingerprint(other) for other in others}
    assert len({fingerprint(other) for other in others}) == 4


def test_a_heads_file_gives_its_tensors_and_what_was_told(tmp_path: Path) -> None:
    target = tiny_model(TINY)
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    heads = read_heads(write_heads(tmp_path / "x.safetensors", "medusa", target, tensors, tokens="7"), "medusa", target)
    assert_same_bits(heads["a"], tensors["a"])
    assert heads.metadata["tokens"] == "7"
    assert heads.shaped("a", -1, 3).shape == (2, 3)
    with pytest.raises(ValueError, match=r"x\.safetensors lacks b: it is no complete file of medusa heads"):
        heads["b"]
    for wrong in ((2, 4), (2,), (2, 3, 1), (-1, 2)):
        with pytest.raises(ValueError, match=r"a has shape \[2, 3\], but must have"):
            heads.shaped("a", *wrong)


def test_heads_of_another_target_method_or_format_are_refused_in_one_line(tmp_path: Path) -> None:
    target, other = tiny_model(TINY), tiny_model(TINY, 1)
    path, tensors = tmp_path / "medusa.safetensors", medusa_tensors(TINY)
    cases: list[tuple[Any, dict[str, str], str]] = [
        (other, {}, r"holds heads that were trained for another target: train some for this one"),
        (target, {"method": "eagle"}, r"holds eagle heads of version 1, not medusa heads of version 1: train"),
        (target, {"version": "0"}, r"holds medusa heads of version 0, not medusa heads of version 1"),
    ]
    for owner, metadata, message in cases:
        write_heads(path, "medusa", owner, tensors, **metadata)
        with pytest.raises(ValueError, match=message) as error:
            read_heads(path, "medusa", target)
        assert "\n" not in str(error.value)
    write_checkpoint(tmp_path / "model")
    with pytest.raises(ValueError, match="holds no heads of version none, not medusa"):
        read_heads(tmp_path / "model" / "model.safetensors", "medusa", target)
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        read_heads(path, "medusa", target)


def test_where_heads_are_looked_for(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    with pytest.raises(ValueError, match=r"has no medusa heads .*missing\): train some by .*train_heads\.py medusa"):
        find_heads(str(folder), "medusa")
    (folder / "medusa.safetensors").write_bytes(b"")
    assert find_heads(str(folder), "medusa") == folder / "medusa.safetensors"
    with pytest.raises(ValueError, match=r"-d medusa:FILE"):
        find_heads(str(folder), "medusa", str(tmp_path / "none"))
    assert find_heads("story-target", "medusa", str(folder / "medusa.safetensors")) == folder / "medusa.safetensors"


@pytest.mark.parametrize("draft", ["early-exit:2", "medusa", "parallel"])
def test_drafters_on_what_the_target_has_seen_by_name(draft: str, tmp_path: Path) -> None:
    """From the name to a drafter, a target with the taps that it wants, and the target's own text."""
    target = load_model("story-target")
    if draft != "early-exit:2":
        config = replace(target.config, n_layer=1, n_head=2, n_embd=8, n_inner=32)
        tensors, told = (medusa_tensors(target.config), {}) if draft == "medusa" else parallel_parts(config)
        path = write_heads(tmp_path / "x.safetensors", draft, target, tensors, **told)
        draft += f":{path}"
    settings = Settings(draft=draft, max_new_tokens=12, num_draft_tokens=2)
    pair = open_pair(settings, target)
    ids = pair.tokenizer.encode("Once upon a time")
    plain, steps = (list(decode(settings, pair, ids, plain=plain)) for plain in (True, False))
    assert ids_of(plain) == ids_of(steps)
    assert any(step.drafted for step in steps)
    assert measure_costs(pair.target, pair.drafter, turns=1, rows=(2,)).guess >= 0
    if draft.startswith("parallel"):  # the others look at the target's cache
        for name in (draft, f"suffix+{draft}"):
            beside = replace(settings, draft=name, schedule="overlapped")
            steps = list(decode(beside, open_pair(beside, target), ids))
            assert ids_of(steps) == ids_of(plain)
            assert any(step.drafted for step in steps)
    other = open_pair(replace(settings, weights="int8"))  # a copy of the target: the same heads are its own
    assert any(step.drafted for step in decode(settings, other, ids))


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("early-exit:6", "cannot be: story-target has 6 layers, give 1 to 5 of them, as in early-exit:2"),
        ("early-exit:0", "give 1 to 5 of them"),
        ("early-exit:x", "the draft early-exit:x cannot be"),
        ("early-exit", "lacks its argument: give early-exit:N"),
        ("medusa:nowhere", r"story-target has no medusa heads \(nowhere is missing\)"),
        ("suffix+parallel:nowhere", "story-target has no parallel heads"),
    ],
)
def test_a_draft_that_cannot_be_is_one_line(draft: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        open_pair(Settings(draft=draft))
    assert "\n" not in str(error.value)


def test_damaged_heads_are_refused_in_words(tmp_path: Path) -> None:
    target, path = tiny_model(TINY), tmp_path / "x.safetensors"
    none = {"weight": np.zeros((0, 32, 32), np.float32), "bias": np.zeros((0, 32), np.float32)}
    write_heads(path, "medusa", target, none)
    with pytest.raises(ValueError, match="has no heads: train it again"):
        MedusaDrafter(target, read_heads(path, "medusa", target))
    for change in ({"weight": np.zeros((3, 32, 31), np.float32)}, {"bias": np.zeros((2, 32), np.float32)}):
        write_heads(path, "medusa", target, medusa_tensors(TINY) | change)
        with pytest.raises(ValueError, match=r"has shape .* but must have"):
            MedusaDrafter(target, read_heads(path, "medusa", target))
    tensors, told = parallel_parts(TINY)
    told_sizes = json.loads(told["config"])
    odd: list[dict[str, Any]] = [{"n_head": 0}, {"n_head": 3}, {"n_vocab": "97"}, {"n_layer": 10**9}, {"n_ctx": 32.0}]
    odd += [{"layer_norm_epsilon": "x"}, {"layer_norm_epsilon": -1.0}, {"scale_attn_weights": "no"}]
    shapes = [{"config": json.dumps(told_sizes | change)} for change in odd]
    shapes += [{"config": config} for config in ("{}", "[", "[" * 100_000)]
    for metadata in (*shapes, *({"masks": masks} for masks in ("x", "1", "-1", "-3"))):
        write_heads(path, "parallel", target, tensors, **told | metadata)
        with pytest.raises(ValueError, match=r"train it again|guesses \d+ tokens"):
            ParallelDrafter.of(target, read_heads(path, "parallel", target))
    for name in tensors:  # compiled code would read past its end
        write_heads(path, "parallel", target, tensors | {name: tensors[name][..., :1]}, **told)
        with pytest.raises(ValueError, match=f"{name} has shape .* but must have"):
            ParallelDrafter.of(target, read_heads(path, "parallel", target))
    del tensors["h.1.ln_2.bias"]
    write_heads(path, "parallel", target, tensors, **told)
    with pytest.raises(ValueError, match=r"lacks h\.1\.ln_2\.bias.*train it again"):
        ParallelDrafter.of(target, read_heads(path, "parallel", target))


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_an_output_layer_in_8_bits_is_nearly_the_targets(backend: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, ODD.n_embd)).astype(np.float32)
    w = tiny_model(ODD, 0, backend).weights
    exact = tiny_model(ODD, 0, backend).ops.linear(x, w.lm_head, w.lm_head_scale, w.lm_head_bias)
    for stored in ("f32", "int8"):
        target = tiny_model(ODD, 0, backend, stored)
        rough = target.ops.linear(x, *small_output(target))
        assert 0 < np.abs(rough - exact).max() < 0.02 * np.abs(exact).max()
    product = packed(target.ops, np.eye(21, dtype=np.float32), np.arange(21, dtype=np.float32))
    assert np.allclose(target.ops.linear(x, *product), x + np.arange(21))
