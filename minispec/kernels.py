"""GPT-2's operations as Numba kernels: the twins of `reference.py`, at the speed of memory.

The one idea: a pass costs what it reads, so read every weight once and use it for all rows while it
is in a register. Weights lie in panels of 32 columns; a tile multiplies up to 6 rows with a panel and
keeps its 6 x 32 sums in registers.

Bits do not depend on company. Every output is one chain of fused multiply-adds in the order of k (in
pieces of 1024, whose sums are added in order), and no vector lane holds part of a sum. So the number of
rows, the tile's height, the vector width and the threads cannot change a bit. Sums over a row run in 64
lanes, added in a fixed order. `fastmath` is `contract` alone: fused multiply-add, nothing reordered.

Everything compiled is in this one file, because Numba's cache looks at nothing else for changes.

Axes as in `reference.py`; WIDE columns in a panel, n_panel = ceil(n_out / WIDE) panels.
"""

from __future__ import annotations

import math
import os
import platform
import warnings
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, TypeVar

import numpy as np
from llvmlite.binding import get_host_cpu_features
from numba import njit, prange
from numba.core.compiler import Compiler, Flags
from numpy.typing import NDArray

# A thread that waits for the others polls so often before it sleeps: by default for milliseconds, in which it
# keeps the core from the very thread it waits for if other programs are running (200 ms a pass, and not 4).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])

WIDE = 32  # columns of a panel: 4 vectors of AVX2, 8 of NEON, 2 of AVX-512
PIECE = 1024  # a sum is cut into pieces this long, which keeps its rounding near a BLAS's
WORTH_SHARING = 1 << 17  # multiply-adds, about 5 us on one core: for less, waking a second one does not pay
LANES = 64  # partial sums of a norm or a softmax


# --- how functions are compiled ------------------------------------------------------------------


class NoAlias(Compiler):
    """A pipeline that promises LLVM that array arguments do not overlap.

    Only then does it keep a tile's sums in registers: without it 5 rows cost twice as much as one.
    The flag is internal to Numba; where it is missing, the plain pipeline gives the same bits.
    """

    def define_pipelines(self) -> Any:
        if hasattr(Flags, "noalias"):
            self.state.flags.noalias = True
        return super().define_pipelines()


def jit(**options: Any) -> Callable[[Function], Function]:
    """`njit` with a cache on disk; where no folder for one can be written, without."""

    def compile_later(function: Function) -> Function:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            message = "compiled code cannot be kept, every start compiles anew: set NUMBA_CACHE_DIR to a folder"
            warnings.warn(message, RuntimeWarning, stacklevel=1)  # one place, so it is shown once
            return njit(**options)(function)

    return compile_later


# `jit` for what only calls and copies; `tile` for the product's inner loop; `vector` for loops over a row, where
# division vectorises only if it may give infinity. NUMBA_DISABLE_JIT=1 runs all of it as plain Python.
tile = jit(fastmath={"contract"}, pipeline_class=NoAlias)
vector = jit(fastmath={"contract"}, pipeline_class=NoAlias, error_model="numpy")


def compiled_for(feature: str) -> bool:
    """Whether code is compiled for this feature of x86: the host's, unless NUMBA_CPU_FEATURES chooses others."""
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    if chosen is not None:
        return f"+{feature}" in chosen.split(",")
    return bool(get_host_cpu_features().get(feature, False))


def fused() -> bool:
    """Whether products are sums of fused multiply-adds: only then are their bits those of every other such machine."""
    on_x86 = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686", "x86")
    return hasattr(tile_3, "signatures") and (not on_x86 or compiled_for("fma"))  # else it runs as plain Python


ROWS = 6 if compiled_for("avx512vl") else 3  # rows whose sums fit the registers; a wrong number costs speed, never bits


# --- the product ---------------------------------------------------------------------------------


@tile
def tile_3(a: Floats, b: Floats, c: Floats, panel: Floats, sums: Floats) -> None:
    """sums [3 * WIDE] += three rows [n_in] times a panel [n_in, WIDE]."""
    for k in range(panel.shape[0]):
        for n in range(WIDE):
            sums[n] += a[k] * panel[k, n]
            sums[WIDE + n] += b[k] * panel[k, n]
            sums[2 * WIDE + n] += c[k] * panel[k, n]


@tile
def tile_6(a: Floats, b: Floats, c: Floats, d: Floats, e: Floats, f: Floats, panel: Floats, sums: Floats) -> None:
    """sums [6 * WIDE] += six rows [n_in] times a panel [n_in, WIDE]."""
    for k in range(panel.shape[0]):
        for n in range(WIDE):
            sums[n] += a[k] * panel[k, n]
            sums[WIDE + n] += b[k] * panel[k, n]
            sums[2 * WIDE + n] += c[k] * panel[k, n]
            sums[3 * WIDE + n] += d[k] * panel[k, n]
            sums[4 * WIDE + n] += e[k] * panel[k, n]
            sums[5 * WIDE + n] += f[k] * panel[k, n]


@jit()
def rows_times_panel(x: Floats, row: int, start: int, stop: int, panel: Floats, sums: Floats) -> int:
    """sums[r * WIDE + n] = x[row + r, start:stop] @ panel[:, n] for up to ROWS rows; returns how many.

    Where x has no more rows, a tile reads the last one again.
    """
    sums[:] = 0
    last = x.shape[0] - 1
    a, b, c = x[row, start:stop], x[min(row + 1, last), start:stop], x[min(row + 2, last), start:stop]
    if ROWS == 3 or row + 2 >= last:  # three rows or fewer are left: the small tile does for them
        tile_3(a, b, c, panel, sums)
        return min(last + 1 - row, 3)
    d, e, f = x[row + 3, start:stop], x[min(row + 4, last), start:stop], x[min(row + 5, last), start:stop]
    tile_6(a, b, c, d, e, f, panel, sums)
    return min(last + 1 - row, 6)


@jit()
def linear_panel(x: Floats, panel: Floats, bias: Floats, y: Floats, column: int) -> None:
    """y[:, column : column + WIDE] = x @ panel + bias, one piece of the sum after another."""
    width = min(WIDE, y.shape[1] - column)
    sums = np.empty(ROWS * WIDE, np.float32)
    for row in range(x.shape[0]):
        for n in range(width):
            y[row, column + n] = bias[column + n]
    for start in range(0, panel.shape[0], PIECE):
        stop = min(start + PIECE, panel.shape[0])
        row = 0
        while row < x.shape[0]:
            done = rows_times_panel(x, row, start, stop, panel[start:stop], sums)
            for r in range(done):
                for n in range(width):
                    y[row + r, column + n] += sums[r * WIDE + n]
            row += done


@jit(parallel=True)
def linear_shared(x: Floats, weight: Floats, bias: Floats, y: Floats) -> None:
    for p in prange(weight.shape[0]):
        linear_panel(x, weight[p], bias, y, p * WIDE)


@jit()
def linear_alone(x: Floats, weight: Floats, bias: Floats, y: Floats) -> None:
    for p in range(weight.shape[0]):
        linear_panel(x, weight[p], bias, y, p * WIDE)


# --- element by element and row by row -----------------------------------------------------------

LOG2_E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # ln 2 in two parts
ROUND = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer in the low bits
E0, E1, E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E3, E4, E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
LOW, HIGH = np.float32(-87.3), np.float32(88.3)  # where e**x leaves the range of float32
ONE, ZERO, INFINITY = np.float32(1), np.float32(0), np.float32(np.inf)
GELU_1 = np.float32(-2 * math.sqrt(2 / math.pi))
GELU_3 = np.float32(-2 * math.sqrt(2 / math.pi) * 0.044715)


@jit(fastmath={"contract"}, error_model="numpy")
def exp(x: np.float32) -> np.float32:
    """e**x to 1.01 ulp, held at the ends of its range: 2**n times a polynomial (Cephes), so it vectorises."""
    x = min(max(x, LOW), HIGH)
    shifted = x * LOG2_E + ROUND
    n = shifted - ROUND
    r = x - n * LN2_HIGH - n * LN2_LOW
    p = ((((E0 * r + E1) * r + E2) * r + E3) * r + E4) * r + E5
    p = p * (r * r) + r + ONE  # e**r; adding n to the bits of its exponent multiplies it by 2**n
    return np.int32(np.float32(p).view(np.int32) + (np.float32(shifted).view(np.int32) << 23)).view(np.float32)


@vector
def gelu_row(x: Floats, y: Floats) -> None:
    """tanh by one exp: 0.5 (1 + tanh(u)) = 1 / (1 + e**(-2 u))."""
    for i in range(x.shape[0]):
        v = x[i]
        y[i] = v / (ONE + exp(v * (GELU_1 + GELU_3 * v * v)))


@vector
def lane_sum(x: Floats, lanes: Floats) -> np.float32:
    """The sum of x: element i goes to lane i % LANES, then the lanes are added in order."""
    for j in range(LANES):
        lanes[j] = ZERO
    whole = x.shape[0] - x.shape[0] % LANES
    for i in range(0, whole, LANES):
        for j in range(LANES):
            lanes[j] += x[i + j]
    for j in range(x.shape[0] - whole):
        lanes[j] += x[whole + j]
    total = ZERO
    for j in range(LANES):
        total += lanes[j]
    return total


@vector
def layer_norm_row(x: Floats, weight: Floats, bias: Floats, eps: np.float32, y: Floats, lanes: Floats) -> None:
    n = np.float32(x.shape[0])
    mean = lane_sum(x, lanes) / n
    for i in range(x.shape[0]):
        y[i] = (x[i] - mean) * (x[i] - mean)
    scale = ONE / np.sqrt(lane_sum(y, lanes) / n + eps)
    for i in range(x.shape[0]):
        y[i] = (x[i] - mean) * scale * weight[i] + bias[i]


@jit()
def layer_norm_rows(x: Floats, weight: Floats, bias: Floats, eps: np.float32, y: Floats) -> None:
    lanes = np.empty(LANES, np.float32)
    for row in range(x.shape[0]):
        layer_norm_row(x[row], weight, bias, eps, y[row], lanes)


@vector
def softmax_row(x: Floats, n: int, lanes: Floats) -> np.float32:
    """x[:n] becomes e**(x - max) in place and the rest 0; returns one over the sum. x is whole lanes long."""
    for i in range(n, x.shape[0]):
        x[i] = -INFINITY
    for j in range(LANES):
        lanes[j] = -INFINITY
    for i in range(0, x.shape[0], LANES):
        for j in range(LANES):
            lanes[j] = max(lanes[j], x[i + j])
    top = lanes[0]
    for j in range(1, LANES):
        top = max(top, lanes[j])
    for i in range(x.shape[0]):
        x[i] = exp(x[i] - top)
    for i in range(n, x.shape[0]):
        x[i] = ZERO
    return ONE / lane_sum(x, lanes)


@jit()
def softmax_rows(x: Floats, y: Floats) -> None:
    lanes = np.empty(LANES, np.float32)
    n = x.shape[1]
    padded = np.empty((n + LANES - 1) // LANES * LANES, np.float32)
    for row in range(x.shape[0]):
        padded[:n] = x[row]
        scale = softmax_row(padded, n, lanes)
        for i in range(n):
            y[row, i] = padded[i] * scale


# --- attention -----------------------------------------------------------------------------------


@jit()
def attend(q: Floats, keys: Floats, values: Floats, n_past: int, scale: np.float32, out: Floats, first: int) -> None:
    """One head: rows first .. first + ROWS of q [n_new, d_head] look back; out [n_new, d_head] is written.

    The two products of attention are products with panels too: keys [n_ctx / WIDE, d_head, WIDE] and
    values [d_head / WIDE, n_ctx, WIDE]. A row that sees fewer keys than its neighbours adds zeros.
    """
    n_row = min(ROWS, q.shape[0] - first)
    seen = n_past + first + n_row
    weights = np.empty((n_row, (seen + LANES - 1) // LANES * LANES), np.float32)
    sums, alone = np.empty(ROWS * WIDE, np.float32), np.empty(ROWS * WIDE, np.float32)
    lanes = np.empty(LANES, np.float32)
    inverse = np.empty(ROWS, np.float32)
    for t in range((seen + WIDE - 1) // WIDE):
        rows_times_panel(q, first, 0, q.shape[1], keys[t], sums)
        for r in range(n_row):
            for n in range(WIDE):
                weights[r, t * WIDE + n] = sums[r * WIDE + n] * scale
    for r in range(n_row):
        inverse[r] = softmax_row(weights[r], n_past + first + r + 1, lanes)
    for p in range(values.shape[0]):
        rows_times_panel(weights, 0, 0, seen, values[p, :seen], sums)
        for r in range(n_row):
            row, own = sums[r * WIDE : (r + 1) * WIDE], n_past + first + r + 1
            if own < seen and not np.isfinite(row.sum()):  # 0 times a later row's infinity: look at its own alone
                rows_times_panel(weights[r : r + 1], 0, 0, own, values[p, :own], alone)
                row = alone[:WIDE]
            for n in range(min(WIDE, out.shape[1] - p * WIDE)):
                out[first + r, p * WIDE + n] = row[n] * inverse[r]


@jit(parallel=True)
def attention_shared(q: Floats, keys: Floats, values: Floats, n_past: int, scale: np.float32, out: Floats) -> None:
    n_block = (q.shape[1] + ROWS - 1) // ROWS
    for i in prange(q.shape[0] * n_block):
        head = i // n_block
        attend(q[head], keys[head], values[head], n_past, scale, out[head], i % n_block * ROWS)


@jit()
def attention_alone(q: Floats, keys: Floats, values: Floats, n_past: int, scale: np.float32, out: Floats) -> None:
    for head in range(q.shape[0]):
        for first in range(0, q.shape[1], ROWS):
            attend(q[head], keys[head], values[head], n_past, scale, out[head], first)


@jit()
def store_rows(k: Floats, v: Floats, keys: Floats, values: Floats, n_past: int) -> None:
    for head in range(k.shape[0]):
        for row in range(k.shape[1]):
            t = n_past + row
            for i in range(k.shape[2]):
                keys[head, t // WIDE, i, t % WIDE] = k[head, row, i]
                values[head, i // WIDE, t, i % WIDE] = v[head, row, i]


# --- the twins: names, arguments and order of reference.py ----------------------------------------


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """Each row to mean 0 and variance 1, then scaled and shifted: [n_new, n] -> [n_new, n]."""
    y = np.empty_like(x)
    layer_norm_rows(x, weight, bias, np.float32(eps), y)
    return y


def gelu(x: Floats) -> Floats:
    """GPT-2's GELU, the one with tanh, element by element."""
    y = np.empty_like(x)
    gelu_row(x.reshape(-1), y.reshape(-1))
    return y


def softmax(x: Floats) -> Floats:
    """Scores [n_row, n] to probabilities along the last axis."""
    y = np.empty_like(x)
    softmax_rows(x, y)
    return y


def linear(x: Floats, weight: Floats, bias: Floats) -> Floats:
    """x @ weight + bias: [n_new, n_in] by panels [n_panel, n_in, WIDE] -> [n_new, n_out]."""
    y = np.empty((len(x), len(bias)), np.float32)
    share = len(x) * weight.size >= WORTH_SHARING
    (linear_shared if share else linear_alone)(x, weight, bias, y)
    return y


def attention(q: Floats, keys: Floats, values: Floats, n_past: int, scale: float) -> Floats:
    """Each new row looks at itself and all rows before it: -> [n_new, n_head * d_head].

    q [n_head, n_new, d_head]; keys and values as `empty_cache` lays them out, n_past + n_new filled.
    """
    n_head, n_new, d_head = q.shape
    out = np.empty(q.shape, np.float32)
    share = 2 * q.size * (n_past + n_new) >= WORTH_SHARING
    (attention_shared if share else attention_alone)(q, keys, values, n_past, np.float32(scale), out)
    return out.transpose(1, 0, 2).reshape(n_new, n_head * d_head)


def pack(weight: Floats) -> Floats:
    """A weight [n_in, n_out] as panels [n_panel, n_in, WIDE], with zeros where n_out is no multiple of WIDE."""
    n_in, n_out = weight.shape
    panels = np.zeros((-(-n_out // WIDE), n_in, WIDE), np.float32)
    for p in range(len(panels)):
        columns_here = weight[:, p * WIDE : (p + 1) * WIDE]
        panels[p, :, : columns_here.shape[1]] = columns_here
    return panels


def columns(weight: Floats, ids: Ints) -> Floats:
    """Columns of a packed weight: panels at ids [n_new] -> [n_new, n_in]."""
    return np.ascontiguousarray(weight[ids // WIDE, :, ids % WIDE])


def empty_cache(n_head: int, n_ctx: int, d_head: int) -> tuple[Floats, Floats]:
    """One layer's keys [n_head, n_ctx / WIDE, d_head, WIDE] and values [n_head, d_head / WIDE, n_ctx, WIDE]."""
    keys = np.zeros((n_head, -(-n_ctx // WIDE), d_head, WIDE), np.float32)
    return keys, np.zeros((n_head, -(-d_head // WIDE), n_ctx, WIDE), np.float32)


def store(k: Floats, v: Floats, keys: Floats, values: Floats, n_past: int) -> None:
    """Write k and v [n_head, n_new, d_head] into a layer's cache from position n_past on."""
    store_rows(k, v, keys, values, n_past)


def fetch(keys: Floats, values: Floats, length: int) -> tuple[Floats, Floats]:
    """What `store` wrote: the first `length` rows of a layer's cache, both [n_head, length, d_head]."""
    n_head, _, d_head, _ = keys.shape
    k = keys.transpose(0, 1, 3, 2).reshape(n_head, -1, d_head)
    v = values.transpose(0, 2, 1, 3).reshape(n_head, values.shape[2], -1)
    return k[:, :length], v[:, :length, :d_head]


def warm_up() -> None:
    """Compile all that a pass needs, or load it from the cache on disk, by calling each kernel once.

    Raises ValueError where what is kept on disk is damaged, or cannot be read or written.
    """
    try:
        _call_each()
    except (OSError, EOFError, UnpicklingError, RuntimeError) as error:
        folder = getattr(getattr(linear_shared, "_cache", None), "cache_path", "Numba's cache")
        raise ValueError(
            f"the compiled kernels in {folder} cannot be used ({error!r:.100}): "
            "empty that folder, or set NUMBA_CACHE_DIR to another"
        ) from error


def _call_each() -> None:
    one, row, panel = np.zeros(1, np.float32), np.zeros((1, 1), np.float32), pack(np.zeros((1, 1), np.float32))
    q, (keys, values) = np.zeros((1, 1, 1), np.float32), empty_cache(1, 1, 1)
    for product in (linear_shared, linear_alone):
        product(row, panel, one, np.empty_like(row))
    store(q, q, keys, values, 0)
    for look_back in (attention_shared, attention_alone):
        look_back(q, keys, values, 0, ONE, np.empty_like(q))
    layer_norm(row, one, one, 1.0)
    gelu(row)
