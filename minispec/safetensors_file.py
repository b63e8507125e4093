"""Tensors as they lie in safetensors files, read as float32: one file, or shards with an index.

The safetensors library judges each header, so a file is good here exactly if it is good there; the header
is then read once more for the offsets. Values are read a small range at a time, so that needs no more memory than
the values asked for; an offset may be unaligned, and once a model is loaded its file may change or vanish.

Stricter than the library, on purpose:
- a header has at most MOST_HEADER bytes: the library's 100 MB take a gigabyte when they are parsed;
- a file is a regular one (a pipe would be waited for) and no link out of its folder, but for the Hugging Face cache's;
- of the tensors that are asked for, the dtype is F32, F16 or BF16, and every value is finite.

Source: the safetensors format, https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from minispec.json_file import read_json
from minispec.model_files import check_inside

Floats = NDArray[np.float32]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

MOST_HEADER = 1 << 21  # bytes: GPT-2 XL's has 70,000
MOST_INDEX = 1 << 24
MOST_NAME = 255  # bytes of a file's name, on any system
_STORED_AS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # NumPy has no bfloat16: its bits, as integers
_INTEGERS = {"I64": "<i8", "I32": "<i4", "U16": "<u2"}
_CHUNK = 1 << 17  # values converted at a time: they stay in the second-level cache
_PICKLES = {".bin", ".pt", ".pth", ".pkl", ".ckpt"}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: file, name in it, dtype as the file calls it, shape, first byte."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint folder, by the names that its files use; no value is read.

    Raises ValueError for a file that is missing, cut off or damaged, for an index that does not fit its
    files, and where one file and an index leave open which of them is meant (transformers would take the
    file without a word).
    """
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise ValueError(f"{folder} holds {SINGLE_FILE} and {INDEX_FILE}: remove the one that is not meant")
    if single.exists():
        check_inside(single)
        return read_header(single)
    if index.exists():
        return _read_shards(folder, index)
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in _PICKLES)
    if pickles:
        raise ValueError(
            f"{folder} holds only pickled weights ({pickles[0]!r:.80}), which can run code when they are opened and "
            f"are never read here: convert them to {SINGLE_FILE} (transformers: from_pretrained, then save_pretrained)"
        )
    raise ValueError(f"{folder} holds no weights: {SINGLE_FILE}, or {INDEX_FILE} and its shards, must be there")


def weights_file(folder: Path) -> Path:
    """The file that lists all tensors of a checkpoint folder: the one that holds them, or the index of the shards."""
    return folder / (SINGLE_FILE if (folder / SINGLE_FILE).exists() else INDEX_FILE)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file. Raises ValueError for a file that the safetensors library refuses, and see above."""
    return _read_header(path)[0]


def read_metadata(path: Path) -> dict[str, str]:
    """What else the header of a file says. Raises ValueError as `read_header`."""
    return _read_header(path)[1]


def _read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    if not os.path.isfile(path):  # unlike Path.is_file, it takes names that no file can have
        raise ValueError(f"{path} is not a file: weights must be a regular safetensors file")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if MOST_HEADER < length <= path.stat().st_size:
                raise ValueError(f"its header has {length} bytes, more than the {MOST_HEADER} that it may have")
            with safe_open(path, framework="numpy"):
                pass
            header = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError) as error:
        told = repr(" ".join(str(error).split()))[1:-1]  # it may quote the file, and a terminal would obey some of that
        raise ValueError(
            f"{path} is not a complete safetensors file ({told[:200]}): it is truncated, "
            "damaged or of another kind; download or save it again"
        ) from None
    metadata = header.pop("__metadata__", None) or {}
    tensors = {
        name: StoredTensor(path, name, t["dtype"], tuple(t["shape"]), 8 + length + t["data_offsets"][0])
        for name, t in header.items()
    }
    return tensors, metadata


def read_tensor(tensor: StoredTensor, rows: tuple[int, int] | None = None) -> Floats:
    """A tensor's values as float32, or those of its rows from one to before another; exact for F32, F16 and BF16.

    Raises ValueError for another dtype, for NaN or infinite values, and for a file that has become shorter.
    """
    shape, start = tensor.shape, 0
    if rows is not None:
        shape, start = (rows[1] - rows[0], *shape[1:]), rows[0] * prod(shape[1:])
    out = np.empty(prod(shape), np.float32)
    done = 0
    for values in _chunks(tensor, out.size, start):
        out[done : done + values.size] = values
        done += values.size
    return out.reshape(shape)


def read_integers(tensor: StoredTensor) -> NDArray[np.integer[Any]]:
    """The values of a tensor of whole numbers, as they are. Raises ValueError for another dtype."""
    if tensor.dtype not in _INTEGERS:
        raise ValueError(
            f"{tensor.path}: {tensor.name!r:.80} is stored as {tensor.dtype}: save it as one of {', '.join(_INTEGERS)}"
        )
    count = prod(tensor.shape)
    return _read(tensor, np.dtype(_INTEGERS[tensor.dtype]), 0, count).reshape(tensor.shape)


def same_values(a: StoredTensor, b: StoredTensor, n_rows: int) -> bool:
    """Whether the first n_rows rows of two tensors of one shape are equal, with neither of them in memory."""
    count = prod((n_rows, *a.shape[1:]))
    return all(np.array_equal(x, y) for x, y in zip(_chunks(a, count), _chunks(b, count), strict=True))


def check_dtype(tensor: StoredTensor) -> None:
    """Raise ValueError unless the tensor can be read as float32 without loss."""
    if tensor.dtype not in _STORED_AS:
        raise ValueError(
            f"{tensor.path}: {tensor.name!r:.80} is stored as {tensor.dtype}: save it as one of {', '.join(_STORED_AS)}"
        )


def _chunks(tensor: StoredTensor, count: int, start: int = 0) -> Iterator[Floats]:
    """`count` values of a tensor from `start` on, some at a time.

    They are read, not mapped: a map would end the process if the file became shorter.
    """
    check_dtype(tensor)
    stored = np.dtype(_STORED_AS[tensor.dtype])
    for first in range(start, start + count, _CHUNK):
        n_here = min(_CHUNK, start + count - first)
        part = _read(tensor, stored, first, n_here)
        bits = tensor.dtype == "BF16"  # the upper half of a float32
        values = np.asarray((part.astype(np.uint32) << 16).view(np.float32) if bits else part.astype(np.float32))
        _check_finite(tensor, values)
        yield values


def _read(tensor: StoredTensor, stored: np.dtype[Any], first: int, count: int) -> NDArray[Any]:
    """`count` values from one on, as they lie in the file."""
    part = np.fromfile(tensor.path, stored, count, offset=tensor.start + first * stored.itemsize)
    if len(part) < count:
        raise ValueError(f"{tensor.path} became shorter while {tensor.name!r:.80} was read: load it again")
    return part


def _check_finite(tensor: StoredTensor, values: Floats) -> None:
    with np.errstate(all="ignore"):
        total = values.sum()  # several times faster than isfinite on each; NaN and infinity never leave a sum
    if not np.isfinite(total) and not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise ValueError(f"{tensor.path}: {tensor.name!r:.80} holds {bad}: the weights are damaged, get them again")


def weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name, from an index. Raises ValueError for a name that leads out of the folder."""
    names = read_json(index, MOST_INDEX).get("weight_map")
    if not isinstance(names, dict):
        raise ValueError(f"{index} has no object weight_map: get it again")
    for tensor, name in names.items():
        if not (isinstance(name, str) and _is_plain(name)):
            raise ValueError(
                f"{index} puts {tensor!r:.80} into {name!r:.80}: only names of .safetensors files in the same folder "
                "are opened"
            )
    return names


def _is_plain(name: str) -> bool:
    """Whether this can only be a file in the folder itself, and no pickle: no separators of any system, no drive."""
    fits = name.isprintable() and len(name.encode()) <= MOST_NAME  # half a character is not printable
    return fits and name.endswith(".safetensors") and not set(name) & set("/\\:")


def _read_shards(folder: Path, index: Path) -> dict[str, StoredTensor]:
    """The tensors of a sharded checkpoint: the index decides, and index and shards must name the same ones."""
    names = weight_map(index)
    shards = {}
    for file in sorted(set(names.values())):
        if not os.path.exists(folder / file):
            raise ValueError(
                f"{folder / file} is missing, though {INDEX_FILE} lists it: get the whole checkpoint again"
            )
        check_inside(folder / file)
        shards[file] = read_header(folder / file)
    for tensor, file in names.items():
        if tensor not in shards[file]:
            raise ValueError(f"{index} puts {tensor!r:.80} into {file}, which does not hold it: get both again")
    for file, tensors in shards.items():
        for tensor in tensors:
            if tensor not in names:
                raise ValueError(
                    f"{folder / file} holds {tensor!r:.80}, which {INDEX_FILE} does not list: get both again"
                )
    return {tensor: shards[file][tensor] for tensor, file in names.items()}
