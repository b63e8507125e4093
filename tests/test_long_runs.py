"""Many texts in one process: memory and speed stay flat, and every text is that of plain decoding."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import toys
from hostile import THOROUGH
from long_run import Way, long_run, long_story_run, way_of

from minispec.drafters import SmallModelDrafter
from minispec.drafters.combined import CombinedDrafter
from minispec.drafters.early_exit import EarlyExitDrafter
from minispec.drafters.prompt_lookup import PromptLookupDrafter
from minispec.drafters.small_model_tree import SmallModelTreeDrafter
from minispec.drafters.suffix import SuffixDrafter
from minispec.model import GPT2

KILOBYTES = 1000
MEGABYTES = 1_000_000


def toy_ways(target: GPT2) -> list[Way]:
    """Drafters of every kind for a random target."""
    n_vocab, other = target.n_vocab, toys.tiny_model(toys.ODD, 1)
    lookup = PromptLookupDrafter(n_vocab)
    drafters = [
        SmallModelDrafter(other),
        SmallModelDrafter(target),
        EarlyExitDrafter(target, 1),
        lookup,
        SuffixDrafter(n_vocab),
        CombinedDrafter([lookup, SmallModelDrafter(other)]),
        SmallModelTreeDrafter(other, (2, 2)),
    ]
    return [way_of(target, drafter, 1 + i % 4, toys.ODD.n_ctx) for i, drafter in enumerate(drafters)]


def toy_run() -> str:
    """The tokens of a run with toys, and the growth of what Python and NumPy have allocated, in bytes."""
    ways = toy_ways(toys.tiny_model(toys.ODD))
    rng = np.random.default_rng(0)
    prompts = iter(lambda: rng.integers(toys.ODD.n_vocab, size=rng.integers(1, 12)).tolist(), None)
    tracemalloc.start()
    run = long_run(ways, prompts, 3000, lambda: tracemalloc.get_traced_memory()[0])
    return f"{run.n_tokens} {run.growth(after=600)}"


def test_3000_tokens_leave_nothing_behind() -> None:
    """What is allocated is, after every text, what it was after the first few: within 50 kB, a third of one cache.

    In a process of its own: what the other tests have begun goes on allocating.
    """
    command = [sys.executable, "-c", "import test_long_runs as tests; print(tests.toy_run())"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    n_tokens, growth = map(int, done.stdout.split())
    assert n_tokens >= 3000
    assert growth < 50 * KILOBYTES


@pytest.mark.skipif(not THOROUGH or sys.platform != "linux", reason="ten minutes; reads /proc")
def test_100000_tokens_leave_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """Memory stays within 5 MB, and the last tenth is as fast as the first."""
    run = long_story_run(100_000)
    with capsys.disabled():
        print(f"\n{run.told()}")
    assert run.growth(after=5000) < 5 * MEGABYTES, run.told()
    assert run.speed(9)[0] >= 0.95 * run.speed(0)[0], run.told()  # by the clock: on an idle machine
