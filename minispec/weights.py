"""Checkpoint folders to models: what a config.json means, and the names that foreign files use for GPT-2's tensors.

What a config.json asks for and would change the text is honoured or refused by name; what the files hold must have
exactly the names and shapes that the config calls for. Only then are values read.

Source: transformers' GPT2Config and GPT2LMHeadModel, whose files these are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minispec.backends import operations
from minispec.hub import find_model
from minispec.json_file import read_json
from minispec.model import GPT2, STORED
from minispec.parameters import GPT2Config
from minispec.safetensors_file import (
    StoredTensor,
    check_dtype,
    read_tensor,
    same_values,
    stored_tensors,
    weights_file,
)
from minispec.vocabulary import count_tokens

Floats = NDArray[np.float32]

# Our field: the names that a config.json may use for it, and GPT-2's default.
_SIZES: dict[str, tuple[tuple[str, ...], int]] = {
    "n_layer": (("n_layer", "num_hidden_layers"), 12),
    "n_head": (("n_head", "num_attention_heads"), 12),
    "n_embd": (("n_embd", "hidden_size"), 768),
    "n_ctx": (("n_positions", "n_ctx", "max_position_embeddings"), 1024),
    "n_vocab": (("vocab_size",), 50257),
}
# What these may say; everything else would be another model. (reorder_and_upcast_attn is only about
# float16, and dropout only about training.)
_ONLY: dict[str, tuple[object, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "add_cross_attention": (False,),
    "quantization_config": (None,),
    "pruned_heads": (None, {}),
}
_MASK = re.compile(r"h\.[0-9]+\.attn\.(masked_)?bias")  # a causal mask that old files keep, not a bias vector
_OURS = re.compile(r"(h|wte|wpe|ln_f|lm_head)\.|.*(lora|adapter)", re.IGNORECASE)


def read_config(folder: Path) -> GPT2Config:
    """The shape of the checkpoint in a folder, from its config.json.

    Raises ValueError for settings that cannot be honoured or make no sense, each by its name.
    """
    return _config(folder)[0]


def _config(folder: Path) -> tuple[GPT2Config, bool]:
    """The shape, and whether a file without lm_head.weight is complete."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give one with config.json and model.safetensors")
    path = folder / "config.json"
    settings = read_json(path, max_bytes=1 << 20)
    for name, allowed in _ONLY.items():
        if name in settings and not any(settings[name] is a or settings[name] == a for a in allowed):
            choices = " or ".join(map(repr, allowed))
            raise ValueError(f"{path}: {name} is {settings[name]!r:.80}: minispec runs GPT-2 with {choices} alone")
    sizes = {field: _size(path, settings, *names) for field, names in _SIZES.items()}
    if sizes["n_embd"] % sizes["n_head"]:
        raise ValueError(f"{path}: n_head {sizes['n_head']} does not divide n_embd {sizes['n_embd']}")
    epsilon = settings.get("layer_norm_epsilon", 1e-5)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise ValueError(f"{path}: layer_norm_epsilon is {epsilon!r:.80}: it must be a number between 0 and 1")
    config = GPT2Config(
        **sizes,
        n_inner=_size(path, settings, ("n_inner",), 4 * sizes["n_embd"]),
        layer_norm_epsilon=float(epsilon),
        scale_attn_weights=_flag(path, settings, "scale_attn_weights", True),
        scale_attn_by_inverse_layer_idx=_flag(path, settings, "scale_attn_by_inverse_layer_idx", False),
    )
    return config, _flag(path, settings, "tie_word_embeddings", True)


def _size(path: Path, settings: Mapping[str, object], names: tuple[str, ...], default: int) -> int:
    """A positive whole number under any of its names, which must agree; null means the default."""
    found = {name: settings[name] for name in names if settings.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise ValueError(f"{path}: {name} is {value!r:.80}: it must be a positive whole number")
    if len(set(found.values())) > 1:
        raise ValueError(f"{path}: {' but '.join(f'{n} is {v}' for n, v in found.items())}: they must agree")
    return next((value for value in found.values() if isinstance(value, int)), default)


def _flag(path: Path, settings: Mapping[str, object], name: str, default: bool) -> bool:
    value = settings.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{path}: {name} is {value!r:.80}: it must be true or false")
    return value


class Checkpoint(Mapping[str, Floats]):
    """The tensors of a checkpoint by their canonical names, each read from its file when it is asked for.

    Names have no prefix and come in the order of the layers; lm_head.weight is there only if it differs from
    wte.weight. Both have config.n_vocab rows: those past the tokenizer's last token are padding and are left out.
    """

    def __init__(self, folder: Path, n_tokens: int | None = None) -> None:
        """Check names, shapes and dtypes against config.json, and the rows of wte against n_tokens.

        Raises ValueError for anything that is missing, misshapen, unknown or in a dtype that is not read.
        """
        config, may_be_tied = _config(folder)
        stored = _canonical_names(stored_tensors(folder))
        # A file saved with shared tensors may keep the output layer alone; transformers ties it the other way.
        if "wte.weight" not in stored and "lm_head.weight" in stored and may_be_tied:
            stored["wte.weight"] = stored.pop("lm_head.weight")
        _check_layers(folder, config.n_layer, stored)
        shapes = shapes_of(config)
        if "lm_head.weight" in stored or not may_be_tied:
            shapes["lm_head.weight"] = shapes["wte.weight"]
        self._tensors = {name: _checked(folder, stored, name, shape) for name, shape in shapes.items()}
        for name, tensor in stored.items():
            if name not in shapes and not _MASK.fullmatch(name) and _OURS.match(name):
                raise ValueError(
                    f"{tensor.path}: {tensor.name!r:.80} is no part of GPT-2, and without it the text would change: "
                    "merge it into the weights (adapters), or take another checkpoint"
                )
        if n_tokens is not None and n_tokens > config.n_vocab:
            raise ValueError(
                f"{weights_file(folder)}: wte.weight has only {config.n_vocab} rows, but the vocabulary {n_tokens} "
                "tokens: they are of different models"
            )
        self.config = replace(config, n_vocab=n_tokens or config.n_vocab)
        # An output layer of its own is used even where config.json says that it is tied, as transformers 5 does:
        # leaving it out, as transformers 4 did, would change the text without a word.
        head = self._tensors.get("lm_head.weight")
        if head is not None and same_values(self._tensors["wte.weight"], head, self.config.n_vocab):
            del self._tensors["lm_head.weight"]

    def __getitem__(self, name: str) -> Floats:
        """Read a tensor. Raises ValueError for values that are not finite."""
        rows = (0, self.config.n_vocab) if name in ("wte.weight", "lm_head.weight") else None
        return read_tensor(self._tensors[name], rows)

    def rows(self, name: str, first: int, last: int) -> Floats:
        """Read rows first to last - 1 of a tensor. Raises ValueError for values that are not finite."""
        return read_tensor(self._tensors[name], (first, last))

    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor; the mixin's version would read it to find out."""
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def shapes_of(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Every tensor that a tied checkpoint has, with its shape; weights are [n_in, n_out]."""
    n_embd, n_inner = config.n_embd, config.n_inner
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (config.n_vocab, n_embd), "wpe.weight": (config.n_ctx, n_embd)}

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (n_embd,)

    def linear(name: str, n_in: int, n_out: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (n_in, n_out), (n_out,)

    for layer in range(config.n_layer):
        norm(f"h.{layer}.ln_1")
        linear(f"h.{layer}.attn.c_attn", n_embd, 3 * n_embd)
        linear(f"h.{layer}.attn.c_proj", n_embd, n_embd)
        norm(f"h.{layer}.ln_2")
        linear(f"h.{layer}.mlp.c_fc", n_embd, n_inner)
        linear(f"h.{layer}.mlp.c_proj", n_inner, n_embd)
    norm("ln_f")
    return shapes


def _canonical_names(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The same tensors without the prefix that GPT2LMHeadModel puts before its body's names."""
    canonical: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        short = name.removeprefix("transformer.")
        if short in canonical:
            raise ValueError(f"{tensor.path}: {short!r:.80} is there twice, with and without transformer.: remove one")
        canonical[short] = tensor
    return canonical


def _check_layers(folder: Path, n_layer: int, stored: Mapping[str, StoredTensor]) -> None:
    layers = [int(match[1]) for name in stored if (match := re.match(r"h\.([0-9]{1,9})\.", name))]
    n_found = max(layers, default=-1) + 1
    if n_found != n_layer:
        raise ValueError(f"{folder / 'config.json'}: n_layer is {n_layer}, but the weights hold {n_found} layers")


def _checked(folder: Path, stored: Mapping[str, StoredTensor], name: str, shape: tuple[int, ...]) -> StoredTensor:
    if name not in stored:
        raise ValueError(
            f"{weights_file(folder)} lacks {name}, which config.json calls for: this is no complete GPT-2 checkpoint"
        )
    tensor = stored[name]
    if tensor.shape != shape:
        hint = " (is it transposed?)" if tensor.shape == shape[::-1] else ""
        raise ValueError(
            f"{tensor.path}: {name} has shape {list(tensor.shape)}, but config.json calls for {list(shape)}{hint}"
        )
    check_dtype(tensor)
    return tensor


def load_model(name: str | Path, weights: str = "f32", backend: str = "numba", offline: bool = False) -> GPT2:
    """A model by its name (see find_model) or folder, with all of its weights in memory.

    weights: "f32", or "int8" for 8 bits, which is a quarter of the memory and a model of its own.
    backend: "numba", or the slow "numpy". offline: take what is on this machine or nothing.
    Raises ValueError, in one line, for a name that is not found, files that are not a GPT-2, or an unknown option.
    """
    if weights not in STORED:
        raise ValueError(f"weights is {weights!r}: choose one of {', '.join(STORED)}")
    operations(backend)  # refuses an unknown one before anything is fetched or read
    folder = name if isinstance(name, Path) else find_model(name, offline)
    checkpoint = Checkpoint(folder, count_tokens(folder))
    return GPT2(checkpoint.config, checkpoint, backend, weights)
