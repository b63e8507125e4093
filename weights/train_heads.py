"""Train heads that draft for a target: for story-target, or any GPT-2 in a folder in Hugging Face form.

    python weights/train_heads.py METHOD TARGET CORPUS       # a folder of .txt files, documents parted by <|endoftext|>

The target is read and never changed. What it makes of a text is the label: see head.py, and heads_METHOD.py for the
method. The heads go to METHOD.safetensors in TARGET, where minispec looks for them (-d METHOD).

A run that was interrupted goes on from its last checkpoint. Batches are a function of (seed, step) alone: stopping and
resuming trains on the same tokens as one long run.
"""

from __future__ import annotations

if __name__ == "__main__":  # before PyTorch is imported, which takes seconds: Ctrl-C is heard from here on
    from minispec.interrupts import run_main

    run_main("train_heads", "train_heads: interrupted; run the same command again to go on from the last checkpoint")

import argparse
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frozen_target import FrozenTarget, Seen
from head import Head, rates
from safetensors.torch import save_file
from stories import read_stories
from torch import Tensor, nn

from minispec.heads import VERSION
from minispec.tokenizer import load_tokenizer

METHODS = ("medusa", "parallel", "eagle", "eagle1", "mtp")
SAVE_EVERY = 200  # steps
N_HELD = 8  # windows of held-out text that rates are told of
WARMUP, DECAY = 0.05, 0.5  # shares of training in which the rate rises, and falls to zero


def documents(target: Path, corpus: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The ids of every document, end of text included: (for training, held out), as train.py parts them."""
    tokenizer = load_tokenizer(target)
    end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    parts = read_stories(corpus)
    train, held = ([np.array([*tokenizer.encode(text), *end], np.int64) for text in part] for part in parts)
    return train, held or train


def window(texts: list[np.ndarray], rng: np.random.Generator, n_tokens: int) -> np.ndarray:
    """So many ids: random whole documents one after another, so that position 0 is a beginning."""
    pieces: list[np.ndarray] = []
    n = 0
    while n < n_tokens:
        pieces.append(texts[rng.integers(len(texts))])
        n += len(pieces[-1])
    return np.concatenate(pieces)[:n_tokens]


def batch(texts: list[np.ndarray], n_batch: int, n_tokens: int, *seed: int) -> Tensor:
    """Ids [n_batch, n_tokens], a function of the seed."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([window(texts, rng, n_tokens) for _ in range(n_batch)]))


def rate(head: Head, step: int, steps: int) -> float:
    """Linear warm-up, a plateau, then a straight line to zero."""
    up = min(1.0, (step + 1) / max(1.0, WARMUP * steps))
    return head.peak_rate * up * min(1.0, (steps - step) / (DECAY * steps))


@torch.no_grad()
def held_out(head: Head, target: FrozenTarget, held: list[np.ndarray], n_tokens: int) -> list[tuple[float, float]]:
    """The rates of each guess on held-out text (see `rates`)."""
    head.eval()
    sums: list[Any] = []
    for i in range(N_HELD):
        seen = see(target, batch(held, 1, n_tokens, 0, i))
        with torch.autocast("cpu", torch.bfloat16):
            guesses = head.guesses(target, seen)
        sums.append([rates(guess, seen, place) for place, guess in enumerate(guesses)])
    head.train()
    return [(float(same), float(overlap)) for same, overlap in np.mean(sums, axis=0)]


def see(target: FrozenTarget, ids: Tensor) -> Seen:
    """What the target makes of these texts, in bfloat16 where that is all it takes."""
    with torch.autocast("cpu", torch.bfloat16):
        return target.see(ids)


def told(figures: list[tuple[float, float]]) -> str:
    """Rates for a reader: of greedy text and of sampled, guess by guess."""
    same, overlap = (" ".join(f"{pair[i]:.3f}" for pair in figures) for i in (0, 1))
    return f"held-out top tokens {same}, overlap {overlap}"


def train(head: Head, target: FrozenTarget, texts: list[np.ndarray], held: list[np.ndarray], options: Any) -> None:
    """Train, from the checkpoint where there is one."""
    n_tokens = min(options.window, target.config.n_ctx)
    steps, step = max(1, options.tokens // (options.batch * n_tokens)), 0
    decayed = [p for p in head.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in head.parameters() if p.requires_grad and p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.98), fused=True)
    begun = {name: getattr(options, name) for name in ("seed", "tokens", "batch", "window")}
    begun["target"] = target.fingerprint
    checkpoint = options.work / f"{head.method}.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        for name, value in begun.items():
            if state["options"][name] != value:
                raise SystemExit(
                    f"train_heads: {checkpoint} was begun with another {name} ({state['options'][name]}, not {value}): "
                    "give that, or another --work"
                )
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"{head.method}: going on from step {step} of {steps}", flush=True)

    def save() -> None:
        state = {"head": head.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "options": begun}
        torch.save(state, checkpoint.with_suffix(".tmp"))
        os.replace(checkpoint.with_suffix(".tmp"), checkpoint)

    mean, began, first = 0.0, time.perf_counter(), step
    while step < steps:
        torch.manual_seed(options.seed + step)
        for group in optimizer.param_groups:
            group["lr"] = rate(head, step, steps)
        seen = see(target, batch(texts, options.batch, n_tokens, options.seed, step))
        with torch.autocast("cpu", torch.bfloat16):
            loss = head.loss(target, seen)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        step += 1
        mean += (loss.item() - mean) / min(step - first, 50)
        if step % 20 == 0:
            speed = (step - first) * options.batch * n_tokens / (time.perf_counter() - began)
            left = (steps - step) * options.batch * n_tokens / speed / 60
            line = f"step {step}/{steps} loss {mean:.3f} {speed:.0f} tokens/s {left:.0f} min left"
            print(f"{head.method} {line}", flush=True)
        if step % SAVE_EVERY == 0:
            save()
            print(f"{head.method} step {step} {told(held_out(head, target, held, n_tokens))}", flush=True)
    save()


def stored(tensor: Tensor) -> Tensor:
    """A tensor as the file has it."""
    dtype = torch.float16 if tensor.is_floating_point() else torch.float32
    return tensor.detach().to(dtype).contiguous()


def export(head: Head, target: FrozenTarget, figures: list[tuple[float, float]], options: Any) -> None:
    """Write the heads file, F16 but for whole numbers (F32), whole or not at all."""
    metadata = {
        "method": head.method,
        "version": VERSION,
        "target": target.fingerprint,
        "tokens": str(options.tokens),
        "seed": str(options.seed),
        "same_top": json.dumps([round(same, 4) for same, _ in figures]),
        "overlap": json.dumps([round(overlap, 4) for _, overlap in figures]),
        **head.figures(),
    }
    tensors = {name: stored(tensor) for name, tensor in head.tensors().items()}
    unfinished = options.out.with_suffix(".tmp")
    save_file(tensors, unfinished, metadata=metadata)
    sort_header(unfinished)
    os.replace(unfinished, options.out)


def sort_header(path: Path) -> None:
    """Put what a safetensors header tells into an order, which the library leaves to chance: same heads, same bytes."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        file.seek(8)
        file.write(text.ljust(length))


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("target", type=Path, help="folder of the model that the heads draft for")
    parser.add_argument("corpus", type=Path, help="folder of .txt files")
    parser.add_argument("--out", type=Path, help="the heads file  [METHOD.safetensors in TARGET]")
    parser.add_argument(
        "--work", type=Path, default=Path(__file__).resolve().parent / ".work", help="where checkpoints go"
    )
    parser.add_argument("--tokens", type=int, help="how many to train on  [the method's own number]")
    parser.add_argument("--batch", type=int, default=2, help="windows a step")
    parser.add_argument("--window", type=int, default=512, help="tokens a window, n_ctx at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    for name in METHODS:
        if name in arguments[:1]:
            method = import_module(f"heads_{name}")
            if hasattr(method, "add_options"):
                method.add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    try:
        target = FrozenTarget(options.target)
        head: Head = method.build(target, options)
        texts, held = documents(options.target, options.corpus)
    except ValueError as error:
        raise SystemExit(f"train_heads: {error}") from None
    options.out = options.out or options.target / f"{options.method}.safetensors"
    options.tokens = options.tokens or head.tokens
    options.work.mkdir(parents=True, exist_ok=True)
    n = sum(parameter.numel() for parameter in head.parameters() if parameter.requires_grad)
    print(f"{options.method}: {n:,} numbers to train on {options.tokens:,} tokens of {len(texts):,} texts", flush=True)
    train(head, target, texts, held, options)
    figures = held_out(head, target, held, min(options.window, target.config.n_ctx))
    export(head, target, figures, options)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes, {told(figures)}")
