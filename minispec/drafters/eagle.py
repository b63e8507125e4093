"""EAGLE: a single block guesses the target's next feature, and from it the next token.

The rule: at a position that the target has read, a small GPT-2 of one layer is given the target's features of that
position and the token that followed. It gives the law of the token after that, and a state that stands in for the
next features, so that it can go on with its own guess. `on_features` has the ways in and out. The block looks back on
its own keys and values of all earlier positions. Once the target has read further, those of guesses are dropped, kept
ones too, and made anew from the target's real features.

Both versions are this one model, and differ in what it learns and in what is tied:

    EAGLE-1   the state is to be the target's last hidden state itself: trained on that, and on its tokens a little.
              So one product leads from it to the target's own output layer, and another back into the block.
    EAGLE-3   features of three depths, and no word of what the state must be: output layer and way back are its own,
              and it learns by guessing three tokens in a row from its own states, as it will have to.

In EAGLE-1 two products follow one another with nothing between them; they are multiplied when the file is read.

Cost: what a guess reads, over what a pass of the target reads. For story-target (12.2 M weights in layers and head)
with a block of width 192 and 2048 tokens to guess: block 12 * 192^2 = 442 k, head 192 * 2048 = 393 k, way back 37 k,
which is 0.07 of a pass. The first guess of a round reads the way in too (3 * 384 * 192 = 221 k), and has a row for
every token that the last round wrote. The first round of a text has no features and no guesses.

The law is kept: a guess is drawn from the law that it is judged by, which has zeros for tokens it never guesses.
Training: one pass over the target's training text, by weights/train_heads.py; what it sees the target must have seen,
so its file belongs to one target.

Source: Li, Wei, Zhang, Zhang 2024 (EAGLE, arXiv 2401.15077); 2025 (EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from copy import copy
from itertools import compress, count
from typing import Any

import numpy as np

from minispec.drafters.on_features import (
    FeatureDrafter,
    Floats,
    Tensors,
    Ways,
    check_shapes,
    guess,
    layer_shapes,
    outputs,
    sizes,
)
from minispec.kv_cache import check_taps
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.protocols import Choices, Draft, GoOn, Sampler, always

MOST_ROWS = 32  # of a pass of the block: as many embeddings as lie side by side


def three_depths(n_layer: int) -> tuple[int, ...]:
    """The depths whose features EAGLE-3 reads: early, late, and what the last norm sees; fewer of a shallow target."""
    return tuple(sorted({(n_layer + 1) // 3, (2 * n_layer + 1) // 3, n_layer}))


class EagleDrafter(FeatureDrafter):
    """Drafts with a trained block on the features of `target`."""

    def __init__(self, target: GPT2, tensors: Tensors) -> None:
        """Take the tensors of a heads file of either version. Raises ValueError for those of another target."""
        tensors = multiplied_out(target, tensors)
        super().__init__(target, tensors)
        self.block = read_block(target, tensors)

    def describe(self) -> str:
        """What a guess costs depends on this."""
        return f"EAGLE {self.block!r} on depths {self.ways.depths}"

    def warm_up(self) -> None:
        """Compile what a guess needs, or load it from the cache on disk."""
        self.ways.warm_up()
        self.block.warm_up()

    def start(self, cache: Any) -> EagleDrafting:
        """Begin a text. Raises ValueError for a target's cache without the features."""
        return EagleDrafting(self.ways, self.block, cache)


class EagleDrafting:
    """The block at work on one text: of its cache the first len(self.ids) - 1 rows are of the target's features."""

    def __init__(self, ways: Ways, block: GPT2, cache: Any) -> None:
        check_taps(cache, ways.depths)
        self.ways, self.target_cache = ways, cache
        self.ids: list[int] = []
        # A row goes into the block as the embedding of a token: here is room for their table, filled before each pass.
        self.rows = block.ops.empty_weight((block.config.n_embd, MOST_ROWS), np.float32)
        self.block = copy(block)
        self.block.weights = block.weights._replace(wte=self.rows, wte_scale=np.ones(MOST_ROWS, np.float32))
        self.cache = self.block.new_cache()

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Up to n_draft tokens after ids: none before the target has read, fewer where the window ends."""
        n_draft = min(n_draft, self.room(ids))
        if n_draft < 1:
            return Draft([], [])
        return guess(self.ways, self.read(ids), self.go_on_with, len(ids), n_draft, sampling, choices, go_on)

    def room(self, ids: Sequence[int]) -> int:
        """How many guesses there can be after ids: a row for each but the last must fit the block's window."""
        n_read = len(ids) - 1
        return self.block.n_ctx - n_read + 1 if 0 < n_read == self.target_cache.length else 0

    def read(self, ids: Sequence[int]) -> Floats:
        """Bring the block's cache up to ids: its output [n_guess + n_small] for the token after them.

        Rows of features and tokens that still stand are kept, but not the last, whose logits are needed anew. Row t has
        read the tokens up to t, and the one after. The rows of guesses go, whatever became of them.
        """
        differ = compress(count(), map(operator.ne, self.ids, ids))
        shared = next(differ, min(len(self.ids), len(ids)))
        first = max(min(shared - 1, len(ids) - 2), 0)
        self.cache.truncate(first)
        self.ids = list(ids)
        return self.go_on_with(self.ways.enter(self.target_cache, first, ids[first + 1 :]))

    def go_on_with(self, x: Floats) -> Floats:
        """Rows [n_new, n_small] through the block: its output [n_guess + n_small] for the last of them."""
        most = min(MOST_ROWS, self.block.n_vocab)
        for first in range(0, len(x), most):
            some = x[first : first + most]
            self.block.ops.pack(some.T, self.rows)
            out = self.block.forward(np.arange(len(some)), self.cache, n_logits=1)
        last: Floats = out[-1]
        return last


# --- from a file's tensors -----------------------------------------------------------------------


def read_block(target: GPT2, tensors: Tensors) -> GPT2:
    """The block as a GPT-2 of one layer, whose "tokens" are its outputs. Its embeddings are given with each pass.

    Raises ValueError for tensors that do not fit.
    """
    n_small, _, n_inner = sizes(target, tensors)
    check_shapes(tensors, {"n_head": (1,)})
    n_head, n_ctx = int(tensors["n_head"][0]), target.n_ctx
    if n_head < 1 or n_small % n_head:
        raise ValueError(f"a width of {n_small} in {n_head} heads: these heads are damaged, train them again")
    products = {"attn.c_attn": (n_small, 3 * n_small), "attn.c_proj": (n_small, n_small)}
    check_shapes(tensors, {"wpe.weight": (n_ctx, n_small)} | layer_shapes(0, n_small, n_inner, products))
    head = outputs(tensors)
    config = GPT2Config(1, n_head, n_small, n_ctx, len(head), n_inner, target.config.layer_norm_epsilon)
    return GPT2(config, {**tensors, "wte.weight": np.zeros_like(head), "lm_head.weight": head}, target.backend)


def multiplied_out(target: GPT2, tensors: Tensors) -> Tensors:
    """EAGLE-1's tensors made into those that EAGLE-3 has; EAGLE-3's as they are.

    EAGLE-1 has `fc` [n_embd, n_small] from a feature into the block and `out` [n_small, n_embd] to the next one,
    f = out(z). A feature is the target's last hidden state after its last norm.
    Real ones: fc(ln_f(x)), of which the norm's own weight and bias go into the product. Guessed ones: fc(out(z)).
    Logits: the target's output layer of out(z), where it is a token that may be guessed.
    """
    if "out.weight" not in tensors:
        return tensors
    n_small, n_embd = sizes(target, tensors)[0], target.config.n_embd
    check_shapes(tensors, {"fc.weight": (n_embd, n_small), "out.weight": (n_small, n_embd)})
    w, fc, out = target.weights, tensors["fc.weight"], tensors["out.weight"]
    rows = target.ops.columns(w.lm_head, w.lm_head_scale, tensors["tokens"].astype(np.int64))
    return {
        **tensors,
        "into.weight": w.ln_f_weight[:, None] * fc,
        "into.bias": w.ln_f_bias @ fc,
        "back.weight": out @ fc,
        "head.weight": rows @ out.T,
    }
