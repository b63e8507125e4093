"""The price of a first guess: of drafters that answer in one pass it is nearly all that their guesses cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoints import TINY, tiny_tensors
from toys import tiny_model

from minispec.costs import Costs, draft_seconds
from minispec.decoding import beside_a_pass
from minispec.draft_length import Prices
from minispec.drafters import ParallelDrafter, SmallModelDrafter
from minispec.model import GPT2
from minispec.settings import Settings
from minispec.tree_shape import shape

FEW = replace(TINY, n_vocab=12)


class Counted:
    """A model whose passes are counted."""

    def __init__(self, model: GPT2) -> None:
        self.model, self.new_cache, self.n = model, model.new_cache, 0
        self.n_ctx, self.n_vocab = model.n_ctx, model.n_vocab

    def forward(self, *arguments: Any, **named: Any) -> Any:
        self.n += 1
        return self.model.forward(*arguments, **named)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_drafter_that_answers_in_one_pass_is_paid_with_its_first_guess(at_once: bool) -> None:
    target = tiny_model(FEW)
    config = replace(FEW, n_vocab=FEW.n_vocab + 4 * at_once)
    model = Counted(GPT2(config, tiny_tensors(config, 1)))
    drafter = ParallelDrafter(model, 4) if at_once else SmallModelDrafter(model)

    def passes(work: Callable[[], object]) -> float:
        before = model.n
        work()
        return float(model.n - before)

    guess, reread, first = draft_seconds(target, drafter, list(range(12)) * 2, passes)
    assert (guess, reread, first) == ((0, 0, 1) if at_once else (1, 0, 0))


def test_a_first_guess_that_is_dear_has_to_pay() -> None:
    costs = Costs(0.0, (0.0, 1.0, 1.0, 1.0), 0.0, 1.0, first=0.5)
    assert Prices(costs, 2).of_round.tolist() == [1.0, 1.5, 1.5]
    assert shape([[0.4], [0.9]], costs, 4).parents == (-1, 0)  # one guess alone does not pay
    assert shape([[0.4], [0.2]], costs, 4).parents == ()
    assert shape([[0.4], [0.2]], replace(costs, first=0.0), 4).parents == (-1, 0)


@pytest.mark.parametrize(
    ("guess", "first", "n"), [(0.25, 0.0, 4), (0.25, 0.5, 2), (0.01, 0.0, 8), (3.0, 0.0, 1), (0.1, 2.0, 1)]
)
def test_as_many_guesses_as_fit_beside_a_pass(guess: float, first: float, n: int) -> None:
    pair: Any = SimpleNamespace(costs=Costs(guess, (0.0, 1.0), 0.0, 1.0, first))
    assert beside_a_pass(Settings(), pair) == n
