"""`minispec theory` as users and scripts meet it: the published table, JSON, CSV, plots, one line for every fault."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from checkpoints import TINY, tiny_tensors, write_checkpoint

ANSWER = ["expected_tokens", "speedup", "best_k", "best_speedup", "break_even_accept"]
FREE = ["--cost-ratio", "0"]
ONE = ["--accept", "0.8", "-k", "6", "--target-ms", "40", "--draft-ms", "4"]
SLOPE = (0.0, 1.0, *(1 + 0.1 * i for i in range(1, 16)))  # v(rows) = 1 + 0.1 (rows - 1)


@dataclass(frozen=True)
class Measured:
    """Costs as minispec.costs has them."""

    guess: float
    check: tuple[float, ...]
    reread: float
    pass_seconds: float
    first: float = 0.0

    def curve(self, rows: int) -> float:
        return self.check[rows] if rows < len(self.check) else self.check[-1] + 0.1 * (rows - len(self.check) + 1)


COSTS = Measured(guess=0.1, check=SLOPE, reread=0.0, pass_seconds=0.040)


@pytest.fixture
def run(run: Any) -> Any:
    """Run `minispec theory` in this process: (status, standard output, standard error)."""
    return partial(run, "theory")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a guess costs 0.1 of a pass of 40 ms, and each row that is checked 0.1 more."""
    monkeypatch.setattr("minispec.commands.theory.measure", lambda settings, quiet: COSTS)


def as_json(run: Any, *arguments: str) -> dict[str, Any]:
    status, out, _ = run(*arguments, "--json")
    assert status == 0
    result: dict[str, Any] = json.loads(out)
    return result


def table(text: str) -> dict[str, list[str]]:
    """The first Markdown table of a text: the cells of each line by the first of them."""
    lines = [line.strip("| ").split("|") for line in text.split("\n\n")[1].splitlines()]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_without_options_it_prints_the_published_table(run: Any) -> None:
    status, out, err = run()
    assert status == 0
    rows = table(out)
    assert rows["accept rate"] == ["k=4", "k=6", "k=8", "k=12", "best k", "300 tokens, s"]
    assert rows["0.95"][:5] == ["3.23", "3.77", "4.11", "4.42", "15: 4.48"]
    assert rows["0.9"][:5] == ["2.93", "3.26", "3.40", "3.39", "10: 3.43"]
    assert rows["0.8"][:5] == ["2.40", "2.47", "2.40", "2.15", "6: 2.47"]
    assert rows["0.7"][:5] == ["1.98", "1.91", "1.78", "1.50", "4: 1.98"]
    assert rows["0.5"][:5] == ["1.38", "1.24", "1.11", "0.91", "2: 1.46"]
    assert rows["0.3"][:5] == ["1.02", "0.89", "0.79", "0.65", "1: 1.18"]
    assert rows["0.8"][5] == "4.86"
    assert rows["breaks even at"][1] == "0.3757"
    assert "a target pass takes 40 ms, a draft pass 4 ms; 300 tokens take 12.0 s plainly" in out
    assert list(rows)[2:] == ["0.95", "0.9", "0.8", "0.7", "0.5", "0.3", "breaks even at"]
    assert "--measured takes real costs" in err
    assert run("-q") == (0, out, "")


def test_one_answer_in_lines(run: Any) -> None:
    status, out, _ = run(*ONE)
    assert status == 0
    for line in (
        "6 guesses a round, each kept with chance 0.8; a target pass takes 40 ms, a draft pass 4 ms",
        "tokens a round     3.951  (49 % of all guesses kept)",
        "a round            64 ms, plainly 158.1 ms",
        "speed-up           2.47",
        "best draft length  6: 2.47",
        "breaks even at     0.3757",
        "300 tokens         4.86 s, plainly 12.0 s",
        "gpt2-medium f32: 355 M parameters, 1.419 GB, and 0.201 GB for a full cache",
        "gpt2 f32: 124 M parameters, 0.498 GB, and 0.075 GB for a full cache",
        "together: 2.194 GB",
    ):
        assert line in out.splitlines()


def test_json_has_the_keys_of_the_contract(run: Any) -> None:
    result = as_json(run, *ONE)
    assert set(ANSWER) <= set(result)
    assert [round(result[key], 4) for key in ANSWER] == [3.9514, 2.4696, 6, 2.4696, 0.3757]
    assert (result["accept"], result["num_draft_tokens"]) == (0.8, 6)
    assert (result["target_ms"], result["draft_ms"], result["cost_ratio"]) == (40, 4, 0.1)
    assert result["round_cost"] * 40 == pytest.approx(64)
    assert (round(result["seconds"], 2), result["plain_seconds"], result["max_new_tokens"]) == (4.86, 12, 300)
    assert [cell["num_draft_tokens"] for cell in result["cells"]] == [6]
    assert (result["curve"], result["reread"], result["first"]) == (None, None, None)
    assert [(model["model"], model["weights"]) for model in result["memory"]] == [
        ("gpt2-medium", "f32"), ("gpt2", "f32"),
    ]  # fmt: skip


def test_json_of_a_table_has_its_cells(run: Any) -> None:
    result = as_json(run, "--accept", "0.5,0.8", "-k", "6,0,2")
    assert not set(ANSWER) & set(result)
    pairs = [(cell["accept"], cell["num_draft_tokens"]) for cell in result["cells"]]
    assert pairs == [(0.8, 0), (0.8, 2), (0.8, 6), (0.5, 0), (0.5, 2), (0.5, 6)]
    assert set(ANSWER) <= set(result["cells"][0])
    assert (result["cells"][0]["speedup"], result["cells"][0]["kept_share"]) == (1, None)


def test_a_ratio_instead_of_times(run: Any) -> None:
    free, as_ratio = (as_json(run, "--accept", "0.8", "-k", "6", *cost) for cost in (["--draft-ms", "0"], FREE))
    assert [free[key] for key in ANSWER] == [as_ratio[key] for key in ANSWER]
    one, other = as_json(run, *ONE), as_json(run, "--accept", "0.8", "-k", "6", "--cost-ratio", "0.1")
    assert [one[key] for key in ANSWER] == [other[key] for key in ANSWER]
    assert (other["target_ms"], other["draft_ms"], other["seconds"], other["plain_seconds"]) == (None,) * 4
    _, out, _ = run("--accept", "0.8", "-k", "6", "--cost-ratio", "0.1")
    assert "a guess costs 0.1 of a target pass" in out
    assert "a round            1.6 passes, plainly 3.951 passes" in out
    assert " s," not in out
    assert "300 tokens" not in run("--cost-ratio", "0.1")[1]


def test_csv_has_a_line_for_each_cell(run: Any) -> None:
    status, out, _ = run("--accept", "0.8,0.5", "-k", "4,6", "--output", "csv")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["accept"], row["num_draft_tokens"], row["speedup"][:4]) for row in rows] == [
        ("0.8", "4", "2.40"), ("0.8", "6", "2.46"), ("0.5", "4", "1.38"), ("0.5", "6", "1.24"),
    ]  # fmt: skip
    assert set(ANSWER) <= set(rows[0])
    assert run("--output", "json")[1] == run("--json")[1]


def test_a_length_that_never_pays_and_one_that_always_does(run: Any) -> None:
    assert table(run("--accept", "0.3,1", "-k", "4", "--cost-ratio", "1.5")[1])["breaks even at"][0] == "never"
    assert as_json(run, "--accept", "1", "-k", "4", "--cost-ratio", "1.5")["break_even_accept"] is None
    free = as_json(run, "--accept", "0", "-k", "4", "--cost-ratio", "0")
    assert (free["break_even_accept"], free["speedup"], free["best_k"]) == (0, 1, 0)


def test_the_longest_draft_is_a_limit_of_the_best(run: Any) -> None:
    assert as_json(run, "--accept", "1", "-k", "4")["best_k"] == 64
    assert as_json(run, "--accept", "1", "-k", "4", "--most", "7")["best_k"] == 7
    assert as_json(run, "--accept", "1", "-k", "900")["best_k"] == 900
    assert "a best k of 7 is where the search ended" in run("--accept", "1", "--most", "7")[2]
    assert "where the search ended" not in run()[2]


# --- measured costs ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("measured")
def test_measured_costs_stand_beside_the_textbook(run: Any) -> None:
    """By hand: six guesses at 0.1, and seven rows that cost 1.6 instead of 1."""
    result = as_json(run, "--measured", "--accept", "0.8", "-k", "6")
    textbook, ours = as_json(run, *ONE), result["measured"]
    assert [result[key] for key in ANSWER] == [textbook[key] for key in ANSWER]
    assert ours["round_cost"] == pytest.approx(2.2)
    assert ours["speedup"] == pytest.approx(3.951424 / 2.2)
    assert ours["seconds"] == pytest.approx(300 * 0.040 * 2.2 / 3.951424)
    assert ours["best_k"] == 4  # 3.3616 tokens at 1.8; 2.952 at 1.6 and 3.68928 at 2.0 are less
    assert ours["break_even_accept"] > textbook["break_even_accept"]
    assert (result["target_ms"], result["cost_ratio"]) == (40, 0.1)
    assert [point["rows"] for point in result["curve"]] == list(range(1, 17))
    assert [point["v"] for point in result["curve"]] == list(SLOPE[1:])
    assert [model["model"] for model in result["memory"]] == ["story-target", "story-draft"]


@pytest.mark.usefixtures("measured")
def test_measured_costs_in_text_and_csv(run: Any) -> None:
    status, out, err = run("--measured", "--accept", "0.8", "-k", "6")
    assert status == 0
    for line in (
        "textbook / with the measured curve",
        "a round            64 / 88 ms, plainly 158.1 ms",
        "speed-up           2.47 / 1.80",
        "best draft length  6: 2.47 / 4: 1.87",
        "300 tokens         4.86 / 6.68 s, plainly 12.0 s",
    ):
        assert line in out.splitlines()
    assert "|    v | 1.00 | 1.10 | 1.20 |" in out
    assert err == ""
    _, out, err = run("--measured", "-k", "6,16")
    assert table(out)["0.8"][0] == "2.47 / 1.80"
    assert "v was measured up to 16 rows" in err
    rows = list(csv.DictReader(io.StringIO(run("--measured", "--output", "csv")[1])))
    assert {"speedup", "measured_speedup", "measured_best_k"} <= set(rows[0])


def test_threads_are_limited_before_numpy_is_imported() -> None:
    script = (
        "import sys, minispec.cli, minispec.options\n"
        "def spy(*_): assert 'numpy' not in sys.modules; sys.exit(7)\n"
        "minispec.options.limit_threads = spy\n"
        "minispec.cli.main(['theory', '--measured', '--threads', '1', '--plot'])"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 7


def test_measured_costs_of_the_pair_in_the_box(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really measured, and kept: what it says is a matter of the machine, but each figure has its place."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    first = as_json(run, "--measured", "--accept", "0.8", "-k", "4", "-q")
    assert first["target_ms"] > first["draft_ms"] > 0
    assert first["curve"][0] == {"rows": 1, "v": 1.0}
    assert first["measured"]["round_cost"] > 4 * first["cost_ratio"]
    assert as_json(run, "--measured", "--accept", "0.8", "-k", "4", "-q") == first


# --- memory ------------------------------------------------------------------------------------------


def test_memory_of_models_that_are_named(run: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, tiny_tensors(TINY, 0))
    (tmp_path / "model.safetensors").unlink()  # its config.json says enough
    options = ["-m", str(tmp_path), "-d", "openai-community/gpt2", "--draft-weights", "int8"]
    target, draft = as_json(run, *options)["memory"]
    n_parameters = sum(tensor.size for tensor in tiny_tensors(TINY, 0).values())
    assert (target["parameters"], target["weight_bytes"]) == (n_parameters, 4 * n_parameters)
    assert (draft["model"], draft["weights"]) == ("openai-community/gpt2", "int8")
    assert 124e6 < draft["weight_bytes"] < 128e6
    (alone,) = as_json(run, "-m", "gpt2", "-d", "none")["memory"]
    assert alone["model"] == "gpt2"
    assert len(as_json(run, "-m", "gpt2", "-d", "gpt2")["memory"]) == 2


# --- plots -------------------------------------------------------------------------------------------


def test_plots_in_the_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "UTF-8")
    monkeypatch.setenv("COLUMNS", "70")
    _, plain, _ = run(*ONE)
    _, out, _ = run(*ONE, "--plot")
    assert out.startswith(plain)
    assert any(0x2800 < ord(letter) < 0x2900 for letter in out)
    lines = out[len(plain) :].splitlines()
    assert max(map(len, lines)) <= 70
    assert "speed-up over plain decoding, textbook, by accept rate" in lines
    assert sum(line.endswith(" 0.8") for line in lines) == 1
    _, out, _ = run("--plot", "ascii")
    assert out.isascii()
    for end in ("a 0.95", "b 0.9", "f 0.3"):
        assert sum(line.endswith(f" {end}") for line in out.splitlines()) == 1
    if sys.platform != "win32":
        monkeypatch.setattr("locale.getencoding", lambda: "ISO-8859-1")
        assert run("--plot")[1] == out


@pytest.mark.usefixtures("measured")
def test_both_views_are_drawn_with_one_scale(run: Any) -> None:
    _, out, _ = run("--measured", *ONE[:4], "--plot", "ascii")
    plots = [plot.splitlines() for plot in out.split("speed-up over plain decoding, ")[1:]]
    assert [lines[0] for lines in plots] == ["textbook, by accept rate", "measured, by accept rate"]
    scales = [[line.split("|")[0].split("+")[0].strip() for line in lines[1:17]] for lines in plots]
    assert scales[0] == scales[1]


def test_a_plot_in_a_file(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plot.svg"
    status, out, _ = run("--plot-file", str(file), "--json")
    assert status == 0
    assert json.loads(out)["cells"]
    assert file.read_text(encoding="utf-8").count("<svg") == 1


# --- drafting while checking ---------------------------------------------------------------------------


def test_overlap_by_accept_rate_and_interference(run: Any) -> None:
    status, out, _ = run("--overlap", "--accept", "0.9,0.6")
    assert status == 0
    rows = table(out)
    head = [name for name in rows if name.startswith("accept")]
    assert rows[head[0]] == [
        "sequential", "overlapped, x1", "overlapped, x1.25", "overlapped, x1.5", "overlapped, x2",
    ]  # fmt: skip
    assert rows["0.9"][0] == "10: 3.43"  # as without --overlap
    speeds = [float(cell.split(": ")[1]) for cell in rows["0.9"]]
    assert speeds[1] > speeds[0] > speeds[4]
    assert sorted(speeds[1:], reverse=True) == speeds[1:]
    assert "target |" not in out


def test_overlap_of_one_case_is_simulated_and_drawn(run: Any) -> None:
    _, out, _ = run("--overlap", "--accept", "0.8", "-k", "6")
    assert "\nsequential: speed-up 2.4" in out  # 2.47
    assert "\noverlapped: speed-up 2.3" in out  # by the formula 2.40
    assert len([line for line in out.splitlines() if line.startswith(("target  |", "draft   |"))]) >= 3
    assert max(map(len, out.split("overlapped: speed-up")[-1].splitlines()[1:4])) <= 80
    found = as_json(run, "--overlap", "--accept", "0.8", "-k", "6", "--interference", "1")
    (cell,) = found["cells"]
    assert (cell["sequential_k"], round(cell["sequential_speedup"], 4)) == (6, 2.4696)
    first, second = found["timelines"]
    assert [(span["worker"], round(span["end"], 9)) for span in first["spans"][:2]] == [("draft", 0.6), ("target", 1.6)]
    assert [(span["worker"], round(span["end"], 9), span["mode"]) for span in second["spans"][:2]] == [
        ("draft", 0.6, "pre-verify"), ("target", 1.0, "pre-verify"),
    ]  # fmt: skip
    status, out, _ = run("--overlap", "--output", "csv")
    assert (status, len(out.splitlines())) == (0, 1 + 6 * 4)


@pytest.mark.usefixtures("measured")
def test_overlap_by_measured_costs(run: Any) -> None:
    """v(rows) = 1 + 0.1 (rows - 1): with all guesses kept, k of them take max(0.1 k, 0.9 + 0.1 k)."""
    (cell,) = as_json(run, "--overlap", "--measured", "--accept", "1", "-k", "5", "--interference", "1")["cells"]
    assert cell["overlapped_speedup"] == pytest.approx(5 / 1.4)
    assert "costs measured here" in run("--overlap", "--measured")[1]


# --- wrong use ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--accept 1.5", "'1.5' cannot be used: give a number, from 0 to 1"),
        ("--accept 0.5,-0.1", "'-0.1' cannot be used"),
        ("--accept nan", "'nan' cannot be used"),
        ("--interference 2", "--interference is between drafter and target that work at once: add --overlap"),
        ("--overlap --interference 0.5", "'0.5' cannot be used: give a number, from 1 to 1000"),
        ("--overlap --plot", "--plot draws the sequential schedule alone: leave out --overlap"),
        ("--accept 0.5,,0.8", "'' cannot be used"),
        ("--accept x", "'x' cannot be used"),
        ("-k -1", "'-1' cannot be used: give an integer, from 0 to 1000"),
        ("-k 2.5", "'2.5' cannot be used"),
        ("-k 1001", "from 0 to 1000"),
        (f"-k {10**400}", "from 0 to 1000"),
        ("--target-ms 0", "'0' cannot be used: give a number, from 0.001"),
        ("--draft-ms -4", "'-4' cannot be used: give a number, from 0 to"),
        ("--target-ms inf", "'inf' cannot be used"),
        ("--cost-ratio -1", "'-1' cannot be used"),
        ("--cost-ratio nan", "'nan' cannot be used"),
        ("--cost-ratio 0.1 --target-ms 40", "--target-ms and --cost-ratio both say what a guess costs: give one"),
        ("--cost-ratio 0.1 --draft-ms 40", "--draft-ms and --cost-ratio both"),
        ("--cost-ratio 0.1 --measured", "--cost-ratio and --measured both say what passes cost: give one"),
        ("--target-ms 40 --measured", "--target-ms and --measured both"),
        ("--measured -d none", "--measured needs a draft to time: leave out -d none"),
        ("--threads 1", "--threads changes nothing that is not measured: add --measured"),
        ("--backend numpy", "--backend changes nothing that is not measured"),
        ("-n -1", "'-1' cannot be used"),
        ("--most 0", "'0' cannot be used"),
        ("--json --output csv", "both given"),
        ("--plot --json", "leave out json, or take --plot-file"),
        ("--plot braille", "'braille'"),
        ("--plot -k 1 --accept " + ",".join(f"0.{i}" for i in range(10, 30)), "20 accept rates are too many to draw"),
        ("--plot-file plot.pdf", "'plot.pdf': give it a name that ends in .png or .svg"),
        ("--plot-file nowhere/plot.png", "there is no folder nowhere: make it first"),
        ("-m gpt5", "no model is called 'gpt5'"),
        ("-m nowhere/at-all -d none", "nowhere/at-all is not complete in the cache"),
        ("-m ./nowhere -d none", "does not exist"),
        ("0.8", "unexpected extra argument"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(run: Any, options: str, message: str) -> None:
    if "plot.png" in options:
        pytest.importorskip("matplotlib")
    status, out, err = run(*options.split())
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert line.startswith("minispec: ")
    assert message in line


def test_a_plot_file_without_matplotlib(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minispec.plot_file.find_spec", lambda _: None)
    status, out, err = run("--plot-file", str(tmp_path / "plot.png"))
    assert (status, out) == (2, "")
    assert "needs matplotlib: pip install 'minispec[notebooks]'" in err


@pytest.mark.skipif(os.name == "nt" or getattr(os, "geteuid", int)() == 0, reason="root may write anywhere")
def test_a_plot_file_that_may_not_be_written(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tmp_path.chmod(0o500)
    status, out, err = run("--plot-file", str(tmp_path / "plot.png"))
    assert (status, out) == (2, "")
    assert "plot.png cannot be written" in err
