"""Ctrl-C at any moment: status 130, one line, the text so far, and files that are whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import check_time, ended_by, hear
from hostile import THOROUGH

from minispec.trace_page import data_of

if os.name == "nt":
    pytest.skip("signals of POSIX", allow_module_level=True)

PROMPT = "Once upon a time"
LINE = "minispec: interrupted"


def interrupted(
    arguments: list[str], place: str, n_calls: int = 1, times: int = 1, folder: Path | None = None, **more: str
) -> tuple[str, list[str]]:
    """What a run of the program writes that is interrupted there, and the lines that it says."""
    status, out, lines = ended_by("SIGINT", place, n_calls, ["minispec", *arguments], times, folder, **more)
    assert status == 130, lines
    return out, lines


# fmt: off
MOMENTS = {
    "the first import": (["--help"], "minispec/cli.py:<module>", 1),
    "an import of the command line": (["--help"], "minispec/commands/theory.py:<module>", 1),
    "NumPy's import": (["generate", PROMPT], "numpy/__init__.py:<module>", 1),
    "Numba's import": (["generate", PROMPT], "numba/__init__.py:<module>", 1),
    "the tokenizer": (["generate", PROMPT], "minispec/tokenizer.py:load_tokenizer", 2),
    "the weights": (["generate", PROMPT], "minispec/weights.py:load_model", 1),
    "the kernels": (["generate", PROMPT], "minispec/kernels/kept.py:KeptCode.load", 1),
    "prices": (["generate", PROMPT], "minispec/costs.py:measure_costs", 1),
    "prefill": (["generate", PROMPT, "-k", "4"], "minispec/model.py:GPT2._pass", 1),
    "a batch": (["generate", "--prompts", "prompts.txt", "-k", "4"], "minispec/conductor.py:serve", 5),
    "overlapped": (["generate", PROMPT, "-k", "4", "--schedule", "overlapped"], "minispec/model.py:GPT2._pass", 3),
    "comparing": (["compare", PROMPT, "-k", "4"], "minispec/model.py:GPT2._pass", 90),
    "verify": (["verify", "--quick"], "minispec/verify_texts.py:same_text", 1),
    "bench": (["bench", "--only", "passes"], "minispec/bench_passes.py:time_passes", 1),
    "bench, another process": (["bench", "--only", "memory"], "minispec/bench_worker.py:Worker.ask", 2),
    "simulate": (["simulate", "--trials", "1000000000"], "minispec/simulation.py:in_turn", 1),
    "theory": (["theory"], "minispec/theory_report.py:answer", 1),
    "sweep": (["sweep", "--per-kind", "1", "-k", "2"], "minispec/model.py:GPT2._pass", 40),
    "sweep, with others": (["sweep", "--workers", "2", "-k", "2"], "minispec/sweep_workers.py:finished", 1),
    "trace": (["trace", PROMPT, "-k", "4", "-n", "8"], "minispec/trace_data.py:trace_data", 1),
    "the end": (["theory", "--accept", "0.8"], "threading.py:_shutdown", 1),
}
# fmt: on


# Pressed once, or five times in a row: it is all the same. The quick profile tries one of them at each moment.
PRESSES = [
    (moment, times) for i, moment in enumerate(MOMENTS) for times in (1, 5) if THOROUGH or times == 1 + 4 * (i % 2)
]


@pytest.mark.parametrize(("moment", "times"), PRESSES)
def test_ctrl_c_is_one_line_and_130(moment: str, times: int, tmp_path: Path) -> None:
    arguments, place, n_calls = MOMENTS[moment]
    (tmp_path / "prompts.txt").write_text("Once\nThe dog\nTom had a\n")
    out, lines = interrupted(arguments, place, n_calls, times, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert lines == [LINE]
    assert bool(out) == (moment in ("overlapped", "the end"))
    assert os.listdir(tmp_path) in (["prompts.txt"], ["prompts.txt", "cache"], ["cache", "prompts.txt"])


@pytest.mark.parametrize("times", [1, 5])
def test_the_text_so_far_is_kept(times: int) -> None:
    arguments = ["generate", PROMPT, "-n", "60", "-k", "4"]
    whole = subprocess.run([sys.executable, "-m", "minispec", *arguments, "-q"], capture_output=True, check=True)
    out, lines = interrupted(arguments, "minispec/model.py:GPT2._pass", 40, times)
    assert lines == [LINE]
    assert len(out) > 20
    assert out.endswith("\n")
    assert whole.stdout.decode().startswith(out[:-1])


def test_json_is_whole_or_not_there() -> None:
    out, lines = interrupted(["generate", PROMPT, "-k", "4", "--json"], "minispec/model.py:GPT2._pass", 40)
    assert (out, lines) == ("", [LINE])


def test_a_page_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    trace = ["trace", PROMPT, "-k", "4", "-q", "-n"]
    subprocess.run([sys.executable, "-m", "minispec", *trace, "4"], cwd=tmp_path, check=True)
    for n_calls in (1, 2):  # before anything is written, and when all of it is
        place = "minispec/whole_file.py:write_whole" if n_calls == 1 else ":Path.replace"
        assert interrupted([*trace, "8"], place, folder=tmp_path) == ("", [LINE])
        assert os.listdir(tmp_path) == ["trace.html"]
        assert len(data_of((tmp_path / "trace.html").read_text())["ids"]) == 4


MADE_UP = {  # so much of it is there
    "all but its name": (":Path.replace", 2),
    "some files": ("minispec/made_up.py:pairs", 1),
    "all but the weights' name": (":Path.replace", 1),
}


@pytest.mark.parametrize("there", list(MADE_UP)[: 3 if THOROUGH else 1])
def test_a_made_up_model_is_whole_or_not_there(there: str, tmp_path: Path) -> None:
    bench = ["bench", "--random", "distilgpt2", "--only", "passes", "--folder", str(tmp_path)]
    _, lines = interrupted(bench, *MADE_UP[there])
    assert lines == [LINE]
    assert os.listdir(tmp_path) == []


def test_a_sweep_keeps_what_is_done(tmp_path: Path) -> None:
    sweep = ["sweep", "--per-kind", "1", "-k", "2", "-n", "8", "--output-file", "kept.jsonl"]
    _, lines = interrupted(sweep, "minispec/sweep_file.py:ResultsFile.append", 3, 5, tmp_path)
    assert lines[1:] == [LINE]
    assert "2 of 6 texts" in lines[0] or "3 of 6 texts" in lines[0]
    assert os.listdir(tmp_path) == ["kept.jsonl"]
    for line in (tmp_path / "kept.jsonl").read_bytes().splitlines(keepends=True):
        assert line.endswith(b"\n")
        json.loads(line)


# --- what Python alone would not hear ----------------------------------------------------------------

STUCK = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', (1 << 31) - 1)"  # minutes, without a look at signals
LOST = (
    "import time\nclass Last:\n    def __del__(self): print('now', flush=True); time.sleep(60)\nLast()\ntime.sleep(60)"
)
THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); time.sleep(60)"
LATER = "import atexit, time; atexit.register(time.sleep, 60); time.sleep(60)"
TURNED = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: raise ValueError('another error') from None"
TEXT = "exec('import time; time.sleep(60)')"  # CPython notes that a text as code was interrupted, and forgets 130


@pytest.mark.parametrize(
    "work", [STUCK, LOST, THREAD, LATER, TURNED, TEXT], ids=["stuck", "lost", "thread", "later", "turned", "text"]
)
@pytest.mark.parametrize("times", [1, 2])
def test_whatever_it_is_doing(work: str, times: int) -> None:
    """A call that takes minutes, an interrupt in a finaliser, threads and last words that take long."""
    lines = "\n    ".join(work.splitlines())
    script = f"from minispec.interrupts import run\ndef work():\n    print('now', flush=True)\n    {lines}\nrun(work)"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "now\n"
        if work == LOST:
            assert it.stdout.readline() == "now\n"
        time.sleep(0.05)  # until it is there
        began = time.monotonic()
        for _ in range(times):
            it.send_signal(signal.SIGINT)
            time.sleep(0.01)
        _, err = it.communicate(timeout=30)
        took = time.monotonic() - began
    assert (it.returncode, err) == (130, f"{LINE}\n")
    check_time(took)


def test_a_second_press_does_not_break_off_what_keeps_the_text() -> None:
    script = (
        "import time; from minispec.interrupts import run\n"
        "def work():\n    try: print('now', flush=True); time.sleep(60)\n"
        "    finally:\n        print('keeping', flush=True); time.sleep(0.3); print('kept', flush=True)\n"
        "run(work)"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear) as it:
        assert it.stdout is not None
        for line in ("now\n", "keeping\n"):
            assert it.stdout.readline() == line
            it.send_signal(signal.SIGINT)
        out, err = it.communicate(timeout=30)
    assert (it.returncode, out, err) == (130, "kept\n", f"{LINE}\n")


def test_where_it_is_ignored_it_stays_ignored() -> None:
    """As nohup and a shell's & have it."""
    script = (
        "import os, signal; from minispec.interrupts import run\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "run(lambda: os.kill(os.getpid(), signal.SIGINT))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_other_errors_are_as_ever() -> None:
    """Neither a status nor a traceback is lost, and what cannot be raised is still told."""
    script = "import sys; from minispec.interrupts import run\nrun(lambda: {})"
    for work, status, told in (
        ("sys.exit(3)", 3, b""),
        ("1 / 0", 1, b"ZeroDivisionError"),
        ("type('X', (), {'__del__': lambda self: 1 / 0})()", 0, b"ignored"),
    ):
        done = subprocess.run([sys.executable, "-c", script.format(work)], capture_output=True, check=False)
        assert done.returncode == status
        assert told in done.stderr
