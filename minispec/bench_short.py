"""Very short replies: reading the prompt is most of the work, and with a draft model two models read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tqdm import tqdm

from minispec.bench_texts import write_texts
from minispec.model import GPT2
from minispec.protocols import Drafter

LENGTHS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Short:
    """A reply of so many tokens: seconds for all of it in a running process, reading the prompt included."""

    tokens: int
    prompt_tokens: int
    num_draft_tokens: int
    plain_seconds: float
    speculative_seconds: float
    speedup: float


def time_short(
    target: GPT2, drafter: Drafter, prompt: Sequence[int], n_draft: int, repetitions: int, quiet: bool
) -> list[Short]:
    """Every length, plain and speculative in turn; the first time does not count."""
    turns = []
    for _ in tqdm(range(1 + repetitions), desc="short replies", leave=False, disable=quiet or None):
        turns.append([
            [write_texts(target, drafter if k else None, [prompt], n, k).seconds for k in (0, n_draft)]
            for n in LENGTHS
        ])  # fmt: skip
    return [
        Short(
            tokens=n,
            prompt_tokens=len(prompt),
            num_draft_tokens=n_draft,
            plain_seconds=median(turn[i][0] for turn in turns[1:]),
            speculative_seconds=median(turn[i][1] for turn in turns[1:]),
            speedup=median(turn[i][0] / turn[i][1] for turn in turns[1:]),
        )
        for i, n in enumerate(LENGTHS)
    ]
