"""A pass over a tree of guesses: the bits of chains, caches, and what a mask says.

The pass     each row of a tree has the bits of a chain of its own, and a kept path leaves the cache of a fresh pass
The mask     the well-known form, one pass with a mask, in plain NumPy: the same numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import toys
from bits import assert_same_bits
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st

from minispec import reference
from minispec.kernels import NO_FEATURES, NOTHING
from minispec.kernels.whole_pass import lay_out
from minispec.parameters import GPT2Config
from minispec.protocols import depths
from minispec.trees import MOST_NODES, branches, path_to
from minispec.verify_cases import threads

BACKENDS = ["numba", "numpy"]
WIDE = GPT2Config(n_layer=1, n_head=2, n_embd=66, n_ctx=80, n_vocab=33, n_inner=40)  # heads of more than a panel


@st.composite
def trees(draw: Any, most: int = 12) -> list[int]:
    """Parents of up to `most` guesses, in any order that has each after its parent."""
    n = draw(st.integers(1, most))
    return [draw(st.integers(max(-1, i - draw(st.sampled_from([1, 2, 12]))), i - 1)) for i in range(n)]


# --- the pass --------------------------------------------------------------------------------------


@given(trees())
def test_branches_are_the_tree_depth_first(parents: list[int]) -> None:
    """Each guess once; in a run each follows the one before; a run's first finds its ancestors as they were left."""
    runs, deep = branches(parents), depths(parents)
    assert sorted(guess for run in runs for guess in run) == list(range(len(parents)))
    slots: dict[int, int] = {}
    for run in runs:
        assert all(parents[later] == guess for guess, later in pairwise(run))
        for guess in run:
            slots[deep[guess]] = guess
            assert [slots[depth] for depth in range(1, deep[guess] + 1)] == path_to(guess, parents)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    config=st.sampled_from([TINY, toys.ODD, WIDE]),
    stored=st.sampled_from(["f32", "int8"]),
    parents=trees(),
    n_past=st.integers(0, 9),
    n_new=st.integers(1, 7),
    order=st.permutations([1, 2]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_a_tree_has_the_bits_of_its_chains_and_a_kept_path_those_of_a_fresh_pass(
    backend: str, config: GPT2Config, stored: str, parents: list[int], n_past: int, n_new: int, order: list[int],
    seed: int, data: Any,
) -> None:  # fmt: skip
    model, rng = toys.tiny_model(config, 0, backend, stored), np.random.default_rng(seed)
    text = rng.integers(0, config.n_vocab, n_past + n_new).tolist()
    guesses = rng.integers(0, config.n_vocab, len(parents)).tolist()
    cache = model.new_cache()
    with toys.all_work_shared(model):
        with threads(model, order[0]):
            if n_past:
                model.forward(text[:n_past], cache)
            logits = model.forward_tree(text[n_past:], guesses, parents, cache)
        assert cache.length == len(text)
        with threads(model, order[1]):
            for guess in range(-1, len(guesses)):
                chain = [*text, *(guesses[one] for one in path_to(guess, parents))]
                assert_same_bits(logits[1 + guess], model.forward(chain, model.new_cache(), 1)[-1])
        path = path_to(data.draw(st.integers(-1, len(guesses) - 1)), parents)
        kept = [*text, *(guesses[guess] for guess in path)]
        cache.keep(path)
        assert cache.length == len(kept)
        assert toys.bits(model, cache) == toys.fresh_bits(model, kept)
        more = model.forward([1, 2], cache)  # what the other branches left behind is of no account
        assert_same_bits(more, model.forward([*kept, 1, 2], model.new_cache(), 2))


def test_a_head_takes_the_runs_of_a_tree_in_their_order() -> None:
    """They are one piece of work for one thread, and not dealt out apart: each finds what the one before has left."""
    sequences = np.array([[2, 0, 3, 1], [2, 2, 1, 1], [0, 5, 1, 1], [1, 0, 1, 1], [1, 0, 2, 2]])
    layout = lay_out(sequences, np.full(8, -1), 8, 6, NOTHING, NO_FEATURES)
    assert layout.texts.tolist() == [0, 2, 3, 5]
    assert layout.position.tolist() == [0, 1, 2, 2, 5, 0, 0, 1]
    assert layout.wanted.tolist() == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("most", [1, 4, 9])
def test_a_long_text_is_read_before_its_tree(monkeypatch: pytest.MonkeyPatch, backend: str, most: int) -> None:
    model, text, tree = toys.tiny_model(TINY, 0, backend), [*range(1, 12)], ([5, 6, 7], [-1, -1, 1])
    expected = model.forward_tree(text, *tree, model.new_cache())
    monkeypatch.setattr("minispec.model.MOST_ROWS", most)
    cache = model.new_cache()
    assert_same_bits(model.forward_tree(text, *tree, cache), expected)
    cache.keep([1, 2])
    assert toys.bits(model, cache) == toys.fresh_bits(model, [*text, 6, 7])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_largest_tree_at_the_end_of_the_window(backend: str) -> None:
    model, cache = toys.tiny_model(TINY, 0, backend), None
    parents = [-1, 0, 1, *[1] * (MOST_NODES - 3)]
    guesses = [i % 97 for i in range(MOST_NODES)]
    text = [3] * 29
    cache = model.new_cache()
    logits = model.forward_tree(text, guesses, parents, cache)
    last = [0, 1, MOST_NODES - 1]
    assert_same_bits(logits[-1], model.forward([*text, *(guesses[i] for i in last)], model.new_cache(), 1)[-1])
    cache.keep(last)
    assert cache.length == cache.n_ctx
    assert toys.bits(model, cache) == toys.fresh_bits(model, [*text, *(guesses[i] for i in last)])


@pytest.mark.parametrize(
    ("guesses", "parents", "message"),
    [
        ([1, 2], [-1], "parents of 2 guesses"),
        ([1, 2], [-1, 1], "the number of an earlier one"),
        ([1, 2], [0, -1], "the number of an earlier one"),
        ([1], [-2], "the number of an earlier one"),
        ([1], [0.5], "the number of an earlier one"),
        ([97], [-1], "token id 97 is outside"),
        ([1] * 65, [-1] * 65, "65 guesses, and 64 are the most"),
        ([1] * 4, [-1, 0, 1, 2], "28 cached . 5 new positions do not fit the context window of 32"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_tree_is_refused_and_the_cache_stays(backend: str, guesses: Any, parents: Any, message: str) -> None:
    model = toys.tiny_model(TINY, 0, backend)
    cache = model.new_cache()
    model.forward([1] * 28, cache)
    with pytest.raises(ValueError, match=message):
        model.forward_tree([2], guesses, parents, cache)
    assert cache.length == 28


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_inside_a_tree_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    model = toys.tiny_model(TINY, 0, backend)
    cache = model.new_cache()
    model.forward([1, 2, 3], cache)

    def fails(*arguments: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(model.ops, "copy_rows" if backend == "numpy" else "forward", fails)
    with pytest.raises(ZeroDivisionError):
        model.forward_tree([4], [5, 6, 7], [-1, 0, -1], cache)
    assert cache.length == 3


def test_only_a_path_of_the_last_tree_is_kept() -> None:
    model = toys.tiny_model(TINY)
    for path in ([1], [0, 2], [2], [3], [-1], [0, 1, 1]):
        cache = model.new_cache()
        model.forward_tree([1, 2], [5, 6, 7], [-1, 0, 1], cache)
        if path == [1]:
            cache.keep([])
        with pytest.raises(ValueError, match=r"is no path from the text: a cache keeps guesses of the tree"):
            cache.keep(path)
        assert cache.length == 2
    for change in (lambda: cache.truncate(2), lambda: model.forward([1], cache)):
        model.forward_tree([3], [5], [-1], cache)
        change()
        with pytest.raises(ValueError, match="is no path"):
            cache.keep([0])
        cache.truncate(2)


def test_a_tree_without_guesses_is_a_pass() -> None:
    model = toys.tiny_model(TINY)
    assert_same_bits(model.forward_tree([1, 2], [], [], model.new_cache()), model.forward([1, 2], model.new_cache(), 1))


# --- the mask: what other programs do --------------------------------------------------------------


def masked_pass(model: Any, text: Sequence[int], guesses: Sequence[int], parents: Sequence[int]) -> Any:
    """All guesses side by side after the text, in one pass of plain NumPy: logits [1 + len(guesses), n_vocab].

    A guess sees the text, its ancestors and itself: all else is hidden by a mask. Its position goes by its depth.
    """
    w, c, n = model.weights, model.config, len(text)
    ids = np.array([*text, *guesses])
    position = [*range(n), *(n + depth - 1 for depth in depths(parents))]
    sees = np.tri(len(ids), dtype=bool)
    sees[n:, n:] = False
    for guess in range(len(guesses)):
        sees[n + guess, [n + one for one in path_to(guess, parents)]] = True
    x = reference.columns(w.wte, w.wte_scale, ids) + w.wpe[position]
    for i in range(c.n_layer):
        normed = reference.layer_norm(x, w.ln_1_weight[i], w.ln_1_bias[i], c.layer_norm_epsilon)
        qkv = normed @ w.c_attn_weight[i] + w.c_attn_bias[i]
        q, k, v = qkv.reshape(len(ids), 3, c.n_head, -1).transpose(1, 2, 0, 3)
        scores = np.where(sees, q @ k.transpose(0, 2, 1) * w.attention_scale[i], -np.inf)
        out = (reference.softmax(scores) @ v).transpose(1, 0, 2).reshape(x.shape)
        x = x + out @ w.attn_c_proj_weight[i] + w.attn_c_proj_bias[i]
        normed = reference.layer_norm(x, w.ln_2_weight[i], w.ln_2_bias[i], c.layer_norm_epsilon)
        up = reference.gelu(normed @ w.c_fc_weight[i] + w.c_fc_bias[i])
        x = x + up @ w.mlp_c_proj_weight[i] + w.mlp_c_proj_bias[i]
    x = reference.layer_norm(x[n - 1 :], w.ln_f_weight, w.ln_f_bias, c.layer_norm_epsilon)
    return x @ w.lm_head + w.lm_head_bias


@given(st.sampled_from([TINY, toys.ODD]), trees(), st.integers(1, 9), st.integers(0, 99))
def test_depth_first_says_what_a_mask_says(config: GPT2Config, parents: list[int], n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    text, guesses = (rng.integers(0, config.n_vocab, size).tolist() for size in (n, len(parents)))
    expected = masked_pass(toys.tiny_model(config, 0, "numpy"), text, guesses, parents)
    for backend in BACKENDS:
        model = toys.tiny_model(config, 0, backend)
        got = model.forward_tree(text, guesses, parents, model.new_cache())
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
