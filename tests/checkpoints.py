"""Tiny random GPT-2 checkpoints, written by hand so that a test can also write what no library would."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minispec.parameters import GPT2Config

Floats = NDArray[np.float32]
Stored = tuple[str, tuple[int, ...], bytes]  # dtype as safetensors calls it, shape, bytes

TINY = GPT2Config(n_layer=2, n_head=4, n_embd=32, n_ctx=32, n_vocab=97, n_inner=128)


def tiny_tensors(config: GPT2Config = TINY, seed: int = 0) -> dict[str, Floats]:
    """Random tensors by their canonical names, of a size that makes logits of a few units."""
    rng = np.random.default_rng(seed)
    n_embd, n_inner = config.n_embd, config.n_inner
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (config.n_vocab, n_embd), "wpe.weight": (config.n_ctx, n_embd)}
    for layer in range(config.n_layer):
        h = f"h.{layer}"
        shapes |= {f"{h}.ln_1.weight": (n_embd,), f"{h}.ln_1.bias": (n_embd,)}
        shapes |= {f"{h}.attn.c_attn.weight": (n_embd, 3 * n_embd), f"{h}.attn.c_attn.bias": (3 * n_embd,)}
        shapes |= {f"{h}.attn.c_proj.weight": (n_embd, n_embd), f"{h}.attn.c_proj.bias": (n_embd,)}
        shapes |= {f"{h}.ln_2.weight": (n_embd,), f"{h}.ln_2.bias": (n_embd,)}
        shapes |= {f"{h}.mlp.c_fc.weight": (n_embd, n_inner), f"{h}.mlp.c_fc.bias": (n_inner,)}
        shapes |= {f"{h}.mlp.c_proj.weight": (n_inner, n_embd), f"{h}.mlp.c_proj.bias": (n_embd,)}
    shapes |= {"ln_f.weight": (n_embd,), "ln_f.bias": (n_embd,)}
    return {
        name: (("ln_" in name and name.endswith("weight")) + 0.2 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def config_json(config: GPT2Config = TINY) -> dict[str, object]:
    """The config.json of a GPT2Config."""
    return {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "n_positions": config.n_ctx,
        "vocab_size": config.n_vocab,
        "n_inner": config.n_inner,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "scale_attn_weights": config.scale_attn_weights,
        "scale_attn_by_inverse_layer_idx": config.scale_attn_by_inverse_layer_idx,
    }


def stored_as(array: Floats, dtype: str) -> Stored:
    """An array as F32, F16 or BF16 (cut, not rounded) bytes."""
    if dtype == "BF16":
        return dtype, array.shape, (array.view(np.uint32) >> 16).astype("<u2").tobytes()
    return dtype, array.shape, array.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def safetensors_bytes(
    tensors: Mapping[str, Stored], metadata: Mapping[str, str] | None = None, spaces: int = 0
) -> bytes:
    """A safetensors file; spaces after the header move the data to any alignment."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, shape, content) in tensors.items():
        start, end = end, end + len(content)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False).encode() + b" " * spaces
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values())


def write_checkpoint(
    folder: Path,
    config: GPT2Config = TINY,
    tensors: Mapping[str, Floats] | None = None,
    *,
    dtype: str = "F32",
    prefix: str = "",
    changes: Mapping[str, object] | None = None,
    extra: Mapping[str, Stored] | None = None,
    n_shards: int = 1,
    spaces: int = 0,
) -> Path:
    """Write config.json and weights; gives the folder back.

    prefix goes before every name but lm_head's; changes are laid over config.json; extra tensors are written as
    they are; with n_shards above 1, tensors go round the shards in turn, with an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config_json(config), **(changes or {})}))
    named = {
        name if name.startswith("lm_head") else prefix + name: stored_as(array, dtype)
        for name, array in (tiny_tensors(config) if tensors is None else tensors).items()
    }
    named |= extra or {}
    if n_shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(named, {"format": "pt"}, spaces))
        return folder
    files = {name: f"model-{i % n_shards + 1:05}-of-{n_shards:05}.safetensors" for i, name in enumerate(named)}
    for file in set(files.values()):
        part = {name: named[name] for name in named if files[name] == file}
        (folder / file).write_bytes(safetensors_bytes(part, {"format": "pt"}, spaces))
    write_index(folder, files)
    return folder


def write_index(folder: Path, weight_map: Mapping[str, object]) -> None:
    """Write model.safetensors.index.json, whatever it may say."""
    index = {"metadata": {"total_size": 0}, "weight_map": dict(weight_map)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
