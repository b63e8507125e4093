"""Tiny random heads for tiny random targets, written as the recipe writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import safetensors_bytes, stored_as, tiny_tensors
from numpy.typing import NDArray

from minispec.heads import VERSION, fingerprint
from minispec.model import GPT2
from minispec.parameters import GPT2Config


def write_heads(
    path: Path, method: str, target: GPT2, tensors: Mapping[str, NDArray[np.float32]], /, **metadata: Any
) -> Path:
    """A heads file in F16; metadata are laid over the right ones."""
    right = {"method": method, "version": VERSION, "target": fingerprint(target)}
    stored = {name: stored_as(tensor, "F16") for name, tensor in tensors.items()}
    path.write_bytes(safetensors_bytes(stored, right | metadata))
    return path


def medusa_tensors(config: GPT2Config, n_guess: int = 3, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random blocks that have opinions of their own."""
    rng, n = np.random.default_rng(seed), config.n_embd
    weight = rng.standard_normal((n_guess, n, n)).astype(np.float32) * 2 / n**0.5
    return {"weight": weight, "bias": rng.standard_normal((n_guess, n)).astype(np.float32)}


def parallel_parts(config: GPT2Config, n_mask: int = 2, seed: int = 1) -> tuple[Any, dict[str, str]]:
    """Tensors and metadata of a random model of the same shape, with masks."""
    config = replace(config, n_vocab=config.n_vocab + n_mask)
    return tiny_tensors(config, seed), {"config": json.dumps(asdict(config)), "masks": str(n_mask)}
