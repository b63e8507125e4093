"""Checkpoints: every faithful variant loads with the right values, everything else is refused by name in one line."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checkpoints import (
    TINY,
    Floats,
    Stored,
    config_json,
    safetensors_bytes,
    stored_as,
    tiny_tensors,
    write_checkpoint,
    write_index,
)
from safetensors import SafetensorError, safe_open

from minispec import packing
from minispec.safetensors_file import read_header, read_tensor
from minispec.weights import Checkpoint, load_model, read_config

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def refusal(folder: Path, n_tokens: int | None = None) -> str:
    """The one line that a folder is refused with, when opened or when read."""
    with pytest.raises(ValueError, match=r".") as caught:
        dict(Checkpoint(folder, n_tokens))
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 500 + len(str(folder))
    return line


def logits(folder: Path) -> Floats:
    model = load_model(folder, backend="numpy")
    return model.forward(IDS, model.new_cache())


def assert_same(found: Checkpoint, expected: dict[str, Floats]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array, err_msg=name)


# --- config.json


def test_config_is_read_whole(tmp_path: Path) -> None:
    config = replace(
        TINY,
        n_inner=64,
        layer_norm_epsilon=1e-3,
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
    )
    assert read_config(write_checkpoint(tmp_path, config)) == config


def test_missing_keys_take_gpt2s_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = read_config(tmp_path)
    assert (config.n_layer, config.n_head, config.n_embd, config.n_ctx) == (12, 12, 768, 1024)
    assert (config.n_vocab, config.n_inner, config.layer_norm_epsilon) == (50257, 3072, 1e-5)
    assert config.scale_attn_weights
    assert not config.scale_attn_by_inverse_layer_idx


@pytest.mark.parametrize(
    "changes",
    [
        {"n_inner": None},
        {"n_ctx": 32},
        {"activation_function": "gelu_pytorch_tanh"},
        {"reorder_and_upcast_attn": True, "resid_pdrop": 0.5, "add_cross_attention": False},
        {"n_embd": None, "hidden_size": 32},
    ],
)
def test_harmless_settings_change_nothing(tmp_path: Path, changes: dict[str, object]) -> None:
    assert read_config(write_checkpoint(tmp_path, changes=changes)) == TINY


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "llama"}, ["model_type", "llama"]),
        ({"activation_function": "relu"}, ["activation_function", "relu"]),
        ({"activation_function": "gelu"}, ["activation_function", "gelu"]),
        ({"add_cross_attention": True}, ["add_cross_attention", "True"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config", "bits"]),
        ({"n_head": 5}, ["n_head 5", "n_embd 32"]),
        ({"n_ctx": 16}, ["n_positions is 32", "n_ctx is 16"]),
        ({"num_attention_heads": 8}, ["n_head is 4", "num_attention_heads is 8"]),
        ({"n_layer": -1}, ["n_layer", "-1"]),
        ({"n_layer": 0}, ["n_layer", "0"]),
        ({"n_layer": 2.0}, ["n_layer", "2.0"]),
        ({"n_layer": True}, ["n_layer", "True", "whole number"]),
        ({"n_embd": "32"}, ["n_embd", "'32'"]),
        ({"n_inner": -4}, ["n_inner", "-4"]),
        ({"vocab_size": [97]}, ["vocab_size", "[97]"]),
        ({"layer_norm_epsilon": -1e-5}, ["layer_norm_epsilon", "-1e-05"]),
        ({"layer_norm_epsilon": True}, ["layer_norm_epsilon", "True"]),
        ({"layer_norm_epsilon": float("nan")}, ["config.json", "NaN"]),
        ({"scale_attn_weights": "no"}, ["scale_attn_weights", "no"]),
        ({"scale_attn_by_inverse_layer_idx": 1}, ["scale_attn_by_inverse_layer_idx", "1"]),
        ({"tie_word_embeddings": None}, ["tie_word_embeddings", "None"]),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused_by_name(
    tmp_path: Path, changes: dict[str, object], named: list[str]
) -> None:
    line = refusal(write_checkpoint(tmp_path, changes=changes))
    assert all(word in line for word in [*named, "config.json"]), line


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "Expecting value"),
        (b'{"n_layer": 2', "config.json"),
        (b"[1, 2]", "list"),
        (b'{"n_layer": 2, "n_layer": 3}', "'n_layer' is there twice"),
        (b'{"a": ' + b"[" * 100_000, "config.json"),
        (b'{"n_layer": ' + b"9" * 5000 + b"}", "config.json"),
        (b"\xff\xfe{", "config.json"),
        (b" " * (1 << 20) + b"{}", "1048578 bytes"),
    ],
)
def test_broken_config_is_one_line_that_names_the_file(tmp_path: Path, content: bytes, told: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    line = refusal(tmp_path)
    assert told in line
    assert "config.json" in line


def test_missing_folder_and_missing_config(tmp_path: Path) -> None:
    assert "not a folder" in refusal(tmp_path / "nowhere")
    assert "config.json" in refusal(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"n_head": 8},
        {"layer_norm_epsilon": 0.1},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
    ],
)
def test_settings_without_a_tensor_reach_the_logits(tmp_path: Path, change: dict[str, object]) -> None:
    plain = logits(write_checkpoint(tmp_path / "plain"))
    assert not np.allclose(logits(write_checkpoint(tmp_path / "changed", changes=change)), plain)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 96}, ["wte.weight", "97", "96"]),
        ({"vocab_size": 98}, ["wte.weight", "97", "98"]),
        ({"n_positions": 16}, ["wpe.weight", "32", "16"]),
        ({"n_positions": 64}, ["wpe.weight", "32", "64"]),
        ({"n_embd": 16}, ["wte.weight", "32", "16"]),
        ({"n_inner": 64}, ["h.0.mlp.c_fc.weight", "[32, 128]", "[32, 64]"]),
        ({"n_layer": 1}, ["n_layer is 1", "2 layers"]),
        ({"n_layer": 3}, ["n_layer is 3", "2 layers"]),
        ({"n_layer": 2**31 - 1}, ["n_layer is 2147483647", "2 layers"]),
    ],
)
def test_config_and_tensors_that_disagree(tmp_path: Path, change: dict[str, object], named: list[str]) -> None:
    line = refusal(write_checkpoint(tmp_path, changes=change))
    assert all(word in line for word in named), line


# --- names, shapes, dtypes

MASKS: dict[str, Stored] = {
    "h.0.attn.bias": ("U8", (1, 1, 32, 32), bytes(1024)),
    "h.1.attn.bias": ("F32", (96,), np.full(96, 100, "<f4").tobytes()),
    "h.0.attn.masked_bias": ("F32", (), struct.pack("<f", -1e4)),
}


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("head", [False, True])
def test_naming_variants_are_the_same_model(tmp_path: Path, prefix: str, masks: bool, head: bool) -> None:
    tensors = tiny_tensors()
    stored = tensors | ({"lm_head.weight": tensors["wte.weight"]} if head else {})
    extra = {prefix + name: mask for name, mask in MASKS.items()} if masks else {}
    assert_same(Checkpoint(write_checkpoint(tmp_path, tensors=stored, prefix=prefix, extra=extra)), tensors)


@pytest.mark.parametrize("tie", [True, False])
def test_an_output_layer_of_its_own_is_used(tmp_path: Path, tie: bool) -> None:
    tensors = tiny_tensors()
    tensors["lm_head.weight"] = tensors["wte.weight"].copy()
    tensors["lm_head.weight"][96, 31] += 1
    folder = write_checkpoint(tmp_path / "own", tensors=tensors, changes={"tie_word_embeddings": tie})
    checkpoint = Checkpoint(folder)
    assert "lm_head.weight" in checkpoint
    np.testing.assert_array_equal(checkpoint["lm_head.weight"], tensors["lm_head.weight"])
    own, tied = logits(folder), logits(write_checkpoint(tmp_path / "tied"))
    np.testing.assert_array_equal(own[:, :96], tied[:, :96])
    assert (own[:, 96] != tied[:, 96]).all()


def test_untied_config_needs_an_output_layer(tmp_path: Path) -> None:
    assert "lacks lm_head.weight" in refusal(write_checkpoint(tmp_path, changes={"tie_word_embeddings": False}))


def test_tied_file_may_keep_the_output_layer_alone(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    stored = {("lm_head.weight" if name == "wte.weight" else name): array for name, array in tensors.items()}
    assert_same(Checkpoint(write_checkpoint(tmp_path, tensors=stored)), tensors)


@pytest.mark.parametrize("name", list(tiny_tensors()))
def test_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = tiny_tensors()
    del tensors[name]
    assert f"lacks {name}" in refusal(write_checkpoint(tmp_path, tensors=tensors))


def test_name_with_and_without_prefix_in_one_file(tmp_path: Path) -> None:
    extra = {"transformer.ln_f.bias": stored_as(np.ones(32, np.float32), "F32")}
    assert "'ln_f.bias' is there twice" in refusal(write_checkpoint(tmp_path, extra=extra))


@pytest.mark.parametrize(
    "name",
    [
        "h.0.attn.c_attn.lora_A.weight",
        "base_model.model.h.0.attn.c_attn.lora_B.default.weight",
        "transformer.adapters.0.weight",
        "h.1.crossattention.c_attn.weight",
        "h.0.attn.c_attn.weight_scale",
        "lm_head.bias",
    ],
)
def test_unknown_part_of_the_model_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path, extra={name: stored_as(np.ones((2, 2), np.float32), "F32")})
    assert name in refusal(folder)


@pytest.mark.parametrize("spaces", range(8))
def test_odd_but_legal_files_load(tmp_path: Path, spaces: int) -> None:
    """Zero-size tensors, scalars, foreign dtypes, non-ASCII metadata, any order of names, any alignment."""
    tensors = tiny_tensors()
    odd: dict[str, Stored] = {
        "empty": ("F32", (0,), b""),
        "flag": ("BOOL", (), b"\1"),
        "step": ("I64", (), bytes(8)),
        "é": ("F64", (3,), bytes(24)),
    }
    stored = odd | {name: stored_as(tensors[name], "F32") for name in sorted(tensors, reverse=True)}
    write_checkpoint(tmp_path)
    content = safetensors_bytes(stored, {"author": "Žofie 🦙"}, spaces)
    (tmp_path / "model.safetensors").write_bytes(content)
    checkpoint = Checkpoint(tmp_path)
    assert_same(checkpoint, tensors)
    for name in checkpoint:
        array = checkpoint[name]
        assert array.flags.writeable
        assert array.flags.aligned
        assert array.flags.c_contiguous


def test_transposed_weights_are_refused_where_the_shape_shows_it(tmp_path: Path) -> None:
    transposed = {name: np.ascontiguousarray(a.T) if ".c_" in name else a for name, a in tiny_tensors().items()}
    line = refusal(write_checkpoint(tmp_path, tensors=transposed))
    assert all(word in line for word in ["h.0.attn.c_attn.weight", "[96, 32]", "[32, 96]", "transposed"])


def test_bfloat16_is_exact_for_all_finite_bits(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = bits[(bits & 0x7F80) != 0x7F80]  # less NaN and infinity
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("BF16", bits.shape, bits.tobytes())}, spaces=1))
    values = read_tensor(read_header(path)["a"])
    np.testing.assert_array_equal(values.view(np.uint32), bits.astype(np.uint32) << 16)
    assert values[bits == 0x3F80] == 1.0


def test_float16_is_exact_for_all_finite_bits(tmp_path: Path) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("F16", halves.shape, halves.tobytes())}, spaces=1))
    values = read_tensor(read_header(path)["a"])
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, halves)
    np.testing.assert_array_equal(np.signbit(values), np.signbit(halves))


def test_dtypes_may_be_mixed_in_one_file(tmp_path: Path) -> None:
    tensors = {name: a.astype(np.float16).astype(np.float32) for name, a in tiny_tensors().items()}
    tensors["wpe.weight"] = (tensors["wpe.weight"].view(np.uint32) & 0xFFFF0000).view(np.float32)
    stored = {name: stored_as(a, "F16") for name, a in tensors.items()}
    stored["wpe.weight"] = stored_as(tensors["wpe.weight"], "BF16")
    stored["ln_f.bias"] = stored_as(tensors["ln_f.bias"], "F32")
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(stored))
    assert_same(Checkpoint(tmp_path), tensors)


@pytest.mark.parametrize(("dtype", "width"), [("F64", 8), ("I8", 1), ("I32", 4), ("U16", 2), ("F8_E4M3", 1)])
def test_other_dtypes_are_refused_by_name_before_anything_is_read(tmp_path: Path, dtype: str, width: int) -> None:
    tensors = tiny_tensors()
    del tensors["ln_f.weight"]
    folder = write_checkpoint(tmp_path, tensors=tensors, extra={"ln_f.weight": (dtype, (32,), bytes(32 * width))})
    with pytest.raises(ValueError, match=f"'ln_f.weight' is stored as {dtype}: save it as one of F32, F16, BF16"):
        Checkpoint(folder)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, dtype: str, bad: float) -> None:
    tensors = tiny_tensors()
    tensors["h.1.mlp.c_proj.weight"][127, 31] = bad
    line = refusal(write_checkpoint(tmp_path, tensors=tensors, dtype=dtype))
    assert "h.1.mlp.c_proj.weight" in line
    assert str(bad) in line


def test_huge_values_whose_sum_overflows_are_finite(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    tensors["wpe.weight"][:] = 3e38
    assert_same(Checkpoint(write_checkpoint(tmp_path, tensors=tensors)), tensors)


# --- vocabulary


@pytest.mark.parametrize("own_head", [False, True])
def test_rows_past_the_vocabulary_are_left_out(tmp_path: Path, own_head: bool) -> None:
    padded = tiny_tensors(replace(TINY, n_vocab=105))
    padded["wte.weight"][97:] = np.nan  # padding may hold anything
    if own_head:
        padded["lm_head.weight"] = padded["wte.weight"] * np.float32(2)
    folder = write_checkpoint(tmp_path, replace(TINY, n_vocab=105), padded)
    checkpoint = Checkpoint(folder, n_tokens=97)
    assert checkpoint.config == TINY
    assert checkpoint["wte.weight"].shape == (97, 32)
    np.testing.assert_array_equal(checkpoint["wte.weight"], padded["wte.weight"][:97])
    if own_head:
        np.testing.assert_array_equal(checkpoint["lm_head.weight"], padded["lm_head.weight"][:97])


def test_load_model_asks_the_folders_vocabulary(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, replace(TINY, n_vocab=264))
    assert load_model(folder, backend="numpy").n_vocab == 264
    letters = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    (folder / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    model = load_model(folder, backend="numpy")
    assert model.n_vocab == 256
    assert model.forward([0, 255], model.new_cache()).shape == (2, 256)
    with pytest.raises(ValueError, match="256"):
        model.forward([256], model.new_cache())


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    line = refusal(write_checkpoint(tmp_path), n_tokens=98)
    assert "98 tokens" in line
    assert "97 rows" in line


# --- damaged files


def cut_points(content: bytes) -> list[int]:
    """Nothing, inside and after the length, inside and after the header, inside and between tensors, the last byte."""
    header = 8 + int.from_bytes(content[:8], "little")
    sizes = [t["data_offsets"][1] for n, t in json.loads(content[8:header]).items() if n != "__metadata__"]
    boundaries = [header + size for size in sorted(sizes)[:-1]]
    return [0, 4, 7, 8, 9, header // 2, header - 1, header, header + 4, *boundaries, len(content) - 1]


@pytest.mark.parametrize("n_shards", [1, 2])
def test_cut_off_file_is_refused_by_name(tmp_path: Path, n_shards: int) -> None:
    write_checkpoint(tmp_path, n_shards=n_shards)
    path = max(tmp_path.glob("*.safetensors"))
    whole = path.read_bytes()
    for cut in cut_points(whole):
        path.write_bytes(whole[:cut])
        line = refusal(tmp_path)
        assert path.name in line, cut
        assert "truncated" in line, cut


def test_file_that_becomes_shorter_after_it_was_opened(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_checkpoint(tmp_path))
    os.truncate(tmp_path / "model.safetensors", 5000)
    with pytest.raises(ValueError, match=r"model\.safetensors became shorter while 'ln_f\.bias'"):
        checkpoint["ln_f.bias"]


def entry(shape: list[int], start: int, stop: int) -> str:
    return json.dumps({"dtype": "F32", "shape": shape, "data_offsets": [start, stop]})


A, B = entry([2], 0, 8), entry([2], 8, 16)


@pytest.mark.parametrize(
    ("header", "n_bytes"),
    [
        (f'{{"a": {A}, "b": {B}}}', 16),
        (f'{{"b": {B}, "a": {A}}}', 16),
        (f'{{"a": {A}, "b": {A}}}', 8),
        (f'{{"a": {A}, "b": {entry([2], 4, 12)}}}', 12),
        (f'{{"a": {A}, "b": {entry([2], 12, 20)}}}', 20),
        (f'{{"a": {A}}}', 9),
        (f'{{"a": {A}}}', 7),
        (f'{{"a": {A}, "a": {B}}}', 16),
        (f'{{"a": {A}, "a": {A}}}', 8),
        (f'{{"a": {entry([1], 0, 4)}, "a": {A}}}', 8),
        (f'{{"a": {entry([3], 0, 8)}}}', 8),
        (f'{{"a": {entry([2], 8, 0)}}}', 8),
        (f'{{"a": {entry([0], 0, 0)}, "b": {entry([], 0, 4)}}}', 4),
        (f'{{"a": {entry([2**40, 2**40], 0, 8)}}}', 8),
        ('{"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}', 8),
        ('{"a": {"dtype": "F32", "shape": [2]}}', 8),
        ('{"__metadata__": {"é": "ü"}}', 0),
        ('{"__metadata__": {"a": 1}}', 0),
        ('{"__metadata__": null}', 0),
        ("{}", 0),
        ("[]", 0),
        ("[" * 50_000, 0),
        ("nonsense", 0),
        (f'  {{"a": {A}}}', 8),
    ],
)
def test_headers_get_the_librarys_verdict(tmp_path: Path, header: str, n_bytes: int) -> None:
    path = tmp_path / "model.safetensors"
    content = header.encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + np.arange(5, dtype="<f4").tobytes()[:n_bytes])
    try:
        with safe_open(path, framework="numpy") as file:
            expected = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError:
        with pytest.raises(ValueError, match=r"model\.safetensors is not a complete safetensors file"):
            read_header(path)
        return
    found = {name: read_tensor(tensor) for name, tensor in read_header(path).items()}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


class Trap:
    """Unpickling this leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors"])
def test_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    pickled = pickle.dumps(Trap(marker))
    pickle.loads(pickled)
    assert marker.exists()
    marker.unlink()
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(pickled)
    line = refusal(tmp_path)
    assert name in line
    assert ("convert them to model.safetensors" in line) == (name != "model.safetensors")
    assert not marker.exists()


def test_pickle_beside_safetensors_is_passed_over(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "pytorch_model.bin").write_bytes(b"anything")
    assert_same(Checkpoint(tmp_path), tiny_tensors())


def test_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json()))
    assert "holds no weights" in refusal(tmp_path)
    (tmp_path / "model.safetensors").mkdir()
    assert "is not a file" in refusal(tmp_path)


# --- shards


@pytest.mark.parametrize("n_shards", [2, 3])
def test_sharded_checkpoint_is_the_same_model(tmp_path: Path, n_shards: int) -> None:
    folder = write_checkpoint(tmp_path, n_shards=n_shards, prefix="transformer.")
    assert_same(Checkpoint(folder), tiny_tensors())


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/../../x.safetensors",
        "sub/x.safetensors",
        "C:\\x.safetensors",
        "C:x.safetensors",
        "..\\x.safetensors",
        "x.safetensors\0",
        "/etc/passwd",
        "pytorch_model.bin",
        "..",
        "",
        None,
        7,
        ["x.safetensors"],
    ],
)
def test_shard_names_that_leave_the_folder_are_refused_unopened(
    tmp_path: Path, name: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "model", n_shards=2)
    write_index(folder, {"wte.weight": name})
    (tmp_path / "x.safetensors").write_bytes(
        safetensors_bytes({"wte.weight": stored_as(np.ones(1, np.float32), "F32")})
    )
    opened: list[Path] = []
    monkeypatch.setattr("minispec.safetensors_file.read_header", opened.append)
    line = refusal(folder)
    assert "wte.weight" in line
    assert "same folder" in line
    assert not opened


def shard_and_index(tmp_path: Path) -> tuple[Path, Path]:
    """A sharded checkpoint whose second shard has been moved outside."""
    folder = write_checkpoint(tmp_path / "model", n_shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    outside = tmp_path / "outside.safetensors"
    shard.rename(outside)
    return shard, outside


def test_shard_that_is_a_link_out_of_the_folder(tmp_path: Path) -> None:
    shard, outside = shard_and_index(tmp_path)
    shard.symlink_to(outside)
    line = refusal(shard.parent)
    assert shard.name in line
    assert "link" in line


@pytest.mark.parametrize("blobs", ["models--org--name/blobs", "blobs/ab"])
def test_links_of_the_hugging_face_cache_are_followed(tmp_path: Path, blobs: str) -> None:
    snapshot = write_checkpoint(tmp_path / "models--org--name" / "snapshots" / "0123", n_shards=2)
    store = tmp_path / blobs
    store.mkdir(parents=True)
    for path in list(snapshot.iterdir()):
        path.rename(store / path.name)
        path.symlink_to(os.path.relpath(store / path.name, snapshot))
    assert_same(Checkpoint(snapshot), tiny_tensors())
    (tmp_path / "link").symlink_to(snapshot)
    assert_same(Checkpoint(tmp_path / "link"), tiny_tensors())


def test_links_into_another_repositorys_blobs(tmp_path: Path) -> None:
    snapshot = write_checkpoint(tmp_path / "models--org--name" / "snapshots" / "0123", n_shards=2)
    other = tmp_path / "models--other--secret" / "blobs"
    other.mkdir(parents=True)
    shard = snapshot / "model-00001-of-00002.safetensors"
    shard.rename(other / "x")
    shard.symlink_to(other / "x")
    assert "link out of its folder" in refusal(snapshot)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    shard, _ = shard_and_index(tmp_path)
    line = refusal(shard.parent)
    assert shard.name in line
    assert "missing" in line


def test_shard_that_is_a_directory(tmp_path: Path) -> None:
    shard, _ = shard_and_index(tmp_path)
    shard.mkdir()
    assert "is not a file" in refusal(shard.parent)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_shard_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    shard, _ = shard_and_index(tmp_path)
    os.mkfifo(shard)
    assert "is not a file" in refusal(shard.parent)


def read_map(folder: Path) -> dict[str, object]:
    content: dict[str, dict[str, object]] = json.loads((folder / "model.safetensors.index.json").read_text())
    return content["weight_map"]


def test_index_entry_that_its_shard_lacks(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, n_shards=2)
    names = read_map(folder)
    names["wte.weight"], names["wpe.weight"] = names["wpe.weight"], names["wte.weight"]
    write_index(folder, names)
    line = refusal(folder)
    assert "does not hold it" in line
    assert ".weight" in line


def test_shard_entry_that_the_index_lacks(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, n_shards=2, extra={"spare": ("F32", (), bytes(4))})
    names = read_map(folder)
    del names["spare"]
    write_index(folder, names)
    assert "'spare', which model.safetensors.index.json does not list" in refusal(folder)


def test_index_decides_between_two_shards(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    folder = write_checkpoint(tmp_path, tensors=tensors, n_shards=2)
    second = {name: stored_as(tensors[name], "F32") for name, file in read_map(folder).items() if "00002-" in str(file)}
    second["wte.weight"] = stored_as(tensors["wte.weight"] + 1, "F32")
    (folder / "model-00002-of-00002.safetensors").write_bytes(safetensors_bytes(second))
    assert "00001-" in str(read_map(folder)["wte.weight"])
    assert_same(Checkpoint(folder), tensors)


def test_single_file_beside_shards_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, n_shards=2)
    write_checkpoint(tmp_path, tensors=tiny_tensors(seed=1))
    line = refusal(tmp_path)
    assert "model.safetensors and model.safetensors.index.json" in line


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": "b", "a": "c"}}'])
def test_broken_index(tmp_path: Path, content: str) -> None:
    folder = write_checkpoint(tmp_path, n_shards=2)
    (folder / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in refusal(folder)


# --- loading


def test_load_model_takes_a_path_or_its_text(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, prefix="transformer.")
    np.testing.assert_array_equal(logits(folder), logits(write_checkpoint(tmp_path / "plain")))
    model = load_model(str(folder), backend="numpy", offline=True)
    np.testing.assert_array_equal(model.forward(IDS, model.new_cache()), logits(folder))


@pytest.mark.parametrize(
    ("weights", "backend", "told"),
    [("f64", "numpy", "'f64': choose one of f32, int8"), ("f32", "torch", "backend is 'torch'")],
)
def test_unknown_options_are_refused_before_anything_is_read(weights: str, backend: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        load_model(Path("nowhere"), weights=weights, backend=backend)


def test_membership_reads_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_checkpoint(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    assert "wte.weight" in checkpoint
    assert "lm_head.weight" not in checkpoint
    with pytest.raises(KeyError):
        checkpoint["lm_head.weight"]


CHILD = """
import re, sys
from pathlib import Path
from minispec.weights import load_model

def peak_kb():  # ru_maxrss would begin with the parent's peak
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

load_model(Path(sys.argv[1]), backend="numpy")  # a small one first: imports are not what is measured
before = peak_kb()
model = load_model(Path(sys.argv[2]), backend="numpy")
print(peak_kb() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_peak_memory_is_the_float32_model_and_one_tensor(tmp_path: Path, dtype: str) -> None:
    """The largest tensor is about a seventh of the model, as in GPT-2 medium."""
    config = replace(TINY, n_layer=4, n_embd=512, n_inner=2048, n_vocab=4000, n_ctx=64)
    tensors = {name: np.full_like(array, 0.5) for name, array in tiny_tensors(config).items()}
    write_checkpoint(tmp_path / "big", config, tensors, dtype=dtype)
    write_checkpoint(tmp_path / "small")
    size = sum(array.nbytes for array in tensors.values())
    command = [sys.executable, "-c", CHILD, str(tmp_path / "small"), str(tmp_path / "big")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert size / 2 < int(child.stdout) * 1024 < 1.3 * size


def test_the_first_error_of_a_load_is_raised_and_ends_it() -> None:
    done: list[int] = []

    def fail() -> None:
        raise ValueError("the file became shorter")

    def slow(i: int) -> None:
        time.sleep(0.01)
        done.append(i)

    with pytest.raises(ValueError, match="the file became shorter"):
        packing._do_all([fail, *(partial(slow, i) for i in range(1000))])
    assert len(done) < 1000
