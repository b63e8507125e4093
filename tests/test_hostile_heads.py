"""Heads from anywhere, with the right fingerprint: loaded right or refused in one line that names the file.

Right means: every tensor as the safetensors library reads it, a shape as the file tells it, and, whatever the heads
guess, the target's own text.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Stored, safetensors_bytes, stored_as, tiny_tensors
from heads_files import medusa_tensors, parallel_parts
from hostile import damaged, edited, render, verdict, with_header
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from small_heads import drafter_tensors
from toys import ids_of

from minispec.drafters import EagleDrafter, MedusaDrafter, MTPDrafter, ParallelDrafter
from minispec.heads import VERSION, Heads, fingerprint, read_heads
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.speculative import speculate

TARGET = GPT2(c := GPT2Config(2, 2, 4, 9, 13, 3), tiny_tensors(c), "numpy")
BUILD: dict[str, Callable[[GPT2, Heads], Any]] = {
    "medusa": MedusaDrafter,
    "parallel": ParallelDrafter.of,
    "eagle": EagleDrafter.of,
    "eagle1": EagleDrafter.of,
    "mtp": MTPDrafter.of,
}
GREEDY: dict[str, Any] = {"max_new_tokens": 8, "sampling": Sampling()}
PLAIN = ids_of(generate(TARGET, [1], **GREEDY))


def parts(kind: str) -> tuple[dict[str, Stored], dict[str, str]]:
    """Tensors and metadata of sound heads."""
    tensors, told = parallel_parts(c) if kind == "parallel" else (None, {})
    if tensors is None:
        tensors = medusa_tensors(c) if kind == "medusa" else drafter_tensors(kind, TARGET, 6)
    metadata = {"method": kind, "version": VERSION, "target": fingerprint(TARGET)} | told
    return {name: stored_as(np.asarray(tensor, np.float32), "F16") for name, tensor in tensors.items()}, metadata


def drafter_of(path: Path, kind: str) -> Any:
    return BUILD[kind](TARGET, read_heads(path, kind, TARGET))


def judged(content: bytes, kind: str) -> Any:
    """The drafter of a file, which is right, or the line that refuses it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"{kind}.safetensors"
        path.write_bytes(content)
        drafter = verdict(partial(drafter_of, path, kind), path.parent, len(content))
        if isinstance(drafter, str):
            assert path.name in drafter.replace(name, "")
            return drafter
        heads = read_heads(path, kind, TARGET)
        for tensor, values in load_file(path).items():  # BF16 comes as itself
            np.testing.assert_array_equal(heads[tensor], values.astype(np.float32))
            assert np.isfinite(heads[tensor]).all()
    if kind == "parallel":
        assert asdict(drafter.model.config) == asdict(GPT2Config(**json.loads(heads.metadata["config"])))
        assert len(drafter.model.weights.wte.T) == drafter.n_vocab + int(heads.metadata["masks"])
    steps = list(speculate(TARGET.tapped(getattr(drafter, "taps", ())), drafter, [1], n_draft=2, **GREEDY))
    assert ids_of(steps) == PLAIN
    return drafter


@pytest.mark.parametrize("kind", BUILD)
def test_sound_heads_guess(kind: str) -> None:
    """Else what is said of damaged ones would say nothing."""
    drafter = judged(safetensors_bytes(*parts(kind)), kind)
    steps = speculate(TARGET.tapped(getattr(drafter, "taps", ())), drafter, [1], n_draft=2, **GREEDY)
    assert any(step.drafted for step in steps)


@given(data=st.data(), kind=st.sampled_from(list(BUILD)))
def test_damaged_heads(data: Any, kind: str) -> None:
    whole = safetensors_bytes(*parts(kind))
    header = 8 + int.from_bytes(whole[:8], "little")
    judged(data.draw(damaged(whole) | damaged(whole[:header]).map(lambda cut: cut + whole[header:])), kind)


@given(data=st.data(), kind=st.sampled_from(list(BUILD)))
def test_heads_with_an_edited_header(data: Any, kind: str) -> None:
    whole = safetensors_bytes(*parts(kind))
    header = 8 + int.from_bytes(whole[:8], "little")
    pairs = data.draw(edited(json.loads(whole[8:header])))
    judged(with_header(render(pairs), whole[header:]), kind)


VALUES = [0.0, -0.0, 0.5, -1.0, 1.0, 2.0, 3.0, 12.0, 13.0, 1e-7, 3e4, -6e4, np.nan, np.inf]
RESHAPED: list[Callable[[Any], Any]] = [
    lambda array: array.T,
    lambda array: array[..., :1],
    lambda array: array[:0],
    lambda array: array[:-1],
    lambda array: array[None],
    lambda array: array.reshape(-1),
    lambda array: np.concatenate([array, array]),
    lambda array: array.reshape(-1)[0],
]
MASKS = ["0", "1", "2", "3", "13", "15", "-1", "-2", " 2", "2.0", "two", "", "9" * 5000]


@pytest.mark.parametrize("kind", BUILD)
@given(data=st.data())
def test_sound_files_of_heads_that_make_no_sense(kind: str, data: Any) -> None:
    """Tensors left out, of other shapes, with other values and dtypes; shapes told that are others."""
    tensors, metadata = parts(kind)
    for _ in range(data.draw(st.integers(1, 2))):
        how = data.draw(st.sampled_from(["value", "value", "shape", "shape", "dtype", "gone", "told"]))
        name = data.draw(st.sampled_from(list(tensors)))
        dtype, shape, content = tensors[name]
        array = np.frombuffer(content, "<f2").reshape(shape).astype(np.float32) if dtype == "F16" else None
        if how == "gone":
            del tensors[name]
        elif how == "told":
            metadata |= {"masks": data.draw(st.sampled_from(MASKS) | st.just("2"))}
            if "config" in metadata:
                metadata |= {"config": render(data.draw(edited(asdict(c) | {"n_vocab": 15})))}
        elif array is not None and array.size and how == "value":
            array.flat[data.draw(st.integers(0, array.size - 1))] = data.draw(st.sampled_from(VALUES))
            tensors[name] = stored_as(array, "F16")
        elif array is not None and array.size and array.ndim and how == "shape":
            tensors[name] = stored_as(np.asarray(data.draw(st.sampled_from(RESHAPED))(array)), "F16")
        elif array is not None and how == "dtype":
            other = data.draw(st.sampled_from(["F32", "F64", "I32", "U16"]))
            with np.errstate(invalid="ignore"):  # what is not finite is some integer then
                kept = array.astype({"F32": "<f4", "F64": "<f8", "I32": "<i4", "U16": "<u2"}[other])
            tensors[name] = other, shape, kept.tobytes()
    judged(safetensors_bytes(tensors, metadata), kind)
