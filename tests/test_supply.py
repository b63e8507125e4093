"""What is run is ours: no text, file or answer becomes code, and what minispec depends on is bounded."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "minispec").rglob("*.py"), *(ROOT / "weights").glob("*.py")])
# Modules that turn bytes into objects of any kind, and the functions that turn texts into code or commands.
UNPICKLERS = {
    "pickle",
    "_pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "code",
    "pty",
}
BY_NAME = {"eval", "exec", "compile", "__import__", "breakpoint", "execfile"}
BY_MODULE = {
    "os": re.compile(r"system|popen|exec.*|spawn.*|posix_spawnp?|startfile"),
    "subprocess": re.compile(r"getoutput|getstatusoutput"),
    "builtins": re.compile("|".join(BY_NAME)),
    "runpy": re.compile(r".*"),
    "asyncio": re.compile(r"create_subprocess_shell"),
}
SAFELY = {"allow_pickle": False, "weights_only": True, "shell": False}  # the values that these arguments may have
NEEDS = {"torch": ("load", "weights_only")}  # functions that are safe only with this argument
KNOWN = {"kept.py": ["pickle"]}  # as Numba's own cache does with compiled code: see SECURITY.md


def dangers(source: str) -> Iterator[str]:
    """What in a source text could turn data into code, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names if alias.name.split(".")[0] in UNPICKLERS]
            found += [alias.name for alias in node.names if alias.asname and alias.name in {*BY_MODULE, *NEEDS}]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names if not alias.name.endswith("Error")]
            module = node.module or ""
            found = [module] if module.split(".")[0] in UNPICKLERS and names else []
            found += [name for name in names if module in BY_MODULE and BY_MODULE[module].fullmatch(name)]
            found += [name for name in names if NEEDS.get(module, ("",))[0] == name]  # only by its module's name
        elif isinstance(node, ast.Name):
            found = [node.id] if node.id in BY_NAME else []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pattern = BY_MODULE.get(node.value.id)
            found = [node.attr] if pattern and pattern.fullmatch(node.attr) else []
        elif isinstance(node, ast.Call):
            found = list(unsafe_arguments(node)) + list(reached_by_name(node))
        else:
            continue
        yield from (f"line {node.lineno}: {name}" for name in found)


def reached_by_name(call: ast.Call) -> Iterator[str]:
    """Functions of these modules that are looked up by a text: which one, nobody sees here."""
    if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "vars") and call.args:
        of = ast.unparse(call.args[0])
        if of in BY_MODULE or of in NEEDS:
            yield f"{call.func.id} of {of}"


def unsafe_arguments(call: ast.Call) -> Iterator[str]:
    """Arguments that let a library unpickle or start a shell, and those that keep it from it and are missing."""
    for keyword in call.keywords:
        if keyword.arg in SAFELY:
            value = keyword.value
            if not (isinstance(value, ast.Constant) and value.value is SAFELY[keyword.arg]):
                yield f"{keyword.arg}={ast.unparse(value)}"
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        function, argument = NEEDS.get(call.func.value.id, ("", ""))
        if call.func.attr == function and argument not in {keyword.arg for keyword in call.keywords}:
            yield f"{call.func.value.id}.{function} without {argument}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_in_the_package_turns_data_into_code(path: Path) -> None:
    found = [danger.split(": ")[1] for danger in dangers(path.read_text(encoding="utf-8"))]
    assert found == KNOWN.get(path.name, [])


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "from pickle import loads, UnpicklingError",
        "import marshal",
        "import cloudpickle.compat",
        "eval(text)",
        "f = eval",
        "import builtins; builtins.exec(text)",
        "exec(text, {})",
        "compile(text, '', 'exec')",
        "__import__(name)",
        "import os; os.system(line)",
        "from os import popen",
        "import os; os.execv(path, arguments)",
        "import subprocess; subprocess.run(line, shell=True)",
        "import subprocess; subprocess.run(line, shell=wanted)",
        "import subprocess; subprocess.getoutput(line)",
        "import numpy as np; np.load(file, allow_pickle=True)",
        "import torch; torch.load(file)",
        "import torch; torch.load(file, weights_only=False)",
        "import runpy; runpy.run_path(path)",
        "from torch import load; load(file)",
        "import torch as t; t.load(file)",
        "import os as o; o.system(line)",
        "import builtins; getattr(builtins, name)(text)",
    ],
)
def test_a_danger_is_seen(source: str) -> None:
    assert list(dangers(source))


@pytest.mark.parametrize(
    "source",
    [
        "from pickle import UnpicklingError",
        "import re; re.compile('x')",
        "model.eval()",
        "import subprocess; subprocess.run([program, line])",
        "import subprocess; subprocess.run([program], shell=False)",
        "import numpy as np; np.load(file)",
        "import torch; torch.load(file, weights_only=True)",
        "import os; os.path.exists('x')",
    ],
)
def test_what_is_none_is_let_through(source: str) -> None:
    assert not list(dangers(source))


# --- what minispec depends on ------------------------------------------------------------------------


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
REQUIREMENTS = [
    f"python{PROJECT['requires-python']}",
    *PYPROJECT["build-system"]["requires"],
    *PROJECT["dependencies"],
    *(requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra),
]


@pytest.mark.parametrize("requirement", [one for one in REQUIREMENTS if not one.startswith("minispec[")])
def test_what_is_needed_has_a_lowest_version_and_a_next_one_that_is_kept_out(requirement: str) -> None:
    found = re.fullmatch(r"[\w-]+>=(\d+)\.?(\d*),<(\d+)(\.\d+)?( *;.*)?", requirement)
    assert found, "write it as name>=lowest,<next"
    lowest, next_ = int(found[1]), int(found[3])  # major versions, or years
    assert next_ <= lowest + (4 if lowest > 2000 else 3), "a next version that far off bounds nothing"
