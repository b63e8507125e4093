"""Standard streams and files that are closed, full, read by nobody, or of another encoding: one line, no traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minispec.whole_file import write_whole

if os.name == "nt":
    pytest.skip("descriptors and limits of POSIX", allow_module_level=True)

MINISPEC = f"'{sys.executable}' -m minispec"
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
TEXT = "generate Once -n 8 -k 4"
QUICK = ("theory", "theory --json", "simulate --trials 100000", "--help", "--version")
CANNOT = r"minispec: standard output cannot be written \(.+\): send it to another place, as with > FILE"


def shell(
    arguments: str, folder: Path | None = None, around: dict[str, str] | None = None
) -> tuple[int, str, list[str]]:
    """Status, standard output and the lines of standard error, less those that ask for patience."""
    done = subprocess.run(
        ["bash", "-c", f"{MINISPEC} {arguments}"],
        stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, env={**os.environ, **(around or {})}, check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.decode().splitlines() if not line.endswith(" ...")]
    assert not any("Traceback" in line or "ignored" in line for line in said), done.stderr.decode()
    return done.returncode, done.stdout.decode(), said


# --- standard output ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [TEXT, f"{TEXT} --json", *QUICK])
@pytest.mark.parametrize("where", [">&-", pytest.param("> /dev/full", marks=FULL)])
def test_what_cannot_be_written_is_no_success(arguments: str, where: str) -> None:
    status, _, said = shell(f"{arguments} {where}")
    assert status == 2
    assert re.fullmatch(CANNOT, said[-1])
    assert len(said) == 1 or said[0].startswith("note: ")


@pytest.mark.parametrize("arguments", [TEXT, *QUICK])
def test_a_reader_that_was_never_there(arguments: str) -> None:
    """141 is what a shell reports for a reader that has gone; the first lines of a long text are whole."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            ["bash", "-c", f"{MINISPEC} {arguments} -q" if arguments == TEXT else f"{MINISPEC} {arguments}"],
            stdout=writing, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert done.returncode == 141
    assert all(line.startswith(("note: ", "preparing", "loading")) for line in done.stderr.decode().splitlines())


def test_bench_ends_with_its_reader() -> None:
    """In JSON and as a table, whose first lines are there while it goes on to measure."""
    for output in ("", "--output json"):
        status, _, said = shell(f"bench --only bandwidth --repetitions 1 {output} | true; echo ${{PIPESTATUS[0]}} >&2")
        assert status == 0
        assert said[-1] == "141"


def test_head_takes_one_line() -> None:
    status, out, said = shell("theory | head -1; echo ${PIPESTATUS[0]}")
    first, n = out.splitlines()
    assert (status, n in ("0", "141")) == (0, True)
    assert first
    assert all(line.startswith("note: ") for line in said)


# --- standard error and standard input ---------------------------------------------------------------


@pytest.mark.parametrize("where", ["2>&-", pytest.param("2> /dev/full", marks=FULL), "2> >(true)"])
def test_nothing_fails_for_what_is_said_beside_the_text(where: str) -> None:
    expected = shell(f"{TEXT} -q")[1]
    assert shell(f"{TEXT} -v {where}")[:2] == (0, expected)
    assert shell(f"generate Once -k x {where}")[:2] == (2, "")


def test_all_streams_closed(tmp_path: Path) -> None:
    """What is opened next does not get their numbers, and what is printed does not end in it."""
    assert shell("trace Once -n 4 -k 4 -o run.html <&- >&- 2>&-", tmp_path)[0] == 0
    assert os.listdir(tmp_path) == ["run.html"]
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    status, out, said = shell("generate - -n 3 <&-")
    assert (status, out) == (2, "")
    assert said == ["minispec: standard input is closed: give the prompt as an argument, or -f FILE"]


# --- files -------------------------------------------------------------------------------------------


@FULL
def test_a_page_on_a_full_disk(tmp_path: Path) -> None:
    status, out, said = shell("trace Once -n 4 -k 4 -q -o /dev/full", tmp_path)
    assert (status, out) == (2, "")
    assert said == [
        "minispec: the trace file /dev/full cannot be written (No space left on device): name another place"
    ]


def small(command: str, folder: Path) -> tuple[int, str, list[str]]:
    """In a process whose files may have a kilobyte. -B: bytecode would be cut off as well, and stay so."""
    script = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); {command}"
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, cwd=folder, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, [line for line in done.stderr.splitlines() if not line.endswith(" ...")]


def run_small(arguments: str, folder: Path) -> tuple[int, str, list[str]]:
    return small(f"from minispec.__main__ import main; sys.argv[1:] = {arguments.split()}; main()", folder)


def test_a_disk_that_is_full_after_a_kilobyte(tmp_path: Path) -> None:
    (tmp_path / "trace.html").touch()
    status, _, said = run_small("trace Once -n 4 -k 4", tmp_path)
    assert status == 2
    assert said[-1] == "minispec: the trace file trace.html cannot be written (File too large): name another place"
    assert os.listdir(tmp_path) == ["trace.html"]
    assert (tmp_path / "trace.html").read_bytes() == b""


def test_a_picture_is_whole_or_not_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    status, _, said = run_small("theory --plot-file plot.svg", tmp_path)
    assert status == 2
    assert said[-1].startswith("minispec: the plot file plot.svg cannot be written (File too large)")
    assert os.listdir(tmp_path) == []


def test_a_sweep_on_a_full_disk_keeps_whole_lines(tmp_path: Path) -> None:
    status, _, said = run_small("sweep --per-kind 1 -k 2 -n 4 --output-file kept.jsonl", tmp_path)
    assert status == 2
    assert said[-1] == "minispec: --output-file kept.jsonl: File too large: make room, and start it again"
    kept = (tmp_path / "kept.jsonl").read_text()
    assert os.listdir(tmp_path) == ["kept.jsonl"]
    assert kept.endswith("}\n") or not kept
    for line in kept.splitlines():
        json.loads(line)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old")
    (tmp_path / "link").symlink_to("file")
    work = "from pathlib import Path; from minispec.whole_file import write_whole"
    lines = f"{work}\ntry: write_whole(Path('link'), b'new' * 1000)\nexcept OSError: sys.exit(5)"
    assert small(f"exec({lines!r})", tmp_path)[0] == 5
    assert file.read_bytes() == b"old"
    write_whole(tmp_path / "link", b"new")
    assert (file.read_bytes(), (tmp_path / "link").is_symlink()) == (b"new", True)
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]
    write_whole(Path(os.devnull), b"gone")


# --- encodings ---------------------------------------------------------------------------------------

CODES = ("ascii", "latin-1", "cp1252", "cp437", "cp932", "utf-16", "ascii:strict")
LOCALES = ({"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"LC_ALL": "POSIX"})
PROMPT = "Caf\u00e9 \u2014 \U0001f40d"


@pytest.mark.parametrize("around", [*({"PYTHONIOENCODING": code} for code in CODES), *LOCALES], ids=str)
def test_text_is_utf8_whatever_the_terminal_says(around: dict[str, str]) -> None:
    """And what a prompt says that is no UTF-8 to the locale is no error."""
    arguments = f"compare '{PROMPT}' -n 3 -k 2 --repetitions 1 -v"
    status, out, _ = shell(arguments, around=around)
    assert status == 0
    assert out.startswith("Caf")
    assert out.startswith(PROMPT) or "PYTHONUTF8" in around


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (r"generate $'a\xff\xed\xa0\xbdb' -n 3 -k 2 -v", 0),
        (r"generate $'a\xff' -n 3 -k 2 --json", 0),
        (r"compare $'a\xff' -n 3 -k 2 --repetitions 1", 0),
        (r"trace $'a\xff' -n 3 -k 2 -o $'page\xff.html'", 0),
        (r"generate a -m $'gone\xff'", 2),
        (r"generate a -f $'gone\xff'", 2),
        (r"generate a --stop $'\xff' -n 3 -k 2", 0),
        (r"$'gone\xff'", 2),
        (r"theory --plot-file $'gone\xff/x.svg'", 2),
    ],
)
def test_half_characters_on_the_command_line(arguments: str, status: int, tmp_path: Path) -> None:
    found, out, said = shell(arguments, tmp_path)
    assert found == status
    assert status == 0 or (len(said) == 1 and not out)
