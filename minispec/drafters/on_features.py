"""How a small model stands on a target's features: what EAGLE and MTP share.

A feature is what the target has made of a position on its way to the next token. A small model that is given it has
the target's whole understanding of the text for nothing, and only has to go one token further. It is entered and left
in two ways, with z for what its own last norm gives:

    x = embed[next token] + into(norm(features))    at a position that the target has read
    x = embed[guess] + back(z)                      at a guess: z stands in for the features that are not there yet
    logits = head(z)                                for the tokens it may guess, a part of the vocabulary

The last feature pairs with the token that came after it, which was drawn and has not been read yet.

To save calls the products are put together where nothing lies between them: `embed` is the target's embedding of each
token, normed, times a weight, as a table; `back` lies beside `head` as further outputs of one product. So a row that
comes out of the small model is [n_guess + n_small]: logits, then what the next row begins with.

Axes: n_small, the small model's width; n_guess, the tokens it may guess; n_tap, the depths whose features it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from minispec.drafters.small_model import probability, usable
from minispec.heads import Heads
from minispec.model import GPT2
from minispec.packing import BLOCK, Linear, packed
from minispec.protocols import Choices, Draft, GoOn, Probs, Sampler
from minispec.reference import layer_norm

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Tensors = Mapping[str, Floats]


@dataclass(frozen=True)
class Ways:
    """The ways into a small model and out of it.

    depths: the features it reads. embed [n_vocab, n_small]; into [n_tap * n_embd, n_small]; tokens [n_guess] are the
    ids that it may guess, in the order of its logits.
    """

    ops: ModuleType
    depths: tuple[int, ...]
    epsilon: float
    embed: Floats
    into: Linear
    tokens: Ints

    @property
    def n_vocab(self) -> int:
        """Tokens in the target's vocabulary."""
        return len(self.embed)

    def enter(self, cache: Any, first: int, ids: Sequence[int]) -> Floats:
        """Rows [len(ids), n_small] for positions from `first` on, which the target has read, each with its next token.

        cache: the target's, with the features of these positions.
        """
        last = first + len(ids)
        features = np.stack([cache.features_at(depth)[first:last] for depth in self.depths], axis=1)
        n_embd = features.shape[-1]
        ones, zeros = np.ones(n_embd, np.float32), np.zeros(n_embd, np.float32)
        normed = self.ops.layer_norm(features.reshape(-1, n_embd), ones, zeros, self.epsilon)
        x: Floats = self.ops.linear(normed.reshape(len(ids), -1), *self.into)
        x += self.embed[np.asarray(ids)]
        return x

    def warm_up(self) -> None:
        """Compile what `enter` needs, or load it from the cache on disk."""
        n_in = self.into.weight.shape[-2]
        row, ones = np.zeros((1, n_in), np.float32), np.ones(n_in, np.float32)
        self.ops.linear(self.ops.layer_norm(row, ones, ones, self.epsilon), *self.into)

    def again(self, token: int, out: Floats) -> Floats:
        """The row [1, n_small] of a guess. out [n_guess + n_small] is what the small model gave for it."""
        x: Floats = self.embed[token] + out[len(self.tokens) :]
        return x[None]

    def logits(self, out: Floats) -> Floats:
        """Logits [n_vocab]: -infinity for tokens that are never guessed."""
        logits = np.full(self.n_vocab, -np.inf, np.float32)
        logits[self.tokens] = out[: len(self.tokens)]
        return logits


class FeatureDrafter:
    """A drafter on a target's features, from the tensors of a heads file."""

    ways: Ways

    def __init__(self, target: GPT2, tensors: Tensors) -> None:
        """Raises ValueError for tensors of another target, and for damaged ones."""
        self.ways = read_ways(target, tensors)

    @classmethod
    def of(cls, target: GPT2, heads: Heads) -> Self:
        """The drafter of a heads file. Raises ValueError for one that is damaged."""
        try:
            return cls(target, {name: heads[name] for name in heads.stored})
        except ValueError as error:
            raise ValueError(f"{heads.path}: {error}") from None

    @property
    def n_vocab(self) -> int:
        """The target's tokens."""
        return self.ways.n_vocab

    @property
    def taps(self) -> tuple[int, ...]:
        """The depths that the target must be tapped at."""
        return self.ways.depths


def guess(
    ways: Ways, out: Floats, step: Callable[[Floats], Floats], position: int, n_draft: int, sampling: Sampler,
    choices: Choices, go_on: GoOn,
) -> Draft:  # fmt: skip
    """Guess token after token from `position` of the text on, each drawn from the small model's own law.

    out [n_guess + n_small] is what the small model gave for the text; step takes the row of a guess to the next such.
    """
    tokens: list[int] = []
    probs: list[Probs] = []
    while len(tokens) < n_draft:
        if tokens:
            out = step(ways.again(tokens[-1], out))
        logits = ways.logits(out)
        if not usable(logits):
            break
        probs.append(sampling.probs(logits, position + len(tokens)))
        tokens.append(choices.draw(probs[-1]))
        if not go_on(partial(probability, logits, tokens[-1])):
            break
    return Draft(tokens, probs)


# --- from a file's tensors -----------------------------------------------------------------------


Shapes = dict[str, tuple[int, ...]]


def sizes(target: GPT2, tensors: Tensors) -> tuple[int, int, int]:
    """(n_small, n_guess, n_inner) of a file's tensors.

    Raises ValueError for tensors that are not there, and for what cannot have been trained on this target.
    """
    for name in ("embed.weight", "tokens", "depths", "h.0.mlp.c_fc.bias"):
        if name not in tensors or not tensors[name].size or tensors[name].ndim != 1 + (name == "embed.weight"):
            raise ValueError(f"{name} is missing or misshapen: these heads are damaged, train them again")
    for name in ("tokens", "depths"):
        if (tensors[name] < 0).any() or (tensors[name] % 1).any():
            raise ValueError(f"{name} are no whole numbers from 0 up: these heads are damaged, train them again")
    n_embd, deepest, last = len(tensors["embed.weight"]), int(max(tensors["depths"])), int(max(tensors["tokens"]))
    c = target.config
    if n_embd != c.n_embd or deepest > c.n_layer or last >= c.n_vocab:
        raise ValueError(
            f"these heads are for a width of {n_embd}, {deepest} layers or more and {last + 1} tokens or more, and the "
            f"target has {c.n_embd}, {c.n_layer} and {c.n_vocab}: they belong to another"
        )
    return tensors["embed.weight"].size // n_embd, len(tensors["tokens"]), len(tensors["h.0.mlp.c_fc.bias"])


def way_shapes(target: GPT2, tensors: Tensors) -> Shapes:
    """What `read_ways` and `outputs` read."""
    n_small, n_guess, _ = sizes(target, tensors)
    n_seen = len(tensors["depths"]) * target.config.n_embd
    return {
        "embed.weight": (target.config.n_embd, n_small),
        "into.weight": (n_seen, n_small),
        "into.bias": (n_small,),
        "back.weight": (n_small, n_small),
        "head.weight": (n_guess, n_small),
        "ln_f.weight": (n_small,),
        "ln_f.bias": (n_small,),
    }


def layer_shapes(layer: int, n_small: int, n_inner: int, products: Mapping[str, tuple[int, int]]) -> Shapes:
    """A layer's: products are the attention's, by name."""
    shapes: Shapes = {}
    for name, (n_in, n_out) in {**products, "mlp.c_fc": (n_small, n_inner), "mlp.c_proj": (n_inner, n_small)}.items():
        shapes |= {f"h.{layer}.{name}.weight": (n_in, n_out), f"h.{layer}.{name}.bias": (n_out,)}
    for norm in ("ln_1", "ln_2"):
        shapes |= {f"h.{layer}.{norm}.{part}": (n_small,) for part in ("weight", "bias")}
    return shapes


def check_shapes(tensors: Tensors, shapes: Shapes) -> None:
    """Raise ValueError for a tensor that is missing or has another shape: compiled code does not look."""
    for name, shape in shapes.items():
        found = list(tensors[name].shape) if name in tensors else "missing"
        if found != list(shape):
            raise ValueError(f"{name} is {found} and must be {list(shape)}: these heads are damaged, train them again")


def read_ways(target: GPT2, tensors: Tensors) -> Ways:
    """The ways of a small model that was trained on this target. Raises ValueError for tensors that do not fit."""
    check_shapes(tensors, way_shapes(target, tensors))
    depths = tuple(int(depth) for depth in tensors["depths"])
    into = packed(target.ops, tensors["into.weight"], tensors["into.bias"])
    embed = embeddings(target, tensors["embed.weight"])
    tokens = tensors["tokens"].astype(np.int64)
    return Ways(target.ops, depths, target.config.layer_norm_epsilon, embed, into, tokens)


def embeddings(target: GPT2, weight: Floats) -> Floats:
    """The target's embedding of every token, normed, times a weight [n_embd, n_small]: [n_vocab, n_small]."""
    n_embd, n_small = weight.shape
    ones, zeros = np.ones(n_embd, np.float32), np.zeros(n_embd, np.float32)
    table = np.empty((target.n_vocab, n_small), np.float32)
    for first in range(0, target.n_vocab, BLOCK):
        ids = np.arange(first, min(first + BLOCK, target.n_vocab))
        rows = target.ops.columns(target.weights.wte, target.weights.wte_scale, ids)
        table[ids] = layer_norm(rows, ones, zeros, target.config.layer_norm_epsilon) @ weight
    return table


def outputs(tensors: Tensors) -> Floats:
    """Head and way back as one output layer [n_guess + n_small, n_small], a row an output."""
    return np.concatenate([tensors["head.weight"], tensors["back.weight"].T])
