"""A pass gives the same bits however a text is cut, and the right numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits
from checkpoints import TINY, tiny_tensors
from hypothesis import given
from hypothesis import strategies as st
from toys import ODD, tiny_model

from minispec.backends import operations
from minispec.drafters import SmallModelDrafter
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.speculative import speculate

BACKENDS = ["numba", "numpy"]
configs = st.sampled_from([TINY, ODD])


def random_ids(config: GPT2Config, n: int, seed: int) -> list[int]:
    return list(np.random.default_rng(seed).integers(0, config.n_vocab, n))


@pytest.mark.parametrize("backend", BACKENDS)
@given(n_past=st.integers(0, 10), n_new=st.integers(2, 8), config=configs)
def test_a_row_does_not_see_the_rows_after_it(backend: str, n_past: int, n_new: int, config: GPT2Config) -> None:
    model, ids = tiny_model(config, 0, backend), random_ids(config, n_past + n_new, 1)
    other = [*ids[:-1], (ids[-1] + 1) % config.n_vocab]
    rows = []
    for text in (ids, other):
        cache = model.new_cache()
        if n_past:
            model.forward(text[:n_past], cache)
        rows.append(model.forward(text[n_past:], cache))
    assert_same_bits(rows[0][:-1], rows[1][:-1])
    assert rows[0][-1].tobytes() != rows[1][-1].tobytes()


@given(configs, st.integers(1, 30), st.integers(0, 9))
def test_both_backends_agree(config: GPT2Config, n: int, seed: int) -> None:
    ids = random_ids(config, n, seed)
    one, other = (tiny_model(config, seed % 2, backend) for backend in BACKENDS)
    a, b = one.forward(ids, one.new_cache()), other.forward(ids, other.new_cache())
    assert np.abs(a - b).max() <= 1e-4 * np.abs(b).max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_only_for_the_rows_that_are_asked_for(backend: str) -> None:
    model, ids = tiny_model(TINY, 0, backend), random_ids(TINY, 9, 3)
    whole = model.forward(ids, model.new_cache())
    for n_logits in range(10):
        some = model.forward(ids, model.new_cache(), n_logits=n_logits)
        assert_same_bits(some, whole[9 - n_logits :])
    with pytest.raises(ValueError, match="n_logits is 10"):
        model.forward(ids, model.new_cache(), n_logits=10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("draft", [False, True], ids=["plain", "speculative"])
def test_a_long_prompt_takes_no_memory_for_logits_that_nobody_asked_for(backend: str, draft: bool) -> None:
    """All of this prompt's would take 48 MB. Both models read it."""
    config = replace(TINY, n_ctx=330, n_vocab=40_000)
    target, guesser = (tiny_model(config, seed, backend) for seed in (0, 1))
    steps: Any
    options: Any = {"max_new_tokens": 8, "sampling": Sampling()}
    peaks = []
    for n in (10, 10, 300):  # the first makes what is made once
        prompt = random_ids(config, n, 3)
        tracemalloc.start()
        if draft:
            steps = speculate(target, SmallModelDrafter(guesser), prompt, n_draft=3, **options)
        else:
            steps = generate(target, prompt, **options)
        assert sum(len(step.committed) for step in steps) == 8
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] - peaks[1] < 12e6


@pytest.mark.parametrize("bad", [[97], [-1], [2**31], [2**70], [], [1.0], [True], [[1]], ["a"]])
def test_ids_that_are_none_are_refused_and_the_cache_stays_as_it_was(bad: Any) -> None:
    model = tiny_model()
    cache = model.new_cache()
    model.forward([1, 2], cache)
    with pytest.raises(ValueError, match=r"token id|ids are"):
        model.forward(bad, cache)
    assert cache.length == 2


def test_numpy_integers_are_ids() -> None:
    model = tiny_model()
    for kind in (np.int32, np.uint8, np.int64):
        rows = model.forward(np.array([1, 2], kind), model.new_cache())
        assert_same_bits(rows, model.forward([1, 2], model.new_cache()))


def test_a_cache_of_another_model_is_refused() -> None:
    model = tiny_model()
    for other in (tiny_model(ODD), tiny_model(TINY, 0, "numpy"), tiny_model(TINY, 1)):
        with pytest.raises(ValueError, match="belongs to another model"):
            model.forward([1], other.new_cache())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_does_not_see_infinite_values_after_it(backend: str) -> None:
    """A later row of the same block has weight 0 for it, but 0 times infinity is not 0."""
    tensors = tiny_tensors(TINY, 0)
    tensors["wte.weight"][7] = 3e38  # its norm, and with it its keys and values, overflow
    model = GPT2(TINY, tensors, backend)
    cache = model.new_cache()
    with np.errstate(all="ignore"):
        together = model.forward([1, 2, 3, 7], model.new_cache())
        alone = model.forward([1, 2, 3], cache)
        after = model.forward([7], cache)
    assert not np.isfinite(after[:, 8:]).all()
    assert np.isfinite(alone[:, 8:]).all()
    assert_same_bits(together[:3], alone)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_after_a_pass_is_refused_in_words() -> None:
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from toys import tiny_model\n"
        "model = tiny_model(); model.forward([1], model.new_cache())\n"
        "child = os.fork()\n"
        "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "try: model.forward([1], model.new_cache())\n"
        "except ValueError as error: os._exit(7 if 'spawn or forkserver' in str(error) else 1)\n"
        "os._exit(2)"
    )
    child = subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(Path(__file__).parent)], check=False)
    assert child.returncode == 7


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="backend is 'cuda': choose one of numba, numpy"):
        operations("cuda")


def test_without_numba_the_plain_numpy_runs_and_says_that_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    import minispec.backends as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.warns(RuntimeWarning, match="Numba is not installed.*slow"):
        assert operations("numba") is operations("numpy")


@pytest.mark.parametrize("backend", BACKENDS)
def test_options_of_attention_are_honoured(backend: str) -> None:
    from dataclasses import replace

    tensors, ids = tiny_tensors(TINY, 0), [3, 1, 4, 1, 5]
    outputs = set()
    for change in (
        {},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"layer_norm_epsilon": 0.1},
    ):
        model = GPT2(replace(TINY, **change), tensors, backend)
        outputs.add(model.forward(ids, model.new_cache()).tobytes())
    assert len(outputs) == 4


@pytest.mark.parametrize("backend", BACKENDS)
@given(n=st.integers(1, 32), most=st.integers(1, 12), data=st.data())
def test_a_long_text_is_read_in_several_passes(backend: str, n: int, most: int, data: st.DataObject) -> None:
    """The same logits as in one, and as many as are asked for; a failure on the way leaves the cache as it was."""
    model, ids, n_logits = tiny_model(TINY, 0, backend), random_ids(TINY, n, 5), data.draw(st.integers(0, n))
    whole = model.forward(ids, model.new_cache())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minispec.model.MOST_ROWS", most)
        cache = model.new_cache()
        assert_same_bits(model.forward(ids, cache, n_logits), whole[n - n_logits :])
        assert cache.length == n
        if n > most:
            model = copy(model)  # others use it, too, and what a patch leaves in it would go on into its copies
            cache, real, calls = model.new_cache(), model._pass, []

            def fails_the_second_time(*arguments: Any) -> Any:
                calls.append(cache.length)
                if len(calls) > 1:
                    raise ZeroDivisionError
                return real(*arguments)

            patch.setattr(model, "_pass", fails_the_second_time)
            with pytest.raises(ZeroDivisionError):
                model.forward(ids, cache)
            assert (calls, cache.length) == ([0, most], 0)
