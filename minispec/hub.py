"""Names of models to folders on this machine, fetched from the Hugging Face hub if they are not there yet.

A name means, in this order: the pair in the box; a short name; a folder; a hub id org/name. So `gpt2` is always
the hub's, and `./gpt2` the folder of that name. huggingface_hub keeps its ordinary cache, tokens and settings; it is
imported only when it is needed.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

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
_NO_VOCABULARY = "a vocabulary (tokenizer.json, or vocab.json and merges.txt)"
_SMALL_FILES = (
    "config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_INSTEAD = f"take {' and '.join(BOX)}, which come with minispec, or give a folder that holds the model"
_ANSWER_WITHIN = 3.0  # seconds for the hub's first answer, unless HF_HUB_ETAG_TIMEOUT says otherwise

T = TypeVar("T")


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
        near = get_close_matches(name.strip().lower(), known, n=3, cutoff=0.5)
        choice = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(known)}"
        raise ValueError(f"no model is called {name!r:.80}: {choice} (or give a hub id org/name, or a folder)")
    for cached_as in dict.fromkeys((repository, name)):  # transformers keeps `gpt2` under its short name
        folder = _cached(cached_as)
        if folder is not None and not _missing(folder):
            return folder
    return _fetch(repository, _cached(repository), offline)


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
    return folder


def _missing(folder: Path) -> list[str]:
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
        missing.append(_NO_VOCABULARY)
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


def _fetch(repository: str, cached: Path | None, offline: bool) -> Path:
    """Download what the cache lacks of a repository."""
    from huggingface_hub import HfApi, constants, snapshot_download

    lacking = ", ".join(_missing(cached)) if cached is not None else "everything"
    if offline or constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"{repository} is not complete in the cache {constants.HF_HUB_CACHE} (missing: {lacking}), "
            f"and offline mode forbids to download it: run once online, or {_INSTEAD}"
        )
    limit = constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else _ANSWER_WITHIN
    info = _asked(
        repository,
        lambda: _within(limit, lambda: HfApi().model_info(repository, files_metadata=True, timeout=limit)),
    )
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    files = _files_to_fetch(repository, sizes)
    have = (
        {entry.name for entry in cached.iterdir() if entry.is_file()} if cached and cached.name == info.sha else set()
    )
    new = [file for file in files if file not in have]
    if new:
        megabytes = sum(sizes[file] for file in new) / 1e6
        what = f"{len(new)} file{'s' if len(new) > 1 else ''} of {repository}, {megabytes:.0f} MB"
        print(f"minispec: downloading {what}, to {constants.HF_HUB_CACHE}", file=sys.stderr)
    folder = Path(_asked(repository, lambda: snapshot_download(repository, allow_patterns=files, etag_timeout=limit)))
    # A repository without a vocabulary is for those who bring their own.
    missing = [file for file in _missing(folder) if file != _NO_VOCABULARY]
    if missing:
        raise ValueError(
            f"the download of {repository} is not complete (missing: {', '.join(missing)}): start it again"
        )
    return folder


def _files_to_fetch(repository: str, names: Collection[str]) -> list[str]:
    """Of a repository's files, those that make a model: one file of weights if there is one, else the shards."""
    from minispec.safetensors_file import INDEX_FILE, SINGLE_FILE

    shards = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    weights = [SINGLE_FILE] if SINGLE_FILE in names else [INDEX_FILE, *shards] if INDEX_FILE in names else []
    if not weights or "config.json" not in names:
        lacks = "config.json" if weights else "weights as model.safetensors (other kinds are never read)"
        raise ValueError(f"the hub's {repository} has no {lacks}: convert it, take another model, or {_INSTEAD}")
    return [name for name in _SMALL_FILES if name in names] + weights


def _asked(repository: str, work: Callable[[], T]) -> T:
    """The result of work(), which asks the hub; whatever goes wrong there becomes one line."""
    try:
        return work()
    except Exception as error:  # the library's own, OSError, and httpx's or requests', depending on its version
        raise _refusal(repository, error) from error


def _within(seconds: float, work: Callable[[], T]) -> T:
    """The result of work(), or TimeoutError: without a network, looking up an address ignores time limits."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]


def _refusal(repository: str, error: Exception) -> ValueError:
    """One line for what the hub or the way to it answered."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    told = " ".join(str(error).split())[:200] or "no reason given"
    if isinstance(error, HFValidationError):
        return ValueError(f"{repository} cannot be a hub id: {told}")
    if isinstance(error, GatedRepoError):
        page = f"https://huggingface.co/{repository}"
        return ValueError(f"{repository} is gated: accept its terms at {page}, then log in with `hf auth login`")
    if isinstance(error, RepositoryNotFoundError):
        return ValueError(
            f"the hub has no model {repository}, or it is private: check the name, or log in, or {_INSTEAD}"
        )
    return ValueError(
        f"{repository} is not in the cache and could not be downloaded ({type(error).__name__}: {told}): "
        f"try again with a connection (HF_HUB_ETAG_TIMEOUT gives a slow one more seconds), or {_INSTEAD}"
    )
