"""Names of models to folders on this machine, fetched from the Hugging Face hub if they are not there yet.

A name means, in this order: the pair in the box; a short name; a folder; a hub id org/name. So `gpt2` is always
the hub's, and `./gpt2` the folder of that name. huggingface_hub keeps its ordinary cache, tokens and settings; it is
imported only when it is needed. What the cache lacks, download.py fetches.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path

from minispec.user_path import CONTROL

BOX = ("story-target", "story-draft")
SHORT_NAMES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
NO_VOCABULARY = "a vocabulary (tokenizer.json, or vocab.json and merges.txt)"
INSTEAD = f"take {' and '.join(BOX)}, which come with minispec, or give a folder that holds the model"


def find_model(name: str, offline: bool = False) -> Path:
    """The folder of a model: config.json, weights and vocabulary in Hugging Face form.

    The cache is looked at first; only if it lacks something, and neither `offline` nor HF_HUB_OFFLINE forbids it,
    is the model downloaded, which standard error announces with its size.
    Raises ValueError, in one line, for an unknown name and for a model that cannot be had.
    """
    if name in BOX:
        return _in_the_box(name)
    if name not in SHORT_NAMES and _means_folder(name):
        return _local_folder(name)
    repository = SHORT_NAMES.get(name, name)
    if not _HUB_ID.fullmatch(repository):
        known = [*BOX, *SHORT_NAMES]
        near = get_close_matches(name.strip().lower(), known, n=3)
        choice = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(known)}"
        raise ValueError(f"no model is called {name!r:.80}: {choice} (or give a hub id org/name, or a folder)")
    for cached_as in dict.fromkeys((repository, name)):  # transformers keeps `gpt2` under its short name
        folder = _cached(cached_as)
        if folder is not None and not missing_files(folder):
            return folder
    from minispec.download import fetch

    return fetch(repository, _cached(repository), offline)


def names_a_model(name: str) -> bool:
    """Whether this can be the name of a model, there or not: of the box, short, a folder or a hub id."""
    return name in BOX or name in SHORT_NAMES or _means_folder(name) or bool(_HUB_ID.fullmatch(name))


def short_name(name: str) -> str:
    """The short name of a hub id that has one, else the name itself."""
    return next((short for short, repository in SHORT_NAMES.items() if repository == name), name)


def _in_the_box(name: str) -> Path:
    """The folder of a model that comes along: in the package, or beside it in the repository."""
    package = Path(__file__).resolve().parent
    for folder in (package / "box" / name, package.parent / "weights" / name):
        if folder.is_dir():
            return folder
    raise ValueError(f"{name} should come with minispec, but {package / 'box' / name} is missing: install it again")


def _means_folder(name: str) -> bool:
    looks_like_a_path = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or name.endswith("/")
    return looks_like_a_path or os.path.isdir(name)


def _local_folder(name: str) -> Path:
    folder = Path(os.path.expanduser(name))
    if not os.path.isdir(folder):  # unlike Path.is_dir, it takes names that no folder can have
        problem = "is a file, not a folder" if os.path.exists(folder) else "does not exist"
        raise ValueError(
            f"the folder {name:.200} {problem}: give one with config.json, model.safetensors and a vocabulary"
        )
    if CONTROL.search(name):  # reports print it
        raise ValueError(f"the folder {name!r:.200} has control characters in its name: rename it, or link to it")
    return folder


def missing_files(folder: Path) -> list[str]:
    """What a model's folder lacks; an interrupted download leaves files out, or links that lead nowhere."""
    from minispec.safetensors_file import INDEX_FILE, SINGLE_FILE, weight_map

    here = {entry.name for entry in folder.iterdir() if entry.is_file()}
    if SINGLE_FILE in here:
        weights = [SINGLE_FILE]
    elif INDEX_FILE in here:
        weights = sorted(set(weight_map(folder / INDEX_FILE).values()))
    else:
        weights = [SINGLE_FILE]
    missing = [file for file in ("config.json", *weights) if file not in here]
    if not any(here.issuperset(files) for files in _VOCABULARIES):
        missing.append(NO_VOCABULARY)
    return missing


def _cached(repository: str) -> Path | None:
    """The cached folder of a hub id, complete or not, without touching the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        # Asking for more than one small file would let the library decide what a complete model is.
        return Path(snapshot_download(repository, local_files_only=True, allow_patterns=["config.json"]))
    except (LocalEntryNotFoundError, HFValidationError):  # bare names like `gpt2` are no valid ids to all versions
        return None
