"""What the target has seen: features are the rows that a pass works on, whatever company they come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import toys
from bits import assert_same_bits
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from strategies import histories
from toys import ODD, all_work_shared, tiny_model

from minispec.kv_cache import check_taps
from minispec.trees import path_to
from minispec.verify_cases import threads

BACKENDS = ["numba", "numpy"]


def output(model: Any, x: Any) -> Any:
    """The last norm and the output layer, by a backend's own operations."""
    w, ops = model.weights, model.ops
    normed = ops.layer_norm(np.ascontiguousarray(x), w.ln_f_weight, w.ln_f_bias, model.config.layer_norm_epsilon)
    return ops.linear(normed, w.lm_head, w.lm_head_scale, w.lm_head_bias)


@pytest.mark.parametrize("stored", ["f32", "int8"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_features_are_what_the_layers_hand_on(backend: str, stored: str) -> None:
    """Depth 0 are the embeddings; any other, after the output layer, are the logits of a model of so many layers."""
    model, ids = tiny_model(ODD, 0, backend, stored), [3, 1, 4, 1, 5]
    tapped = model.tapped(range(ODD.n_layer + 1))
    cache = tapped.new_cache()
    assert_same_bits(tapped.forward(ids, cache), model.forward(ids, model.new_cache()))
    w = model.weights
    assert_same_bits(cache.features_at(0), model.ops.columns(w.wte, w.wte_scale, np.array(ids)) + w.wpe[:5])
    for depth in range(1, ODD.n_layer + 1):
        part = model.first_layers(depth)
        assert_same_bits(output(model, cache.features_at(depth)), part.forward(ids, part.new_cache()))


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    config=st.sampled_from([TINY, ODD]),
    stored=st.sampled_from(["f32", "int8"]),
    taps=st.sets(st.integers(0, 2)),
    share=st.floats(0, 1),
    data=st.data(),
    order=st.permutations([1, 2]),
    seed=st.integers(0, 99),
)
def test_features_have_the_bits_of_one_pass(
    backend: str, config: Any, stored: str, taps: set[int], share: float, data: Any, order: list[int], seed: int
) -> None:
    """Passes of all sizes, guesses that are rolled back, and roll-backs into what was kept; and the logits, too."""
    plain, rng = tiny_model(config, 0, backend, stored), np.random.default_rng(seed)
    model = plain.tapped(taps)
    ids = rng.integers(0, config.n_vocab, 1 + round(share * (config.n_ctx - 1))).tolist()
    whole, cache = model.new_cache(), model.new_cache()
    with all_work_shared(model):
        with threads(model, order[0]):
            model.forward(ids, whole)
            logits = plain.forward(ids, plain.new_cache())
        with threads(model, order[1]):
            for rubbish, kept, n in data.draw(histories(len(ids), config.n_ctx)):
                if rubbish:
                    model.forward(rng.integers(0, config.n_vocab, rubbish).tolist(), cache)
                cache.truncate(kept)
                assert_same_bits(model.forward(ids[kept : kept + n], cache), logits[kept : kept + n])
                for depth in taps:
                    assert_same_bits(cache.features_at(depth), whole.features_at(depth)[: kept + n])
    assert toys.bits(model, cache) == toys.bits(model, whole)


@pytest.mark.parametrize("most", [256, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_features_of_a_batch_are_those_of_each_text_alone(
    backend: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(ODD, 0, backend).tapped((0, 2, 3))
    texts = [[1, 2, 3, 4, 5], [6], [7, 8, 9]]
    monkeypatch.setattr("minispec.model.MOST_ROWS", most)
    caches = model.new_caches(3)
    model.forward_batch([(ids[:1], cache, 1) for ids, cache in zip(texts, caches, strict=True)])
    rest = [(ids[1:], cache, 1) for ids, cache in zip(texts, caches, strict=True) if len(ids) > 1]
    model.forward_batch(rest[::-1])
    monkeypatch.undo()
    for ids, cache in zip(texts, caches, strict=True):
        alone = model.new_cache()
        model.forward(ids, alone)
        for depth in model.taps:
            assert_same_bits(cache.features_at(depth), alone.features_at(depth))


def test_weights_are_shared_and_caches_are_not() -> None:
    model = tiny_model(TINY)
    tapped = model.tapped([2, 0, 2])
    assert tapped.taps == (0, 2)
    assert tapped.tapped(()).taps == model.taps == ()
    assert tapped.weights is model.weights
    assert tapped.cache_bytes(1) - model.cache_bytes(1) == 2 * 4 * TINY.n_embd
    assert model.new_cache().features.shape[0] == 0
    with pytest.raises(ValueError, match="belongs to another model"):
        tapped.forward([1], model.new_cache())
    for wrong in (3, -1, True, 1.0):
        with pytest.raises(ValueError, match=f"depth {wrong!r} cannot be tapped: this model has depths 0 to 2"):
            model.tapped((1, wrong))  # type: ignore[arg-type]


def test_a_cache_without_the_features_is_refused_in_words() -> None:
    model = tiny_model(TINY)
    check_taps(model.tapped((0, 1)).new_cache(), (1,))
    check_taps(object(), ())
    for cache in (model.new_cache(), model.tapped((1,)).new_cache(), object()):
        with pytest.raises(ValueError, match=r"looks at what the target has seen: give it target\.tapped\(\(1, 2\)\)"):
            check_taps(cache, (1, 2))
    with pytest.raises(ValueError, match="tapped"):
        model.new_cache().features_at(2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_first_layers_are_a_model_on_the_same_weights(backend: str) -> None:
    from dataclasses import replace

    from checkpoints import tiny_tensors

    from minispec.model import GPT2

    model = tiny_model(ODD, 0, backend)
    for n in (1, 2, 3):
        part = model.first_layers(n)
        alone = GPT2(replace(ODD, n_layer=n), tiny_tensors(ODD, 0), backend)
        assert_same_bits(part.forward([1, 2, 3], part.new_cache()), alone.forward([1, 2, 3], alone.new_cache()))
        assert part.weight_bytes == alone.weight_bytes
        assert part.weights.lm_head is model.weights.lm_head
        assert np.shares_memory(part.weights.c_fc_weight, model.weights.c_fc_weight)
    for wrong in (0, 4, True, "2"):
        with pytest.raises(ValueError, match="layers cannot be taken: this model has 3"):
            model.first_layers(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_borrowed_cache_writes_what_the_whole_model_writes(backend: str) -> None:
    model = tiny_model(ODD, 0, backend)
    part, cache = model.first_layers(2), model.new_caches(2)[1]
    borrowed = part.borrow(cache)
    part.forward([1, 2, 3], borrowed)
    assert (borrowed.length, cache.length) == (3, 0)
    written = [side.copy() for side in (cache.keys[:2], cache.values[:2])]
    model.forward([1, 2, 3], cache)
    for before, after in zip(written, (cache.keys[:2], cache.values[:2]), strict=True):
        assert_same_bits(before, after)
    assert toys.bits(model, cache) == toys.fresh_bits(model, [1, 2, 3])


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    text=st.lists(st.integers(0, 70), min_size=1, max_size=6),
    parents=st.lists(st.integers(0, 99), min_size=1, max_size=7),
    seed=st.integers(0, 99),
)
def test_features_follow_the_path_that_is_kept_of_a_tree(
    backend: str, text: list[int], parents: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tree = [number % (i + 1) - 1 for i, number in enumerate(parents)]  # each follows an earlier one, or the text
    guesses = rng.integers(0, 71, len(tree)).tolist()
    model = tiny_model(ODD, 0, backend).tapped((0, 1, 3))
    cache, chain = model.new_cache(), model.new_cache()
    model.forward([9, 8, 7], cache)
    with all_work_shared(model):
        model.forward_tree(text, guesses, tree, cache)
    path = path_to(int(rng.integers(-1, len(tree))), tree)
    cache.keep(path)
    model.forward([9, 8, 7, *text, *(guesses[guess] for guess in path)], chain)
    for depth in model.taps:
        assert_same_bits(cache.features_at(depth), chain.features_at(depth))
    assert toys.bits(model, cache) == toys.bits(model, chain)
