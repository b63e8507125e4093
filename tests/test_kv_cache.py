"""The cache after any history equals a fresh one: a state machine against a list of ids."""

from __future__ import annotations

import numpy as np
import pytest
from bits import assert_same_bits
from checkpoints import TINY
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toys import ODD, tiny_model

from minispec.kv_cache import KVCache
from minispec.model import GPT2


class CacheHistory(RuleBasedStateMachine):
    """Append and truncate at random; logits and rows must be those of one pass over the ids that are left."""

    model: GPT2
    cache: KVCache

    @initialize(config=st.sampled_from([TINY, ODD]), backend=st.sampled_from(["numba", "numpy"]))
    def start(self, config, backend):  # type: ignore[no-untyped-def]
        self.model = tiny_model(config, 0, backend)
        self.cache = self.model.new_cache()
        self.ids: list[int] = []

    @precondition(lambda self: self.cache.length < self.cache.n_ctx)
    @rule(data=st.data())
    def append(self, data):  # type: ignore[no-untyped-def]
        room = self.cache.n_ctx - self.cache.length
        new = data.draw(st.lists(st.integers(0, self.model.n_vocab - 1), min_size=1, max_size=min(9, room)))
        logits = self.model.forward(new, self.cache)
        self.ids += new
        fresh = self.model.forward(self.ids, self.model.new_cache())
        assert_same_bits(logits, fresh[-len(new) :])

    @rule(data=st.data())
    def truncate(self, data):  # type: ignore[no-untyped-def]
        length = data.draw(st.integers(0, self.cache.length))
        self.cache.truncate(length)
        del self.ids[length:]

    @rule(beyond=st.integers(1, 3))
    def refuse_what_is_not_there(self, beyond):  # type: ignore[no-untyped-def]
        for length in (self.cache.length + beyond, -beyond):
            with pytest.raises(ValueError, match="cannot truncate"):
                self.cache.truncate(length)
        with pytest.raises(ValueError, match="do not fit"):
            self.model.forward([0] * (self.cache.n_ctx - self.cache.length + beyond), self.cache)

    @invariant()
    def has_the_right_length(self):  # type: ignore[no-untyped-def]
        if hasattr(self, "ids"):
            assert self.cache.length == len(self.ids)


TestCacheHistory = CacheHistory.TestCase
TestCacheHistory.settings = settings(settings.default, stateful_step_count=20)


def test_a_length_is_a_whole_number_of_any_width() -> None:
    model = tiny_model(TINY)
    cache = model.new_cache()
    model.forward([1, 2, 3, 4], cache)
    for wrong in (2.5, True, "2", None):
        with pytest.raises(ValueError, match="cannot truncate"):
            cache.truncate(wrong)  # type: ignore[arg-type]
    cache.truncate(np.uint8(2))  # type: ignore[arg-type]
    assert type(cache.length) is int
    assert model.forward([1], cache).shape == (1, 97)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_rows_of_the_cache_have_the_same_bits_after_a_rollback(backend: str) -> None:
    model = tiny_model(TINY, 0, backend)
    ids = [5, 9, 11, 3, 3, 40, 7]
    fresh = model.new_cache()
    model.forward(ids, fresh)
    used = model.new_cache()
    model.forward([*ids[:4], 50, 51, 52, 53, 54], used)
    used.truncate(4)
    model.forward(ids[4:5], used)
    model.forward(ids[5:], used)
    used.truncate(len(ids))
    blank = model.new_cache()
    for (a_keys, a_values), (b_keys, b_values), layer in zip(fresh.layers, used.layers, blank.layers, strict=True):
        q = np.ones((4, 1, 8), np.float32)
        past = len(ids) - 1
        a = model.ops.attention(q, a_keys, a_values, past, 1.0)
        assert_same_bits(a, model.ops.attention(q, b_keys, b_values, past, 1.0))
        assert a.tobytes() != model.ops.attention(q, *layer, past, 1.0).tobytes()
