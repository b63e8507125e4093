"""Names to folders: what a name means, the cache before the network, and one line for everything that goes wrong."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import pytest
from checkpoints import write_checkpoint
from huggingface_hub import constants, errors

from minispec import download, hub
from minispec.hub import SHORT_NAMES, find_model
from minispec.weights import load_model

LOOK_UP, CONNECT = socket.getaddrinfo, socket.socket.connect
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an empty working directory, and a network that fails the test when it is touched."""
    folder, here = tmp_path / "cache", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)

    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    return folder


def add_vocabulary(folder: Path) -> None:
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("#version: 0.2\n")


def cached_model(cache: Path, repository: str, n_shards: int = 1) -> Path:
    """A complete model as huggingface_hub caches it: a ref, blobs, and a snapshot of links to them."""
    home = cache / f"models--{repository.replace('/', '--')}"
    snapshot = write_checkpoint(home / "snapshots" / COMMIT, n_shards=n_shards)
    add_vocabulary(snapshot)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    (home / "blobs").mkdir()
    for path in list(snapshot.iterdir()):
        path.rename(home / "blobs" / path.name)
        path.symlink_to(Path("..", "..", "blobs", path.name))
    return snapshot


def refusal(name: str, offline: bool = False) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        find_model(name, offline)
    line = str(caught.value)
    assert "\n" not in line
    return line


# --- what a name means


@pytest.mark.parametrize("name", hub.BOX)
def test_box_is_looked_for_in_the_package_first(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "repository" / "minispec"
    package.mkdir(parents=True)
    monkeypatch.setattr(hub, "__file__", str(package / "hub.py"))
    assert "install it again" in refusal(name)
    beside = tmp_path / "repository" / "weights" / name
    beside.mkdir(parents=True)
    assert find_model(name) == beside
    inside = package / "box" / name
    inside.mkdir(parents=True)
    assert find_model(name) == inside


@pytest.mark.parametrize(("short", "repository"), SHORT_NAMES.items())
def test_short_names(cache: Path, short: str, repository: str) -> None:
    assert repository == ("distilbert/" if short == "distilgpt2" else "openai-community/") + short
    snapshot = cached_model(cache, repository)
    assert find_model(short) == snapshot


def test_short_name_cached_under_itself(cache: Path) -> None:
    """transformers' from_pretrained("gpt2") leaves models--gpt2."""
    snapshot = cached_model(cache, "gpt2")
    assert find_model("gpt2") == snapshot


def test_short_name_wins_over_a_folder_of_that_name(cache: Path) -> None:
    Path("gpt2").mkdir()
    snapshot = cached_model(cache, "openai-community/gpt2")
    assert find_model("gpt2") == snapshot
    assert find_model("./gpt2") == Path("gpt2")


def test_existing_folder_wins_over_a_hub_id(cache: Path) -> None:
    snapshot = cached_model(cache, "org/name")
    assert find_model("org/name") == snapshot
    Path("org/name").mkdir(parents=True)
    assert find_model("org/name") == Path("org/name")


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home" / "m").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    Path("mine").mkdir()
    for name in ("mine", "./mine", "mine/", str(Path("mine").resolve()), "../here/mine"):
        assert find_model(name).resolve() == Path("mine").resolve()
    assert find_model("~/m") == tmp_path / "home" / "m"


@pytest.mark.parametrize(
    "name", ["./gone", "../gone", "/gone", "~/gone", "~nobody-here/x", "a/b/c", "gone/", "C:\\gone", "./a\0b"]
)
def test_folder_that_is_not_there_is_not_asked_of_the_hub(name: str) -> None:
    line = refusal(name)
    assert name in line
    assert "does not exist" in line


@pytest.mark.skipif(os.name == "nt", reason="names have no control characters there")
@pytest.mark.parametrize("name", ["a\x1b[31m", "two\nlines", "a\x9b"])
def test_a_folder_whose_name_a_terminal_would_obey_is_refused(name: str) -> None:
    Path(name).mkdir()
    line = refusal(f"./{name}")
    assert "control characters in its name: rename it" in line
    assert line.isprintable()


def test_file_for_a_folder() -> None:
    Path("model.safetensors").touch()
    assert "is a file" in refusal("./model.safetensors")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gpt2-meduim", "gpt2-medium"),
        ("GPT2", "gpt2"),
        ("gpt2 ", "gpt2"),
        ("story_target", "story-target"),
        ("distil-gpt2", "distilgpt2"),
        ("zzz", "choose one of story-target"),
        ("", "choose one of story-target"),
        ("a\0b", "choose one of story-target"),
        ("x" * 10_000, "choose one of story-target"),
        ("./" + "x" * 10_000, "does not exist"),
    ],
)
def test_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    line = refusal(name)
    assert near in line
    assert len(line) < 400


# --- the cache


@pytest.mark.parametrize("n_shards", [1, 2])
@pytest.mark.parametrize("offline", [False, True])
def test_complete_cache_needs_no_network(cache: Path, n_shards: int, offline: bool) -> None:
    snapshot = cached_model(cache, "org/name", n_shards)
    assert find_model("org/name", offline) == snapshot


def test_one_tokenizer_file_is_a_vocabulary(cache: Path) -> None:
    snapshot = cached_model(cache, "org/name")
    (snapshot / "merges.txt").rename(snapshot / "tokenizer.json")
    (snapshot / "vocab.json").unlink()
    assert find_model("org/name") == snapshot


def test_read_only_cache(cache: Path) -> None:
    snapshot = cached_model(cache, "org/name")
    before = sorted(cache.rglob("*"))
    for path in [*before, cache]:
        if not path.is_symlink():
            path.chmod(stat.S_IREAD | (stat.S_IEXEC if path.is_dir() else 0))
    try:
        assert find_model("org/name") == snapshot
        assert sorted(cache.rglob("*")) == before  # root may write anywhere, so look as well
    finally:
        for path in [cache, *before]:
            if not path.is_symlink():
                path.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("config.json", "missing: config.json"),
        ("model-00002-of-00002.safetensors", "missing: model-00002-of-00002.safetensors"),
        ("model.safetensors.index.json", "missing: model.safetensors"),
        ("merges.txt", "missing: a vocabulary"),
    ],
)
@pytest.mark.parametrize("dangling", [False, True])
def test_half_a_cache_offline_tells_what_is_missing(
    cache: Path, file: str, told: str, by_environment: bool, dangling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = cached_model(cache, "org/name", n_shards=2)
    (snapshot / file).resolve().unlink()
    if not dangling:
        (snapshot / file).unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", by_environment)
    line = refusal("org/name", offline=not by_environment)
    assert told in line
    assert str(cache) in line
    assert "story-target" in line


def test_empty_cache_offline(cache: Path) -> None:
    line = refusal("gpt2", offline=True)
    assert "openai-community/gpt2" in line
    assert "missing: everything" in line
    shutil.rmtree(cache)
    assert "missing: everything" in refusal("gpt2", offline=True)


def test_offline_is_honoured_from_the_environment_and_by_load_model(cache: Path) -> None:
    code = "from minispec.weights import load_model; load_model('gpt2', backend='numpy')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "HF_HUB_CACHE": str(cache)}
    environment["HF_HUB_OFFLINE"] = "1"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert "offline mode forbids" in child.stderr.splitlines()[-1]
    with pytest.raises(ValueError, match="offline mode forbids"):
        load_model("gpt2", backend="numpy", offline=True)


# --- the download, with the hub replaced


@dataclass
class File:
    rfilename: str
    size: int | None
    blob_id: str | None = None
    lfs: None = None


@dataclass
class Info:
    siblings: list[File] | None
    sha: str = COMMIT


class Hub:
    """Stands in for the network side of huggingface_hub: what it is asked, and what it gives."""

    def __init__(self, cache: Path, names: list[str], delivers: bool = True) -> None:
        self.cache, self.names, self.delivers = cache, names, delivers
        self.downloads: list[str] = []

    def model_info(self, repository: str, *, files_metadata: bool, timeout: float) -> Info:
        assert files_metadata
        assert timeout <= 3
        return Info([File(name, 2_000_000) for name in self.names])

    def hf_hub_download(self, repository: str, name: str, *, revision: str = "main") -> str:
        assert revision == COMMIT or (name, revision) == ("config.json", "main")
        snapshot = self.cache / f"models--{repository.replace('/', '--')}" / "snapshots" / COMMIT
        if self.delivers and not snapshot.exists():
            cached_model(self.cache, repository, n_shards=1 if "model.safetensors" in self.names else 2)
        if revision == COMMIT:
            self.downloads.append(name)
        return str(snapshot / name)


def use(monkeypatch: pytest.MonkeyPatch, fake: Hub) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
    monkeypatch.setattr(download, "_is_as_announced", lambda *_: True)


SMALL = ["config.json", "vocab.json", "merges.txt"]


def test_download_is_announced_and_takes_what_a_model_needs(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ["pytorch_model.bin", "tf_model.h5", "README.md", "onnx/model.safetensors", "model.fp16.safetensors"]
    fake = Hub(cache, [*others, *SMALL, "model.safetensors", "model.safetensors.index.json"])
    use(monkeypatch, fake)
    folder = find_model("gpt2")
    assert (folder / "model.safetensors").is_file()
    assert fake.downloads == [*SMALL, "model.safetensors"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"minispec: downloading 4 files of openai-community/gpt2, 8 MB, to {constants.HF_HUB_CACHE}\n"
    )
    assert find_model("gpt2") == folder
    assert len(fake.downloads) == 4
    assert capsys.readouterr().err == ""


def test_download_of_shards(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    fake = Hub(cache, [*SMALL, *shards, "model.safetensors.index.json", "sub/model-1.safetensors"])
    use(monkeypatch, fake)
    find_model("org/name")
    assert fake.downloads == [*SMALL, "model.safetensors.index.json", *shards]


def test_only_what_is_missing_is_announced(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (cached_model(cache, "org/name") / "model.safetensors").resolve().unlink()
    fake = Hub(cache, [*SMALL, "model.safetensors"], delivers=False)
    use(monkeypatch, fake)
    line = refusal("org/name")  # and what does not arrive is noticed
    assert "not complete (missing: model.safetensors)" in line
    assert "downloading 1 file of org/name, 2 MB" in capsys.readouterr().err


def test_repository_without_a_vocabulary_is_let_through_without_a_word(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = cached_model(cache, "org/name")
    (snapshot / "vocab.json").unlink()
    use(monkeypatch, Hub(cache, ["config.json", "model.safetensors"], delivers=False))
    assert find_model("org/name") == snapshot
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["config.json", "pytorch_model.bin"], "no weights as model.safetensors"),
        (["model.safetensors"], "no config.json"),
        ([], "no weights"),
    ],
)
def test_repository_that_holds_no_model_is_not_downloaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], told: str
) -> None:
    fake = Hub(cache, names)
    use(monkeypatch, fake)
    assert told in refusal("org/name")
    assert not fake.downloads


# --- what goes wrong on the way


def answer_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def model_info(*_: object, **__: object) -> Info:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


def bare(kind: type[Exception], text: str) -> Exception:
    """An error of the library, whose constructor wants other things in every version."""
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (bare(errors.GatedRepoError, "403"), "is gated"),
        (bare(errors.RepositoryNotFoundError, "401"), "the hub has no model org/name"),
        (bare(errors.HfHubHTTPError, "500 Server\nError"), "500 Server Error"),
        (bare(errors.LocalEntryNotFoundError, "connection\nlost"), "connection lost"),
        (errors.HFValidationError("bad\nid"), "cannot be a hub id: bad id"),
        (ConnectionError(), "no reason given"),
        (ValueError("Expecting value"), "could not be downloaded (ValueError: Expecting value)"),
        (OSError(28, "No space left on device"), "No space left"),
    ],
)
def test_answers_become_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, told: str) -> None:
    answer_with(monkeypatch, error)
    line = refusal("org/name")
    assert told in line
    assert "org/name" in line


def test_download_that_breaks_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Hub(cache, [*SMALL, "model.safetensors"]))

    def breaks(*_: object, **__: object) -> str:
        raise OSError("reset by peer")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", breaks)
    assert "reset by peer" in refusal("org/name")


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library's own error, from an address where nothing answers."""
    monkeypatch.setattr(socket, "getaddrinfo", LOOK_UP)
    monkeypatch.setattr(socket.socket, "connect", CONNECT)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    line = refusal("minispec-tests/no-such-model")
    assert "could not be downloaded" in line
    assert "take story-target and story-draft" in line


def test_an_answer_is_not_waited_for_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up an address may hang for as long as it likes."""
    monkeypatch.setattr(download, "_ANSWER_WITHIN", 0.05)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: time.sleep(60))
    assert "no answer within 0.05 s" in refusal("org/name")


def test_names_that_the_hub_cannot_have() -> None:
    assert "cannot be a hub id" in refusal("org/na--me..x")


def test_importing_hub_imports_nothing_heavy() -> None:
    heavy = {"numpy", "huggingface_hub", "safetensors", "httpx", "requests"}
    code = f"import sys, minispec.hub; print(sorted({heavy} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert child.stdout.strip() == "[]"
