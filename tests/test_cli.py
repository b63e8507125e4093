"""The command line as users and scripts meet it: text, JSON, exit statuses, one line for every fault."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY, tiny_tensors, write_checkpoint
from children import hear
from safetensors.numpy import load_file, save_file

from minispec.made_up import write_scripted_pair
from minispec.parameters import GPT2Config

PROMPT = "Once upon a time"
MINISPEC = [sys.executable, "-m", "minispec"]
ROOT = Path(__file__).resolve().parents[1]
NGRAMS = ROOT / "weights" / "story-target" / "ngram.safetensors"
MODES = [
    ["-d", "none"], ["-k", "3"], ["-d", "prompt-lookup", "-k", "3"], ["-d", "ngram", "-k", "2"],
    ["-k", "3", "--tree", "2,1,1"], ["-k", "3", "--verification", "block"], ["-k", "3", "--schedule", "overlapped"],
]  # fmt: skip


def run_json(run: Any, *arguments: str) -> dict[str, Any]:
    status, out, _ = run(*arguments, "--json")
    assert status == 0
    result: dict[str, Any] = json.loads(out)
    return result


# --- generate --------------------------------------------------------------------------------------


def test_generate_writes_a_story_and_one_closing_line(run: Any) -> None:
    status, out, err = run("generate", PROMPT, "-n", "40")
    assert status == 0
    assert len(out.split()) > 10
    assert out.endswith("\n")
    assert "\x1b" not in out
    (line,) = err.strip().splitlines()
    for part in ("40 tokens in", "passes", "a pass", "guesses kept", "tokens/s"):
        assert part in line


def test_json_has_the_keys_of_the_contract(run: Any) -> None:
    result = run_json(run, "generate", PROMPT, "-n", "30")
    assert list(result) == [
        "text", "prompt_ids", "ids", "finish", "passes", "drafted", "accepted", "accept_rate", "tokens_per_pass",
        "seconds", "tokens_per_second", "target", "draft", "num_draft_tokens", "weights",
        "draft_weights", "schedule", "seed",
    ]  # fmt: skip
    assert len(result["ids"]) == 30
    assert result["finish"] == "length"
    assert (result["target"], result["draft"], result["num_draft_tokens"]) == ("story-target", "story-draft", "auto")
    assert result["passes"] < 30
    assert result["accept_rate"] == result["accepted"] / result["drafted"]
    assert result["tokens_per_pass"] == 30 / result["passes"]
    assert result["text"] + "\n" == run("generate", PROMPT, "-n", "30")[1]


def test_a_draft_of_8_bits_changes_guesses_and_no_text(run: Any) -> None:
    rough, fine = (
        run_json(run, "generate", PROMPT, "-n", "60", "--draft-weights", weights) for weights in ("int8", "f32")
    )
    assert rough["ids"] == fine["ids"]
    assert (rough["weights"], rough["draft_weights"]) == ("f32", "int8")
    assert rough["accept_rate"] > 0.5


def test_a_target_of_8_bits_is_a_model_of_its_own_and_says_so(run: Any) -> None:
    status, out, err = run("compare", PROMPT, "-n", "30", "--weights", "int8", "--repetitions", "1", "--json")
    assert status == 0
    assert "note: story-target in int8 is a model of its own" in err
    assert json.loads(out)["identical"] is True


def test_drafting_while_checking_changes_no_greedy_text(run: Any) -> None:
    one, other = (run_json(run, "generate", PROMPT, "-n", "40", *how) for how in ([], ["--schedule", "overlapped"]))
    assert (one["ids"], one["finish"]) == (other["ids"], other["finish"])
    assert (one["schedule"], other["schedule"]) == ("sequential", "overlapped")
    options = ["compare", PROMPT, "-n", "40", "-k", "3", "--repetitions", "1", "--schedule", "overlapped"]
    assert run_json(run, *options)["identical"] is True
    _, _, err = run("generate", PROMPT, "-n", "3", "-d", "none", "--schedule", "overlapped")
    assert "note: --schedule has no effect without a draft" in err


def test_texts_written_together_are_drafted_sequentially(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("Once upon a time\n")
    status, _, err = run("generate", "--prompts", str(file), "--schedule", "overlapped")
    assert status == 2
    assert err.strip().splitlines()[-1].endswith("--schedule overlapped is for one text at a time: leave out --prompts")


def test_weights_of_a_draft_that_is_none_are_no_use(run: Any) -> None:
    _, _, err = run("generate", PROMPT, "-n", "3", "-d", "none", "--draft-weights", "int8")
    assert "note: --draft-weights has no effect without a draft model: leave out -d none" in err
    _, _, err = run("generate", PROMPT, "-n", "3", "--draft-weights", "int8")
    assert "note" not in err


def test_without_a_draft_nothing_is_drafted_and_the_text_is_the_same(run: Any) -> None:
    plain, speculative = (run_json(run, "generate", PROMPT, "-n", "30", "-d", name) for name in ("none", "story-draft"))
    assert plain["ids"] == speculative["ids"]
    assert (plain["passes"], plain["drafted"], plain["accept_rate"]) == (30, 0, None)
    assert (plain["draft"], plain["num_draft_tokens"]) == (None, 0)


def test_a_draft_length_of_zero_is_plain_decoding(run: Any) -> None:
    result = run_json(run, "generate", PROMPT, "-n", "10", "-k", "0")
    assert (result["passes"], result["drafted"], result["accept_rate"]) == (10, 0, None)


@pytest.mark.parametrize("how", [[], ["--temperature", "1", "--seed", "4"], ["-d", "none"], ["--stop", "."]])
def test_texts_that_are_written_together_are_those_that_are_written_alone(
    how: list[str], run: Any, tmp_path: Path
) -> None:
    prompts = [PROMPT, "The dog", "Tom had a red ball. It was his"]
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(prompts) + "\n")
    status, out, err = run("generate", "--prompts", str(file), "-n", "30", "--json", "-q", *how)
    assert (status, err) == (0, "")
    together = [json.loads(line) for line in out.splitlines()]
    assert [text["id"] for text in together] == ["line 1", "line 2", "line 3"]
    for prompt, text in zip(prompts, together, strict=True):
        alone = run_json(run, "generate", prompt, "-n", "30", "-q", *how)
        for name in ("text", "prompt_ids", "ids", "finish"):
            assert text[name] == alone[name], name
    few = run("generate", "--prompts", str(file), "-n", "30", "--json", "-q", "--together", "2", *how)[1]
    assert [json.loads(line)["ids"] for line in few.splitlines()] == [text["ids"] for text in together]


def test_texts_written_together_are_printed_in_order(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Once upon a time"}\n\n{"prompt": "The dog", "id": "b"}\n')
    status, out, err = run("generate", "--prompts", str(file), "-n", "12")
    assert status == 0
    assert out.startswith("Once upon a time")
    assert "\n\nThe dog" in out
    assert err.startswith("2 texts, 24 tokens, ")


def test_the_numpy_backend_writes_the_same_greedy_text(run: Any) -> None:
    one, other = (
        run_json(run, "generate", PROMPT, "-n", "40", "-k", "4", "--backend", name) for name in ("numba", "numpy")
    )
    assert one["ids"] == other["ids"]
    assert one["passes"] == other["passes"]


@pytest.fixture(scope="session")
def breaks_down(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose numbers overflow at its thirteenth position: the folder."""
    folder = tmp_path_factory.mktemp("breaks")
    for file in (ROOT / "weights" / "story-draft").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("wpe.weight"))
    tensors[name] = tensors[name].astype(np.float32)
    tensors[name][12] = 3e38
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("mode", MODES, ids=" ".join)
def test_a_text_that_cannot_be_finished_is_no_success(run: Any, breaks_down: str, mode: list[str]) -> None:
    """What was written stays, JSON does not come in halves, and the status says so."""
    mode = ["-d", "story-draft", *mode] if "-d" not in mode else mode
    mode = ["-d", f"ngram:{NGRAMS}", *mode[2:]] if mode[1] == "ngram" else mode
    arguments = ["generate", "-m", breaks_down, PROMPT, "-n", "30", *mode]
    for option, least in ((), 4), (("--no-stream",), 4), (("--json",), 0):
        status, out, err = run(*arguments, *option)
        assert status == 2
        assert err.splitlines()[-1].endswith("its weights are broken")
        assert len(out.split()) >= least
        assert out == "" if option == ("--json",) else out.startswith(", there was a") and out.endswith("\n")


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_of_texts_written_together_those_that_are_whole_are_kept(
    run: Any, breaks_down: str, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """The second one ends at its stop, before the model breaks down in the others."""
    file = tmp_path / "prompts.txt"
    file.write_text(f"The dog\n{PROMPT}\nA\n")
    arguments = ["generate", "-m", breaks_down, "-d", "prompt-lookup", "-k", "2", "--prompts", str(file), *more]
    status, out, err = run(*arguments, "--together", "3", "--stop", "little")
    assert status == 2
    assert err.splitlines()[-1].endswith("its weights are broken")
    if more:
        assert [json.loads(line)["text"] for line in out.splitlines()] == [", there was a "]
    else:
        assert out == f"{PROMPT}, there was a \n\n"


@pytest.mark.parametrize("command", ["compare", "bench"])
def test_a_comparison_that_cannot_be_finished_is_no_success(run: Any, breaks_down: str, command: str) -> None:
    more = ["--only", "end-to-end", "--output", "json"] if command == "bench" else ["--json"]
    status, out, err = run(command, "-m", breaks_down, "-d", "story-draft", "-p", PROMPT, "-n", "30", "-k", "3", *more)
    assert status == 2
    assert out == ""
    assert err.splitlines()[-1].endswith("its weights are broken")


@pytest.mark.parametrize("n", [0, 1, 2])
def test_very_short_texts(run: Any, n: int) -> None:
    result = run_json(run, "generate", PROMPT, "-n", str(n))
    assert len(result["ids"]) == n
    status, _, err = run("generate", PROMPT, "-n", str(n))
    assert status == 0
    assert ("no tokens", "1 token in 1 pass", "2 tokens in")[n] in err


def test_seeds_repeat_and_differ(run: Any) -> None:
    sampled = ("generate", PROMPT, "-n", "30", "--temp", "1")
    first = run_json(run, *sampled, "--seed", "0")
    assert run_json(run, *sampled)["ids"] == first["ids"]
    assert run_json(run, *sampled, "--seed", "1")["ids"] != first["ids"]
    assert "seed 0" in run(*sampled)[2]


@pytest.mark.parametrize("option", [("--top-k", "2"), ("--top-p", "0.3"), ("--temp", "0.4")])
@pytest.mark.parametrize("mode", MODES, ids=" ".join)
def test_every_sampling_option_has_an_effect_in_every_mode(run: Any, option: tuple[str, str], mode: list[str]) -> None:
    arguments = ["generate", PROMPT, "-n", "30", *mode, "--temp", "2", "--seed", "5"]
    assert run_json(run, *arguments)["ids"] != run_json(run, *arguments, *option)["ids"]


@pytest.mark.parametrize("option", [("--top-k", "2"), ("--top-p", "0.3"), ("--temp", "0.4")])
def test_every_sampling_option_has_an_effect_on_texts_written_together(
    run: Any, tmp_path: Path, option: tuple[str, str]
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(f"{PROMPT}\nThe dog\n")
    arguments = ["generate", "--prompts", str(file), "--together", "2", "-n", "20", "-k", "3", "--temp", "2", "--json"]
    one, other = ([json.loads(line)["ids"] for line in run(*arguments, *more)[1].splitlines()] for more in ((), option))
    assert len(one) == len(other) == 2
    assert all(a != b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("prompt", [" ", "\n", "A", "Once"])
def test_prompts_of_one_token_are_the_same_in_every_mode(run: Any, prompt: str) -> None:
    texts = [run_json(run, "generate", prompt, "-n", "12", *mode) for mode in MODES]
    assert {len(text["prompt_ids"]) for text in texts} == {1}
    assert all(text["ids"] == texts[0]["ids"] for text in texts)


def test_a_stop_text_ends_plain_and_speculative_text_alike(run: Any) -> None:
    whole = run_json(run, "generate", PROMPT, "-n", "40")["text"]
    for stop in (whole[7:12], whole[20:21], whole[15:30]):
        sides = [
            run_json(run, "generate", PROMPT, "-n", "40", "--stop", stop, "-d", d) for d in ("none", "story-draft")
        ]
        assert sides[0]["ids"] == sides[1]["ids"]
        for side in sides:
            assert side["finish"] == "stop"
            assert side["text"] == whole[: whole.index(stop)]
        status, out, _ = run("generate", PROMPT, "-n", "40", "--stop", stop)
        assert (status, out) == (0, whole[: whole.index(stop)] + "\n")


def test_the_end_of_the_context_window(run: Any) -> None:
    prompt = "She was happy and " * 125
    sides = [run_json(run, "generate", prompt, "-n", "200", "-d", d) for d in ("none", "story-draft")]
    assert sides[0]["ids"] == sides[1]["ids"]
    for side in sides:
        assert side["finish"] == "context"
        assert len(side["prompt_ids"]) + len(side["ids"]) == 512
    assert "the context window is full" in run("generate", prompt, "-n", "200")[2]


def test_what_has_no_effect_is_noted(run: Any) -> None:
    assert "no effect at temperature 0" in run("generate", PROMPT, "-n", "2", "--top-k", "40")[2]
    assert "ends in a space" in run("generate", "Once ", "-n", "2")[2]
    assert "note" not in run("generate", "Once", "-n", "2", "--top-k", "40", "-t", "1")[2]


def test_where_the_prompt_may_come_from(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(PROMPT.encode() + b"\n")
    first = run("generate", PROMPT, "-n", "5", "-q")
    assert first[2] == ""
    for arguments, stdin in (
        (("-p", PROMPT), b""),
        (("-f", str(file)), b""),
        (("-f", "-"), PROMPT.encode()),
        (("-",), PROMPT.encode() + b"\r\n"),
        ((), PROMPT.encode()),
    ):
        assert run("generate", *arguments, "-n", "5", "-q", stdin=stdin) == first


def test_colours_tell_tokens_apart_and_take_nothing_from_the_text(run: Any, monkeypatch: Any) -> None:
    plain = run("generate", PROMPT, "-n", "40")[1]
    coloured = run("generate", PROMPT, "-n", "40", "--color", "on")[1]
    assert len(set(re.findall(r"\x1b\[[1-9][0-9;]*m", coloured)) - {"\x1b[1m", "\x1b[4m"}) == 3
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert run("generate", PROMPT, "-n", "40")[1] == plain


def test_no_stream_and_verbose(run: Any) -> None:
    plain = run("generate", PROMPT, "-n", "20")
    assert run("generate", PROMPT, "-n", "20", "--no-stream")[1] == plain[1]
    status, out, err = run("generate", PROMPT, "-n", "20", "-v")
    assert (status, out) == (0, plain[1])
    assert len(err.splitlines()) > len(plain[2].splitlines())


# --- compare ---------------------------------------------------------------------------------------


def test_compare_reports_identical_text_and_fewer_passes_than_tokens(run: Any) -> None:
    result = run_json(run, "compare", PROMPT, "-n", "60", "--repetitions", "1")
    assert result["identical"] is True
    assert result["plain"]["ids"] == result["speculative"]["ids"]
    assert result["plain"]["passes"] == len(result["plain"]["ids"])
    assert result["speculative"]["passes"] < len(result["speculative"]["ids"])
    assert result["speedup"] == result["plain"]["seconds"] / result["speculative"]["seconds"]


def test_compare_of_sampled_texts_has_no_verdict(run: Any) -> None:
    result = run_json(run, "compare", PROMPT, "-n", "10", "--repetitions", "1", "--temp", "1")
    assert result["identical"] is None


def test_with_noise_of_a_seed_everyone_writes_the_same_sampled_text(run: Any) -> None:
    sampled = ("--temp", "0.9", "--top-p", "0.95", "--coupling", "gumbel", "-n", "40")
    result = run_json(run, "compare", PROMPT, *sampled, "--repetitions", "1", "--seed", "5")
    assert result["identical"] is True
    plain = run_json(run, "generate", PROMPT, *sampled, "--seed", "5", "-d", "none")
    assert plain["ids"] == result["plain"]["ids"]
    for k in ("1", "7"):
        assert run_json(run, "generate", PROMPT, *sampled, "--seed", "5", "-k", k)["ids"] == plain["ids"]
    assert run_json(run, "generate", PROMPT, *sampled, "--seed", "6")["ids"] != plain["ids"]
    assert "same text, token for token" in run("compare", PROMPT, *sampled, "--repetitions", "1")[1]


def test_a_coupling_without_sampling_is_told_to_have_no_effect(run: Any) -> None:
    assert "--coupling has no effect at temperature 0" in run("generate", PROMPT, "-n", "2", "--coupling", "gumbel")[2]
    assert "no effect" not in run("generate", PROMPT, "-n", "2", "--coupling", "gumbel", "--temp", "1")[2]


def test_compare_as_a_table(run: Any) -> None:
    status, out, _ = run("compare", PROMPT, "-n", "20", "--repetitions", "2", "-v")
    assert status == 0
    assert "same text, token for token; speed-up " in out
    status, out, _ = run("compare", PROMPT, "-n", "5", "--repetitions", "1", "--temp", "1", "--seed", "9")
    assert "seed 9" in out


def test_compare_fails_when_the_texts_differ(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from minispec import speculative

    real = speculative.judge

    def faulty(*arguments: Any) -> Any:
        for token, accepted in real(*arguments):
            yield (token if accepted else 7), accepted

    monkeypatch.setattr(speculative, "judge", faulty)
    status, out, _ = run("compare", PROMPT, "-n", "20", "--repetitions", "1")
    assert status == 1
    assert "THE TEXTS DIFFER" in out


def test_a_prompt_that_is_there_twice_is_answered_twice(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(f"{PROMPT}\nThe dog\n{PROMPT}\n")
    status, out, _ = run("generate", "--prompts", str(file), "-n", "4", "--json", "-q")
    assert status == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["line 1", "line 2", "line 3"]


# --- wrong use and input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", PROMPT, "-m", "story-targe"], "story-target"),
        (["generate", PROMPT, "-d", "./nowhere"], "nowhere"),
        (["generate", PROMPT, "-m", "./nowhere", "-d", "none"], "nowhere"),
        (["generate", PROMPT, "-k", "-1"], "'-1' cannot be used: give an integer, 0 or more"),
        (["generate", PROMPT, "--prompts", "x.txt"], "prompts are given twice, by --prompts and PROMPT: give one"),
        (["generate", "--prompts", "x.txt", "-v"], "--verbose shows one text as it is written: leave out --prompts"),
        (["generate", "--prompts", "no/such.txt"], "no/such.txt: No such file or directory: give a file with a prompt"),
        (["generate", "--prompts", "~nobody-of-this-name/x"], "no home folder is known for ~nobody-of-this-name"),
        (["simulate", "--target-probs", "@~nobody-of-this-name/x", "--draft-probs", "1"], "no home folder is known"),
        (["bench", "--random", "gpt2", "--folder", "~nobody-of-this-name/x"], "no home folder is known"),
        (["theory", "-m", ""], "no model is called ''"),
        (["generate", PROMPT, "-k", "often"], "'often' cannot be used: give an integer, 0 or more, or auto"),
        (["generate", PROMPT, "-n", "1.5"], "'1.5' cannot be used: give an integer"),
        (["generate", PROMPT, "-n", "-1"], "'-1' cannot be used: give an integer, 0 or more"),
        (["generate", PROMPT, "--temperature", "nan"], "'nan' cannot be used: give a number"),
        (["generate", PROMPT, "--temperature", "-1"], "'-1' cannot be used: give a number, 0 or more"),
        (["generate", PROMPT, "--temperature", "inf"], "'inf' cannot be used: give a number"),
        (["generate", PROMPT, "--top-p", "2.5"], "'2.5' cannot be used: give a number, from 0 to 1"),
        (["generate", PROMPT, "--top-k", "-3"], "'-3' cannot be used: give an integer"),
        (["generate", PROMPT, "--seed", "abc"], "'abc' cannot be used: give an integer"),
        (["generate", PROMPT, "--seed", "-1"], "'-1' cannot be used: give an integer, 0 or more"),
        (["generate", PROMPT, "--threads", "0"], "'0' cannot be used: give an integer, 1 or more"),
        (["generate", PROMPT, "--threads", "100000"], "--threads is 100000"),
        (["generate", PROMPT, "--stop", ""], "--stop"),
        (["generate", PROMPT, "-d", ""], "no model is called ''"),
        (["generate", PROMPT, "-m", "story-targett"], "did you mean story-target or story-draft? (or give a hub id"),
        (["generate", PROMPT, "-k", "x" * 5], "'xxxxx' cannot be used"),
        (["generate", PROMPT, "--weights", "int3"], "int3"),
        (["generate", PROMPT, "--backend", "cuda"], "cuda"),
        (["generate", ""], "the prompt is empty"),
        (["generate", "-f", "no-such-file.txt"], "--prompt-file no-such-file.txt: No such file"),
        (["generate", "-f", "."], "--prompt-file .: Is a directory"),
        (["generate", PROMPT, "-p", PROMPT], "the prompt is given twice"),
        (["generate", "word " * 600], "context window of 512"),
        (["generate", PROMPT, "extra"], "extra"),
        (["generate", PROMPT, "--no-such-option"], "--no-such-option"),
        (["compare", PROMPT, "-d", "none"], "compare needs guesses"),
        (["compare", PROMPT, "-k", "0"], "compare needs guesses"),
        (["generate", "Once", "upon", "a"], "in quotes"),
        ([PROMPT], "did you mean: minispec generate"),
        (["compare", PROMPT, "--repetitions", "0"], "'0' cannot be used: give an integer, 1 or more"),
        (["complete", PROMPT], "complete"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(run: Any, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments, "--offline") if arguments[0] in ("generate", "compare") else run(*arguments)
    assert status == 2
    assert out == ""
    (line,) = err.strip().splitlines()
    assert line.startswith("minispec: ")
    assert message in line


def test_empty_and_broken_input_on_a_pipe(run: Any, tmp_path: Path) -> None:
    for data, message in (
        (b"", "the prompt is empty"),
        (b"\n", "the prompt is empty"),
        (b"a\xff", "not UTF-8 (byte 1)"),
    ):
        status, out, err = run("generate", stdin=data)
        assert (status, out) == (2, "")
        assert message in err
    file = tmp_path / "latin1.txt"
    file.write_bytes("caf\u00e9".encode("latin-1"))
    status, _, err = run("generate", "-f", str(file))
    assert status == 2
    assert "latin1.txt is not UTF-8" in err


def test_another_vocabulary_is_refused_before_any_text(run: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "other", TINY, tiny_tensors(TINY, 0))
    letters = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    ids = {letter: i for i, letter in enumerate(letters)}
    (tmp_path / "other" / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (tmp_path / "other" / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    status, out, err = run("generate", PROMPT, "-d", str(tmp_path / "other"))
    assert (status, out) == (2, "")
    assert "4096" in err
    assert "256" in err


def test_a_truncated_file_is_refused_before_any_text(run: Any, tmp_path: Path) -> None:
    import minispec.hub as hub

    source = hub.find_model("story-draft")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    status, out, err = run("generate", PROMPT, "-d", str(tmp_path))
    assert (status, out) == (2, "")
    assert "model.safetensors" in err
    assert "truncated" in err


# --- bench -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a small scripted pair."""
    folder, config = tmp_path_factory.mktemp("scripted"), GPT2Config(2, 2, 64, 128, 700, 256)
    write_scripted_pair((folder / "target", folder / "draft"), (config, config), 0.8)
    return ["-m", str(folder / "target"), "-d", str(folder / "draft"), "--repetitions", "1", "-n", "30", "-k", "2,3"]


def test_bench_measures_every_part(run: Any, scripted: list[str]) -> None:
    result = run_json(run, "bench", *scripted)
    assert result["read_bandwidth_gb_s"] > 0
    assert {(row["model"], row["rows"], row["context"]) for row in result["passes"] if row["weights"] == "f32"} == {
        (name, *case)
        for name in (scripted[1], scripted[3])
        for case in [*((rows, 64) for rows in range(1, 17)), (1, 127)]
    }
    assert [row["num_draft_tokens"] for row in result["costs"]] == list(range(1, 16))
    assert all(row["round"] == pytest.approx(row["guesses"] + row["check"]) for row in result["costs"])
    assert len(result["memory"]) == 3
    assert result["start"][0]["seconds"] > 0
    plain, speculative = result["end_to_end"]
    assert (plain["mode"], speculative["mode"]) == ("plain", "speculative")
    assert plain["same_text"] is speculative["same_text"] is True
    assert speculative["num_draft_tokens"] in (2, 3)
    assert speculative["tokens_per_pass"] > 1
    assert [row["num_draft_tokens"] for row in result["draft_lengths"]] == [2, 3]
    assert [(row["tokens"], row["num_draft_tokens"]) for row in result["short"]] == [(1, 3), (2, 3), (4, 3), (8, 3)]
    assert "batch" not in result


def test_bench_writes_batches_where_they_are_asked_for(run: Any, scripted: list[str]) -> None:
    result = run_json(run, "bench", *scripted, "--only", "batch", "--batch", "3,1")
    assert [(row["texts"], row["num_draft_tokens"]) for row in result["batch"]] == [(1, 2), (1, 3), (3, 2), (3, 3)]
    assert all(row["same_text"] for row in result["batch"])
    (said,) = result["notes"]
    assert "speculation pays for " in said


def test_bench_prints_tables(run: Any, scripted: list[str]) -> None:
    status, out, err = run("bench", *scripted, "--only", "end-to-end", "-d", "none", "-q")
    assert (status, err) == (0, "")
    assert "| plain |" in out
    assert "speculative" not in out
    assert "Read bandwidth" in out
    status, out, _ = run("bench", *scripted, "--only", "bandwidth", "--output", "csv")
    assert out.startswith("part,row,name,value\nread_bandwidth_gb_s,1,read_bandwidth_gb_s,")
    assert run_json(run, "bench", *scripted, "--only", "bandwidth")["passes"] == []


def test_bench_makes_up_what_it_needs(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = GPT2Config(1, 2, 64, 128, 700, 256)
    monkeypatch.setattr("minispec.made_up.shape_of", lambda _: config)
    few = ["--folder", str(tmp_path), "--repetitions", "1", "--only", "end-to-end", "-n", "20", "-k", "3"]
    one = run_json(run, "bench", "--random", "gpt2-medium", *few)
    assert [row["mode"] for row in one["end_to_end"]] == ["plain"]
    assert (one["target"], one["draft"]) == ("random gpt2-medium", None)
    two = run_json(run, "bench", "--scripted", "1", *few)
    assert two["end_to_end"][1]["accept_rate"] == 1
    assert (two["target"], two["draft"]) == ("scripted gpt2-medium", "scripted gpt2")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--random gpt2 --scripted 0.8", "given twice, by --random and --scripted"),
        ("--random gpt2 -m story-target", "given twice, by --random and -m"),
        ("--random gpt3", "no shape is called 'gpt3'"),
        ("--scripted 1.5", "from 0 to 1"),
        ("--scripted 0.8 -d story-draft", "leave out -d"),
        ("--scripted 0.8 --shapes gpt2", "--shapes is 'gpt2': give two"),
        ("--shapes gpt2,gpt2", "add --scripted"),
        ("-k 2,x", "'x' cannot be used"),
        ("-k 0", "1 or more"),
        ("--json --output csv", "both given"),
        ("--only passes --against transformers", "--only end-to-end"),
        ("--only passes --batch 2", "add --only batch"),
        ("--only batch", "add --batch 1,2,4,8,16"),
        ("--batch 2 -d none", "leave out -d none"),
        ("--batch 0", "1 or more"),
        ("--gguf x", "add --against llama.cpp"),
        ("--against llama.cpp", "give --gguf FILE"),
        ("-n 600", "give a smaller -n"),
        ("Once", "bench takes no prompt"),
    ],
)
def test_bench_refuses_in_one_line(run: Any, options: str, message: str) -> None:
    status, out, err = run("bench", *options.split(), "-q")
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert message in line


# --- as a process ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("generate", "--target --model --draft --num-draft-tokens --temp --stop --coupling --json --offline"),
        ("compare", "--target --draft --num-draft-tokens --temp --coupling --repetitions --json"),
        ("verify", "--target --draft --threads --seed --coupling --only --quick --thorough --json"),
        (
            "bench",
            "--target --draft --num-draft-tokens --random --scripted --batch --against --output --repetitions --json",
        ),
        ("simulate", "--target-probs --draft-probs --trials --rule --target --draft --top-k --seed --threads --json"),
        ("theory", "--accept --num-draft-tokens --target-ms --draft-ms --cost-ratio --measured --plot-file --json"),
    ],
)
def test_help_is_quick_to_load_and_names_the_options(command: str, options: str) -> None:
    script = (
        "import sys; from minispec.cli import main\n"
        f"try: main(['{command}', '--help'])\n"
        "finally: print(sorted(set(sys.modules) & {'numpy', 'numba', 'tiktoken', 'huggingface_hub', 'tqdm'}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("[]")
    for option in options.split():
        assert option in result.stdout
    assert ("--num-draft-tokens" in result.stdout) == (command not in ("verify", "simulate"))


@pytest.mark.parametrize("first", ["import minispec", "import minispec.decoding, minispec.plain, minispec.cli"])
def test_the_function_generate_is_what_the_package_exports(first: str) -> None:
    script = f"{first}; from minispec import generate; assert type(generate).__name__ == 'function', generate"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_threads_are_limited_before_numpy_is_imported() -> None:
    script = (
        "import sys, minispec.cli, minispec.options\n"
        "def spy(*_): assert 'numpy' not in sys.modules; sys.exit(7)\n"
        "minispec.options.limit_threads = spy\n"
        "minispec.cli.main([sys.argv[1], '--threads', '1'])"
    )
    for command in ("generate", "compare", "bench", "simulate"):
        assert subprocess.run([sys.executable, "-c", script, command], check=False).returncode == 7


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_threads_are_those_that_were_asked_for() -> None:
    """NumPy's and Numba's, after a pass of each: those that are there, and those that Numba uses."""
    script = (
        "import os, sys\n"
        "from minispec import cli\n"
        "try: cli.main(['generate', 'Once', '-n', '2', '-k', '3', '-q', *sys.argv[1:]])\n"
        "except SystemExit: pass\n"
        "import numpy as np; np.ones((600, 600)) @ np.ones((600, 600))\n"
        "numba = sys.modules.get('numba')\n"
        "print(len(os.listdir('/proc/self/task')), numba and numba.get_num_threads())"
    )

    def counts(*arguments: str) -> list[str]:
        around = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, env=around, check=True)
        return done.stdout.decode().splitlines()[-1].split()

    assert counts("--threads", "1", "--backend", "numpy") == ["1", "None"]
    assert counts("--threads", "1")[1] == "1"


def test_text_is_utf8_whatever_the_locale_says() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = subprocess.run(
        [*MINISPEC, "generate", "Caf\u00e9 \u2014", "-n", "5", "--json"],
        capture_output=True,
        env=environment,
        check=True,
    )
    assert json.loads(result.stdout.decode("utf-8"))["finish"] == "length"


def long_run() -> subprocess.Popen[bytes]:
    """A process that writes for several seconds, and hears SIGINT even if all of this runs in the background."""
    arguments = [*MINISPEC, "generate", PROMPT, "-n", "480", "--backend", "numpy", "-q"]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, preexec_fn=hear)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupt_keeps_the_text_so_far_and_ends_with_130() -> None:
    with long_run() as process:
        assert process.stdout is not None
        first = process.stdout.read(10)  # what is there: text comes as it is written
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first
    assert rest.endswith(b"\n")
    assert err.decode().strip() == "minispec: interrupted"


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_reader_that_goes_away_ends_the_run_quietly() -> None:
    with long_run() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(timeout=60) == 141
    assert err == ""
