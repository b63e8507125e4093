"""Every notebook runs from top to bottom and shows what is committed; and each has the same honest shape.

A section makes one claim, draws one figure of it and checks it with `assert`, which nothing may keep from running.
Needs the extra `notebooks`.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

REASON = "needs nbclient, ipykernel and matplotlib: pip install -e .[notebooks]"
for module in ("nbclient", "nbformat", "ipykernel", "matplotlib"):
    pytest.importorskip(module, reason=REASON)
pytest.importorskip("numba", reason="the notebooks show compiled kernels, and Numba is not installed")

import nbclient  # noqa: E402
import nbformat  # noqa: E402

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LAST = "## To check yourself"
pytestmark = pytest.mark.filterwarnings("default")  # of what starts processes and reads notebooks


def load_tool() -> Any:
    """notebooks/execute.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def sections(notebook: Any) -> dict[str, list[Any]]:
    """The cells under each heading of the second level, but those before the first."""
    found: dict[str, list[Any]] = {}
    for cell in notebook.cells:
        if cell.source.startswith("## "):
            found[cell.source.splitlines()[0]] = []
        if found:
            found[list(found)[-1]].append(cell)
    return found


def code_of(cell: Any) -> ast.Module:
    """The syntax tree of a cell, without IPython's own lines."""
    return ast.parse(re.sub(r"(?m)^%.*$", "", cell.source))


def code_cells(cells: list[Any]) -> list[Any]:
    return [cell for cell in cells if cell.cell_type == "code"]


def pictures(cells: list[Any]) -> list[Any]:
    outputs = [output for cell in code_cells(cells) for output in cell.outputs]
    return [output for output in outputs if "image/svg+xml" in output.get("data", {})]


def checks(tree: ast.AST) -> list[ast.Assert]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]


# --- the notebooks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_is_committed(path: Path) -> None:
    committed = tool.read(path)
    assert not tool.differences(committed, tool.execute(committed)), f"python notebooks/execute.py {path.stem}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_section_has_one_figure_and_a_check(path: Path) -> None:
    notebook = tool.read(path)
    *parts, last = sections(notebook).items()
    assert len(parts) >= 3
    for heading, cells in parts:
        assert len(pictures(cells)) == 1, heading
        # In no loop, which may be over nothing.
        statements = [node for cell in code_cells(cells) for node in code_of(cell).body]
        assert any(isinstance(node, ast.Assert) for node in statements), heading
    assert last[0] == LAST
    assert not pictures(notebook.cells[: notebook.cells.index(parts[0][1][0])])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_ends_with_questions_whose_answers_are_folded(path: Path) -> None:
    (cell,) = sections(tool.read(path))[LAST]
    questions, answers = cell.source.split("<details><summary>Answers</summary>")
    numbers = [re.findall(r"(?m)^(\d)\. ", text) for text in (questions, answers)]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) in (2, 3)
    assert answers.strip().endswith("</details>")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_keeps_a_check_from_failing(path: Path) -> None:
    """No error is caught, no comparison is a tuple or a constant, and no condition skips one, unless weights lack."""
    for cell in code_cells(tool.read(path).cells):
        tree = code_of(cell)
        assert not any(isinstance(node, ast.Try | ast.With) and checks(node) for node in ast.walk(tree)), cell.source
        assert not any(isinstance(check.test, ast.Tuple | ast.Constant) for check in checks(tree)), cell.source
        if "weights" not in cell.metadata.get("tags", []):
            assert not any(isinstance(node, ast.If) and checks(node) for node in ast.walk(tree)), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_is_tidy_and_light(path: Path) -> None:
    notebook, tidied = tool.read(path), tool.read(path)
    tool.tidy(tidied)
    tool.check_outputs(tidied)
    assert notebook == tidied
    assert path.stat().st_size < 250_000
    tags = {tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])}
    assert tags <= tool.VARIES


# --- the tool that runs them -------------------------------------------------------------------------


def notebook_of(*sources: str, tags: tuple[str, ...] = ()) -> Any:
    """A notebook with these cells of code."""
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)}) for source in sources]  # type: ignore[no-untyped-call]
    return nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]


def with_output(text: str, kind: str = "text/plain", tags: tuple[str, ...] = ()) -> Any:
    """A notebook that has been run, and shows this."""
    notebook = notebook_of("show()", tags=tags)
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", data={kind: text})]  # type: ignore[no-untyped-call]
    return notebook


def test_what_a_cell_shows_is_compared() -> None:
    assert not tool.differences(with_output("1"), with_output("1"))
    (line,) = tool.differences(with_output("1"), with_output("2"))
    assert line == "cell 0 shows ['2'] where ['1'] is committed"
    assert not tool.differences(with_output("1", tags=("timing",)), with_output("2", tags=("timing",)))


@pytest.mark.parametrize("tags", [(), ("timing",)])
def test_an_output_that_is_missing_is_a_difference(tags: tuple[str, ...]) -> None:
    assert tool.differences(with_output("1", tags=tags), notebook_of("show()", tags=tags))
    assert tool.differences(notebook_of("show()", tags=tags), with_output("1", tags=tags))


def test_of_a_picture_it_matters_that_there_is_one() -> None:
    one, other = (with_output(f"<svg>{i}</svg>", "image/svg+xml") for i in range(2))
    assert not tool.differences(one, other)
    assert tool.differences(one, with_output("a figure"))


def test_addresses_and_dates_are_taken_out() -> None:
    text = "<svg>\n <metadata>\n <dc:date>2026-11-30</dc:date>\n </metadata>\n<g/></svg>"
    pairs = {("text/plain", "<X at 0x7f00a1b2c3d4>"): "<X at 0x...>", ("image/svg+xml", text): "<svg>\n<g/></svg>"}
    for (kind, found), expected in pairs.items():
        notebook = with_output(found, kind)
        notebook.cells[0].metadata["execution"] = {"started": "today"}
        tool.tidy(notebook)
        assert notebook.cells[0].outputs[0]["data"][kind] == expected
        assert notebook.cells[0].metadata == {}
        assert notebook.metadata == tool.TIDY_METADATA


def test_large_pictures_and_warnings_are_refused() -> None:
    tool.check_outputs(with_output("x" * tool.MOST_BYTES, "image/svg+xml"))
    with pytest.raises(ValueError, match=r"cell 0 draws 60001 bytes of image/png: 60000 are the most"):
        tool.check_outputs(with_output("x" * (tool.MOST_BYTES + 1), "image/png"))
    notebook = notebook_of("warn()")
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", name="stderr", text="look out")]  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match=r"cell 0 warns, which a reader would wonder at: look out"):
        tool.check_outputs(notebook)


def test_a_check_that_fails_stops_it_and_the_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "01_wrong.ipynb"
    nbformat.write(notebook_of("x = 1", "assert x == 2"), path)  # type: ignore[no-untyped-call]
    before = path.read_bytes()
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["execute.py"])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="assert x == 2"):
        tool.main()
    assert path.read_bytes() == before


def test_twice_run_it_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "01_right.ipynb"
    figure = '%config InlineBackend.figure_formats = ["svg"]\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);'
    nbformat.write(notebook_of("print(1)\nprint(object())\nprint(3)", figure), path)  # type: ignore[no-untyped-call]
    (tmp_path / "matplotlibrc").write_bytes((FOLDER / "matplotlibrc").read_bytes())
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["execute.py", "01"])
    files = []
    for _ in range(2):
        tool.main()
        files.append(path.read_bytes())
    assert files[0] == files[1]
    assert b"object at 0x..." in files[0]
    assert b"<svg" in files[0]


def test_a_name_that_no_notebook_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["execute.py", "99"])
    with pytest.raises(SystemExit, match=r"no notebook is called '99': they are 01_forward_pass, 02_kv_cache"):
        tool.main()
