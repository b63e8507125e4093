"""Every notebook runs from top to bottom. Needs the extra `notebooks`."""

from __future__ import annotations

from pathlib import Path

import pytest

REASON = "needs nbclient and ipykernel: pip install -e .[notebooks]"
nbclient = pytest.importorskip("nbclient", reason=REASON)
pytest.importorskip("ipykernel", reason=REASON)
NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_its_outputs_are_committed(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    committed = [cell.get("outputs") for cell in notebook.cells if cell.cell_type == "code"]
    assert any(committed)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
