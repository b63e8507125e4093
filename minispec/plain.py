"""Plain decoding: one token a pass. The baseline that speculation must equal.

(Not generate.py: `minispec.generate` is the function, and a module of that name would take its place.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from minispec.protocols import Choices, Sampler, Step, Target
from minispec.speculative import Dice, checked_law
from minispec.text import Stop, Text


def generate(
    target: Target,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampler,
    seed: int = 0,
    stop: Stop | None = None,
    choices: Choices | None = None,
) -> Iterator[Step]:
    """Write up to max_new_tokens after ids, a `Step` with one token for every pass.

    Arguments, ends and errors are those of `speculate`, less the drafter's.
    """
    text = Text(target, ids, max_new_tokens, stop)
    return _passes(target, text, sampling, Dice(seed) if choices is None else choices)


def _passes(target: Target, text: Text, sampling: Sampler, choices: Choices) -> Iterator[Step]:
    cache = target.new_cache()
    finish = text.finish()
    if finish:
        yield Step((), 0, (), finish)
    while not finish:
        began = time.perf_counter()
        logits = target.forward(text.ids[cache.length :], cache, n_logits=1)
        seconds = time.perf_counter() - began
        token = choices.draw(checked_law(sampling.probs(logits[-1], len(text.ids))))
        finish = text.commit(token)
        yield Step((), 0, (token,), finish, target_seconds=seconds)
