"""Heads on the target's last hidden row guess the tokens after next, all at once.

The rule: the target has read position t and the loop has drawn the token after it. Guess i, the token at t + 2 + i,
comes from u, the target's row t after its last norm, by a block of its own, u + silu(u W_i + b_i), and the target's
output layer. It knows neither the token at t + 1 nor the guesses before it: their laws are independent of each other.

What a guess costs: n_embd^2 numbers a guess, and the output layer once for all guesses of a round, here in 8 bits:
for story-target 0.6 MB a guess and 1.6 MB a round, of 49.5 MB that a pass reads. In the first round of a text nothing
is read yet and nothing is guessed.

Heads that know so little are better at naming a few likely tokens for a place than one: give a `tree`, whose guesses
cost a row of the check and nothing else.

The law is kept. (Medusa's own way of accepting what is likely enough does not keep it: see typical.py.) Training: the
blocks alone, on what the target makes of any text: `weights/train_heads.py medusa`.

Source: Cai et al. 2024, "Medusa" (arXiv 2401.10774). There each head has an output layer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters.marginals import draw_each, draw_tree, level_order
from minispec.heads import Heads
from minispec.kv_cache import check_taps
from minispec.model import GPT2
from minispec.packing import Linear, packed
from minispec.protocols import Choices, Draft, GoOn, Sampler, always, check_parents
from minispec.typical import judge_typical

Floats = NDArray[np.float32]


class MedusaDrafter:
    """Drafts with a target's heads: n_guess residual blocks, weight [n_guess, n_embd, n_embd] and bias."""

    def __init__(self, target: GPT2, heads: Heads, tree: Sequence[int] = ()) -> None:
        """tree: the parents of a tree's guesses, such as `tree_shape.shape` finds; without, guesses are a chain.

        Raises ValueError for heads of another shape than the target's, and for parents that are none.
        """
        check_parents(tree, len(tree))
        n_embd = target.config.n_embd
        weight = heads.shaped("weight", -1, n_embd, n_embd)
        if not len(weight):
            raise ValueError(f"{heads.path} has no heads: train it again")
        bias = heads.shaped("bias", len(weight), n_embd)
        self.target, self.path, self.tree = target, heads.path, level_order(tree)
        self.n_guess = len(weight)
        self.depth = target.config.n_layer
        side_by_side = np.concatenate(list(weight), axis=1)
        self.blocks = packed(target.ops, side_by_side, bias.reshape(-1))
        self.output = small_output(target)

    def __repr__(self) -> str:
        return f"<medusa, {self.n_guess} heads, {self.path.name}>"

    def describe(self) -> str:
        """What its price depends on."""
        return f"MedusaDrafter(n_guess={self.n_guess}, tree={self.tree})"

    @property
    def n_vocab(self) -> int:
        """The target's."""
        return self.target.n_vocab

    @property
    def branches(self) -> bool:
        """Whether it guesses trees."""
        return bool(self.tree)

    @property
    def taps(self) -> tuple[int, ...]:
        """The depths whose features it looks at."""
        return (self.depth,)

    def with_tree(self, tree: Sequence[int]) -> MedusaDrafter:
        """The same heads with another tree, or with chains where that has no guesses.

        Raises ValueError for parents that are none.
        """
        check_parents(tree, len(tree))
        twin = copy(self)
        twin.tree = level_order(tree)
        return twin

    def warm_up(self) -> None:
        """Compile what a guess needs, or load it."""
        self.logits(np.zeros((1, self.target.config.n_embd), np.float32), self.n_guess)

    def start(self, cache: Any) -> MedusaDrafting:
        """Begin a text. Raises ValueError for a target's cache that does not keep the last hidden rows."""
        check_taps(cache, self.taps)
        return MedusaDrafting(self, cache)

    def logits(self, hidden: Floats, n_guess: int) -> Floats:
        """Of the first n_guess guesses after a row [1, n_embd] of the target's last features: [n_guess, n_vocab]."""
        w, ops = self.target.weights, self.target.ops
        u = ops.layer_norm(hidden, w.ln_f_weight, w.ln_f_bias, self.target.config.layer_norm_epsilon)
        moved = u + silu(ops.linear(u, *self.blocks)).reshape(self.n_guess, -1)[:n_guess]
        logits: Floats = ops.linear(moved, *self.output)
        return logits


class TypicalMedusaDrafter(MedusaDrafter):
    """Medusa as its authors meant it. LOSSY: `judge` keeps what is likely enough, and the law is not the target's."""

    judge = staticmethod(judge_typical)


class MedusaDrafting:
    """The heads at work on one text. All that they know is in the target's cache."""

    def __init__(self, drafter: MedusaDrafter, cache: Any) -> None:
        self.drafter, self.cache = drafter, cache

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Up to a guess, or level, a head after ids, of which the target has read all but the last; else none."""
        n_draft = min(n_draft, self.drafter.n_guess)
        if n_draft < 1 or self.cache.length != len(ids) - 1 or not self.cache.length:
            return Draft([], [])
        hidden = self.cache.features_at(self.drafter.depth)[-1:]
        logits, place = self.drafter.logits(hidden, n_draft), len(ids)
        if self.drafter.tree:
            return draw_tree(logits, self.drafter.tree, place, sampling, choices, go_on)
        return draw_each(logits, place, sampling, choices, go_on)


def silu(x: Floats) -> Floats:
    """x times its logistic, element by element; written so that nothing overflows."""
    y: Floats = x * (np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)))
    return y


def small_output(target: GPT2) -> Linear:
    """The target's output layer in 8 bits: a quarter of the reading, and a guess may be rough."""
    w = target.weights
    if w.lm_head.dtype == np.int8:
        return Linear(w.lm_head, w.lm_head_scale, w.lm_head_bias)
    rows = target.ops.columns(w.lm_head, w.lm_head_scale, np.arange(target.n_vocab))
    return packed(target.ops, np.ascontiguousarray(rows.T), small=True)
