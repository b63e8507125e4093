"""Work in a process of its own, asked for line by line in JSON: other programs' threads and memory stay apart.

The parent is `Worker`; the child is `python -m minispec.bench_worker KIND`. Its first line on standard input are the
settings, every other one a question; each line is answered by one. It ends with its input, so it never outlives us.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any

KINDS = {
    "blas": ("minispec.bench_passes", "serve_blas"),
    "memory": ("minispec.bench_memory", "serve_memory"),
    "transformers": ("minispec.bench_transformers", "serve_transformers"),
}
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS",
)  # fmt: skip
REST = 0.2  # seconds after an answer until the child's threads have stopped to spin


def of_others() -> dict[str, str]:
    """The environment for other programs: without what our kernels ask of OpenMP for themselves."""
    compilation = sys.modules.get("minispec.kernels.compilation")
    ours = {"GOMP_SPINCOUNT"} if compilation is not None and compilation.SPIN_IS_OURS else set()
    return {name: value for name, value in os.environ.items() if name not in ours}


class Worker:
    """A child that answers questions of one kind; `ready` is its first answer."""

    def __init__(self, kind: str, settings: dict[str, Any], threads: int | None = None) -> None:
        """Start it, and wait until it is ready. Raises ValueError with what it says if it fails."""
        self.kind = kind
        environment = of_others() | ({name: str(threads) for name in THREAD_VARIABLES} if threads else {})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minispec.bench_worker", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        try:
            self.ready = self.ask(**settings)
        except BaseException:
            self.close()
            raise

    def ask(self, **question: Any) -> dict[str, Any]:
        """The answer to a question. Raises ValueError where the child failed or has gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self.process.wait()
            raise ValueError(f"the process for {self.kind} ended with status {status}: is there enough memory for it?")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(f"{self.kind}: {answer['error']}")
        time.sleep(REST)
        return answer

    def close(self) -> None:
        """End the child, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # a question that was not sent yet
                    pipe.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def serve(kind: str) -> None:
    """The child: settings, then questions, until its input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    module, name = KINDS[kind]
    answer = None
    for line in sys.stdin:
        try:
            if answer is None:
                answer = getattr(import_module(module), name)(**json.loads(line))
                reply: dict[str, Any] = {"ready": True}
            else:
                reply = answer(**json.loads(line))
        except Exception as error:  # all of it is the parent's to tell
            reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
