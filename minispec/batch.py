"""Many texts at once: each is the solo loop, unchanged, and what they share is the pass.

The weights are read once for all rows of a pass, so a batch writes several texts for about the price of one, until
arithmetic and not reading is what takes the time. Speculation spends the same idle arithmetic: the fuller the batch,
the less there is to gain.

Each text is its solo text, bit for bit, whatever else is in the batch: a row's bits do not depend on its company,
and cache, position, dice, limit, stop and draft are each text's own. Nothing is padded. A text that ends leaves; the
others go on. How the loops take turns is in `conductor.py`, the pass in `GPT2.forward_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from minispec.conductor import DRAFT, TARGET, StandIn, run_loops
from minispec.drafters.models import with_models
from minispec.plain import generate
from minispec.protocols import Drafter, DraftLength, Sampler, Step, Target
from minispec.speculative import Judge, speculate
from minispec.text import Stop

PER_TEXT = (list, tuple, range, np.ndarray)  # how a value for each text is given; anything else is for all of them


def generate_batch(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | Sequence[int],
    sampling: Sampler | Sequence[Sampler],
    seed: int | Sequence[int] = 0,
    stop: Stop | Sequence[Stop | None] | None = None,
) -> Iterator[tuple[int, Step]]:
    """Write a text after each prompt, as `generate` does: yields (number of the text, `Step`) as they come.

    Every option is one for all texts, or a list with one for each. Text i is what `generate` writes with its options,
    so equal prompts with equal seeds give equal texts: for others, give seeds, as in seed=range(8).
    The seconds of a Step include waiting for the other texts.
    Raises ValueError, at once, as `generate`, with the number of the text; and for a list of another length.
    """
    share = Sharing(len(prompts))

    def solo(ids: Sequence[int], **options: Any) -> Iterator[Step]:
        return generate(share(target, TARGET), ids, **options)

    given = {"max_new_tokens": max_new_tokens, "sampling": sampling, "seed": seed, "stop": stop}
    return run_loops(make_loops(solo, prompts, given))


def speculate_batch(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | Sequence[int],
    sampling: Sampler | Sequence[Sampler],
    n_draft: int | DraftLength | Sequence[int | DraftLength] = 4,
    seed: int | Sequence[int] = 0,
    stop: Stop | Sequence[Stop | None] | None = None,
    verification: str | Judge = "token",
) -> Iterator[tuple[int, Step]]:
    """As `generate_batch`, by `speculate`: the texts share the passes of the target, and of the drafter's models.

    A drafter without a model guesses for one text after the other. Passes over trees are each text's own.
    """
    share = Sharing(len(prompts))
    share_draft = partial(share, kind=DRAFT)

    def solo(ids: Sequence[int], **options: Any) -> Iterator[Step]:
        drafter_ = with_models(drafter, share_draft)
        return speculate(share(target, TARGET), drafter_, ids, verification=verification, **options)

    given = {"max_new_tokens": max_new_tokens, "sampling": sampling, "n_draft": n_draft, "seed": seed, "stop": stop}
    return run_loops(make_loops(solo, prompts, given))


def make_loops(
    solo: Callable[..., Iterator[Step]], prompts: Sequence[Sequence[int]], given: dict[str, Any]
) -> list[Iterator[Step]]:
    """The loop of each prompt with its own options. Raises ValueError with the number of the text."""
    n = len(prompts)
    for name, value in given.items():
        if isinstance(value, PER_TEXT) and len(value) != n:
            raise ValueError(f"{name} has {len(value)} values and the batch {n} prompts: give one for all, or one each")
    loops = []
    for row, ids in enumerate(prompts):
        own = {name: value[row] if isinstance(value, PER_TEXT) else value for name, value in given.items()}
        try:
            if not isinstance(ids, Sequence | np.ndarray):
                raise ValueError(f"the prompt is {ids!r:.40}: a batch is a list of prompts, each a list of token ids")
            loops.append(solo(ids, **own))
        except ValueError as error:
            raise ValueError(f"text {row} of the batch: {error}") from error
    return loops


class Sharing:
    """Stand-ins for models whose passes, and blocks of caches, the texts of a batch share."""

    def __init__(self, n_text: int) -> None:
        self.n_text = n_text
        self.caches: dict[tuple[str, int], list[Any]] = {}  # by what they are for, and the model

    def __call__(self, model: Any, kind: str) -> StandIn:
        """A stand-in for one text."""
        return StandIn(model, kind, partial(self._new_cache, model, kind))

    def _new_cache(self, model: Any, kind: str) -> Any:
        """A cache of the block for all texts; one of its own where the block is used up, or the model knows none."""
        if not hasattr(model, "new_caches"):
            return model.new_cache()
        key = kind, id(model)
        if key not in self.caches:
            self.caches[key] = model.new_caches(self.n_text)[::-1]
        return self.caches[key].pop() if self.caches[key] else model.new_cache()
