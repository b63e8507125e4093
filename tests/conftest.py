"""One Hypothesis profile: quick by default, `--hypothesis-profile=thorough` for the long run.

Kernels compile inside the first example, so there is no deadline. What tests keep, they keep in a folder of their own.
"""

import io
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.configuration import set_hypothesis_home_dir

from minispec import bench_machine, kept_costs
from minispec.backends import operations
from minispec.cli import main
from minispec.commands import shared
from minispec.costs import Costs
from minispec.kept_costs import file_of, keep_costs
from minispec.session import open_pair
from minispec.settings import Settings

_kept = tempfile.TemporaryDirectory(prefix="minispec-tests-", ignore_cleanup_errors=True)
if not os.access(Path(__file__).parents[1], os.W_OK):  # a checkout that is read-only has no room for what failed before
    set_hypothesis_home_dir(_kept.name)
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("quick", quick)
settings.register_profile("few", quick, max_examples=3)  # where kernels run as plain Python: NUMBA_DISABLE_JIT=1
settings.register_profile("thorough", quick, max_examples=5000)
# As quick, for test_mutants.py, which waits for a first failure and not for the smallest, and must not depend on luck.
once = [Phase.explicit, Phase.generate]
settings.register_profile("mutants", quick, phases=once, derandomize=True, database=None)
settings.load_profile("quick")

MUTANT = "MINISPEC_MUTANT" in os.environ  # a child of test_mutants.py: one test, and many such children

# Before anything looks for its cache; downloaded models are looked for where they were before.
os.environ.setdefault("HF_HOME", str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "huggingface"))
for _name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
    os.environ[_name] = _kept.name


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compile before the first test, so that no test sees the note that says so."""
    if not MUTANT:
        operations("numba").warm_up(np.dtype(np.float32))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """MINISPEC_TEST_ORDER: a seed for another order."""
    if seed := os.environ.get("MINISPEC_TEST_ORDER"):
        random.Random(seed).shuffle(items)


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """No test depends on how long a model takes to load: what is said of it is said after a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "PATIENCE", 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def little_to_read() -> Iterator[None]:
    """Benchmarks read 16 MB to see how fast memory is, and not 512 each time: no test looks at the speed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("READ_BYTES", "LEAST_BYTES"):
            patch.setattr(bench_machine, name, 1 << 24)
        yield


@pytest.fixture(scope="session", autouse=True)
def known_costs() -> Iterator[None]:
    """Prices of the pair in the box, so that -k auto does the same on a busy machine and on an idle one.

    They are kept for children, and given out in this process, where tests change the number of threads.
    """
    check = [0.0, 1.0, 1.05, 1.1, 1.2, 1.3, *np.linspace(1.4, 3.0, 11)]
    known = Costs(0.09, tuple(map(float, check)), 0.01, 0.0013)
    for backend in ("numba", "numpy") if not MUTANT else ():
        for draft_weights in ("f32", "int8"):
            pair = open_pair(Settings(backend=backend, draft_weights=draft_weights))
            keep_costs(file_of(pair), known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_costs, "measure_costs", lambda *_, **__: known)
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command line in this process: (status, standard output, standard error)."""

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return call
