"""The machine under a benchmark: what it is, and how fast it reads memory at this moment.

Where memory is shared with other machines or programs, its speed changes within seconds. So it is read before and
after everything that is timed, and what counts is the share of the speed that there was.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from minispec.cores import count_cores

CHUNK = 1 << 18  # floats that a thread reads at a time: 1 MB
READ_BYTES = 1 << 29  # more than any cache holds
LEAST_BYTES = 1 << 26  # where memory is scarce
AT_LEAST = 0.02  # seconds: what takes less is done several times over and timed as one


@dataclass(frozen=True)
class Machine:
    """What figures depend on: processor, cores this process may use, threads used, and what the code was built for."""

    cpu: str
    cores: int
    threads: int
    instructions: str
    backend: str
    numba: str | None
    threading_layer: str | None
    numpy: str
    python: str
    system: str


@dataclass(frozen=True)
class Timed:
    """One timing: seconds, and bytes a second that memory gave just before and just after, averaged."""

    seconds: float
    bandwidth: float

    def share(self, n_bytes: int) -> float:
        """The part of memory's speed that reading n_bytes in this time comes to."""
        return n_bytes / self.seconds / self.bandwidth


class Probe:
    """An array larger than any cache; `speeds` are the bytes a second of every read so far."""

    def __init__(self, backend: str = "numba", n_bytes: int | None = None) -> None:
        if n_bytes is None:
            n_bytes = max(min(READ_BYTES, (available_bytes() or READ_BYTES * 8) // 8), LEAST_BYTES)
        self.chunks = np.ones((max(n_bytes // (4 * CHUNK), 1), CHUNK), np.float32)  # ones, as zeros take no memory yet
        self.speeds: list[float] = []
        self._read, self.how = reader(backend)
        self._read(self.chunks)  # compiles

    def read(self) -> float:
        """Bytes a second just now: the better of two reads, as what disturbs a read only slows it."""
        seconds = min(seconds_of(lambda: self._read(self.chunks)) for _ in range(2))
        self.speeds.append(self.chunks.nbytes / seconds)
        return self.speeds[-1]

    @property
    def gb_s(self) -> float:
        """The median of all reads, in 10**9 bytes a second."""
        return median(self.speeds) / 1e9

    @property
    def range_gb_s(self) -> tuple[float, float]:
        """The slowest and the fastest read, in 10**9 bytes a second."""
        return min(self.speeds) / 1e9, max(self.speeds) / 1e9


def reader(backend: str) -> tuple[Callable[[np.ndarray], object], str]:
    """A function that reads an array [n_chunk, CHUNK] as fast as the backend can, and how it does so."""
    if backend == "numba" and find_spec("numba"):
        from minispec.bench_read import read_all

        if hasattr(read_all, "signatures"):  # else it runs as plain Python, which would take minutes
            return lambda chunks: read_all(chunks, np.empty(len(chunks), np.float32)), "all threads"
    return lambda chunks: chunks.sum(), "NumPy on one thread"


def seconds_of(work: Callable[[], object]) -> float:
    """How long work() takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def mean_seconds(work: Callable[[], object], at_least: float = AT_LEAST) -> float:
    """How long work() takes, over as many times as make up at_least seconds."""
    n, began = 0, time.perf_counter()
    while True:
        work()
        n += 1
        took = time.perf_counter() - began
        if took >= at_least:
            return took / n


def time_in_turn(works: Sequence[Callable[[], object]], probe: Probe) -> list[Timed]:
    """Each work once, one after the other, with a read of memory before, between and after."""
    timings, before = [], probe.read()
    for work in works:
        seconds = mean_seconds(work)
        after = probe.read()
        timings.append(Timed(seconds, (before + after) / 2))
        before = after
    return timings


# --- what the machine is ---------------------------------------------------------------------------


def describe_machine(backend: str) -> Machine:
    """The machine as it is seen from here; with the numba backend after a first pass, which chooses the threads."""
    numba_version = layer = None
    threads, instructions = count_cores(), "as NumPy chooses"
    backend = backend if find_spec("numba") else "numpy"
    if backend == "numba":
        import numba

        numba_version, threads, instructions = numba.__version__, numba.get_num_threads(), instruction_set()
        with suppress(ValueError):  # nothing has run in parallel yet
            layer = numba.threading_layer()  # type: ignore[attr-defined,unused-ignore]
    elif "OPENBLAS_NUM_THREADS" in os.environ:
        threads = int(os.environ["OPENBLAS_NUM_THREADS"])
    return Machine(
        cpu=cpu_name(),
        cores=count_cores(),
        threads=threads,
        instructions=instructions,
        backend=backend,
        numba=numba_version,
        threading_layer=layer,
        numpy=np.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def instruction_set() -> str:
    """The widest vectors that kernels are compiled for."""
    from minispec.kernels import compiled_for

    if platform.machine().lower() in ("arm64", "aarch64"):
        return "NEON"
    names = {"avx512vl": "AVX-512", "avx2": "AVX2", "avx": "AVX"}
    return next((name for feature, name in names.items() if compiled_for(feature)), "other")


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return platform.processor() or platform.machine() or "unknown"


def available_bytes() -> int | None:
    """Memory that can be had without swapping, or None where the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable"):
                return 1024 * int(line.split()[1])
    return None
