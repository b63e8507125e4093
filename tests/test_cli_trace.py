"""The command that traces, and --trace of others: what is written where, and which files are left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from minispec.trace_page import MARK, data_of

PROMPT = "Once upon a time"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def data_in(file: str) -> dict[str, Any]:
    return data_of(Path(file).read_text(encoding="utf-8"))


def without_times(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if "second" not in key}


def test_a_page_is_written_and_said_where(run: Any) -> None:
    status, out, err = run("trace", PROMPT, "-n", "20")
    assert (status, out) == (0, "")
    assert "trace: trace.html (" in err
    data = data_in("trace.html")
    assert len(data["ids"]) == 20
    assert data["identical"] is True
    assert data["plain"]["ids"] == data["ids"]
    assert os.listdir() == ["trace.html"]
    assert run("trace", PROMPT, "-n", "5", "-q") == (0, "", "")  # in the place of the other
    assert len(data_in("trace.html")["ids"]) == 5
    assert run("trace", PROMPT, "-n", "5", "-q", "-o", "run.html")[0] == 0
    assert len(data_in("run.html")["ids"]) == 5


@pytest.mark.parametrize("more", [[], ["--temp", "1", "-k", "4"], ["--tree", "3,2", "--temp", "1"], ["-d", "none"],
                                  ["-k", "0"], ["--temp", "1", "--verification", "block"]])  # fmt: skip
def test_a_traced_run_is_the_run_of_generate(run: Any, more: list[str]) -> None:
    status, out, _ = run("trace", PROMPT, "-n", "25", "--json", *more)
    assert status == 0
    assert os.listdir() == []
    traced = json.loads(out)
    for flag in ("--temp", "--coupling"):
        assert flag not in more or traced["identical"] is None
    alone = json.loads(run("generate", PROMPT, "-n", "25", "--json", *more)[1])
    assert without_times(alone).items() <= traced.items()
    assert sum(len(one["guesses"]) for one in traced["rounds"]) == traced["drafted"]
    assert [token for one in traced["rounds"] for token in one["committed"]] == traced["ids"]


def test_a_page_on_standard_output(run: Any) -> None:
    status, out, _ = run("trace", PROMPT, "-n", "3", "-o", "-")
    assert status == 0
    assert len(data_of(out)["ids"]) == 3
    assert os.listdir() == []


def test_generate_and_compare_trace_as_well(run: Any) -> None:
    text = run("generate", PROMPT, "-n", "20", "--temp", "1")[1]
    status, out, err = run("generate", PROMPT, "-n", "20", "--temp", "1", "--trace", "g.html")
    assert (status, out) == (0, text)
    assert "trace: g.html" in err
    assert data_in("g.html")["text"] + "\n" == text
    assert run("generate", PROMPT, "-n", "4", "--json", "--trace", "g.html")[0] == 0
    assert len(data_in("g.html")["ids"]) == 4
    status, out, _ = run("compare", PROMPT, "-n", "20", "--repetitions", "1", "--trace", "c.html", "--json")
    compared, data = json.loads(out), data_in("c.html")
    assert data["speedup"] == compared["speedup"]  # as measured, with nobody looking
    assert (data["ids"], data["plain"]["ids"]) == (compared["speculative"]["ids"], compared["plain"]["ids"])


def test_texts_that_differ_are_told(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from minispec import plain

    real = plain.generate

    def faulty(target: Any, ids: list[int], **options: Any) -> Any:
        return real(target, [*ids, 7], **options)

    monkeypatch.setattr(plain, "generate", faulty)
    data = json.loads(run("trace", PROMPT, "-n", "9", "--json")[1])
    assert data["identical"] is False
    assert "ANOTHER TEXT" in data["words"]["plain"]
    assert ["OTHER TEXT", "than plain decoding"] in data["words"]["figures"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trace", PROMPT, "-o", "notes.txt"], "notes.txt is there already and is no trace page"),
        (["generate", PROMPT, "--trace", "notes.txt"], "notes.txt is there already and is no trace page"),
        (["compare", PROMPT, "--trace", "notes.txt"], "notes.txt is there already and is no trace page"),
        (["trace", PROMPT, "-o", "folder"], "is a folder: name a file in it"),
        (["trace", PROMPT, "-o", "nowhere/run.html"], "there is no folder nowhere: make it first"),
        (["trace", PROMPT, "-o", "notes.txt/run.html"], "notes.txt is no folder"),
        (["trace", PROMPT, "-o", "run\0.html"], "control characters"),
        (["trace", PROMPT, "-o", "x" * 300], "cannot be written"),
        (["trace", PROMPT, "-o", "-", "--json"], "both go to standard output"),
        (["generate", PROMPT, "--trace", "-"], "name a file, or take minispec trace -o -"),
        (["generate", PROMPT, "--trace", "t.html", "--schedule", "overlapped"], "does both at once: leave it out"),
        (["generate", "--prompts", "notes.txt", "--trace", "t.html"], "--trace shows one text as it is written"),
        (["trace", PROMPT, "--schedule", "overlapped"], "No such option"),
        (["trace", "-o", "run.html"], "empty"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_a_model_is_loaded(
    run: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    Path("notes.txt").write_text("my notes")
    Path("folder").mkdir()
    monkeypatch.setattr("minispec.session.open_pair", lambda *_: pytest.fail("a model was loaded"))
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert Path("notes.txt").read_text() == "my notes"
    assert sorted(os.listdir()) == ["folder", "notes.txt"]


def test_a_page_is_whole_or_not_there(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("trace", PROMPT, "-n", "3", "-q")[0] == 0
    before = Path("trace.html").read_bytes()
    assert MARK in before[:1000]

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    status, _, err = run("trace", PROMPT, "-n", "4", "-q")
    assert status == 2
    assert "cannot be written (No space left on device)" in err
    assert Path("trace.html").read_bytes() == before
    assert os.listdir() == ["trace.html"]


@pytest.mark.skipif(os.name == "nt", reason="links and devices are another matter there")
def test_a_link_is_followed_and_a_device_written_to(run: Any) -> None:
    Path("real.html").touch()
    Path("link.html").symlink_to("real.html")
    assert run("trace", PROMPT, "-n", "2", "-q", "-o", "link.html")[0] == 0
    assert Path("link.html").is_symlink()
    assert len(data_in("real.html")["ids"]) == 2
    assert run("trace", PROMPT, "-n", "2", "-q", "-o", os.devnull) == (0, "", "")


@pytest.mark.skipif(os.name == "nt", reason="links are another matter there")
def test_a_link_that_leads_nowhere_is_refused_before_a_model_is_loaded(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("link.html").symlink_to(Path("nowhere", "run.html"))
    Path("round.html").symlink_to("round.html")
    Path("file").touch()
    Path("under.html").symlink_to(Path("file", "run.html"))
    monkeypatch.setattr("minispec.session.open_pair", lambda *_: pytest.fail("a model was loaded"))
    told = {"link.html": "there is no folder", "round.html": "cannot be written", "under.html": "file is no folder"}
    for name, message in told.items():
        status, out, err = run("trace", PROMPT, "-o", name)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert message in err


@pytest.mark.skipif(os.name == "nt", reason="names have no control characters there")
def test_control_characters_of_a_name_do_not_reach_the_terminal(run: Any) -> None:
    name = "a\x1b[31m\x07\x9b\n.html"
    for arguments in (["-o", name], ["-o", f"{name}/b.html"], ["-m", f"./{name}"], ["-d", f"./{name}"], ["-f", name]):
        status, out, err = run("trace", PROMPT if arguments[0] != "-f" else "-q", "-n", "2", *arguments)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert "\\x1b[31m\\x07\\x9b" in err
        assert not set(err) & {"\x1b", "\x07", "\x9b"}
