"""Heads: what a trained drafter has learnt of one target, in a small safetensors file beside the target's own.

`weights/train_heads.py` writes such files, for any target. What they learnt holds for the target they were trained
on alone, so each names it by a fingerprint: of the shape and of all norms, which are float32 in every copy of a model.
With another target a drafter would only guess badly, which nobody would notice; so it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minispec.hub import find_model
from minispec.model import GPT2
from minispec.model_files import check_inside
from minispec.parameters import GPT2Config
from minispec.safetensors_file import StoredTensor, read_header, read_metadata, read_tensor
from minispec.user_path import user_path

Floats = NDArray[np.float32]
VERSION = "1"  # of the file format


@dataclass(frozen=True)
class Heads:
    """A heads file: whose heads they are, how they were trained, and their tensors, read when they are asked for."""

    path: Path
    method: str
    metadata: Mapping[str, str]
    stored: Mapping[str, StoredTensor]

    def __getitem__(self, name: str) -> Floats:
        """A tensor as float32. Raises ValueError for one that is missing or damaged."""
        if name not in self.stored:
            raise ValueError(f"{self.path} lacks {name}: it is no complete file of {self.method} heads, train it again")
        return read_tensor(self.stored[name])

    def shaped(self, name: str, *shape: int) -> Floats:
        """A tensor that must have this shape, -1 for any number. Raises ValueError for another."""
        tensor = self[name]
        if tensor.ndim != len(shape) or any(n not in (-1, m) for n, m in zip(shape, tensor.shape, strict=True)):
            raise ValueError(f"{self.path}: {name} has shape {list(tensor.shape)}, but must have {list(shape)}")
        return tensor


def fingerprint(target: GPT2) -> str:
    """What tells a target from all others, and is the same for its copies in f32 and int8 and on any backend."""
    w = target.weights
    return _digest(target.config, [w.ln_1_weight, w.ln_1_bias, w.ln_2_weight, w.ln_2_bias, w.ln_f_weight, w.ln_f_bias])


def fingerprint_of(config: GPT2Config, tensors: Mapping[str, Floats]) -> str:
    """The fingerprint of the target that a checkpoint's tensors make."""
    layers = [f"h.{{}}.ln_{i}.{part}" for i in (1, 2) for part in ("weight", "bias")]
    stacked = [np.stack([tensors[name.format(layer)] for layer in range(config.n_layer)]) for name in layers]
    return _digest(config, [*stacked, tensors["ln_f.weight"], tensors["ln_f.bias"]])


def _digest(config: GPT2Config, norms: Iterable[Floats]) -> str:
    digest = sha256(json.dumps(asdict(config), sort_keys=True).encode())
    for norm in norms:
        digest.update(np.ascontiguousarray(norm, "<f4").tobytes())
    return digest.hexdigest()


def find_heads(target: str, method: str, argument: str | None = None, offline: bool = False) -> Path:
    """The file of a method's heads for a target's name: the argument, or METHOD.safetensors in the target's folder.

    Raises ValueError, in one line, where there is none.
    """
    path = user_path(argument) if argument else find_model(target, offline) / f"{method}.safetensors"
    if not path.is_file():
        raise ValueError(
            f"{target} has no {method} heads ({path} is missing): train some by python weights/train_heads.py "
            f"{method} TARGET CORPUS, or name a file, as in -d {method}:FILE"
        )
    if not argument:
        check_inside(path)
    return path


def read_heads(path: Path, method: str, target: GPT2) -> Heads:
    """A method's heads for this target. Raises ValueError, in one line, for a file that is none, or another's."""
    stored = read_header(path)
    metadata = read_metadata(path)
    if metadata.get("method") != method or metadata.get("version") != VERSION:
        found = repr(f"{metadata.get('method', 'no')} heads of version {metadata.get('version', 'none')}")[1:-1]
        raise ValueError(f"{path} holds {found:.80}, not {method} heads of version {VERSION}: train them anew")
    if metadata.get("target") != fingerprint(target):
        raise ValueError(
            f"{path} holds heads that were trained for another target: train some for this one "
            f"(python weights/train_heads.py {method} TARGET CORPUS), or take the target that they belong to"
        )
    return Heads(path, method, metadata, stored)
