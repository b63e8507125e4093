"""The kernels equal the NumPy they stand for, and their bits do not depend on company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from toys import tiny_model

from minispec import reference

pytest.importorskip("numba", reason="the kernels need Numba")
from minispec import kernels

EPS = float(np.finfo(np.float32).eps)
sizes = st.sampled_from([1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 100, 130])
seeds = st.integers(0, 2**32)


def floats(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@given(sizes, st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 13]), sizes, seeds)
def test_linear_equals_numpy(n_in: int, n_new: int, n_out: int, seed: int) -> None:
    x, weight, bias = floats(seed, n_new, n_in), floats(seed + 1, n_in, n_out), floats(seed + 2, n_out)
    exact = x.astype(np.float64) @ weight.astype(np.float64) + bias
    size = np.abs(x).astype(np.float64) @ np.abs(weight) + np.abs(bias)
    for ops in (reference, kernels):
        assert np.all(np.abs(ops.linear(x, ops.pack(weight), bias) - exact) <= EPS * (n_in + 1) * size)


def test_linear_in_pieces_of_a_long_sum() -> None:
    n_in = 2 * kernels.PIECE + 5
    x, weight, bias = floats(0, 3, n_in), floats(1, n_in, 40), floats(2, 40)
    exact = x.astype(np.float64) @ weight.astype(np.float64) + bias
    together = kernels.linear(x, kernels.pack(weight), bias)
    assert np.abs(together - exact).max() < 1e-3
    for row in range(3):
        assert kernels.linear(x[row : row + 1], kernels.pack(weight), bias).tobytes() == together[row].tobytes()


@given(sizes, st.integers(1, 9), seeds)
def test_layer_norm_equals_numpy(n: int, n_new: int, seed: int) -> None:
    x, weight, bias = 3 * floats(seed, n_new, n) + 1, floats(seed + 1, n), floats(seed + 2, n)
    exact = reference.layer_norm(x.astype(np.float64), weight, bias, 1e-5)
    for ops in (reference, kernels):
        assert np.abs(ops.layer_norm(x, weight, bias, 1e-5) - exact).max() < 1e-4
    assert kernels.layer_norm(x, weight, bias, 1e-5).dtype == np.float32


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = np.linspace(-87, 88, 200_001, dtype=np.float32)
    got = np.array([kernels.exp(v) for v in x[::50]])
    exact = np.exp(x[::50].astype(np.float64))
    assert np.max(np.abs(got - exact) / exact) < 2 * EPS
    assert kernels.exp(np.float32(-1e30)) < 1e-37
    assert np.isnan(kernels.exp(np.float32(np.nan)))


def test_gelu_equals_numpy_from_end_to_end() -> None:
    x = np.concatenate([np.linspace(-12, 12, 10_001), [-1e30, -90, 0, 90, 1e30]]).astype(np.float32)[None]
    exact = reference.gelu(x[:, :-5].astype(np.float64))
    for ops in (reference, kernels):
        with np.errstate(over="ignore"):
            got = ops.gelu(x)
        assert np.abs(got[:, :-5] - exact).max() < 2e-6
        assert abs(got[0, -5]) < 1e-8  # exp is held at the end of its range
        assert np.allclose(got[0, -4:], [0, 0, 90, 1e30])


@given(sizes, st.integers(1, 5), st.floats(0.01, 50), seeds)
def test_softmax_equals_numpy(n: int, n_row: int, spread: float, seed: int) -> None:
    x = np.float32(spread) * floats(seed, n_row, n)
    exact = reference.softmax(x.astype(np.float64))
    for ops in (reference, kernels):
        assert np.abs(ops.softmax(x) - exact).max() < 1e-5


def filled_cache(ops: Any, k: NDArray[np.float32], v: NDArray[np.float32], n_ctx: int) -> Any:
    keys, values = ops.empty_cache(len(k), n_ctx, k.shape[2])
    keys[:], values[:] = np.nan, np.nan  # whatever lies past the end must not matter
    ops.store(k, v, keys, values, 0)
    return keys, values


@given(st.integers(1, 4), st.sampled_from([1, 3, 8, 31, 32, 33, 64]), st.integers(0, 70), st.integers(1, 9), seeds)
def test_attention_equals_numpy_and_reads_nothing_stale(
    n_head: int, d_head: int, n_past: int, n_new: int, seed: int
) -> None:
    n = n_past + n_new
    q = floats(seed, n_head, n_new, d_head)
    k, v = floats(seed + 1, n_head, n, d_head), floats(seed + 2, n_head, n, d_head)
    scale = d_head**-0.5
    expected = np.empty((n_new, n_head, d_head))
    for head in range(n_head):
        for row in range(n_new):
            seen = n_past + row + 1
            scores = np.exp(k[head, :seen].astype(np.float64) @ q[head, row] * scale)
            expected[row, head] = scores @ v[head, :seen] / scores.sum()
    for ops in (reference, kernels):
        keys, values = filled_cache(ops, k, v, n + 5)
        got = ops.attention(q, keys, values, n_past, scale)
        assert np.abs(got - expected.reshape(n_new, -1)).max() < 1e-4


@pytest.mark.parametrize("ops", [reference, kernels], ids=["numpy", "numba"])
@given(n_past=st.integers(0, 70), n_new=st.integers(1, 14), seed=seeds)
def test_a_row_has_the_same_bits_alone_and_in_company(ops: Any, n_past: int, n_new: int, seed: int) -> None:
    x, weight, bias = floats(seed, n_new, 40), ops.pack(floats(seed + 1, 40, 70)), floats(seed + 2, 70)
    q = floats(seed + 3, 2, n_new, 20)
    k, v = floats(seed + 4, 2, n_past + n_new, 20), floats(seed + 5, 2, n_past + n_new, 20)
    keys, values = filled_cache(ops, k, v, n_past + n_new)
    together = ops.attention(q, keys, values, n_past, 0.3)
    by_row: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (ops.linear, (weight, bias)),
        (ops.layer_norm, (floats(7, 40), floats(8, 40), 1e-5)),
        (ops.gelu, ()),
    ]
    for row in range(n_new):
        alone = ops.attention(np.ascontiguousarray(q[:, row : row + 1]), keys, values, n_past + row, 0.3)
        assert alone.tobytes() == together[row : row + 1].tobytes()
        for function, rest in by_row:
            assert function(x[row : row + 1], *rest).tobytes() == function(x, *rest)[row : row + 1].tobytes()


@given(n_past=st.integers(0, 300), n_new=st.integers(5, 14), seed=seeds)
def test_work_shared_among_threads_has_the_bits_of_work_done_alone(n_past: int, n_new: int, seed: int) -> None:
    """One row is too little to share; all together are enough."""
    x, weight, bias = floats(seed, n_new, 120), kernels.pack(floats(seed + 1, 120, 900)), floats(seed + 2, 900)
    assert weight.size < kernels.WORTH_SHARING <= n_new * weight.size
    together = kernels.linear(x, weight, bias)
    for row in range(n_new):
        assert kernels.linear(x[row : row + 1], weight, bias).tobytes() == together[row : row + 1].tobytes()
    k, v = floats(seed + 4, 4, n_past + n_new, 64), floats(seed + 5, 4, n_past + n_new, 64)
    q = floats(seed + 3, 4, n_new, 64)
    keys, values = filled_cache(kernels, k, v, n_past + n_new)
    out = {name: np.empty_like(q) for name in ("attention_shared", "attention_alone")}
    for name, rows in out.items():
        getattr(kernels, name)(q, keys, values, n_past, np.float32(0.1), rows)
    assert out["attention_shared"].tobytes() == out["attention_alone"].tobytes()


@pytest.mark.parametrize("ops", [reference, kernels], ids=["numpy", "numba"])
@given(st.integers(1, 3), st.sampled_from([1, 5, 32, 33]), st.integers(1, 70), seeds)
def test_what_was_stored_is_fetched(ops: Any, n_head: int, d_head: int, n: int, seed: int) -> None:
    k, v = floats(seed, n_head, n, d_head), floats(seed + 1, n_head, n, d_head)
    keys, values = filled_cache(ops, k, v, n + 3)
    for length in (n, n // 2):
        got = ops.fetch(keys, values, length)
        assert [side.shape for side in got] == [(n_head, length, d_head)] * 2
        assert np.array_equal(got[0], k[:, :length])
        assert np.array_equal(got[1], v[:, :length])


@pytest.mark.parametrize("ops", [reference, kernels], ids=["numpy", "numba"])
def test_columns_of_a_packed_weight(ops: Any) -> None:
    weight = floats(0, 5, 70)
    ids = np.array([0, 69, 31, 32, 31])
    assert np.array_equal(ops.columns(ops.pack(weight), ids), weight[:, ids].T)


def test_tiles_are_compiled_with_the_promise_that_arrays_do_not_overlap() -> None:
    """An internal of Numba that a new version may drop: the bits stay, and 5 rows cost twice as much as one."""
    numba = pytest.importorskip("numba")
    if not hasattr(kernels.tile_3, "py_func"):
        pytest.skip("compiled code is switched off")
    promises = []
    for pipeline in ({}, {"pipeline_class": kernels.NoAlias}):
        function = numba.njit(fastmath={"contract"}, **pipeline)(kernels.tile_3.py_func)
        function(*floats(0, 3, 8), floats(1, 8, kernels.WIDE), floats(2, 3 * kernels.WIDE))
        (code,) = function.inspect_llvm().values()
        promises.append(code.count("noalias"))
    assert promises[1] > promises[0]


def test_no_kernel_lets_the_compiler_reorder_a_sum_or_forget_nan() -> None:
    compiled = {name: f for name, f in vars(kernels).items() if hasattr(f, "targetoptions")}
    if not compiled:
        pytest.skip("compiled code is switched off")
    assert {"tile_3", "tile_6", "lane_sum", "softmax_row", "exp"} <= compiled.keys()
    for name, function in compiled.items():
        assert function.targetoptions.get("fastmath", False) in (False, {"contract"}), name


def test_each_kernel_is_compiled_once() -> None:
    """Every caller passes the same kinds of array: a second signature would double the compile time."""
    if not hasattr(kernels.linear_shared, "signatures"):
        pytest.skip("compiled code is switched off")
    kernels.linear(floats(0, 400, 40), kernels.pack(floats(1, 40, 40)), floats(2, 40))
    model = tiny_model()
    model.forward([1, 2, 3], model.new_cache())
    kernels.warm_up()
    names = ("linear_shared", "linear_alone", "attention_shared", "attention_alone", "layer_norm_rows", "store_rows")
    assert {name: len(getattr(kernels, name).signatures) for name in names} == dict.fromkeys(names, 1)
