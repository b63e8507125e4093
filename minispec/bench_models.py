"""What a benchmark runs on: models by name, or checkpoints made up for it, which are kept and used again.

Made-up checkpoints have their full size, up to gigabytes, so they are written once, to a folder of the user's cache
for such things. A folder is there whole or not at all: it gets its name when everything is in it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minispec import made_up
from minispec.parameters import GPT2Config
from minispec.theory import memory

RECIPE = 1  # goes up when made_up writes other weights, so that old folders are not taken for new ones


@dataclass(frozen=True)
class Model:
    """A model to load by name or folder, how its weights are kept, and what tables call it."""

    name: str
    weights: str
    label: str


def n_bytes(config: GPT2Config) -> int:
    """The size of a checkpoint's weights in float32."""
    return memory(config).weight_bytes


def random_folder(shape: str, base: Path, say: Callable[[str], None]) -> Path:
    """The folder of a random checkpoint of a shape, written if it is not there. Raises ValueError as `kept`."""
    config = made_up.shape_of(shape)
    return kept(base, f"random-{shape}", [config], lambda folder: made_up.write_random(folder, config), say)


def scripted_folders(
    accept: float, shapes: tuple[str, str], base: Path, say: Callable[[str], None]
) -> tuple[Path, Path]:
    """The folders of a target and a draft that agrees with it with chance `accept`. Raises ValueError as `kept`."""
    made_up.check_chance(accept)
    target, draft = (made_up.shape_of(shape) for shape in shapes)

    def write(folder: Path) -> None:
        made_up.write_scripted_pair((folder / "target", folder / "draft"), (target, draft), accept)

    folder = kept(base, f"scripted-{accept:g}-{shapes[0]}-{shapes[1]}", [target, draft], write, say)
    return folder / "target", folder / "draft"


def kept(
    base: Path, name: str, configs: Sequence[GPT2Config], write: Callable[[Path], None], say: Callable[[str], None]
) -> Path:
    """The folder of this name, written now unless it was before.

    Raises ValueError where the disk has no room for it or the place cannot be written to.
    """
    folder = base / f"{name}-{RECIPE}"
    if folder.is_dir():
        return folder
    size = sum(map(n_bytes, configs)) + len(configs) * (4 << 20)  # and the vocabulary
    try:
        base.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(base).free
        if free < size:
            raise ValueError(
                f"{name} takes {size / 1e9:.1f} GB and {base} has {free / 1e9:.1f} GB free: make room, or name "
                "another place with --folder"
            )
        say(f"making up {name}, {size / 1e9:.1f} GB, once, in {base} ...")
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=base, ignore_cleanup_errors=True) as unfinished:
            whole = Path(unfinished) / name
            write(whole)
            try:
                whole.replace(folder)
            except OSError:
                if not folder.is_dir():  # else someone else wrote the same just now
                    raise
    except OSError as error:
        raise ValueError(
            f"{name} cannot be written to {base} ({error.strerror or error}): name another place with --folder"
        ) from error
    return folder
