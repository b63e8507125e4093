"""Memory and the time before the first token, each in a process of its own that has done nothing else before."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from minispec.bench_worker import Worker

if TYPE_CHECKING:
    from minispec.bench_models import Model
    from minispec.settings import Settings


@dataclass(frozen=True)
class Memory:
    """A process that loaded these models and filled their caches: `peak` is the most memory it ever had, loading
    included, of it `base` before a model was read; `needed` are the bytes of all weights and caches."""

    models: str
    load_seconds: float
    needed_bytes: int
    base_bytes: int | None
    peak_bytes: int | None
    peak_over_needed: float | None


@dataclass(frozen=True)
class Start:
    """Seconds from the start of `minispec generate` to its first text, with compiled code in the cache."""

    seconds: float


def peak_bytes() -> int | None:
    """The most memory that this process has had, or None where the system does not say."""
    with suppress(OSError):  # Linux: getrusage would count the parent's, from before the child became a program
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    with suppress(ImportError):  # Windows has no such module
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return None


def measure_memory(models: Sequence[Model], settings: Settings, threads: int) -> Memory:
    """Load models together, in another process, and fill their caches."""
    asked = {"models": [[model.name, model.weights] for model in models]}
    with Worker("memory", asked | {"backend": settings.backend, "offline": settings.offline}, threads) as worker:
        found = worker.ask()
    return Memory(" + ".join(f"{model.label} {model.weights}" for model in models), **found)


def serve_memory(models: list[list[str]], backend: str, offline: bool) -> Callable[[], dict[str, Any]]:
    """In the worker: load models and fill their caches, counting bytes and seconds."""
    from minispec.backends import operations
    from minispec.bench_passes import token_ids
    from minispec.model import STORED
    from minispec.weights import load_model

    for weights in {weights for _, weights in models}:
        operations(backend).warm_up(np.dtype(STORED[weights]))
    base = peak_bytes()
    began = time.perf_counter()
    loaded = [load_model(name, weights, backend, offline) for name, weights in models]
    seconds = time.perf_counter() - began

    def fill() -> dict[str, Any]:
        caches = [model.new_cache() for model in loaded]
        for model, cache in zip(loaded, caches, strict=True):
            ids = token_ids(model.n_vocab, model.n_ctx)
            for start in range(0, model.n_ctx, 256):
                model.forward(ids[start : start + 256], cache, n_logits=1)
        needed, peak = sum(model.weight_bytes + model.cache_bytes(model.n_ctx) for model in loaded), peak_bytes()
        return {
            "load_seconds": seconds,
            "needed_bytes": needed,
            "base_bytes": base,
            "peak_bytes": peak,
            "peak_over_needed": None if peak is None else peak / needed,
        }

    return fill


def measure_start(models: Sequence[Model], settings: Settings, threads: int, repetitions: int) -> Start:
    """Start the program anew and wait for its first text; the first time, which may compile, does not count."""
    target, *draft = models
    command = [sys.executable, "-m", "minispec", "generate", "Once upon a time", "-n", "16", "-q", "-m", target.name]
    command += ["--weights", target.weights, "--threads", str(threads), "--backend", settings.backend]
    command += ["-d", draft[0].name, "--draft-weights", draft[0].weights] if draft else ["-d", "none"]
    command += ["--offline"] * settings.offline
    return Start(median([seconds_to_first_text(command) for _ in range(repetitions + 1)][1:]))


def seconds_to_first_text(command: Sequence[str]) -> float:
    """From the start of a command to its first byte on standard output. Raises ValueError if it fails."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - began
        process.stdout.read()
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode or not first:
        raise ValueError(f"the start of minispec failed with status {process.returncode}: {said[-200:]}")
    return seconds
