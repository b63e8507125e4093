"""Drafters on their own: what they guess depends on the ids alone, whatever they were asked before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from toys import Table, table, tiny_model

from minispec.drafters import SmallModelDrafter
from minispec.sampling import Sampling
from minispec.speculative import Dice

few_ids = st.lists(st.integers(0, 3), min_size=1, max_size=12)  # few tokens, so that texts share beginnings


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@given(st.lists(st.tuples(few_ids, st.integers(0, 4)), min_size=2, max_size=6))
def test_a_small_model_forgets_what_no_longer_holds(backend: str, asked: list[tuple[list[int], int]]) -> None:
    drafter = SmallModelDrafter(tiny_model(TINY, 1, backend))
    used = drafter.start()
    for ids, n_draft in asked:
        fresh = drafter.start()
        one, other = (state.draft(ids, n_draft, Sampling(), Dice(0)) for state in (used, fresh))
        assert list(one.tokens) == list(other.tokens)
        assert len(one.tokens) == n_draft
        assert used.cache.length == len(used.cached)
        rows = [state.model.forward([5], state.cache).tobytes() for state in (used, fresh) if n_draft]
        assert len(set(rows)) <= 1
        for state in (used, fresh):
            state.cache.truncate(len(state.cached))


def test_a_small_model_ends_with_its_context_window() -> None:
    drafting = SmallModelDrafter(tiny_model(TINY, 1)).start()
    lengths = [len(drafting.draft([1] * n, 3, Sampling(), Dice(0)).tokens) for n in (29, 30, 31, 32, 33, 40)]
    assert lengths == [3, 3, 2, 1, 0, 0]


def test_a_token_that_is_ruled_out_ends_no_draft() -> None:
    ruled_out = table(4, 0, zeros=0.5)
    drafting = SmallModelDrafter(ruled_out).start()
    draft = drafting.draft([0], 6, Sampling(1.0), Dice(0))
    assert len(draft.tokens) == 6
    assert any((probs == 0).any() for probs in draft.probs)


@pytest.mark.parametrize("logit", [np.nan, np.inf])
def test_a_draft_ends_where_logits_are_broken(logit: float) -> None:
    class Broken(Table):
        def logits(self, context: tuple[int, ...]) -> Any:
            row = super().logits(context)
            if len(context) == 3:
                row[1] = logit
            return row

    drafting = SmallModelDrafter(Broken(table(4, 0).rule, 4)).start()
    assert len(drafting.draft([0], 6, Sampling(1.0), Dice(0)).tokens) == 2


def test_a_small_model_reads_each_token_once() -> None:
    """After a block, only the tokens that it has not guessed itself, or that came in another's place."""
    read: list[int] = []

    class Counted(Table):
        def forward(self, ids: Any, cache: Any, n_logits: int | None = None) -> Any:
            read.append(len(ids))
            return super().forward(ids, cache, n_logits)

    drafting = SmallModelDrafter(Counted(table(4, 0).rule, 4)).start()
    guess = drafting.draft([0, 1, 2], 3, Sampling(), Dice(0)).tokens
    assert read == [3, 1, 1]
    drafting.draft([0, 1, 2, *guess, 1], 1, Sampling(), Dice(0))  # all kept, and a bonus
    assert read[3:] == [2]
    drafting.draft([0, 1, 2, guess[0], (guess[1] + 1) % 4], 1, Sampling(), Dice(0))  # one kept, one replaced
    assert read[4:] == [1]
