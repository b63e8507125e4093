"""The draft length that chooses itself: by what was kept, by what things cost, and never at a great loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from minispec.costs import Costs
from minispec.draft_length import AutoGuide, AutoLength, Chances, Prices
from minispec.drafters import SmallModelDrafter
from minispec.drafters.small_model import probability
from minispec.protocols import Fixed, Guide
from minispec.sampling import Sampling
from minispec.speculative import speculate
from minispec.theory import best_draft_length, speedup

# As measured with GPT-2 medium and small in 8 bits, where memory is slow and where it is fast.
SLOW = Costs(
    0.105, (0, 1, 1.01, 1.03, 1.04, 1.05, 1.08, 1.12, 1.16, 1.24, 1.31, 1.39, 1.47, 1.55, 1.62, 1.70, 1.78), 0.03, 1.0
)
FAST = Costs(
    0.17, (0, 1, 1.03, 1.09, 1.15, 1.2, 1.31, 1.45, 1.59, 1.75, 1.92, 2.08, 2.25, 2.41, 2.58, 2.74, 2.91), 0.03, 1.0
)
COSTS = [SLOW, FAST]
RATES = [0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0]


def price_of_text(agree: Sequence[bool], guide: Guide, costs: Costs, sure: Callable[[int], float]) -> float:
    """What it costs to write a text in which the guess for place i is right if agree[i], by the prices alone."""
    place, price, unread = 0, 0.0, 1
    while place < len(agree):
        most = min(guide.most(), len(agree) - place - 1)
        n_guess = 0
        while n_guess < most:
            n_guess += 1
            if not guide.go_on(lambda i=place + n_guess - 1: sure(i)):  # type: ignore[misc]
                break
        kept = next((i for i in range(n_guess) if not agree[place + i]), n_guess)
        price += n_guess * costs.guess + costs.curve(n_guess + 1) + (costs.reread * (unread - 1) if n_guess else 0)
        unread = unread + 1 if not n_guess else 2 if kept == n_guess else 1
        guide.learn(n_guess, kept, min(kept + 1, n_guess))
        place += kept + 1
    return price


def prices(texts: Sequence[Any], start: Callable[[], Guide], costs: Costs) -> float:
    return sum(price_of_text(text, start(), costs, lambda i: 0.9) for text in texts)


@pytest.mark.parametrize("costs", COSTS, ids=["slow", "fast"])
@pytest.mark.parametrize("rate", RATES)
def test_it_comes_near_the_best_fixed_length(rate: float, costs: Costs) -> None:
    """Over texts of 512 tokens; the best fixed length is the best afterwards, with plain decoding among them."""
    rng = np.random.default_rng(7)
    texts = [(rng.random(512) < rate).tolist() for _ in range(5)]
    best = min(prices(texts, Fixed(k).start, costs) for k in range(16))
    assert best / prices(texts, AutoLength(costs).start, costs) > 0.97


@pytest.mark.parametrize("costs", COSTS, ids=["slow", "fast"])
@pytest.mark.parametrize("n", [64, 256, 1000])
def test_it_never_loses_much_against_plain_decoding(n: int, costs: Costs) -> None:
    """Where nothing is ever kept: a pass and 2 % of the text, and what the last round cost."""
    price = prices([[False] * n], AutoLength(costs).start, costs)
    assert n < price < n + 1 + 0.02 * n + costs.guess + costs.curve(2) - 1


@pytest.mark.parametrize("costs", COSTS, ids=["slow", "fast"])
@pytest.mark.parametrize("rates", [(0.95, 0.2), (0.95, 0.05)])
def test_it_beats_every_fixed_length_on_a_text_that_changes(rates: tuple[float, float], costs: Costs) -> None:
    rng = np.random.default_rng(3)
    texts = [np.concatenate([rng.random(200) < rate for rate in rates]).tolist() for _ in range(5)]
    auto = prices(texts, AutoLength(costs).start, costs)
    assert all(auto < prices(texts, Fixed(k).start, costs) for k in range(16))


def test_it_listens_to_a_drafter_that_knows_what_it_knows() -> None:
    """Guesses of which the drafter is unsure are mostly wrong, the others mostly right: drafts end at the former."""
    rng = np.random.default_rng(5)
    unsure = rng.random(2000) < 0.3
    agree = np.where(unsure, rng.random(2000) < 0.1, rng.random(2000) < 0.97).tolist()
    told, untold = (
        price_of_text(agree, AutoLength(SLOW).start(), SLOW, surety)
        for surety in (lambda i: 0.15 if unsure[i] else 0.95, lambda i: 0.9)
    )
    assert told < 0.93 * untold


@given(st.floats(0, 1), st.sampled_from(COSTS), st.booleans())
def test_with_one_chance_everywhere_the_best_length_is_the_formulas(chance: float, costs: Costs, rereads: bool) -> None:
    costs = costs if rereads else replace(costs, reread=0.0)
    best, needed = Prices(costs, 15).plan(np.full(15, chance))
    assert speedup(chance, best, costs) == pytest.approx(best_draft_length(chance, costs, most=15)[1])
    if (
        not rereads
    ):  # then a draft that goes on where it pays, its reach being chance ** place, comes out at that length
        assert all(chance**place >= needed[place] * (1 - 1e-9) for place in range(best))


def test_guesses_that_were_not_judged_teach_nothing() -> None:
    """Refused guesses and kept ones are judged; what stands behind a refused one is unknown, and not refused."""
    one, other = AutoGuide(SLOW, 15), AutoGuide(SLOW, 15)
    for guide, n_guess in ((one, 3), (other, 6)):
        guide.most()
        for _ in range(n_guess):
            guide.go_on(lambda: 0.5)
        guide.learn(n_guess, 2, 3)
    assert one.chances.by_place().tolist() == other.chances.by_place().tolist()
    assert one.chances.at_place[0].nonzero()[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("stop_at", [None, 0, 1, 2])
def test_a_refused_guess_is_heard_of(stop_at: int | None) -> None:
    """The loop tells what was judged: kept guesses, the refused one, and nothing after a stop."""
    heard: list[tuple[int, int, int]] = []

    class Listening(toys.Wary):
        def start(self) -> Listening:
            return self

        def learn(self, n_guess: int, n_accepted: int, n_judged: int) -> None:
            super().learn(n_guess, n_accepted, n_judged)
            heard.append((n_guess, n_accepted, n_judged))

        def go_on(self, surety: Callable[[], float]) -> bool:
            return True

    model = toys.table(5, 0)
    drafter = toys.Teasing(model)  # right, but for the last guess of a block
    options: Any = {"max_new_tokens": 10, "sampling": Sampling(), "n_draft": Listening(3)}
    text = [token for step in speculate(model, drafter, [0], **options) for token in step.committed]
    heard.clear()
    stop = None if stop_at is None else lambda new: len(new) == stop_at + 1
    list(speculate(model, drafter, [0], stop=stop, **options))
    assert len(text) == 10
    assert heard[0] == {None: (3, 2, 3), 0: (3, 1, 1), 1: (3, 2, 2), 2: (3, 2, 3)}[stop_at]


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.8, 0.98])
def test_the_common_chance_is_found(rate: float) -> None:
    """In the mean over 20 texts of 400 guesses; of one text's, with its shortest memory, 0.2 has been seen."""
    found = []
    for seed in range(20):
        chances, rng = Chances(4), np.random.default_rng(seed)
        for kept in rng.random(400) < rate:
            chances.learn(int(rng.integers(4)), bool(kept))
        found.append(chances.common)
        assert sum(chances.trust) == pytest.approx(1)
    assert abs(np.mean(found) - rate) < 0.05


def test_the_same_guesses_give_the_same_lengths() -> None:
    """No clock decides: a run that is sampled with a seed is the same again."""
    target, draft = toys.table(5, 0), toys.table(5, 1)
    runs = [
        list(speculate(target, SmallModelDrafter(draft), [0], max_new_tokens=200, sampling=Sampling(1.0), seed=4,
                       n_draft=AutoLength(SLOW)))
        for _ in range(2)
    ]  # fmt: skip
    lengths = [[len(step.drafted) for step in run] for run in runs]
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 2


def test_certainty_is_the_models_own_probability() -> None:
    logits = np.array([0.0, 1.0, -np.inf, 3.0], np.float32)
    weights = np.exp([0.0, 1.0, -np.inf, 3.0])
    for token in range(4):
        assert probability(logits, token) == pytest.approx(weights[token] / weights.sum(), rel=1e-6)


def test_a_draft_length_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="n_draft is 'auto': give an integer, 0 or more"):
        speculate(toys.table(3, 0), SmallModelDrafter(toys.table(3, 1)), [0], max_new_tokens=1, sampling=Sampling(),
                  n_draft="auto")  # type: ignore[arg-type]  # fmt: skip


def test_what_the_drafter_has_yet_to_read() -> None:
    """Its own last guess after a draft kept whole, and every token that was written without it."""
    guide, unread = AutoGuide(SLOW, 15), []
    for n_guess, kept in [(2, 2), (2, 1), (0, 0), (0, 0), (3, 0)]:
        guide.most()
        guide.learn(n_guess, kept, min(kept + 1, n_guess))
        unread.append(guide.unread)
    assert unread == [2, 1, 2, 3, 1]
