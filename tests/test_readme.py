"""The documents are true: examples print what they say, figures are those of their files, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minispec import __version__
from minispec.bench_batch_speed import BatchSpeed
from minispec.bench_drafters import DrafterRow
from minispec.bench_passes import PassTime
from minispec.bench_texts import Speed

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import blocks  # noqa: E402
import figures  # noqa: E402
import reading  # noqa: E402
import refresh  # noqa: E402

DOCUMENTS = blocks.documents()
EXAMPLES = [block for path in DOCUMENTS for block in blocks.blocks(path)]
REFRESH = "if it ought to print that: python docs/refresh.py"


def name(thing: Any) -> str:
    """The place of a block, or a document's name."""
    return f"{thing.path.name}:{thing.line}" if isinstance(thing, blocks.Block) else thing.name


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# --- examples --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block", [block for block in EXAMPLES if block.kind in ("console", "sh") and not block.left_out], ids=name
)
def test_commands_print_what_they_are_said_to(block: blocks.Block, tmp_path: Path) -> None:
    assert block.commands()
    for command, expected in block.commands():
        status, said = blocks.run_command(command, tmp_path)
        assert status == block.status, said
        assert block.same(expected, said), f"{command}\nprints\n{said}\n{REFRESH}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_python_prints_what_it_is_said_to(path: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    every = [block for block in EXAMPLES if block.path == path]
    for block, after in pairwise([*every, None]):
        if block is None or block.kind != "python" or block.left_out:
            continue
        said = blocks.run_python(block.body, names, tmp_path)
        expected = after.body if after is not None and after.kind == "text" else ""
        assert block.same(expected, said), f"{name(block)} prints\n{said}\n{REFRESH}"


def test_every_example_is_run_or_says_why_not() -> None:
    for block in EXAMPLES:
        assert block.kind in ("console", "python", "text", "sh"), name(block)
        assert block.note or block.kind != "sh", f"{name(block)}: give it as console, or say why it is not run"
        known = block.note in ("", "numbers vary", "only run") or block.status
        assert known or (block.left_out and len(block.note) > len("not run: ")), name(block)
    run = [block for block in EXAMPLES if block.kind == "console" and not block.left_out]
    assert len(run) >= 10
    for path in DOCUMENTS:
        assert len(re.findall(r"^```\w", text_of(path), re.MULTILINE)) == len(list(blocks.blocks(path))), path.name


def test_an_output_that_is_not_true_is_noticed() -> None:
    (block,) = (block for block in EXAMPLES if "theory --accept 0.8" in block.body)
    ((command, expected),) = block.commands()
    _, said = blocks.run_command(command, ROOT)
    assert block.same(expected, said)
    assert not block.same(expected, said.replace("3.951", "3.952"))
    assert not block.same(expected, said.replace("300 tokens", ""))
    assert not block.same(expected.replace("...", ""), said)
    assert not block.same(expected, "")


def test_speeds_are_not_compared_and_all_else_is() -> None:
    compare = "plain   100  100  1     n/a    {}     {}\nspeculative   100     26    {}   72 %   {}   {}"
    one = blocks.mask(compare.format("0.117", "855", "3.85", "0.057", "1,768"))
    assert one == blocks.mask(compare.format("1.234", "99", "3.85", "0.9", "100"))
    assert one != blocks.mask(compare.format("0.117", "855", "3.86", "0.057", "1,768"))
    assert blocks.mask("28 passes, 1,466 tokens/s") == blocks.mask("28 passes, 9 tokens/s")
    assert blocks.mask("28 passes, 1,466 tokens/s") != blocks.mask("27 passes, 1,466 tokens/s")
    assert blocks.mask("a 28, b", numbers_vary=True) == blocks.mask("a 1,029, b", numbers_vary=True)
    assert blocks.mask("a 28, b", numbers_vary=True) != blocks.mask("a 28, c", numbers_vary=True)


def test_outputs_are_cut_down_as_they_were() -> None:
    new = "1\n2\n3\n4\n5\n"
    for old, cut in [("a\n...\n", "1\n...\n"), ("...\nb\n", "...\n5\n"), ("a\n...\nb\nc\n", "1\n...\n4\n5\n"),
                     ("...\n3\n4\n...\n", "...\n3\n4\n...\n"), ("a\nb\n", new)]:  # fmt: skip
        assert refresh.cut_down(old, new) == cut
    assert blocks.alike(["a", "...", "c"], ["a", "b", "b", "c"])
    assert blocks.alike(["a", "...", "c"], ["a", "c"])
    assert not blocks.alike(["a", "...", "c"], ["a", "b"])


def test_refresh_writes_what_is_true_and_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.md"
    monkeypatch.setattr(blocks, "documents", lambda: [path])
    true = "```console\n$ minispec theory --accept 0.8 -k 6 -q\n...\nspeed-up           2.47\n...\n```\n\n"
    true += "```python\nprint(2 + 2, '9.9 s')\n```\n\n```text\n4 1.2 s\n```\n"
    for wrong in (true, true.replace("2.47", "9.99"), true.replace("4 1.2", "5 1.2")):
        path.write_text(wrong, encoding="utf-8")
        assert refresh.main(["--check"]) == (wrong != true)
        assert path.read_text(encoding="utf-8") == wrong
        assert refresh.main([]) == 0
        assert path.read_text(encoding="utf-8") in (true, true.replace("1.2 s", "9.9 s"))
    capsys.readouterr()


# --- figures, files, links -------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_tables_are_those_of_their_files(path: Path) -> None:
    assert figures.refreshed(text_of(path)) == text_of(path), "python docs/refresh.py makes them anew"
    assert text_of(path).count("<!-- figures ") == len(figures.TABLE.findall(text_of(path)))


def test_there_is_a_file_for_every_table_and_a_way_to_make_it() -> None:
    assert figures.missing() == []
    with pytest.raises(ValueError, match="is missing: "):
        figures.make("nothing")


def test_tables_can_be_made_of_what_bench_writes() -> None:
    """The files at hand may have fewer fields; those that come have the fields of these rows."""
    plain = Speed("minispec", "plain", 0, 128, 1.0, 128.0, 1.0, 1.0, None, 1.0, 0.1, True)
    fast = replace(plain, mode="speculative", num_draft_tokens=4, speedup=2.0, tokens_per_second=256.0)
    report = {"end_to_end": [asdict(plain), asdict(fast)], "draft_weights": "int8"}
    assert "| minispec | 128.0 |  | 256.0 |  | **2.00** | int8 |" in figures.against(report)
    way = DrafterRow("eagle", 4, 2.0, None, [0.5, None], None, 1_500_000, "heads", 1.5, None, True)
    assert "| `eagle` | 1.5 |  | 2.00 |  | 50 - | 1.50 |  | heads |" in figures.drafters({"drafters": [asdict(way)]})
    slow = BatchSpeed(2, 2, 6, 9, 5, 50.0, 60.0, 1.8, 1.2, 0.2, 1.2, 1.3, True)
    batch = figures.batch({"batch": [asdict(slow), asdict(replace(slow, num_draft_tokens=4, speedup=1.4))]})
    assert "| 2 | 4 | 6 | 50 | 60 | 1.20 + 0.20 | 1.40 |" in batch
    cases = [(weights, rows) for weights in ("f32", "int8") for rows in (1, 2)]
    passes = [asdict(PassTime("gpt2", weights, rows, 64, 0.1, 0.9, float(rows))) for weights, rows in cases]
    curve = figures.curve([{"passes": passes, "read_bandwidth_gb_s": 33.3}])
    assert curve.endswith("| rows | 1 | 2 |\n| --- | ---: | ---: |\n| gpt2 f32, memory at 33 GB/s | 1.00 | 2.00 |\n")


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_lengths_of_files_are_nearly_right(path: Path) -> None:
    for files, said in reading.rows(text_of(path)):
        assert reading.is_close(said, reading.n_lines(files)), f"{files[0].name}: python docs/refresh.py counts again"
    assert text_of(path).count("<!-- files -->") == len(reading.TABLE.findall(text_of(path)))


def test_every_file_of_the_package_has_its_place_in_the_reading_order() -> None:
    missing = [str(path.relative_to(ROOT)) for path in reading.unnamed(DOCUMENTS)]
    assert missing == [], "give each a row in docs/code.md, and run python docs/refresh.py"


def anchors(path: Path) -> set[str]:
    """What a document's headings are called in links."""
    heads = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", sorted({*DOCUMENTS, *ROOT.glob("*.md")}), ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(path)):
        if not link.startswith("https://"):
            file, _, anchor = link.partition("#")
            there = path.parent / file if file else path
            assert there.exists(), link
            assert not anchor or anchor in anchors(there), link


# --- CONTRIBUTING, CHANGELOG, CITATION ---------------------------------------------------------------


def followers(folder: Path, change: tuple[str, str] = ("", "")) -> subprocess.CompletedProcess[str]:
    """The new drafter of CONTRIBUTING.md under its test, as they stand there, with one passage changed."""
    files = {block.note.removeprefix("a file: "): block.body for block in EXAMPLES}
    drafter, test = files["followers.py"], files["test_followers.py"]
    assert len(drafter.splitlines()) < 40, "it is said to have fewer"
    assert drafter.count(change[0]) == 1 or not change[0]
    (folder / "followers.py").write_text(drafter.replace(*change) if change[0] else drafter, encoding="utf-8")
    place = "import sys, followers\nsys.modules['minispec.drafters.followers'] = followers\n"
    (folder / "test_followers.py").write_text(place + test, encoding="utf-8")
    paths = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT / 'tests')!r}, {str(ROOT)!r}]; "
    run = "import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir=.', 'test_followers.py']))"
    return subprocess.run([sys.executable, "-c", paths + run], cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_new_drafter_of_contributing_passes_its_test(tmp_path: Path) -> None:
    child = followers(tmp_path)
    assert child.returncode == 0, child.stdout + child.stderr
    assert "3 passed" in child.stdout


def test_the_new_drafter_of_contributing_fails_its_test_if_it_tells_another_law(tmp_path: Path) -> None:
    wrong = "\n    def draft(self, *given, **named):\n        draft = super().draft(*given, **named)\n"
    wrong += "        return type(draft)(draft.tokens, [probs * 0.5 + 0.5 / 3 for probs in draft.probs])\n\n"
    child = followers(tmp_path, ("    def forget(self)", wrong + "    def forget(self)"))
    assert child.returncode == 1
    assert "FAILED test_followers.py::test_the_law_is_the_targets" in child.stdout


def test_versions_are_the_same_everywhere() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == __version__
    assert f"\nversion: {__version__}\n" in text_of(ROOT / "CITATION.cff")
    assert __version__ in text_of(ROOT / "CHANGELOG.md")
