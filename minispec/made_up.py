"""Checkpoints made up on the spot, at their full cost: random, or scripted so that a draft agrees with a chosen chance.

Timing needs weights of the right shape and not of any use, so nothing has to be downloaded. For a whole run of
speculative decoding, guesses must also be kept as often as with a real pair. A scripted model has a text by heart:
its position embeddings point at the embedding of the token that comes next, so strongly that the token before
and the blocks (random, with small outputs) change nothing. A draft has another token in the script at some
places: guesses are kept with the chance that they have the same.

The folders are in Hugging Face form, with a vocabulary of bytes and pairs of bytes, and load in any program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minispec.parameters import GPT2Config
from minispec.vocabulary import byte_letters

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SHAPES = {
    "distilgpt2": (6, 12, 768),
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}  # n_layer, n_head, n_embd
CALL = 3.0  # how much longer than an embedding the pointer to the next token is
SURE = 4.0  # what logits are multiplied with, so that a draw is as certain as an argmax
QUIET = 2e-4  # the standard deviation of weights that write into the residual stream of a scripted model


def shape_of(name: str) -> GPT2Config:
    """The shape of a GPT-2 by name. Raises ValueError for an unknown one."""
    if name not in SHAPES:
        raise ValueError(f"no shape is called {name!r}: choose one of {', '.join(SHAPES)}")
    n_layer, n_head, n_embd = SHAPES[name]
    return GPT2Config(n_layer, n_head, n_embd, n_ctx=1024, n_vocab=50257, n_inner=4 * n_embd)


def random_tensors(config: GPT2Config, seed: int = 0, into_residual: float = 0.02) -> dict[str, Floats]:
    """Tensors by their checkpoint names, drawn as GPT-2's were before training.

    into_residual: the standard deviation of the projections that end attention and MLP.
    """
    rng = np.random.default_rng(seed)
    n_embd, n_inner = config.n_embd, config.n_inner

    def normal(*shape: int, std: float = 0.02) -> Floats:
        return rng.standard_normal(shape, np.float32) * np.float32(std)

    tensors = {"wte.weight": normal(config.n_vocab, n_embd), "wpe.weight": normal(config.n_ctx, n_embd, std=0.01)}
    for layer in range(config.n_layer):
        products = {
            "attn.c_attn": (n_embd, 3 * n_embd, 0.02),
            "attn.c_proj": (n_embd, n_embd, into_residual),
            "mlp.c_fc": (n_embd, n_inner, 0.02),
            "mlp.c_proj": (n_inner, n_embd, into_residual),
        }
        for name, (n_in, n_out, std) in products.items():
            tensors[f"h.{layer}.{name}.weight"] = normal(n_in, n_out, std=std)
            tensors[f"h.{layer}.{name}.bias"] = np.zeros(n_out, np.float32)
    for norm in ("ln_f", *(f"h.{layer}.ln_{i}" for layer in range(config.n_layer) for i in (1, 2))):
        tensors[f"{norm}.weight"], tensors[f"{norm}.bias"] = np.ones(n_embd, np.float32), np.zeros(n_embd, np.float32)
    return tensors


def scripted_tensors(config: GPT2Config, script: Ints, seed: int = 0) -> dict[str, Floats]:
    """Tensors of a model that writes script[i] after position i, whatever stands there. script [n_ctx]."""
    tensors = random_tensors(config, seed, into_residual=QUIET)
    wte = tensors["wte.weight"]
    wte /= np.linalg.norm(wte, axis=1, keepdims=True)
    tensors["wpe.weight"] = np.float32(CALL) * wte[script]
    tensors["ln_f.weight"] *= np.float32(SURE)
    return tensors


def scripts(config: GPT2Config, accept: float, seed: int = 0) -> tuple[Ints, Ints]:
    """A target's script and a draft's, both [n_ctx]: at each place the same token with chance `accept`.

    Raises ValueError for a chance outside 0..1.
    """
    check_chance(accept)
    rng = np.random.default_rng(seed)
    target = rng.integers(config.n_vocab - 1, size=config.n_ctx)  # the last token would end the text
    other = (target + rng.integers(1, config.n_vocab - 1, size=config.n_ctx)) % (config.n_vocab - 1)
    return target, np.where(rng.random(config.n_ctx) < accept, target, other)


def check_chance(accept: float) -> None:
    """Raise ValueError unless this is a chance."""
    if not 0 <= accept <= 1:
        raise ValueError(f"the chance of acceptance is {accept}: give a number from 0 to 1")


def write_random(folder: Path, config: GPT2Config, seed: int = 0) -> None:
    """Write a random checkpoint."""
    write_checkpoint(folder, config, random_tensors(config, seed))


def write_scripted_pair(folders: tuple[Path, Path], configs: tuple[GPT2Config, GPT2Config], accept: float) -> None:
    """Write a target and a draft whose greedy tokens agree with chance `accept` at each place."""
    both = scripts(configs[0], accept)
    for seed, (folder, config, script) in enumerate(zip(folders, configs, both, strict=True)):
        write_checkpoint(folder, config, scripted_tensors(config, script[: config.n_ctx], seed))


# --- files ---------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, config: GPT2Config, tensors: dict[str, Floats]) -> None:
    """Write config.json, vocabulary and weights, the weights last and whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    end = config.n_vocab - 1
    described = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "n_inner": config.n_inner,
        "n_positions": config.n_ctx,
        "n_ctx": config.n_ctx,
        "vocab_size": config.n_vocab,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
    }
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    letters = sorted(byte_letters())  # in the order of GPT-2's first tokens
    merges = list(pairs(letters, config.n_vocab - len(letters) - 1))
    tokens = [*letters, *(one + other for one, other in merges), "<|endoftext|>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{one} {other}" for one, other in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        save_file(tensors, folder / "model.tmp", metadata={"format": "pt"})
    except SafetensorError as error:  # what it makes of a full disk
        raise OSError(f"the weights cannot be written: {error}") from error
    (folder / "model.tmp").replace(folder / "model.safetensors")


def pairs(letters: list[str], n: int) -> Iterator[tuple[str, str]]:
    """n merges of two letters each. Raises ValueError where there are fewer."""
    if not 0 <= n <= len(letters) ** 2:
        raise ValueError(
            f"a made-up vocabulary of bytes and pairs has {len(letters) + 1} to {len(letters) ** 2 + len(letters) + 1} "
            f"tokens, not {n + len(letters) + 1}"
        )
    for i in range(n):
        yield letters[i // len(letters)], letters[i % len(letters)]
