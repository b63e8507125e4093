"""The kernels equal the NumPy they stand for, and their bits do not depend on company."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from toys import ODD, bits, story_model, tiny_model

from minispec import reference
from minispec.model import STORED
from minispec.parameters import GPT2Config, Weights

pytest.importorskip("numba", reason="the kernels need Numba")
from minispec import kernels
from minispec.kernels import NO_FEATURES, NOTHING, compilation, crew, rows
from minispec.kernels import product as tiles
from minispec.kernels.compilation import JIT
from minispec.kernels.product import PIECE
from minispec.kernels.whole_pass import run

EPS = float(np.finfo(np.float32).eps)
sizes = st.sampled_from([1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 100, 130])
seeds = st.integers(0, 2**32)


def floats(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def packed(ops: Any, weight: NDArray[Any]) -> NDArray[Any]:
    room: NDArray[Any] = ops.empty_weight(weight.shape, weight.dtype)
    ops.pack(weight, room)
    return room


def product(seed: int, n_in: int, n_out: int, stored: str) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """A weight and its scales."""
    weight = floats(seed, n_in, n_out)
    return reference.quantise(weight) if stored == "int8" else (weight, np.ones(n_out, np.float32))


@given(sizes, st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 13]), sizes, st.sampled_from(sorted(STORED)), seeds)
def test_linear_equals_numpy(n_in: int, n_new: int, n_out: int, stored: str, seed: int) -> None:
    x, (weight, scale), bias = floats(seed, n_new, n_in), product(seed + 1, n_in, n_out, stored), floats(seed, n_out)
    whole = weight.astype(np.float64) * scale
    exact = x.astype(np.float64) @ whole + bias
    size = np.abs(x).astype(np.float64) @ np.abs(whole) + np.abs(bias)
    for ops in (reference, kernels):
        assert np.all(np.abs(ops.linear(x, packed(ops, weight), scale, bias) - exact) <= EPS * (n_in + 2) * size)


@pytest.mark.parametrize("stored", STORED)
def test_linear_in_pieces_of_a_long_sum(stored: str) -> None:
    n_in = 2 * PIECE + 5
    x, (weight, scale), bias = floats(0, 3, n_in), product(1, n_in, 40, stored), floats(2, 40)
    exact = x.astype(np.float64) @ (weight.astype(np.float64) * scale) + bias
    panels = packed(kernels, weight)
    together = kernels.linear(x, panels, scale, bias)
    assert np.abs(together - exact).max() < 1e-3
    for row in range(3):
        assert_same_bits(kernels.linear(x[row : row + 1], panels, scale, bias), together[row : row + 1])


@given(sizes, sizes, st.floats(1e-3, 1e3), seeds)
def test_eight_bits_are_off_by_half_a_step_at_most(n_in: int, n_out: int, size: float, seed: int) -> None:
    weight = floats(seed, n_in, n_out) * np.float32(size)
    weight[:, 0] = 0
    integers, scale = reference.quantise(weight)
    assert integers.dtype == np.int8
    assert scale.dtype == np.float32
    assert np.all(np.abs(integers).max(axis=0)[1:] == 127)
    assert np.all(np.abs(integers * scale.astype(np.float64) - weight) <= (0.5 + 1e-4) * scale)
    assert scale[0] == 1


def test_eight_bits_of_denormal_weights_do_not_wrap() -> None:
    weight = np.array([[2.6e-43], [-1e-43]], np.float32)
    integers, _ = reference.quantise(weight)
    assert integers[0, 0] > 0 > integers[1, 0]


@given(sizes, st.integers(1, 9), seeds)
def test_layer_norm_equals_numpy(n: int, n_new: int, seed: int) -> None:
    x, weight, bias = 3 * floats(seed, n_new, n) + 1, floats(seed + 1, n), floats(seed + 2, n)
    exact = reference.layer_norm(x.astype(np.float64), weight, bias, 1e-5)
    for ops in (reference, kernels):
        assert np.abs(ops.layer_norm(x, weight, bias, 1e-5) - exact).max() < 1e-4
    assert kernels.layer_norm(x, weight, bias, 1e-5).dtype == np.float32


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = np.linspace(-87, 88, 200_001, dtype=np.float32)
    got = np.array([rows.exp(v) for v in x[::50]])
    exact = np.exp(x[::50].astype(np.float64))
    assert np.max(np.abs(got - exact) / exact) < 2 * EPS
    assert rows.exp(np.float32(-1e30)) < 1e-37
    assert np.isnan(rows.exp(np.float32(np.nan)))


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
    keys, values = (side[0, 0] for side in ops.empty_caches(1, 1, len(k), n_ctx, k.shape[2]))
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
    x, weight, bias = floats(seed, n_new, 40), packed(ops, floats(seed + 1, 40, 70)), floats(seed + 2, 70)
    integers, scale = reference.quantise(floats(seed + 1, 40, 70))
    q = floats(seed + 3, 2, n_new, 20)
    k, v = floats(seed + 4, 2, n_past + n_new, 20), floats(seed + 5, 2, n_past + n_new, 20)
    keys, values = filled_cache(ops, k, v, n_past + n_new)
    together = ops.attention(q, keys, values, n_past, 0.3)
    by_row: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (ops.linear, (weight, np.ones(70, np.float32), bias)),
        (ops.linear, (packed(ops, integers), scale, bias)),
        (ops.layer_norm, (floats(7, 40), floats(8, 40), 1e-5)),
        (ops.gelu, ()),
    ]
    for row in range(n_new):
        alone = ops.attention(np.ascontiguousarray(q[:, row : row + 1]), keys, values, n_past + row, 0.3)
        assert_same_bits(alone, together[row : row + 1])
        for function, rest in by_row:
            assert_same_bits(function(x[row : row + 1], *rest), function(x, *rest)[row : row + 1])


@pytest.mark.parametrize("stored", STORED)
@given(st.sampled_from([TINY, ODD]), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.data())
def test_a_pass_as_one_call_has_the_bits_of_its_operations_one_by_one(
    stored: str, config: GPT2Config, n_past: int, n_new: int, n_crew: int, data: st.DataObject
) -> None:
    """Whatever the number of threads that share it, with more of them than cores too."""
    model = tiny_model(config, 0, "numba", stored)
    n_logits = data.draw(st.integers(0, n_new))
    ids = np.array(data.draw(st.lists(st.integers(0, config.n_vocab - 1), min_size=n_past + n_new, max_size=20)))
    whole, cut = model.new_cache(), model.new_cache()
    expected = model.wiring.forward(ids[: n_past + n_new], whole, n_past + n_new)
    model.forward(ids[:n_past].tolist(), cut)
    logits = np.full((n_logits, config.n_vocab), np.nan, np.float32)
    epsilon, sequences = np.float32(config.layer_norm_epsilon), np.array([[0, n_past, n_new, n_logits]], np.int64)
    caches = cut.block_keys, cut.block_values
    new = ids[n_past : n_past + n_new]
    run(n_crew, model.weights, epsilon, new, sequences, *caches, logits, NOTHING, NOTHING, NO_FEATURES)
    assert_same_bits(logits, expected[n_past + n_new - n_logits :])
    whole.length = cut.length = n_past + n_new
    assert bits(model, whole) == bits(model, cut)


def test_threads_wait_for_each_other() -> None:
    """On a model that is large enough for them to be at work at the same time."""
    model = story_model("story-target", "numba")
    ids = np.arange(30, 42)
    alone, together = (model.new_cache() for _ in range(2))
    expected = model.wiring.forward(ids, alone, len(ids))
    for n_crew in (2, 3) * 20:
        logits = np.full_like(expected, np.nan)
        epsilon = np.float32(model.config.layer_norm_epsilon)
        sequences = np.array([[0, 0, len(ids), len(ids)]], np.int64)
        keys, values = together.block_keys, together.block_values
        run(
            n_crew, model.weights, epsilon, ids, sequences, keys, values, logits, NOTHING, NOTHING, NO_FEATURES,
        )  # fmt: skip
        assert_same_bits(logits, expected)


@given(st.integers(1, 9), st.lists(st.integers(0, 40), min_size=1, max_size=4), seeds)
def test_each_piece_is_dealt_once_and_a_thread_that_never_comes_is_not_waited_for(
    n_crew: int, pieces: list[int], seed: int
) -> None:
    """One piece at a time, asked for by this or that member of the crew, or always by the same."""
    rng = np.random.default_rng(seed)
    board = crew.new_board(len(pieces), n_crew)
    members = rng.integers(n_crew, size=1 + int(rng.integers(n_crew)))
    for stage, n in enumerate(pieces):
        taken, piece = [], crew.NONE
        while True:
            piece = crew.take(crew.Crew(board, int(rng.choice(members)), n_crew), stage, n, piece)
            if piece == crew.NONE:
                break
            taken.append(piece)
        assert sorted(taken) == list(range(n))


def test_a_thread_begins_with_neighbouring_pieces() -> None:
    board = crew.new_board(1, 3)
    firsts = [crew.take(crew.Crew(board, me, 3), 0, 12, crew.NONE) for me in range(3)]
    assert firsts == [0, 4, 8]
    assert [crew.take(crew.Crew(board, 2, 3), 0, 12, crew.NONE) for _ in range(4)] == [9, 10, 11, 1]


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
@pytest.mark.parametrize("stored", STORED)
def test_columns_of_a_packed_weight(ops: Any, stored: str) -> None:
    weight, scale = product(0, 5, 70, stored)
    ids = np.array([0, 69, 31, 32, 31])
    assert np.array_equal(ops.columns(packed(ops, weight), scale, ids), (weight * scale)[:, ids].T)


compiled = pytest.mark.skipif(not JIT, reason="compiled code is switched off")


@compiled
def test_tiles_are_compiled_with_the_promise_that_arrays_do_not_overlap() -> None:
    """An internal of Numba that a new version may drop: the bits stay, and 5 rows cost twice as much as one."""
    numba = pytest.importorskip("numba")
    promises = []
    for pipeline in ({}, {"pipeline_class": compilation.NoAlias}):
        function = numba.njit(fastmath={"contract"}, **pipeline)(tiles.tile_3.py_func)  # type: ignore[attr-defined]
        function(*floats(0, 3, 8), floats(1, 8, kernels.WIDE), floats(2, 3 * kernels.WIDE))
        (code,) = function.inspect_llvm().values()
        head = next(line for line in code.splitlines() if line.startswith("define"))  # of the function itself
        promises.append(head.count(" noalias "))
    assert promises[1] >= promises[0] + 5  # one for each array; the rest of the code has promises of LLVM's own


def all_compiled() -> dict[str, Any]:
    """Every compiled function of the package by its name."""
    files = [import_module(f"minispec.kernels.{file.stem}") for file in Path(kernels.__file__).parent.glob("[a-z]*.py")]
    return {name: f for module in files for name, f in vars(module).items() if hasattr(f, "targetoptions")}


@compiled
def test_no_kernel_lets_the_compiler_reorder_a_sum_or_forget_nan() -> None:
    assert {"tile_3", "tile_6", "tile_1_int8", "lane_sum", "softmax_row", "exp", "share"} <= all_compiled().keys()
    for name, function in all_compiled().items():
        assert function.targetoptions.get("fastmath", False) in (False, {"contract"}), name


@compiled
def test_each_kernel_is_compiled_once_for_each_kind_of_weight(tmp_path: Path) -> None:
    """Every caller passes the same kinds of array: a second signature would double the compile time."""
    script = (
        "import numpy as np\n"
        "from minispec import kernels\n"
        "from importlib import import_module\n"
        "files = 'attention', 'crew', 'int8', 'product', 'rows', 'whole_pass'\n"
        "a, c, i, p, r, w = [import_module(f'minispec.kernels.{name}') for name in files]\n"
        "both = w.run, w.together, w.share, w.linear, w.linear_add, w.linear_gelu, w.embed_all\n"
        "all_ = w.norm, w.attention, c.take, a.attend, a.store_head, p.linear_panel, p.tile_3, r.layer_norm_row\n"
        "for n, dtype in enumerate((np.float32, np.int8), 1):\n"
        "    kernels.warm_up(np.dtype(dtype))\n"
        "    assert [len(f.signatures) for f in both] == [n] * len(both)\n"
        "    assert [len(f.signatures) for f in all_] == [1] * len(all_)\n"
        "assert len(i.linear_pair.signatures) == 1\n"
        "assert len(p.tile_6.signatures) == (p.ROWS == 6)\n"  # which takes AVX-512
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}  # as often, but sooner
    child = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


def test_every_file_that_compiled_code_depends_on_counts_for_the_stamp_of_the_cache() -> None:
    counted = {file.resolve() for file in compilation.FILES}
    for function in all_compiled().values():
        assert Path(function.py_func.__code__.co_filename).resolve() in counted
    for kind in (Weights, crew.Crew):
        assert Path(sys.modules[kind.__module__].__file__ or "").resolve() in counted


@pytest.mark.parametrize(("layer", "n", "shared"), [
    ("omp", kernels.WORTH_SHARING - 1, False), ("omp", kernels.WORTH_SHARING, True),
    ("workqueue", 8 * kernels.WORTH_SHARING - 1, False), ("workqueue", 8 * kernels.WORTH_SHARING, True),
])  # fmt: skip
def test_small_work_is_not_shared(monkeypatch: pytest.MonkeyPatch, layer: str, n: int, shared: bool) -> None:
    monkeypatch.setattr(kernels, "_layer", lambda: layer)
    assert kernels._worth_sharing(n) == shared


@compiled
def test_a_change_in_one_file_makes_the_code_kept_for_the_others_stale(tmp_path: Path) -> None:
    """`linear_pieces` is compiled from int8.py, with the tiles of product.py inside."""
    package = tmp_path / "minispec"
    shutil.copytree(Path(kernels.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__", "box"))
    script = (
        "import numpy as np; from minispec import kernels\n"
        "w = kernels.empty_weight((1, 1), np.float32); one = np.ones(1, np.float32); kernels.pack(one[None], w)\n"
        "print(kernels.__file__, int(kernels.linear(one[None], w, one, 0 * one)[0, 0]))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}

    def result() -> str:
        child = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        file, number = child.stdout.split()
        assert Path(file).is_relative_to(tmp_path)
        return number

    assert result() == "1"
    source = package / "kernels" / "product.py"
    text = source.read_text(encoding="utf-8")
    first = "            sums[n] += a[k] * panel[k, n]\n"
    assert first in text
    source.write_text(text.replace(first, first.replace("a[k]", "7 * a[k]")), encoding="utf-8")
    assert result() == "7"


WARM_UP = "kernels.warm_up(np.dtype(np.float32))"
# The first pass loads the code, and needs no threads; the second shares its work.
ONE_THREAD_FIRST = """
from minispec import load_model
model = load_model("story-target")
kernels.WORTH_SHARING = 0
for model in model.with_crew(1), model.with_crew(2):
    model.forward([1], model.new_cache())
"""


@compiled
@pytest.mark.parametrize("script", [WARM_UP, ONE_THREAD_FIRST], ids=["warm-up", "one thread first"])
def test_code_from_the_disk_finds_the_threads_started(script: str) -> None:
    """Or it would crash: Numba starts them for code that runs in parallel, and for what calls it only most times.

    Not where a caller was compiled in a later process than what it calls, as after an interrupt; so here it never does.
    """
    never = "from numba.core import typed_passes as n; assert n._reload_parfors; n._reload_parfors = lambda: None"
    script = f"{never}\nimport numpy as np\nfrom minispec import kernels\n{script}"
    around = os.environ | {"PYTHONPATH": str(Path(kernels.__file__).parents[2])}
    child = subprocess.run([sys.executable, "-c", script], env=around, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr or child.returncode
