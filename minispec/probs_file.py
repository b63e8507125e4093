"""Probabilities as people give them: numbers with commas between, or @FILE with many.

A file is a JSON list (.json), a NumPy array (.npy), or a text with numbers between spaces, commas or line ends.
"""

from __future__ import annotations

import json
import warnings
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from minispec.user_path import user_path

MOST_BYTES = 1 << 24  # 65,536 numbers with every digit take 2 MB


def read_probs(option: str, text: str) -> Any:
    """What the option holds, as a list or an array of numbers; whether they are probabilities is not asked here.

    Raises ValueError, in one line that names the option, for what cannot be read or is no number.
    """
    if not text.startswith("@"):
        try:
            return numbers(text.split(",") if text.strip() else [])
        except ValueError as error:
            raise ValueError(f"{option}: {error}: give numbers with commas, or @FILE") from None
    path = Path(text[1:])
    try:
        path = user_path(text[1:])
        if not path.is_file():
            raise ValueError("no such file")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes are more than the {MOST_BYTES} that it may have")
        return _content(path)
    except (OSError, ValueError, OverflowError, RecursionError, EOFError) as error:
        remedy = "give .json (a list), .npy (one axis) or a text with numbers"
        raise ValueError(f"{option} @{path}: {error}: {remedy}") from None


def _content(path: Path) -> Any:
    """A file's list of numbers, by the end of the file's name."""
    if path.suffix == ".npy":
        return _array(path)
    text = path.read_text("utf-8-sig")
    if path.suffix != ".json":
        return numbers(text.replace(",", " ").split())
    content = json.loads(text)
    if not isinstance(content, list):
        raise ValueError(f"holds a JSON {type(content).__name__} and not a list")
    for place, value in enumerate(content):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"place {place} is {value!r:.40}, which is no number")
    return [float(value) for value in content]


def _array(path: Path) -> Any:
    """The array in a .npy file, if it is of numbers and as long as its header says: no pickle, no archive."""
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a header of nonsense looks like to Python's parser
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("not of version 1.0, which numpy.save writes arrays of numbers in")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        except (TokenError, SyntaxError, TypeError, MemoryError, OverflowError) as error:
            raise ValueError(f"its header is damaged ({error!r:.80})") from None
        n_bytes = path.stat().st_size - file.tell()
        if dtype.kind not in "fiu":
            raise ValueError("no array of numbers")
        if min(shape, default=1) < 0 or prod(shape) * dtype.itemsize != n_bytes:
            raise ValueError(f"its header tells of {dtype} in shape {shape!r:.80}, and {n_bytes} bytes follow")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def numbers(words: list[str]) -> list[float]:
    """Words to numbers. Raises ValueError for one that is none."""
    values = []
    for place, word in enumerate(words):
        try:
            values.append(float(word))
        except ValueError:
            raise ValueError(f"{word.strip()!r:.40} at place {place} is no number") from None
    return values
