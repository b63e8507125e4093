"""Hypothesis strategies: distributions with every kind of edge, toy models made of them, ways to cut a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import toys
from hypothesis import strategies as st
from numpy.typing import NDArray

from minispec.draft_length import AutoLength
from minispec.drafters import SmallModelDrafter
from minispec.sampling import Sampling

Row = tuple[Fraction, ...]  # probabilities, summing to exactly 1
Stop = Callable[[Sequence[int]], bool]

# n_vocab, the most tokens that are possible at a place, tokens to write: thousands of paths as a rule
# fmt: off
SIZES = [
    (2, 2, 4), (3, 3, 3), (3, 2, 4), (4, 4, 2), (4, 3, 3), (4, 2, 4), (5, 5, 2), (5, 3, 3), (5, 2, 4), (5, 5, 1),
    (3, 2, 5),
]
# fmt: on


@st.composite
def rows(draw: Any, n_vocab: int, support: int, tiny: bool = False) -> Row:
    """A distribution on at most `support` tokens: one-hot, tied, of small integers, or (tiny) with denormals."""
    tokens = draw(st.permutations(range(n_vocab)))[: draw(st.sampled_from([support, support, (support + 1) // 2, 1]))]
    few = st.sampled_from([Fraction(1), Fraction(2), Fraction(3), Fraction(9), Fraction(30)])
    rare = st.sampled_from([Fraction(5e-324), Fraction(2.3e-308), Fraction(1e-20), Fraction(1)])
    weight = draw(st.sampled_from([few, st.just(Fraction(1)), rare if tiny else few]))
    weights = dict(zip(tokens, [Fraction(1), *(draw(weight) for _ in tokens[1:])], strict=True))
    total = sum(weights.values())
    return tuple(weights.get(token, Fraction(0)) / total for token in range(n_vocab))


@st.composite
def row_pairs(draw: Any, n_vocab: int, support: int, tiny: bool = False) -> tuple[Row, Row]:
    """A target's row and a draft's: unrelated, equal, equal but for a hair, or with no token in common."""
    one = draw(rows(n_vocab, support, tiny))
    kind = draw(st.sampled_from(["unrelated", "equal", "near", "disjoint"]))
    if kind == "equal":
        return one, one
    if kind == "near":
        hair, other = min(Fraction(1, 2**54), max(one)), list(one)
        other[one.index(max(one))] -= hair
        other[draw(st.integers(0, n_vocab - 1))] += hair
        return one, tuple(other)
    free = [token for token in range(n_vocab) if not one[token]]
    if kind == "disjoint" and free:
        small = draw(rows(len(free), min(len(free), support), tiny))
        chances = dict(zip(free, small, strict=True))
        return one, tuple(chances.get(token, Fraction(0)) for token in range(n_vocab))
    return one, draw(rows(n_vocab, support, tiny))


def mixed(pool: Sequence[Row], salt: int) -> Callable[[tuple[int, ...]], NDArray[Any]]:
    """A rule from context to a row [n_vocab] of the pool: it looks at the whole context."""

    @cache
    def rule(context: tuple[int, ...]) -> NDArray[Any]:
        return np.array(pool[toys.whim(salt, context) % len(pool)], dtype=object)

    return rule


@dataclass(frozen=True)
class Case:
    """Two context-dependent models and a run of the loop on them."""

    target: Callable[[tuple[int, ...]], NDArray[Any]]
    draft: Callable[[tuple[int, ...]], NDArray[Any]]
    n_vocab: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    n_draft: Any  # a number, or a way to choose it
    n_ctx: int
    drafter: str  # "model", "moody", "certain", or "narrow": a model whose context window ends early
    stop: Stop | None

    def make_drafter(self, kind: type[toys.Table]) -> Any:
        """The drafter, on a draft model of the same kind as the target."""
        model = kind(self.draft, self.n_vocab, len(self.prompt) + 1 if self.drafter == "narrow" else self.n_ctx)
        others = {"moody": toys.Moody(model), "certain": toys.certain(self.n_vocab, kind is toys.Exact)}
        return others.get(self.drafter, SmallModelDrafter(model))


def stop_at(end: tuple[int, ...]) -> Stop:
    """A text ends after these tokens."""
    return lambda new: tuple(new[-len(end) :]) == end


@st.composite
def cases(draw: Any, tiny: bool = False) -> Case:
    """Vocabulary 2 to 5, draft length 0 to 4, up to 4 new tokens; any drafter; limits and stops anywhere."""
    n_vocab, support, max_new_tokens = draw(st.sampled_from(SIZES))
    pairs = draw(st.lists(row_pairs(n_vocab, support, tiny), min_size=1, max_size=4))
    token = st.integers(0, n_vocab - 1)
    end = draw(st.none() | st.lists(token, min_size=1, max_size=1) | st.lists(token, min_size=1, max_size=2))
    salt = draw(st.integers(0, 99))
    prompt = tuple(draw(st.lists(token, min_size=1, max_size=3)))
    return Case(
        target=mixed([one for one, _ in pairs], salt),
        draft=mixed([other for _, other in pairs], salt + draw(st.integers(0, 1))),
        n_vocab=n_vocab,
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        n_draft=draw(st.sampled_from([2, 1, 3, 4, 2, 1, 0, toys.Wary(3), AutoLength(toys.CHEAP, 3)])),
        n_ctx=len(prompt) + draw(st.sampled_from([50, 50, 50, 50, 3, 2, 1, 0])),
        drafter=draw(st.sampled_from(["model", "moody", "certain", "narrow"])),
        stop=None if end is None else stop_at(tuple(end)),
    )


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([1.0, 1.0, 0.7, 2.5, 0.3, 0.0]),
    top_k=st.sampled_from([0, 0, 0, 2, 3, 1]),
    top_p=st.sampled_from([1.0, 0.9, 0.7, 0.5, 0.3, 0.0]),
)


@st.composite
def histories(draw: Any, n: int, n_ctx: int) -> list[tuple[int, int, int]]:
    """Passes that make a text of n tokens, as (rubbish, kept, new).

    Each appends rows of rubbish, rolls back to the first `kept` rows, sometimes further than the rubbish, and
    appends the next rows of the text.
    """
    passes: list[tuple[int, int, int]] = []
    length = 0
    while length < n:
        rubbish = min(draw(st.sampled_from([0, 0, 1, 2, 5])), n_ctx - length)
        back = min(draw(st.sampled_from([0, 0, 0, 1, 7])), length)
        new = draw(st.integers(min(back + 1, n - length + back), min(n - length + back, 16)))
        passes.append((rubbish, length - back, new))
        length += new - back
    return passes
