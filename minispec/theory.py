"""What speculative decoding should gain, as formulas: tokens a round, speed-up, draft length, break-even, memory.

A round is n_draft guesses and one pass of the target that checks them. The formulas suppose that a guess is kept with
the same chance, `accept`, whenever those before it were: real texts have easy and hard stretches, so a mean hides
something. Costs are in units of one target pass over one row, which is what plain decoding pays for a token.

The textbook supposes further that a pass over n_draft + 1 rows costs as much as a pass over one. That holds where
reading weights is all that takes time; on a CPU arithmetic soon shows, so a measured curve of costs can take its place.

Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from minispec.parameters import GPT2Config

MOST_DRAFT = 64  # the longest draft that best_draft_length looks at, unless it is told otherwise


class PassCosts(Protocol):
    """What passes cost, in target passes over one row: the textbook's view of it (below), or a measured one."""

    @property
    def guess(self) -> float:
        """One pass of the draft: c in papers."""

    @property
    def first(self) -> float:
        """What the first guess of a round costs beyond that."""

    @property
    def reread(self) -> float:
        """What each further token costs that the draft has to read in a pass."""

    def curve(self, rows: int) -> float:
        """v(rows): a pass of the target over so many rows; v(1) is 1."""


class MeasuredCosts(PassCosts, Protocol):
    """The costs of a real pair on a real machine."""

    @property
    def pass_seconds(self) -> float:
        """One target pass over one row, in seconds."""


@dataclass(frozen=True)
class Textbook:
    """A guess costs `guess`, a check of any length one pass, and reading along nothing.

    Raises ValueError for a cost that is negative or no number.
    """

    guess: float

    def __post_init__(self) -> None:
        if not 0 <= self.guess < math.inf:
            raise ValueError(f"a guess costs {self.guess} target passes: give a number of 0 or more")

    @property
    def first(self) -> float:
        """Nothing."""
        return 0.0

    @property
    def reread(self) -> float:
        """Nothing."""
        return 0.0

    def curve(self, rows: int) -> float:
        """One pass."""
        return 1.0


def check_chance_and_length(accept: float, n_draft: int) -> None:
    """Raise ValueError unless these are a chance and a length."""
    if not 0 <= accept <= 1:
        raise ValueError(f"the accept rate is {accept}: give a number from 0 to 1")
    if n_draft < 0:
        raise ValueError(f"the draft length is {n_draft}: give 0 (plain decoding) or more")


def expected_tokens(accept: float, n_draft: int) -> float:
    """Tokens that a round writes on average: (1 - accept^(n_draft + 1)) / (1 - accept), with its limit at 1.

    Guess i is kept with chance accept^i, as all before it must be kept too; one token is always the target's own. The
    sum of these chances is taken from its inner end, 1 + a (1 + a (1 + ...)), which is exact to rounding at every
    accept rate, where the quotient divides two small numbers near 1.

    Raises: ValueError for an accept rate outside 0..1 or a negative length.
    Source: Leviathan et al. 2023, equation 1. Supposes: guesses are kept independently, with one chance.
    """
    check_chance_and_length(accept, n_draft)
    tokens = 1.0
    for _ in range(n_draft):
        tokens = 1 + accept * tokens
    return tokens


def kept_share(accept: float, n_draft: int) -> float | None:
    """Of all guesses, the share that is kept: what programs report as accept rate. None where nothing is guessed.

    It is less than `accept`, since guesses after a refused one are lost without being judged.
    """
    return (expected_tokens(accept, n_draft) - 1) / n_draft if n_draft else None


def round_cost(accept: float, n_draft: int, costs: PassCosts) -> float:
    """A round, in target passes over one row: n_draft guesses, a check, and what the draft reads along.

    After a block that was kept whole, the draft has not yet read its own last guess and does so with the next token.
    """
    check_chance_and_length(accept, n_draft)
    if n_draft == 0:  # plain decoding
        return 1.0
    return costs.first + n_draft * costs.guess + costs.reread * accept**n_draft + costs.curve(n_draft + 1)


def speedup(accept: float, n_draft: int, costs: PassCosts) -> float:
    """Speed over that of plain decoding, which is n_draft = 0 and 1.0.

    With Textbook(c): expected_tokens / (n_draft c + 1). With a measured curve v:
    expected_tokens / (n_draft c + v(n_draft + 1)), and what the draft reads along.

    Raises: ValueError as expected_tokens.
    Source: Leviathan et al. 2023, theorem 3.8. Supposes: as expected_tokens; nothing but passes takes time.
    """
    return expected_tokens(accept, n_draft) / round_cost(accept, n_draft, costs)


def best_draft_length(accept: float, costs: PassCosts, most: int = MOST_DRAFT) -> tuple[int, float]:
    """The draft length from 0 to `most` with the highest speed-up, the shortest of equals, and that speed-up.

    At accept 1 longer is always better, so the limit is what comes out.

    Source: Leviathan et al. 2023, section 3.5; corollary 3.9: the textbook gains somewhere iff accept > c.
    """
    speeds = [speedup(accept, n_draft, costs) for n_draft in range(most + 1)]
    best = speeds.index(max(speeds))
    return best, speeds[best]


def break_even_accept(n_draft: int, costs: PassCosts) -> float | None:
    """The least accept rate at which this draft length is no slower than plain decoding.

    0.0 where it never is slower; None where it always is, even if every guess is kept.
    By bisection, as speed-up grows with the accept rate.
    """
    if speedup(0.0, n_draft, costs) >= 1:
        return 0.0
    if speedup(1.0, n_draft, costs) < 1:
        return None
    slower, enough = 0.0, 1.0
    while slower < (middle := (slower + enough) / 2) < enough:
        if speedup(middle, n_draft, costs) >= 1:
            enough = middle
        else:
            slower = middle
    return enough


def reply_seconds(n_tokens: int, pass_seconds: float, speed: float = 1.0) -> float:
    """Seconds to write n_tokens at a speed-up, plainly by default. pass_seconds: one target pass over one row.

    Without the prompt's pass, and as if the last round could be cut: a very short reply takes longer.
    """
    return n_tokens * pass_seconds / speed


@dataclass(frozen=True)
class Prediction:
    """A draft length at an accept rate, by one view of costs; next to it the best length and the break-even."""

    round_cost: float
    speedup: float
    best_k: int
    best_speedup: float
    break_even_accept: float | None


def predict(
    accepts: Sequence[float], lengths: Sequence[int], costs: PassCosts, most: int = MOST_DRAFT
) -> dict[tuple[float, int], Prediction]:
    """A prediction for every pair of an accept rate and a draft length."""
    best = {accept: best_draft_length(accept, costs, most) for accept in accepts}
    even = {n_draft: break_even_accept(n_draft, costs) for n_draft in lengths}
    return {
        (a, k): Prediction(round_cost(a, k, costs), speedup(a, k, costs), *best[a], even[k])
        for a in accepts
        for k in lengths
    }


# --- memory ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """What a model of a shape holds in memory: parameters, bytes of weights, bytes of a full cache."""

    parameters: int
    weight_bytes: int
    cache_bytes: int


def memory(shape: GPT2Config, weights: str = "f32") -> Memory:
    """The memory of a model from its shape alone, its output tied to `wte`.

    weights: "f32", 4 bytes a parameter; "int8", 1 byte for the weights of products, and 4 for the rest and for a scale
    an output. Keys and values are float32, for every position of the context window.
    """
    s = shape
    # c_attn, c_proj, c_fc, c_proj: what they take in, what they put out
    products = [(s.n_embd, 3 * s.n_embd), (s.n_embd, s.n_embd), (s.n_embd, s.n_inner), (s.n_inner, s.n_embd)]
    in_products = s.n_vocab * s.n_embd + s.n_layer * sum(n_in * n_out for n_in, n_out in products)
    outputs = s.n_layer * sum(n_out for _, n_out in products)  # each has a bias
    norms = (2 * s.n_layer + 1) * 2 * s.n_embd
    others = s.n_ctx * s.n_embd + outputs + norms
    n_bytes = {
        "f32": 4 * (in_products + others),
        "int8": in_products + 4 * (others + outputs + s.n_vocab),
    }
    if weights not in n_bytes:
        raise ValueError(f"weights is {weights!r}: choose one of {', '.join(n_bytes)}")
    return Memory(in_products + others, n_bytes[weights], 2 * 4 * s.n_layer * s.n_embd * s.n_ctx)
