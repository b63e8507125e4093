"""From the Hugging Face hub into its ordinary cache: what a model needs, announced before and checked afterwards.

One file after the other, in the caller's thread, so that Ctrl-C ends it. The library gives a file its name when all of
it has arrived; whether its bytes are those that the hub announced (their hash) is asked here, as a short or a wrong
answer of the announced length would be taken for the file for good. Whatever goes wrong becomes one line.

Source: huggingface_hub, which keeps the cache, the token and the settings; it is imported only when it is needed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from minispec.hub import INSTEAD, NO_VOCABULARY, missing_files

if TYPE_CHECKING:
    from huggingface_hub.hf_api import HfApi, RepoSibling

_SMALL_FILES = (
    "config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_ANSWER_WITHIN = 1.5  # seconds for the hub's first answer, unless HF_HUB_ETAG_TIMEOUT says otherwise
_DISK = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.ENAMETOOLONG)

T = TypeVar("T")


def fetch(repository: str, cached: Path | None, offline: bool) -> Path:
    """Download what the cache lacks of a hub's repository, and give the folder in the cache.

    cached: its folder there, if there is one. Standard error says what is downloaded before it starts.
    Raises ValueError, in one line, where it may not be or cannot be had, or is no model.
    """
    from huggingface_hub import HfApi, constants  # takes a while, which is not to count for the hub's answer

    lacking = ", ".join(missing_files(cached)) if cached is not None else "everything"
    if offline or constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"{repository} is not complete in the cache {constants.HF_HUB_CACHE} (missing: {lacking}), "
            f"and offline mode forbids to download it: run once online, or {INSTEAD}"
        )
    limit = constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else _ANSWER_WITHIN
    commit, announced = _asked(repository, lambda: _within(limit, lambda: _listing(HfApi(), repository, limit)))
    names = _files_to_fetch(repository, announced)
    have = {entry.name for entry in cached.iterdir() if entry.is_file()} if cached and cached.name == commit else set()
    new = {name: announced[name] for name in names if name not in have}
    if new:
        megabytes = sum(file.n_bytes or 0 for file in new.values()) / 1e6
        what = f"{len(new)} file{'s' if len(new) > 1 else ''} of {repository}, {megabytes:.0f} MB"
        print(f"minispec: downloading {what}, to {constants.HF_HUB_CACHE}", file=sys.stderr)
    folder = _asked(repository, lambda: _download(repository, names, commit, new))
    # A repository without a vocabulary is for those who bring their own.
    missing = [file for file in missing_files(folder) if file != NO_VOCABULARY]
    if missing:
        raise ValueError(
            f"the download of {repository} is not complete (missing: {', '.join(missing)}): start it again"
        )
    return folder


# --- what there is ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Announced:
    """A file as the hub announces it. git_id: how git names its bytes; sha256: their hash. Either may be unknown."""

    n_bytes: int | None
    git_id: str | None = None
    sha256: str | None = None


def _listing(hub: HfApi, repository: str, limit: float) -> tuple[str, dict[str, Announced]]:
    """The newest commit of a repository, and its files."""
    info = hub.model_info(repository, files_metadata=True, timeout=limit)
    return str(info.sha), {str(file.rfilename): _announced(file) for file in info.siblings or []}


def _announced(file: RepoSibling) -> Announced:
    n_bytes = None if file.size is None else int(file.size)
    if file.lfs is not None:  # then its git id is that of a note that stands for the file
        return Announced(n_bytes, sha256=file.lfs.sha256)
    return Announced(n_bytes, git_id=file.blob_id)


def _files_to_fetch(repository: str, names: Collection[str]) -> list[str]:
    """Of a repository's files, those that make a model: one file of weights if there is one, else the shards."""
    from minispec.safetensors_file import INDEX_FILE, SINGLE_FILE

    shards = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    weights = [SINGLE_FILE] if SINGLE_FILE in names else [INDEX_FILE, *shards] if INDEX_FILE in names else []
    if not weights or "config.json" not in names:
        lacks = "config.json" if weights else "weights as model.safetensors (other kinds are never read)"
        raise ValueError(f"the hub's {repository} has no {lacks}: convert it, take another model, or {INSTEAD}")
    return [name for name in _SMALL_FILES if name in names] + weights


# --- getting it ------------------------------------------------------------------------------------


def _download(repository: str, names: list[str], commit: str, new: Mapping[str, Announced]) -> Path:
    """Files of a repository into the cache, and their folder there. new: those that were not there, to be checked.

    Raises OSError, or what the library raises.
    """
    from huggingface_hub import hf_hub_download

    # Asked for without its commit, so that the cache takes note of which commit is the newest.
    folder = Path(hf_hub_download(repository, "config.json")).parent
    if folder.name != commit:
        raise OSError("the repository was changed meanwhile")
    for name in names:
        if name in new:
            _drop_what_is_too_long(folder.parents[1] / "blobs", new[name])
        path = Path(hf_hub_download(repository, name, revision=commit))
        if name in new and not _is_as_announced(path, new[name]):
            _remove(path)
            raise OSError(f"what arrived as {name} is not what the hub announced, so it was removed")
    return folder


def _drop_what_is_too_long(blobs: Path, file: Announced) -> None:
    """Remove the part of a file that is longer than the file.

    A server that was asked for the rest and sent all leaves such a part, and older versions of the library would ask
    for its rest for ever.
    """
    part = blobs / f"{file.sha256 or file.git_id}.incomplete"
    if file.n_bytes is not None and part.is_file() and part.stat().st_size > file.n_bytes:
        part.unlink()


def _is_as_announced(path: Path, file: Announced) -> bool:
    """Whether a file has the bytes that the hub says it has. That takes a second for a gigabyte or two."""
    n_bytes = path.stat().st_size
    if file.n_bytes not in (None, n_bytes):
        return False
    with path.open("rb") as content:
        if file.sha256 is not None:
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
        if file.git_id is not None:
            head = b"blob %d\0" % n_bytes
            return hashlib.sha1(head + content.read(), usedforsecurity=False).hexdigest() == file.git_id
    return True


def _remove(path: Path) -> None:
    """Take a file out of the cache, and what it is a link to."""
    content = path.resolve()
    path.unlink()
    content.unlink(missing_ok=True)


# --- asking ----------------------------------------------------------------------------------------


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
    """One line for what the hub, the way to it or the disk answered."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    told = " ".join(str(error).split())[:200] or "no reason given"
    if isinstance(error, HFValidationError):
        return ValueError(f"{repository} cannot be a hub id: {told}")
    if isinstance(error, GatedRepoError):
        page = f"https://huggingface.co/{repository}"
        return ValueError(f"{repository} is gated: accept its terms at {page}, then log in with `hf auth login`")
    if isinstance(error, RepositoryNotFoundError):
        return ValueError(
            f"the hub has no model {repository}, or it is private: check the name, or log in, or {INSTEAD}"
        )
    try_again = "try again with a connection (HF_HUB_ETAG_TIMEOUT gives a slow one more seconds)"
    if isinstance(error, OSError) and error.errno in _DISK:
        try_again = "let HF_HOME name a folder with room for it that you may write to"
    return ValueError(
        f"{repository} is not in the cache and could not be downloaded ({type(error).__name__}: {told}): "
        f"{try_again}, or {INSTEAD}"
    )
