"""Many texts in one process, by turns with every drafter, each compared with plain decoding.

    python tests/long_run.py 100000

prints what a `LongRun` has to say. On an idle machine the last tenth is as fast as the first. Speeds are those of
speculative decoding, and over plain decoding of the same texts, which takes out what the machine does meanwhile.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np

from minispec.decoding import draft_length
from minispec.gumbel import Gumbel
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.session import open_pair
from minispec.settings import Settings
from minispec.speculative import speculate
from minispec.trace import Run, run_all

Way = Callable[[Sequence[int], int], tuple[Run, Run]]  # prompt ids and a seed to a text, speculatively and plainly

DRAFTS = (
    "story-draft", "prompt-lookup", "suffix", "ngram", "self-int8", "early-exit:2", "prompt-lookup+story-draft",
    "suffix+ngram", "ngram+early-exit:3", "medusa", "eagle", "eagle-tree", "eagle1", "mtp",
)  # fmt: skip


@dataclass
class LongRun:
    """What is kept of it: for each text its new tokens, seconds both ways, and the memory in use after it."""

    texts: list[tuple[int, float, float, int]] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        """New tokens of all texts, once."""
        return sum(text[0] for text in self.texts)

    def growth(self, after: int) -> int:
        """The most memory after any text beyond the first so many tokens, less that after these. In bytes."""
        seen = np.cumsum([text[0] for text in self.texts])
        first = int(seen.searchsorted(after))
        return max(text[3] for text in self.texts[first:]) - self.texts[first][3]

    def speed(self, tenth: int) -> tuple[float, float]:
        """Tokens a second in a tenth of the run, and that over plain decoding's."""
        n = len(self.texts)
        some = self.texts[tenth * n // 10 : (tenth + 1) * n // 10]
        tokens, speculative, plain = (sum(text[i] for text in some) for i in range(3))
        return tokens / speculative, plain / speculative

    def told(self) -> str:
        """All of it in lines."""
        first, last = self.speed(0), self.speed(9)
        early = min(5000, self.n_tokens // 2)
        return (
            f"{len(self.texts)} texts, {self.n_tokens:,} tokens, all as in plain decoding\n"
            f"memory: {self.growth(early) / 1e6:+.2f} MB at most after the first {early:,} tokens\n"
            f"tokens/s: {first[0]:.0f} in the first tenth, {last[0]:.0f} in the last: {last[0] / first[0]:.3f}\n"
            f"over plain decoding: {first[1]:.2f} and {last[1]:.2f}: {last[1] / first[1]:.3f}"
        )


def long_run(ways: Sequence[Way], prompts: Iterator[list[int]], n_tokens: int, memory: Callable[[], int]) -> LongRun:
    """Texts by all ways in turn until there are so many tokens. Raises AssertionError for one that differs."""
    run = LongRun()
    for number, way in enumerate(cycle(ways)):
        if run.n_tokens >= n_tokens:
            return run
        prompt = next(prompts)
        speculative, plain = way(prompt, number)
        assert (speculative.ids, speculative.finish) == (plain.ids, plain.finish), (number, prompt)
        sums = len(speculative.ids), speculative.seconds, plain.seconds
        del speculative, plain
        gc.collect()
        run.texts.append((*sums, memory()))
    raise AssertionError


def samplers(seed: int) -> Any:
    """Greedy, or sampled with noise that makes the text the same both ways."""
    return Sampling() if seed % 2 else Gumbel(Sampling(0.8), seed)


def way_of(target: Any, drafter: Any, n_draft: Any, n: int) -> Way:
    """A drafter's way to write up to n tokens."""

    def write(prompt: Sequence[int], seed: int) -> tuple[Run, Run]:
        options = {"max_new_tokens": n, "sampling": samplers(seed), "seed": seed}
        return (
            run_all(list(prompt), speculate(target, drafter, prompt, n_draft=n_draft, **options)),
            run_all(list(prompt), generate(target, prompt, **options)),
        )

    return write


def resident() -> int:
    """Bytes of memory that this process holds (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- the pair in the box -----------------------------------------------------------------------------


def story_ways(n: int = 80) -> list[Way]:
    """Every drafter of the box, with short and long drafts; trees and lengths that choose themselves.

    Texts are short, so that each has had two of them within 5,000 tokens: until then memory is touched anew.
    """
    ways = []
    target = open_pair(Settings(draft="none")).target
    for draft in DRAFTS:
        pair = open_pair(Settings(draft=draft), target)
        ways += [way_of(pair.target, pair.drafter, n_draft, n) for n_draft in (2, 6)]
    tree, auto = Settings(tree=(3, 2, 1), num_draft_tokens=3), Settings()
    pairs = open_pair(tree, target), open_pair(auto, target)
    ways.append(way_of(pairs[0].target, pairs[0].drafter, 3, n))
    ways.append(way_of(pairs[1].target, pairs[1].drafter, draft_length(auto, pairs[1]), n))
    return ways


def story_prompts(rng: np.random.Generator) -> Iterator[list[int]]:
    """Beginnings of any length, of words and of nonsense."""
    encode = open_pair(Settings(draft="none")).tokenizer.encode
    words = [
        "once",
        "upon",
        "a",
        "time",
        "there",
        "was",
        "the",
        "little",
        "dog",
        "girl",
        "Lily",
        "red",
        "ball",
        "one",
        "day",
    ]
    while True:
        if rng.random() < 0.8:
            yield encode(" ".join(rng.choice(words, rng.integers(1, 20))).capitalize())
        else:
            yield rng.integers(4000, size=rng.integers(1, 60)).tolist()


def long_story_run(n_tokens: int) -> LongRun:
    """The long run with the pair in the box."""
    return long_run(story_ways(), story_prompts(np.random.default_rng(0)), n_tokens, resident)


if __name__ == "__main__":
    print(long_story_run(int(sys.argv[1])).told())
