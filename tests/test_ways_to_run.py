"""Other ways to run: warnings as errors, tests in another order, kernels as plain Python, every index checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import bound_by_modes
from hostile import THOROUGH

ROOT = Path(__file__).resolve().parents[1]
SLOW = pytest.mark.skipif(not THOROUGH, reason="runs tests in other ways, for minutes")
SHORT = ["-n", "4", "-k", "4"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["theory"],
        ["simulate", "--trials", "1000", "--backend", "numpy"],
        ["generate", "Once", *SHORT, "--backend", "numpy"],
        *(
            pytest.param(arguments, marks=SLOW)
            for arguments in (
                ["simulate", "--trials", "1000"],
                ["generate", "Once", *SHORT],
                ["compare", "Once", *SHORT, "--repetitions", "1"],
                ["trace", "Once", *SHORT, "-o", "run.html"],
                ["sweep", "--per-kind", "1", "-k", "2", "-n", "4"],
                ["theory", "--plot-file", "plot.svg"],
            )
        ),
    ],
    ids=" ".join,
)
def test_no_command_warns(arguments: list[str], tmp_path: Path) -> None:
    """The children of other tests run without pytest's filter, which makes errors of warnings."""
    command = [sys.executable, "-W", "error", "-m", "minispec", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr


def run_tests(files: list[str], *options: str, root: Path = ROOT, **more: str) -> list[str]:
    """The names of tests in the order in which they ran, in a process with these surroundings; all must pass."""
    around, before = {**os.environ, "PYTHONPATH": str(root), **more}, None if root == ROOT else bound_by_modes
    command = [sys.executable, "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*command, *(f"tests/{file}.py" for file in files)],
        cwd=root, env=around, capture_output=True, text=True, check=False, preexec_fn=before,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    names = re.findall(r"^tests/(\S+::.*?) +PASSED", done.stdout, re.MULTILINE)
    assert len(names) > 20
    return names


@SLOW
@pytest.mark.parametrize("seed", ["1", "2"])
def test_in_random_order(seed: str) -> None:
    files = ["test_batch", "test_draft_length", "test_numbers", "test_sampling", "test_speculative", "test_theory"]
    plain = run_tests(files)
    shuffled = run_tests(files, MINISPEC_TEST_ORDER=seed)
    assert sorted(shuffled) == sorted(plain)
    assert shuffled != plain


@SLOW
def test_kernels_as_plain_python() -> None:
    run_tests(["test_sampling", "test_speculative"], "--hypothesis-profile=few", NUMBA_DISABLE_JIT="1")


@SLOW
def test_every_index_checked(tmp_path: Path) -> None:
    files, cache = ["test_kernels", "test_model"], str(tmp_path)
    run_tests(files, "--hypothesis-profile=few", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=cache)


@SLOW
@pytest.mark.skipif(sys.platform != "linux", reason="lets go of root's rights as Linux does")
def test_from_a_read_only_checkout(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    leave = shutil.ignore_patterns("__pycache__", ".*", "docs", "notebooks")
    shutil.copytree(ROOT, root, ignore=leave)
    every = [root, *root.rglob("*")]
    for path in every:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        run_tests(["test_theory", "test_sampling", "test_weights"], root=root, NUMBA_CACHE_DIR=str(tmp_path / "numba"))
        assert sorted([root, *root.rglob("*")]) == sorted(every)
    finally:
        for path in every:
            path.chmod(path.stat().st_mode | 0o200)
