"""The prices of a pair: what a round of each draft length costs here, and from which accept rate on it pays.

They are kept as well: `-k auto` and `minispec theory --measured` go by the prices that were measured last.
"""

from __future__ import annotations

from dataclasses import dataclass

from minispec.draft_length import MOST
from minispec.kept_costs import measured_costs
from minispec.session import Pair
from minispec.theory import break_even_accept, round_cost


@dataclass(frozen=True)
class Price:
    """A round of so many guesses in passes of one row: the guesses, the check, and both; and the accept rate at which
    it writes no slower than plain decoding (None where it never does)."""

    num_draft_tokens: int
    guesses: float
    check: float
    round: float
    break_even_accept: float | None


def price_rounds(pair: Pair) -> list[Price]:
    """Measure, keep, and tell the price of every draft length."""
    costs = measured_costs(pair)
    return [
        Price(
            k, costs.first + k * costs.guess, costs.curve(k + 1), round_cost(0.0, k, costs), break_even_accept(k, costs)
        )
        for k in range(1, MOST + 1)
    ]
