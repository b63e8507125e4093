"""What a process finds: compiled code that is damaged or cannot be kept, no home, one core, forks, threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toys
from hostile import THOROUGH

from minispec import cores
from minispec.drafters import SmallModelDrafter
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.speculative import speculate

TEXT = ["generate", "Once upon a time", "-n", "8", "-k", "4", "-q"]
POSIX = pytest.mark.skipif(os.name == "nt", reason="processes of POSIX")


def run_main(before: str = "", arguments: list[str] = TEXT, **options: Any) -> subprocess.CompletedProcess[str]:
    """The program in a process in which something else was done before."""
    script = f"import sys\n{before}\nsys.argv[1:] = {arguments!r}\nfrom minispec.__main__ import main; main()"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def text() -> str:
    """What it writes where nothing is wrong."""
    return run_main().stdout


# --- compiled code on disk ---------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    """Somebody's compiled code in an empty folder."""
    pytest.importorskip("numba")
    from minispec.kernels.kept import KeptCode

    return KeptCode(str(tmp_path / "f-1.py3"), "sources")


def test_each_kind_of_arguments_has_its_file(kept: Any, tmp_path: Path) -> None:
    """So processes that begin with an empty folder at the same time never write to each other's files."""
    from minispec.kernels.kept import KeptCode

    other = KeptCode(kept.beginning, "sources")
    for one, key in ((kept, "f32"), (other, "int8"), (kept, "f64"), (other, "f32")):
        one.save(key, {"code": key})
    for one in (kept, other, KeptCode(kept.beginning, "sources")):
        assert [one.load(key) for key in ("f32", "int8", "f64", "f16")] == [
            *({"code": key} for key in ("f32", "int8", "f64")), None
        ]  # fmt: skip
    assert len(os.listdir(tmp_path)) == 3
    assert KeptCode(kept.beginning, "other sources").load("f32") is None
    assert KeptCode(str(tmp_path / "gone" / "f"), "sources").load("f32") is None


def test_code_that_is_damaged_anywhere_counts_as_missing(kept: Any, tmp_path: Path) -> None:
    kept.save("f32", list(range(20)))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for place in range(len(whole)):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
            file.write_bytes(damaged)
            assert kept.load("f32") is None
    for damaged in (whole + b"\0", bytes(len(whole)), b"", os.urandom(4096)):
        file.write_bytes(damaged)
        assert kept.load("f32") is None
    kept.save("f32", "made anew")
    assert kept.load("f32") == "made anew"


def test_code_that_cannot_be_kept_is_used_all_the_same(kept: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(kept), "told", False)
    (tmp_path / "file").touch()
    nowhere = type(kept)(str(tmp_path / "file" / "f"), "sources")
    with pytest.warns(RuntimeWarning, match=r"cannot be kept in .* set NUMBA_CACHE_DIR to a folder"):
        nowhere.save("f32", "code")
    nowhere.save("int8", "code")  # a second warning would be an error
    assert nowhere.load("f32") is None


def test_a_parallel_function_is_kept_in_its_callers_code_alone() -> None:
    """Kept by itself it would be loaded for a caller that is compiled later, and that would crash when it is loaded."""
    pytest.importorskip("numba")
    from minispec.kernels import compilation, whole_pass
    from minispec.kernels.look_back import look_back_together, run_look_back

    if not compilation.JIT:
        pytest.skip("nothing is compiled")
    pairs: list[tuple[Any, Any]] = [(whole_pass.run, whole_pass.together), (run_look_back, look_back_together)]
    for caller, called in pairs:
        assert called.targetoptions["parallel"]
        assert hasattr(caller._cache, "_cache_file")
        assert not hasattr(called._cache, "_cache_file")


def test_a_second_start_compiles_nothing(compiled_kernels: None) -> None:
    """So files are found again by another process."""
    pytest.importorskip("numba")
    script = (
        "import numpy as np; from minispec import kernels; kernels.warm_up(np.dtype(np.float32))\n"
        "run = kernels.run; print(len(run.stats.cache_hits), len(run.stats.cache_misses))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1 0\n"


def test_without_a_place_for_compiled_code_it_is_said_once(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    script = (
        "import sys, warnings, numba.core.caching as caching\n"
        "def full(self): raise OSError(30, 'Read-only file system')\n"
        "for kind in vars(caching).values():\n"
        "    if isinstance(kind, type) and 'ensure_cache_path' in vars(kind): kind.ensure_cache_path = full\n"
        "import minispec.kernels"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.count("RuntimeWarning: compiled code cannot be kept") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr
    if THOROUGH:
        done = run_main(script)
        assert (done.returncode, done.stderr.count("cannot be kept")) == (0, 1)


@pytest.mark.skipif(not THOROUGH, reason="compiles, for minutes")
def test_two_first_starts_at_once_and_damage_afterwards(tmp_path: Path, text: str) -> None:
    pytest.importorskip("numba")
    around = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def at_once() -> None:
        both = [
            subprocess.Popen(
                [sys.executable, "-m", "minispec", *TEXT, *more],
                env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for more in ([], ["--draft-weights", "int8"])
        ]  # fmt: skip
        assert [one.communicate() for one in both] == [(text, ""), (text, "")]
        assert [one.returncode for one in both] == [0, 0]

    at_once()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 10
    assert {file.suffix for file in files} == {".nbc"}
    for number, file in enumerate(files):
        whole = file.read_bytes()
        file.write_bytes((whole[: len(whole) // 2], os.urandom(len(whole)), b"")[number % 3])
    at_once()
    for _ in range(2):
        done = run_main(env=around)
        assert (done.returncode, done.stdout, done.stderr) == (0, text, "")


# --- no home -----------------------------------------------------------------------------------------

NO_ENTRY = "import pwd\ndef unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown"


@POSIX
@pytest.mark.parametrize("home", [None, "/dev/null/home", ""])
@pytest.mark.parametrize("before", ["", NO_ENTRY], ids=["an entry", "no entry"])
def test_no_home(home: str | None, before: str, tmp_path: Path, text: str) -> None:
    """Nothing is made in the folder that one is in, and nothing fails."""
    without = ("HOME", "XDG_CACHE_HOME", "HF_HOME", "NUMBA_CACHE_DIR")
    around = {name: value for name, value in os.environ.items() if name not in without}
    around["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    around |= {} if home is None else {"HOME": home}
    if home is None and not before:
        around["XDG_CACHE_HOME"] = "/dev/null/cache"  # not into a real home
    done = run_main(before, env=around, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, text, "")
    assert os.listdir(tmp_path) == []


# --- cores -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_one_core_by_affinity(text: str) -> None:
    """As many threads as cores, whatever the machine has."""
    pytest.importorskip("numba")
    before = (
        "import atexit, os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from minispec.cores import count_cores\n"
        "atexit.register(lambda: print(count_cores(), sys.modules['numba'].get_num_threads()))"
    )
    around = {name: value for name, value in os.environ.items() if name != "NUMBA_NUM_THREADS"}
    done = run_main(before, env=around)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{text}1 1\n", "")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine of 8 cores; a function that says in which groups this process is, and what their files say."""
    monkeypatch.setattr(cores, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "TREES", tmp_path / "fs")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    cores.cores_paid_for.cache_clear()

    def write(lines: str, files: dict[str, str]) -> None:
        (tmp_path / "cgroup").write_text(lines)
        for name, content in files.items():
            file = tmp_path / "fs" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)

    yield write
    cores.cores_paid_for.cache_clear()


@pytest.mark.parametrize(
    ("lines", "files", "n"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "200000 100000\n"}, 2),
        ("0::/not/here\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/../x\n", {}, 8),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 8),
        ("4:cpu,cpuacct:/a\n1:cpuset:/\n", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "50000"}, 2),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("", {}, 8),
        ("junk\n", {}, 8),
    ],
)
def test_cores_that_a_group_pays_for(groups: Any, lines: str, files: dict[str, str], n: int) -> None:
    groups(lines, files)
    assert cores.count_cores() == n


def test_numba_is_told_before_it_is_imported(groups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    groups("0::/\n", {"cpu.max": "200000 100000\n"})
    monkeypatch.setitem(sys.modules, "numba", None)
    cores.tell_numba()
    assert "NUMBA_NUM_THREADS" not in os.environ
    monkeypatch.delitem(sys.modules, "numba")
    cores.tell_numba()
    assert os.environ["NUMBA_NUM_THREADS"] == "2"
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    cores.tell_numba()
    assert os.environ["NUMBA_NUM_THREADS"] == "1"
    monkeypatch.undo()


# --- forks and threads -------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize(("backend", "ends"), [("numba", "ValueError"), ("numpy", "equal")])
def test_a_pool_of_forks_after_a_pass(backend: str, ends: str) -> None:
    """It is refused in words, or it works: nothing hangs and nothing is aborted."""
    script = (
        "import multiprocessing, sys; sys.path.insert(0, sys.argv[1])\n"
        "from toys import tiny_model\n"
        "model = tiny_model(backend=sys.argv[2])\n"
        "def bits(): return model.forward([1, 2, 3], model.new_cache()).tobytes()\n"
        "here = bits()\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "    try: print('equal' if pool.apply(bits) == here else 'different')\n"
        "    except ValueError as error: print('ValueError', error)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(Path(__file__).parent), backend]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.startswith(ends)
    assert ends == "equal" or "spawn or forkserver" in done.stdout


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_threads_that_write_at_once_with_one_model(backend: str) -> None:
    """Each text is what it is alone, plain and speculative, with one drafter for all of them."""
    target = toys.tiny_model(toys.ODD, 0, backend)
    drafter = SmallModelDrafter(toys.tiny_model(toys.ODD, 1, backend))
    options: dict[str, Any] = {"max_new_tokens": 30, "sampling": Sampling(0.9), "seed": 3}

    def write(first: int) -> Any:
        speculative = toys.ids_of(speculate(target, drafter, [first, 2], n_draft=3, **options))
        return speculative, toys.ids_of(generate(target, [first, 2], **options))

    alone = [write(first) for first in range(6)]
    found: dict[int, Any] = {}
    with warnings.catch_warnings(), toys.all_work_shared(target):
        warnings.simplefilter("error")
        run_together([lambda n=n: found.update({n: write(n)}) for n in range(6)])  # type: ignore[misc]
    assert [found[n] for n in range(6)] == alone


def run_together(works: list[Callable[[], object]]) -> None:
    """All of these, each in a thread of its own."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
