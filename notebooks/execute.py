"""Run notebooks and keep what they print and draw: `python notebooks/execute.py [NAME ...]`, all without a name.

A notebook that raises an error, warns, or draws more than MOST_BYTES at once is refused and left as it was. Of outputs
is kept what is the same on every run: no times of execution, no memory addresses, no marks of the machine. So a
notebook that was run twice is the same file, but for the cells that say by a tag in VARIES that theirs are not.

Needs the extra `notebooks`. The tests use the same functions.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
MOST_BYTES = 60_000  # of a picture
PATIENCE = 300  # seconds for a cell
VARIES = {"timing", "weights"}  # cells whose outputs depend on the clock, or on which weights are on this machine
TIDY_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
SVG_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)  # the date, and matplotlib's version
PICTURES = ("image/svg+xml", "image/png")


def find(names: list[str]) -> list[Path]:
    """The notebooks whose file names begin so; all of them where there are no names.

    Raises ValueError for a name that none begins with.
    """
    paths = sorted(FOLDER.glob("*.ipynb"))
    for name in names:
        if not any(path.name.startswith(name) for path in paths):
            raise ValueError(f"no notebook is called {name!r}: they are {', '.join(path.stem for path in paths)}")
    return [path for path in paths if not names or path.name.startswith(tuple(names))]


def read(path: Path) -> Any:
    """A notebook as data."""
    import nbformat

    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def execute(notebook: Any, folder: Path = FOLDER) -> Any:
    """A copy of the notebook, run from top to bottom in a fresh process, and tidied.

    Raises nbclient's CellExecutionError for a cell that raises, ValueError for outputs that are refused.
    """
    from copy import deepcopy

    from nbclient import NotebookClient

    notebook = deepcopy(notebook)
    options: dict[str, Any] = {
        "resources": {"metadata": {"path": str(folder)}},
        "timeout": PATIENCE,
        "kernel_name": "python3",
        "record_timing": False,
        "coalesce_streams": True,  # else the number of pieces that a text comes in depends on the clock
        "extra_arguments": ["--log-level=40"],  # of the kernel: errors alone
    }
    NotebookClient(notebook, **options).execute()
    tidy(notebook)
    check_outputs(notebook)
    return notebook


def tidy(notebook: Any) -> None:
    """Take out what changes from run to run, and from one editor to another."""
    notebook.metadata = TIDY_METADATA
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = {"tags": tags} if tags else {}
        for output in cell.get("outputs", []):
            for holder, key, text in texts(output):
                holder[key] = ADDRESS.sub("0x...", SVG_METADATA.sub("", text))


def texts(output: Any) -> list[tuple[Any, str, str]]:
    """Where an output keeps its texts: what holds it, under which key, and the text."""
    if output.output_type == "stream":
        return [(output, "text", output.text)]
    data = output.get("data", {})
    output.metadata = {}
    return [(data, kind, text) for kind, text in data.items() if isinstance(text, str)]


def check_outputs(notebook: Any) -> None:
    """Raise ValueError for warnings, and for a picture that is too large."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise ValueError(f"cell {number} warns, which a reader would wonder at: {output.text.strip():.200}")
            for kind in PICTURES:
                size = len(output.get("data", {}).get(kind, ""))
                if size > MOST_BYTES:
                    raise ValueError(f"cell {number} draws {size} bytes of {kind}: {MOST_BYTES} are the most")


def shown(cell: Any) -> list[str]:
    """What a reader sees of a cell: its texts, and of a picture that there is one (matplotlib's versions differ)."""
    seen = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        picture = next((kind for kind in PICTURES if kind in data), None)
        seen.append(picture or output.get("text") or data.get("text/plain", ""))
    return seen


def differences(one: Any, other: Any) -> list[str]:
    """Where two runs of a notebook show something else, as one line each; cells with a tag in VARIES only in kind."""
    found = []
    for number, (cell, twin) in enumerate(zip(one.cells, other.cells, strict=True)):
        varies = VARIES & set(cell.metadata.get("tags", []))
        seen, seen_now = shown(cell), shown(twin)
        same = bool(seen) == bool(seen_now) if varies else seen == seen_now
        if not same:
            found.append(f"cell {number} shows {seen_now!r:.300} where {seen!r:.300} is committed")
    return found


def main() -> None:
    """Run the notebooks that are named, and write them back."""
    import nbformat

    try:
        for path in find(sys.argv[1:]):
            print(path.stem, end=" ", flush=True)
            notebook = execute(read(path))
            nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
            print(f"{path.stat().st_size / 1e3:.0f} kB")
    except ValueError as error:
        sys.exit(f"\n{error}")


if __name__ == "__main__":
    main()
