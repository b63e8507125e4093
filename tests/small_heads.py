"""Random weights of drafters on features, for any target, and what they compute, written out plainly in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters.eagle import EagleDrafter
from minispec.drafters.mtp import MTPDrafter
from minispec.model import GPT2

Array = NDArray[Any]
KINDS = ["eagle", "eagle1", "mtp"]


def drafter_tensors(kind: str, target: GPT2, n_small: int = 12, seed: int = 0) -> dict[str, Array]:
    """Tensors of a heads file with opinions: they guess all tokens but each fifth."""
    c, rng = target.config, np.random.default_rng(seed)
    tokens = np.array([i for i in range(c.n_vocab) if i % 5 != 4], np.float32)
    depths = [c.n_layer // 2, c.n_layer] if kind == "eagle" else [c.n_layer]
    n_inner, n_query = 2 * n_small, max(1, c.n_head - 1) * c.n_embd // c.n_head
    widths = [("attn.c_attn", n_small, 3 * n_small), ("attn.c_proj", n_small, n_small)]
    if kind == "mtp":
        widths = [("attn.c_q", n_small, n_query), ("attn.c_proj", n_query, n_small)]
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (c.n_embd, n_small), "ln_f.bias": (n_small,)}
    for i in range(2 if kind == "mtp" else 1):
        for name, n_in, n_out in [*widths, ("mlp.c_fc", n_small, n_inner), ("mlp.c_proj", n_inner, n_small)]:
            shapes |= {f"h.{i}.{name}.weight": (n_in, n_out), f"h.{i}.{name}.bias": (n_out,)}
        shapes |= {f"h.{i}.{norm}.bias": (n_small,) for norm in ("ln_1", "ln_2")}
    if kind == "eagle1":
        shapes |= {"fc.weight": (c.n_embd, n_small), "out.weight": (n_small, c.n_embd)}
    else:
        shapes |= {"into.weight": (len(depths) * c.n_embd, n_small), "into.bias": (n_small,)}
        shapes |= {"back.weight": (n_small, n_small), "head.weight": (len(tokens), n_small)}
    if kind != "mtp":
        shapes |= {"wpe.weight": (c.n_ctx, n_small)}
    tensors = {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    norms = [name.replace("bias", "weight") for name in shapes if "ln_" in name]
    tensors |= {name: (1 + 0.2 * rng.standard_normal(n_small)).astype(np.float32) for name in norms}
    tensors |= {"tokens": tokens, "depths": np.array(depths, np.float32), "n_head": np.array([3], np.float32)}
    return tensors


def drafter_on(kind: str, target: GPT2, n_small: int = 12, seed: int = 0) -> tuple[GPT2, Any]:
    """The target, tapped, and a random drafter of this kind for it."""
    tensors = drafter_tensors(kind, target, n_small, seed)
    drafter = (MTPDrafter if kind == "mtp" else EagleDrafter)(target, tensors)
    return target.tapped(drafter.taps), drafter


# --- written out -----------------------------------------------------------------------------------


def norm(x: Array, weight: Any = 1.0, bias: Any = 0.0) -> Array:
    x = x - x.mean(-1, keepdims=True)
    y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight + bias
    return y


def gelu(x: Array) -> Array:
    y: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y


def look(q: Array, keys: Array, values: Array) -> Array:
    """One query of one head: q [d_head] at keys and values [n, d_head]."""
    scores = keys @ q / np.sqrt(len(q))
    weights = np.exp(scores - scores.max())
    y: Array = weights @ values / weights.sum()
    return y


def written_out(
    kind: str, target: GPT2, tensors: dict[str, Array], ids: Sequence[int], guesses: Sequence[int]
) -> list[Array]:
    """Logits [n_guess] of the guess after ids, and after each of `guesses`: no cache, no product put together."""
    c, t = target.config, {name: tensor.astype(float) for name, tensor in tensors.items()}
    w = target.weights
    every = target.ops.columns(w.wte, w.wte_scale, np.arange(c.n_vocab)).astype(float)
    tapped = target.tapped(range(c.n_layer + 1))
    cache = tapped.new_cache()
    tapped.forward(list(ids[:-1]), cache, 0)
    hidden = [cache.features_at(depth).astype(float) for depth in range(c.n_layer + 1)]
    n_read = len(ids) - 1

    def enter(place: int) -> Array:
        """What the target's features of a place are to the small model."""
        if kind == "eagle1":
            last: Array = norm(hidden[-1][place], w.ln_f_weight, w.ln_f_bias) @ t["fc.weight"]
            return last
        normed = [norm(hidden[int(depth)][place]) for depth in t["depths"]]
        x: Array = np.concatenate(normed) @ t["into.weight"] + t["into.bias"]
        return x

    def again(z: Array) -> Array:
        x: Array = z @ t["out.weight"] @ t["fc.weight"] if kind == "eagle1" else z @ t["back.weight"]
        return x

    def logits(z: Array) -> Array:
        rows = every[tensors["tokens"].astype(int)] @ t["out.weight"].T if kind == "eagle1" else t["head.weight"]
        y: Array = rows @ z
        return y

    keys, values = (side.astype(float) for side in target.ops.fetch(*cache.layers[-1], n_read))
    blocks = own_blocks(t) if kind != "mtp" else query_blocks(t, keys, values)
    told = []
    for place in range(0 if kind != "mtp" else n_read - 1, n_read):
        z = blocks(norm(every[ids[place + 1]]) @ t["embed.weight"] + enter(place), place)
    told.append(logits(z))
    for i, token in enumerate(guesses):
        z = blocks(norm(every[token]) @ t["embed.weight"] + again(z), n_read + i)
        told.append(logits(z))
    return told


def layer(t: dict[str, Array], i: int, x: Array, attend: Callable[[Array], Array]) -> Array:
    """One layer on one row; attend takes the normed row to what the heads have seen."""

    def linear(name: str, row: Array) -> Array:
        y: Array = row @ t[f"h.{i}.{name}.weight"] + t[f"h.{i}.{name}.bias"]
        return y

    x = x + linear("attn.c_proj", attend(norm(x, t[f"h.{i}.ln_1.weight"], t[f"h.{i}.ln_1.bias"])))
    return x + linear("mlp.c_proj", gelu(linear("mlp.c_fc", norm(x, t[f"h.{i}.ln_2.weight"], t[f"h.{i}.ln_2.bias"]))))


def own_blocks(t: dict[str, Array]) -> Callable[[Array, int], Array]:
    """EAGLE's block: row after row, each with its place, to z. It remembers the rows before."""
    keys: list[Array] = []
    values: list[Array] = []

    def attend(row: Array) -> Array:
        q, k, v = (row @ t["h.0.attn.c_attn.weight"] + t["h.0.attn.c_attn.bias"]).reshape(3, 3, -1)
        keys.append(k)
        values.append(v)
        return np.concatenate([look(q[h], np.array(keys)[:, h], np.array(values)[:, h]) for h in range(3)])

    def row(x: Array, place: int) -> Array:
        return norm(layer(t, 0, x + t["wpe.weight"][place], attend), t["ln_f.weight"], t["ln_f.bias"])

    return row


def query_blocks(t: dict[str, Array], keys: Array, values: Array) -> Callable[[Array, int], Array]:
    """MTP's layers over the target's keys and values [n_head, n_read, d_head]: a row to z."""

    def row(x: Array, place: int) -> Array:
        for i in range(2):

            def attend(normed: Array, i: int = i) -> Array:
                q = (normed @ t[f"h.{i}.attn.c_q.weight"] + t[f"h.{i}.attn.c_q.bias"]).reshape(-1, keys.shape[2])
                return np.concatenate([look(q[h], keys[h], values[h]) for h in range(len(q))])

            x = layer(t, i, x, attend)
        return norm(x, t["ln_f.weight"], t["ln_f.bias"])

    return row
