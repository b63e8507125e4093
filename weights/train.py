"""Train the pair in the box: a byte-level BPE, story-target on stories, story-draft on story-target.

The draft learns twice, both times from what the target makes of a text: first its distributions on stories, and then,
half on stories and half on text that target and draft have written themselves, to make 1 - sum(min(p, q)) small, which
is the chance that its guess is refused. The target reads every text once; the likeliest LABELS of each distribution are
kept on disk (about 1.1 GB), so that the draft learns three times as fast as with its teacher beside it.

    python weights/train.py CORPUS --others BOOKS   # folders of .txt files; stories parted by <|endoftext|>

BOOKS are what a quarter of the texts that the two write begin with, so that the draft has also seen what the target
makes of beginnings that are none of a story. Without them all begin as stories do.

Every stage writes a file under --work and is skipped when it is there, so a run that was
interrupted goes on from its last checkpoint. Batches are a function of (seed, step) alone:
stopping and resuming trains on the same tokens as one long run. With glibc,
MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592 before the command saves a sixth of the time
(memory is kept, and not asked for again every step).

Source: GPT-2 (Radford et al. 2019); soft labels (Hinton, Vinyals, Dean 2015); drawn text and total variation
(Zhou et al. 2023, DistillSpec, arXiv 2310.08461).
"""

from __future__ import annotations

if __name__ == "__main__":  # before PyTorch is imported, which takes seconds: Ctrl-C is heard from here on
    from minispec.interrupts import run_main

    run_main("train", "train: interrupted; run the same command again to go on from the last checkpoint")

import argparse
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from stories import END, read_stories
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F

from minispec import Sampling, load_model, speculate
from minispec.batch import generate_batch
from minispec.drafters import SmallModelDrafter

N_VOCAB = 4096
N_CTX = 512
SAVE_EVERY = 819_200  # tokens
LABELS = 64  # of the target's distribution, likeliest first
BLOCK = 128  # rows that attend at a time
TOGETHER = 32  # texts that are drawn at a time
ASKED = 100  # held-out stories that are written on, to count what is kept


@dataclass(frozen=True)
class Recipe:
    """One model of the pair: its shape and how it is trained."""

    name: str
    n_layer: int
    n_head: int
    n_embd: int
    tokens: int
    peak_rate: float
    batch: int = 8  # windows of n_ctx tokens a step
    warmup: int = 100  # steps
    decay: float = 0.4  # the last share of training, in which the rate falls to zero
    dropout: float = 0.0


TARGET = Recipe("story-target", 6, 6, 384, tokens=26_000_000, peak_rate=1.5e-3, dropout=0.1)
DRAFT = Recipe("story-draft", 1, 3, 192, tokens=12_000_000, peak_rate=3e-3, batch=2)
TUNED = Recipe("story-draft-tuned", 1, 3, 192, tokens=16_000_000, peak_rate=1.5e-3, batch=2, decay=0.9)
DRAWN = 800_000  # tokens that target and draft write, each, for the second time


# --- the model: GPT-2 with the parameter names of its checkpoints -------------------------------


class Linear(nn.Module):
    """x @ weight + bias with weight [n_in, n_out], the way GPT-2's files store it."""

    def __init__(self, n_in: int, n_out: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) * std)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of [..., n, d_head] to what is not later, BLOCK rows at a time: on a CPU half as long as by torch."""
    q = q / q.shape[-1] ** 0.5
    later = torch.full((BLOCK, BLOCK), float("-inf"), dtype=q.dtype).triu(1)
    rows = []
    for first in range(0, q.shape[-2], BLOCK):
        block = q[..., first : first + BLOCK, :]
        end = first + block.shape[-2]
        scores = block @ k[..., :end, :].transpose(-1, -2)
        scores[..., first:] += later[: end - first, : end - first]
        rows.append(scores.softmax(-1, dtype=q.dtype) @ v[..., :end, :])
    return torch.cat(rows, -2)


class Attention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, std: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = Linear(n_embd, 3 * n_embd, 0.02)
        self.c_proj = Linear(n_embd, n_embd, std)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.c_attn(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        return self.c_proj(causal(heads[0], heads[1], heads[2]).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, n_embd: int, std: float) -> None:
        super().__init__()
        self.c_fc = Linear(n_embd, 4 * n_embd, 0.02)
        self.c_proj = Linear(4 * n_embd, n_embd, std)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Dropout(nn.Module):
    """A share of the values to zero. The mask comes from NumPy, which draws it in a fifth of torch's time."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.below = round(256 * share)  # of a byte's values

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.below == 0:
            return x
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        drawn = torch.frombuffer(bytearray(rng.bytes(x.numel())), dtype=torch.uint8).view(x.shape)
        return x * (drawn >= self.below) / (1 - self.below / 256)


class Block(nn.Module):
    def __init__(self, recipe: Recipe, dropout: float) -> None:
        super().__init__()
        std = 0.02 / (2 * recipe.n_layer) ** 0.5
        self.ln_1 = nn.LayerNorm(recipe.n_embd)
        self.attn = Attention(recipe.n_embd, recipe.n_head, std)
        self.ln_2 = nn.LayerNorm(recipe.n_embd)
        self.mlp = MLP(recipe.n_embd, std)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.ln_1(x)))
        return x + self.drop(self.mlp(self.ln_2(x)))


class GPT2(nn.Module):
    """Token ids [n_batch, n_tokens] to logits [n_batch, n_tokens, n_vocab]."""

    def __init__(self, recipe: Recipe, dropout: float = 0.0) -> None:
        super().__init__()
        self.wte = nn.Embedding(N_VOCAB, recipe.n_embd)
        self.wpe = nn.Embedding(N_CTX, recipe.n_embd)
        self.h = nn.ModuleList(Block(recipe, dropout) for _ in range(recipe.n_layer))
        self.ln_f = nn.LayerNorm(recipe.n_embd)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.01)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


# --- text ----------------------------------------------------------------------------------------


def train_tokenizer(stories: list[str], folder: Path) -> None:
    """GPT-2's kind of byte-level BPE: bytes, then merges in order, then <|endoftext|> as the last id."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(stories, trainer)
    tokenizer.model.save(str(folder), "unfinished")
    saved = [folder / f"unfinished-{name}" for name in ("vocab.json", "merges.txt")]
    vocab = json.loads(saved[0].read_text(encoding="utf-8"))
    vocab = dict(sorted(vocab.items(), key=lambda item: item[1])) | {END: N_VOCAB - 1}
    os.replace(saved[1], folder / "merges.txt")
    write(folder / "vocab.json", json.dumps(vocab, ensure_ascii=False).encode())  # last: its presence ends the stage
    saved[0].unlink()


def encode(stories: list[str], folder: Path) -> list[np.ndarray]:
    """Each story's ids, <|endoftext|> at the end."""
    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return [np.array([*e.ids, N_VOCAB - 1], np.int64) for e in tokenizer.encode_batch_fast(stories)]


def window(stories: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """n_ctx + 1 ids: random whole stories one after another, so position 0 is a beginning."""
    pieces: list[np.ndarray] = []
    while sum(map(len, pieces)) <= N_CTX:
        pieces.append(stories[rng.integers(len(stories))])
    return np.concatenate(pieces)[: N_CTX + 1]


@dataclass(frozen=True)
class Batch:
    """Ids [batch, n_ctx + 1]; the target's likeliest next tokens [batch, n_ctx, LABELS], and their chances."""

    ids: Tensor
    likely: Tensor | None = None
    chances: Tensor | None = None


Feed = Callable[[int], Iterator[Batch]]  # endless, from a step on


def batches(stories: list[np.ndarray], recipe: Recipe, seed: int) -> Feed:
    """Windows that are put together anew every step."""

    def feed(step: int) -> Iterator[Batch]:
        while True:
            rng = np.random.default_rng([seed, step, recipe.n_embd])
            yield Batch(torch.from_numpy(np.stack([window(stories, rng) for _ in range(recipe.batch)])))
            step += 1

    return feed


def labelled_batches(sources: list[Labelled], recipe: Recipe, seed: int) -> Feed:
    """Windows the target has read, from each source in turn."""

    def feed(step: int) -> Iterator[Batch]:
        while True:
            rng = np.random.default_rng([seed, step, recipe.n_embd])
            rows = [sources[i % len(sources)].row(rng) for i in range(recipe.batch)]
            ids, likely, chances = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
            yield Batch(ids.long(), likely.long(), chances.float())
            step += 1

    return feed


def opening(stories: list[np.ndarray], others: list[np.ndarray], rng: np.random.Generator) -> list[int]:
    """What a text begins with: the first words of a story, or of four texts for one a passage of another kind."""
    if others and rng.random() < 0.25:
        text = others[rng.integers(len(others))]
        first = rng.integers(max(1, len(text) - 48))
        return list(text[first : first + rng.integers(4, 49)].tolist())
    return list(stories[rng.integers(len(stories))][: rng.integers(1, 9)].tolist())


def draw(
    folder: Path, stories: list[np.ndarray], others: list[np.ndarray], n_token: int, seed: int
) -> list[np.ndarray]:
    """Texts that the model of a folder writes at temperature 1 after an `opening`, as ids."""
    n_threads = torch.get_num_threads()
    model, rng, first = load_model(folder).with_crew(n_threads), np.random.default_rng([seed, n_token]), 0
    drawn: list[np.ndarray] = []
    while sum(map(len, drawn)) < n_token:
        prompts = [opening(stories, others, rng) for _ in range(TOGETHER)]
        texts = [list(prompt) for prompt in prompts]
        options: dict[str, Any] = {
            "max_new_tokens": N_CTX,
            "sampling": Sampling(1.0),
            "stop": lambda new: new[-1] == N_VOCAB - 1,
        }
        for row, step in generate_batch(model, prompts, seed=range(first, first + TOGETHER), **options):
            texts[row] += step.committed
        drawn += [np.array(text, np.int64) for text in texts]
        first += TOGETHER
        print(f"{folder.name} has written {sum(map(len, drawn)):,} of {n_token:,} tokens", flush=True)
    torch.set_num_threads(n_threads)  # PyTorch and Numba share their threads, and Numba has set how many
    return drawn


def drawn_texts(
    folder: Path, stories: list[np.ndarray], others: list[np.ndarray], work: Path, seed: int, n_token: int
) -> list[np.ndarray]:
    """As `draw`, kept in a file under work."""
    file = work / f"drawn-{folder.name}.npz"
    if not file.exists():
        texts = draw(folder, stories, others, n_token, seed)
        with file.with_suffix(".tmp").open("wb") as unfinished:
            np.savez(unfinished, ids=np.concatenate(texts).astype(np.uint16), ends=np.cumsum([len(t) for t in texts]))
        os.replace(file.with_suffix(".tmp"), file)
    with np.load(file) as kept:
        return np.split(kept["ids"].astype(np.int64), kept["ends"][:-1])


@dataclass(frozen=True)
class Labelled:
    """Windows [n, n_ctx + 1] with the target's likeliest tokens [n, n_ctx, LABELS] and their chances, in files."""

    ids: np.ndarray
    likely: np.ndarray
    chances: np.ndarray

    def row(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A window by chance."""
        n = rng.integers(len(self.ids))
        return self.ids[n].astype(np.int32), self.likely[n].astype(np.int32), self.chances[n]


def labelled(name: str, stories: list[np.ndarray], target: nn.Module, work: Path, seed: int) -> Labelled:
    """As many windows as the stories have tokens for, read by the target, kept in files under work."""
    files = [work / f"labels-{name}-{part}.npy" for part in ("ids", "likely", "chances")]
    if not files[-1].exists():
        n = max(1, sum(map(len, stories)) // N_CTX)
        rng, k = np.random.default_rng([seed, n]), min(LABELS, N_VOCAB)
        shapes = (n, N_CTX + 1), (n, N_CTX, k), (n, N_CTX, k)
        ids, likely, chances = (
            np.lib.format.open_memmap(file.with_suffix(".tmp"), "w+", dtype, shape)
            for file, dtype, shape in zip(files, (np.uint16, np.uint16, np.float16), shapes, strict=True)
        )
        for i in range(n):
            ids[i] = window(stories, rng)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                law = target(torch.from_numpy(ids[i : i + 1, :-1].astype(np.int64))).float().softmax(-1)[0]
            chances[i], likely[i] = (part.numpy() for part in law.topk(k))
            if i % 100 == 99:
                print(f"{name}: the target has read {i + 1:,} of {n:,} windows", flush=True)
        for array, file in zip((ids, likely, chances), files, strict=True):
            array.flush()
            os.replace(file.with_suffix(".tmp"), file)
    return Labelled(*(np.load(file, mmap_mode="r") for file in files))


# --- training ------------------------------------------------------------------------------------


@torch.no_grad()
def held_out_loss(model: nn.Module, stories: list[np.ndarray], exact: bool = False) -> float:
    """Mean nats a token over held-out stories, each alone from position 0; in bfloat16 unless exact."""
    model.eval()
    total, count = 0.0, 0
    stories = sorted((s[: N_CTX + 1] for s in stories), key=len)
    for i in range(0, len(stories), 16):
        rows = [torch.from_numpy(s) for s in stories[i : i + 16]]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
            logits = model(ids[:, :-1].clamp(min=0))
        labels = ids[:, 1:].flatten()
        total += F.cross_entropy(logits.flatten(0, 1).float(), labels, ignore_index=-1, reduction="sum").item()
        count += int((labels >= 0).sum())
    model.train()
    return total / count


def rate(recipe: Recipe, step: int, steps: int) -> float:
    """Linear warm-up, a plateau, then a straight line to zero: the plateau can be resumed and lengthened."""
    up = min(1.0, (step + 1) / recipe.warmup)
    down = min(1.0, (steps - step) / (recipe.decay * steps))
    return recipe.peak_rate * up * down


Loss = Callable[[Tensor, Batch], Tensor]  # of logits [n, n_vocab]


def next_token(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy with the text itself."""
    return F.cross_entropy(logits, batch.ids[:, 1:].flatten())


def soft_labels(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy with the target's distributions, as far as they are kept."""
    likely, chances = labels(batch)
    return ((logits.logsumexp(-1, keepdim=True) - logits.gather(-1, likely)) * chances).sum(-1).mean()


def refused(logits: Tensor, batch: Batch) -> Tensor:
    """The chance that a guess is refused: 1 - sum(min(p, q)). The tail, which is not kept, counts as refused."""
    likely, chances = labels(batch)
    q = (logits.gather(-1, likely) - logits.logsumexp(-1, keepdim=True)).exp()
    return 1 - torch.minimum(q, chances).sum(-1).mean()


def labels(batch: Batch) -> tuple[Tensor, Tensor]:
    """The likeliest tokens and their chances, both [n, LABELS]."""
    assert batch.likely is not None
    assert batch.chances is not None
    return batch.likely.flatten(0, 1), batch.chances.flatten(0, 1)


def train(
    recipe: Recipe,
    feed: Feed,
    held: list[np.ndarray],
    work: Path,
    options: argparse.Namespace,
    loss_of: Loss = next_token,
    begin: nn.Module | None = None,
) -> nn.Module:
    """Train one model of the pair, from its checkpoint where there is one, else from the weights of `begin`."""
    torch.manual_seed(options.seed)
    model = GPT2(recipe, recipe.dropout)
    if begin is not None:
        model.load_state_dict(begin.state_dict())
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    checkpoint = work / f"{recipe.name}.pt"
    begun = {"seed": options.seed, "dropout": recipe.dropout, "tokens": recipe.tokens}
    steps, step = recipe.tokens // (recipe.batch * N_CTX), 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        for name, value in begun.items():
            if state["options"][name] != value:
                raise SystemExit(
                    f"train: {checkpoint} was begun with other options ({name} {state['options'][name]}, not {value}): "
                    "give those, or another --work"
                )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"{recipe.name}: going on from step {step} of {steps}", flush=True)

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "options": begun}
        torch.save(state, checkpoint.with_suffix(".tmp"))
        os.replace(checkpoint.with_suffix(".tmp"), checkpoint)

    mean, began, first = 0.0, time.perf_counter(), step
    for batch in feed(step):
        if step >= steps:
            break
        torch.manual_seed(options.seed + step)
        for group in optimizer.param_groups:
            group["lr"] = rate(recipe, step, steps)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch.ids[:, :-1]).float().flatten(0, 1)
            loss = loss_of(logits, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        mean += (loss.item() - mean) / min(step - first, 50)
        if step % (160 // recipe.batch) == 0:
            speed = (step - first) * recipe.batch * N_CTX / (time.perf_counter() - began)
            left = (steps - step) * recipe.batch * N_CTX / speed / 60
            print(
                f"{recipe.name} step {step}/{steps} loss {mean:.3f} {speed:.0f} tokens/s {left:.0f} min left",
                flush=True,
            )
        if step % max(1, SAVE_EVERY // (recipe.batch * N_CTX)) == 0:
            save()
            print(f"{recipe.name} step {step} held-out {held_out_loss(model, held):.3f} nats a token", flush=True)
    save()
    return model


# --- files ---------------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.with_suffix(".tmp").write_bytes(data)
    os.replace(path.with_suffix(".tmp"), path)


def export(model: nn.Module, recipe: Recipe, tokenizer: Path, folder: Path) -> None:
    """A Hugging Face folder: F16 weights, config, vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().half().contiguous() for k, v in model.state_dict().items()}
    save_file(weights, folder / "model.tmp", metadata={"format": "pt"})
    os.replace(folder / "model.tmp", folder / "model.safetensors")
    shape = {k: v for k, v in asdict(recipe).items() if k in ("n_layer", "n_head", "n_embd")}
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "vocab_size": N_VOCAB,
        "n_positions": N_CTX,
        "n_ctx": N_CTX,
        **shape,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": N_VOCAB - 1,
        "eos_token_id": N_VOCAB - 1,
        "dtype": "float32",
    }
    write(folder / "config.json", json.dumps(config, indent=2).encode() + b"\n")
    settings = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": N_CTX}
    settings |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    write(folder / "tokenizer_config.json", json.dumps(settings, indent=2).encode() + b"\n")
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(tokenizer / name, folder / name)


@torch.no_grad()
def agreement(target: nn.Module, draft: nn.Module, stories: list[np.ndarray]) -> tuple[float, float]:
    """On held-out stories: how often the top tokens agree, and the mean of sum(min(p, q))."""
    same, overlap, count = 0.0, 0.0, 0
    for story in stories:
        ids = torch.from_numpy(story[:N_CTX])[None]
        p, q = (m(ids)[0].float().softmax(-1) for m in (target, draft))
        same += (p.argmax(-1) == q.argmax(-1)).sum().item()
        overlap += torch.minimum(p, q).sum().item()
        count += len(p)
    return same / count, overlap / count


def accept_rates(out: Path, stories: list[np.ndarray], temperature: float) -> str:
    """Of guesses, 4 a round, after the first words of held-out stories: the share that is kept, of those judged."""
    target, drafter = load_model(out / TARGET.name), SmallModelDrafter(load_model(out / DRAFT.name))
    kept = judged = 0
    for seed, story in enumerate(stories[:ASKED]):
        options: dict[str, Any] = {"max_new_tokens": 100, "sampling": Sampling(temperature), "seed": seed}
        for step in speculate(target, drafter, story[:12].tolist(), n_draft=4, **options):
            kept += step.n_accepted
            judged += min(step.n_accepted + 1, len(step.drafted))
    return f"{kept / judged:.3f}"


def described(name: str, model: nn.Module, recipe: Recipe) -> dict[str, str]:
    """A model's shape and the number of its weights."""
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    shape = f"{recipe.n_layer}, {recipe.n_head}, {recipe.n_embd}"
    return {f"{name}_shape": shape, f"{name}_size": f"{size:.1f} M"}


def card(out: Path, recipes: list[Recipe], figures: dict[str, object]) -> None:
    """Write the model card from what was measured."""
    text = (Path(__file__).parent / "card_template.md").read_text(encoding="utf-8")
    rows = []
    for recipe in recipes:
        file = out / recipe.name / "model.safetensors"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        rows.append(f"| `{recipe.name}/model.safetensors` | {file.stat().st_size:,} | `{digest}` |")
    write(out / "README.md", text.format(files="\n".join(rows), **figures).encode())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder of .txt files")
    here = Path(__file__).resolve().parent
    parser.add_argument("--out", type=Path, default=here, help="where the two model folders go")
    parser.add_argument("--work", type=Path, default=here / ".work", help="checkpoints and the vocabulary")
    parser.add_argument("--target-tokens", type=int, default=TARGET.tokens)
    parser.add_argument("--draft-tokens", type=int, default=DRAFT.tokens)
    parser.add_argument("--tuning-tokens", type=int, default=TUNED.tokens)
    parser.add_argument("--drawn-tokens", type=int, default=DRAWN)
    parser.add_argument("--others", type=Path, help="folder of .txt files of other kinds, to begin texts with")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    target_recipe = replace(TARGET, tokens=options.target_tokens)
    draft_recipe = replace(DRAFT, tokens=options.draft_tokens)
    tuned_recipe = replace(TUNED, tokens=options.tuning_tokens)
    options.work.mkdir(parents=True, exist_ok=True)

    texts, held_texts = read_stories(options.corpus)
    if not (options.work / "vocab.json").exists():
        train_tokenizer(texts, options.work)
    stories, held = encode(texts, options.work), encode(held_texts, options.work)
    others = encode(read_stories(options.others)[0], options.work) if options.others else []
    n_train, n_held = sum(map(len, stories)), sum(map(len, held))
    print(f"{len(stories)} stories, {n_train:,} tokens; {len(held)} held out, {n_held:,} tokens", flush=True)

    seed, work, n_drawn = options.seed, options.work, options.drawn_tokens
    target = train(target_recipe, batches(stories, target_recipe, seed), held, work, options).eval()
    export(target, target_recipe, work, options.out / TARGET.name)
    read = labelled("stories", stories, target, work, seed)
    draft = train(draft_recipe, labelled_batches([read], draft_recipe, seed), held, work, options, soft_labels)
    export(draft, draft_recipe, work, work / DRAFT.name)
    own, its = (
        labelled(folder.name, drawn_texts(folder, stories, others, work, seed, n_drawn), target, work, seed)
        for folder in (options.out / TARGET.name, work / DRAFT.name)
    )
    mixed = labelled_batches([read, own, read, its], tuned_recipe, seed)
    tuned = train(tuned_recipe, mixed, held, work, options, refused, begin=draft)
    export(tuned, tuned_recipe, options.work, options.out / DRAFT.name)

    shipped: list[nn.Module] = []  # what the folders hold: the weights as F16 rounded them
    for recipe in (target_recipe, draft_recipe):
        model = GPT2(recipe)
        model.load_state_dict(
            {k: v.float() for k, v in load_file(options.out / recipe.name / "model.safetensors").items()}
        )
        shipped.append(model.eval())
    same, overlap = agreement(shipped[0], shipped[1], held)
    figures: dict[str, object] = {
        "stories": f"{len(stories):,}",
        "train_tokens": f"{n_train:,}",
        "held": f"{len(held):,}",
        "held_tokens": f"{n_held:,}",
        **described("target", shipped[0], target_recipe),
        **described("draft", shipped[1], draft_recipe),
        "target_loss": f"{held_out_loss(shipped[0], held, exact=True):.3f}",
        "draft_loss": f"{held_out_loss(shipped[1], held, exact=True):.3f}",
        "target_tokens": f"{target_recipe.tokens:,}",
        "draft_tokens": f"{draft_recipe.tokens:,}",
        "tuning_tokens": f"{tuned_recipe.tokens:,}",
        "drawn_tokens": f"{options.drawn_tokens:,}",
        "same": f"{same:.3f}",
        "overlap": f"{overlap:.3f}",
        "greedy": accept_rates(options.out, held, 0.0),
        "sampled": accept_rates(options.out, held, 1.0),
    }
    print(json.dumps(figures, indent=2))
    card(options.out, [target_recipe, draft_recipe], figures)
