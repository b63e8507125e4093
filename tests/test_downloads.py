"""Downloads from a hub that misbehaves: the right files or one line, and nothing half-written is ever taken for whole.

The hub is a server of our own on this machine (hub_server.py); the library is the real one. It runs in a child, since
it reads HF_ENDPOINT and HF_TOKEN when it is imported. Its waits between tries are cut short.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from checkpoints import write_checkpoint
from children import hear
from hostile import THOROUGH
from hub_server import COMMIT, Fault, Hub, breaks_off, falls_silent, is_reset, leads_to, says, sends, sends_chunks
from huggingface_hub import constants

from minispec.hub import find_model

ROOT = Path(__file__).resolve().parents[1]
OLD = int(huggingface_hub.__version__.split(".")[0]) < 2  # keeps parts of files, and gives up sooner
TOKEN = "hf_thisIsASecret"
WEIGHTS = "model.safetensors"
# Reads names of caches, and answers each with what came of find_model there: a folder, or what was told; and with how
# many addresses were looked up or connected to until then.
CUSTOMER = """
import json, sys, time, traceback
addresses = []
at = ("socket.connect", "socket.getaddrinfo")
sys.addaudithook(lambda event, arguments: addresses.append(arguments) if event in at else None)
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.01))
from huggingface_hub import constants, file_download
from minispec import download
from minispec.hub import find_model
constants.DOWNLOAD_CHUNK_SIZE = 500  # what breaks off within a piece is lost, and the model is small
constants.HF_HUB_DOWNLOAD_TIMEOUT = constants.HF_HUB_ETAG_TIMEOUT = file_download._ETAG_RETRY_TIMEOUT = 0.4
download._ANSWER_WITHIN = 1.0  # this machine may be busy
for line in sys.stdin:
    cache, offline = json.loads(line)
    constants.HF_HUB_CACHE = cache
    try:
        answer = [str(find_model("org/name", offline)), "", len(addresses)]
    except ValueError as error:
        answer = ["", str(error), len(addresses)]
    except Exception:
        traceback.print_exc()
        answer = None
    print(json.dumps(answer), flush=True)
"""


def environment(hub_at: str, cache: Path | None = None) -> dict[str, str]:
    """For a child that takes this address for the hub's, and has a token."""
    around = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    around |= {"HF_ENDPOINT": hub_at, "HF_TOKEN": TOKEN, "PYTHONPATH": str(ROOT), "NO_PROXY": "*"}
    return around | ({"HF_HOME": str(cache)} if cache else {})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a whole model, by name."""
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Hub]:
    """Another server, whom the token is no business of."""
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def hub(server: Hub, elsewhere: Hub, checkpoint: dict[str, bytes]) -> Hub:
    """The hub, with a whole model and no faults."""
    server.reset(dict(checkpoint))
    elsewhere.reset(dict(checkpoint))
    return server


class Customer:
    """The library in a child. n_addresses: how many it has asked for or connected to."""

    n_addresses = 0

    def __init__(self, hub: Hub, log: Path) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.child = subprocess.Popen(
                [sys.executable, "-c", CUSTOMER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(f"http://127.0.0.1:{hub.port}"),
            )

    def __call__(self, cache: Path, offline: bool = False) -> tuple[Path | None, str]:
        """What came of find_model: a folder, or the line that was told."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        print(json.dumps([str(cache), offline]), file=self.child.stdin, flush=True)
        answer = json.loads(self.child.stdout.readline() or "null")
        assert answer, self.log.read_text()
        folder, told, self.n_addresses = answer
        assert "\n" not in told
        assert TOKEN not in told + self.log.read_text()
        return Path(folder) if folder else None, told

    def __enter__(self) -> Customer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        self.child.wait(30)
        self.child.stdout.close()


@pytest.fixture(scope="module")
def customer(server: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Customer]:
    with Customer(server, tmp_path_factory.mktemp("customer") / "log") as it:
        yield it


def check_is_whole(folder: Path | None, hub: Hub) -> None:
    """The folder holds the files of the hub, byte for byte, and the cache no part of one."""
    assert folder is not None
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == hub.files
    assert not list(folder.parents[1].rglob("*.incomplete"))


def check_becomes_whole(hub: Hub, customer: Customer, cache: Path) -> None:
    """The next run brings the right files. With an old library it may take some runs, but never wrong files."""
    for _ in range(6 if OLD else 1):
        folder, told = customer(cache)
        if folder is not None:
            break
        assert "org/name" in told
    check_is_whole(folder, hub)


# --- a hub that works --------------------------------------------------------------------------------


def test_an_empty_cache_is_filled_once(hub: Hub, customer: Customer, tmp_path: Path) -> None:
    folder, told = customer(tmp_path)
    assert not told
    check_is_whole(folder, hub)
    hub.asked.clear()
    assert customer(tmp_path) == (folder, "")
    assert customer(tmp_path, offline=True) == (folder, "")
    assert not hub.asked


def test_what_is_complete_or_offline_opens_no_connection(hub: Hub, customer: Customer, tmp_path: Path) -> None:
    """Not one of the library's own either."""
    folder, _ = customer(tmp_path / "full")
    assert customer.n_addresses > 0
    with Customer(hub, tmp_path / "log") as fresh:
        assert fresh(tmp_path / "full") == (folder, "")
        assert fresh(tmp_path / "full", offline=True) == (folder, "")
        assert "not complete" in fresh(tmp_path / "empty", offline=True)[1]
        assert fresh.n_addresses == 0


def test_half_a_cache_is_filled_without_what_it_has(hub: Hub, customer: Customer, tmp_path: Path) -> None:
    folder, _ = customer(tmp_path)
    assert folder is not None
    (folder / WEIGHTS).resolve().unlink()
    hub.asked.clear()
    assert customer(tmp_path) == (folder, "")
    check_is_whole(folder, hub)
    assert {name for kind, name, *_ in hub.asked if kind == "GET"} == {WEIGHTS}


def test_a_model_in_shards(hub: Hub, customer: Customer, tmp_path: Path) -> None:
    shards = write_checkpoint(tmp_path / "shards", n_shards=3)
    hub.files = {path.name: path.read_bytes() for path in shards.iterdir()}
    folder, _ = customer(tmp_path / "cache")
    check_is_whole(folder, hub)


# --- a hub that misbehaves ---------------------------------------------------------------------------

ALWAYS = 5000  # more often than any library tries


def each(fault: Fault, times: int = ALWAYS) -> list[Fault]:
    return [fault] * times


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([breaks_off(WEIGHTS, 1000)], id="breaks off"),
        pytest.param([breaks_off(WEIGHTS, 1000), breaks_off(WEIGHTS, 0), breaks_off(WEIGHTS, 5000)], id="thrice"),
        pytest.param([is_reset(WEIGHTS, 1000)], id="is reset"),
        pytest.param([falls_silent(WEIGHTS, 1000)], id="falls silent"),
        pytest.param([falls_silent()], id="is silent from the beginning"),
        pytest.param([says(429, Retry_After="0")], id="too many requests"),
    ],
)
def test_what_passes_is_overcome(faults: list[Fault], hub: Hub, customer: Customer, tmp_path: Path) -> None:
    hub.faults["GET", WEIGHTS] = list(faults)
    check_becomes_whole(hub, customer, tmp_path)
    assert not hub.faults["GET", WEIGHTS]


def test_a_download_that_broke_off_is_resumed(hub: Hub, customer: Customer, tmp_path: Path) -> None:
    hub.faults["GET", WEIGHTS] = [breaks_off(WEIGHTS, 1000)]
    check_becomes_whole(hub, customer, tmp_path)
    asked = [wanted for kind, name, _, wanted in hub.asked if (kind, name) == ("GET", WEIGHTS)]
    assert asked[0] is None
    assert asked[-1] is not None


@pytest.mark.parametrize(
    ("where", "fault", "told"),
    [
        (("api", ""), says(500), "500"),
        (("api", ""), says(416), "416"),
        (("api", ""), says(200, b"<html>log in</html>"), "could not be downloaded"),
        (("api", ""), says(200, b"[1, 2]"), "could not be downloaded"),
        (("api", ""), says(200, b'{"id": "org/name", "sha": "x", "siblings": [{"rfilename": 1}]}'), ""),
        (("api", ""), says(401, X_Error_Code="RepoNotFound"), "no model org/name"),
        (("api", ""), says(403, X_Error_Code="GatedRepo"), "is gated"),
        (("api", ""), falls_silent(), "could not be downloaded"),
        (("api", ""), leads_to("{path}"), "could not be downloaded"),
        (("HEAD", "config.json"), says(500), "could not be downloaded"),
        (("HEAD", WEIGHTS), says(500), "could not be downloaded"),
        (("HEAD", WEIGHTS), says(404, X_Error_Code="EntryNotFound"), "could not be downloaded"),
        (("HEAD", WEIGHTS), falls_silent(), "could not be downloaded"),
        (("HEAD", WEIGHTS), leads_to("{path}"), "could not be downloaded"),
        (("HEAD", WEIGHTS), says(200, b"", Content_Length="7"), "could not be downloaded"),
        (("HEAD", "config.json"), says(200, b"", ETag='"x"', X_Repo_Commit="f" * 40), "changed meanwhile"),
        (("GET", WEIGHTS), says(500), "500"),
        (("GET", WEIGHTS), says(416), "416"),
        (("GET", WEIGHTS), says(404), "404"),
        (("GET", WEIGHTS), leads_to("{path}"), "could not be downloaded"),
        (("GET", WEIGHTS), breaks_off(WEIGHTS, 0), "could not be downloaded"),
        (("GET", WEIGHTS), falls_silent(), "could not be downloaded"),
        (("GET", WEIGHTS), sends(WEIGHTS, b"<html>log in</html>"), "could not be downloaded"),
        (("GET", WEIGHTS), sends_chunks(WEIGHTS, 1000), "could not be downloaded"),
    ],
)
def test_what_stays_wrong_is_told_in_a_line(
    where: tuple[str, str], fault: Fault, told: str, hub: Hub, customer: Customer, tmp_path: Path
) -> None:
    hub.faults[where] = each(fault)
    folder, line = customer(tmp_path)
    assert folder is None
    assert told in line
    assert "org/name" in line
    assert "not complete" in customer(tmp_path, offline=True)[1]  # nothing is taken for whole
    hub.faults.clear()
    check_becomes_whole(hub, customer, tmp_path)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "merges.txt"])
def test_other_bytes_of_the_same_length_are_not_kept(name: str, hub: Hub, customer: Customer, tmp_path: Path) -> None:
    """The library asks for their number alone."""
    hub.faults["GET", name] = [sends(name, hub.files[name][:-1] + b"?")]
    folder, told = customer(tmp_path)
    assert folder is None
    assert OLD or f"what arrived as {name} is not what the hub announced" in told
    check_becomes_whole(hub, customer, tmp_path)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "merges.txt"])
def test_half_a_file_whose_length_nobody_said_is_not_kept(
    name: str, hub: Hub, customer: Customer, tmp_path: Path
) -> None:
    hub.faults["HEAD", name] = [lambda answer: answer.send_file(name, Content_Length="")]
    hub.faults["GET", name] = [sends_chunks(name, len(hub.files[name]) // 2)]
    folder, told = customer(tmp_path)
    assert folder is None
    assert OLD or f"what arrived as {name} is not what the hub announced" in told
    check_becomes_whole(hub, customer, tmp_path)


def test_ranges_that_are_not_honoured(hub: Hub, customer: Customer, tmp_path: Path) -> None:
    """A second answer that begins anew is not put behind the first one's half."""

    def from_the_beginning(answer: Any) -> None:
        del answer.headers["Range"]
        answer.send_file(WEIGHTS)

    hub.faults["GET", WEIGHTS] = [breaks_off(WEIGHTS, 1000), from_the_beginning]
    check_becomes_whole(hub, customer, tmp_path)


# --- the token ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["api", "HEAD", "GET"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])  # another host; the same one with another server
def test_the_token_goes_to_the_hub_alone(
    kind: str, host: str, hub: Hub, elsewhere: Hub, customer: Customer, tmp_path: Path
) -> None:
    away = f"http://{host}:{elsewhere.port}{{path}}"
    digest = hub.hashes(WEIGHTS)[-1]
    headers = {"X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(hub.files[WEIGHTS])), "X_Repo_Commit": COMMIT}
    hub.faults[kind, "" if kind == "api" else WEIGHTS] = each(leads_to(away, **headers))
    folder, told = customer(tmp_path)
    assert not told
    check_is_whole(folder, hub)
    assert elsewhere.asked
    assert {token for _, _, token, _ in elsewhere.asked} == {None}
    assert {token for _, _, token, _ in hub.asked} == {f"Bearer {TOKEN}"}


def test_the_token_does_not_come_back_by_a_detour(hub: Hub, elsewhere: Hub, customer: Customer, tmp_path: Path) -> None:
    """Who sends the customer back to the hub does not get to see the token either."""
    hub.faults["GET", WEIGHTS] = [leads_to(f"http://localhost:{elsewhere.port}{{path}}")]
    elsewhere.faults["GET", WEIGHTS] = [leads_to(f"http://127.0.0.1:{hub.port}{{path}}")]
    folder, _ = customer(tmp_path)
    check_is_whole(folder, hub)
    assert [token for _, _, token, _ in elsewhere.asked] == [None]


# --- interrupts --------------------------------------------------------------------------------------


def start(hub: Hub, cache: Path) -> subprocess.Popen[str]:
    """The command line, at work on a prompt with a model that is not there yet."""
    command = [sys.executable, "-m", "minispec", "generate", "-m", "org/name", "-d", "none", "x"]
    around = environment(f"http://127.0.0.1:{hub.port}", cache)
    preexec_fn = None if os.name == "nt" else hear
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=around, preexec_fn=preexec_fn
    )


def wait_for(hub: Hub, what: tuple[str, str]) -> None:
    """Wait until the hub was asked for this."""
    for _ in range(600):
        if what in [(kind, name) for kind, name, *_ in hub.asked]:
            return
        time.sleep(0.1)
    raise AssertionError(f"nobody asked for {what}: {hub.asked}")


@pytest.mark.parametrize("kind", ["HEAD", "GET"])
@pytest.mark.skipif(os.name == "nt", reason="Windows has other interrupts")
def test_an_interrupted_download_leaves_nothing_and_goes_on_next_time(
    kind: str, hub: Hub, customer: Customer, tmp_path: Path
) -> None:
    hub.faults[kind, WEIGHTS] = [falls_silent(WEIGHTS if kind == "GET" else "", 5000)]
    child = start(hub, tmp_path)
    wait_for(hub, (kind, WEIGHTS))
    child.send_signal(signal.SIGINT)
    out, told = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    assert "interrupted" in told.splitlines()[-1]
    assert "Traceback" not in told
    cache = tmp_path / "hub"
    assert OLD or not list(cache.rglob("*.incomplete"))
    assert "not complete" in customer(cache, offline=True)[1]
    folder, _ = customer(cache)
    check_is_whole(folder, hub)


def test_a_download_that_was_killed_goes_on_next_time(hub: Hub, customer: Customer, tmp_path: Path) -> None:
    hub.faults["GET", WEIGHTS] = [falls_silent(WEIGHTS, 5000)]
    child = start(hub, tmp_path)
    wait_for(hub, ("GET", WEIGHTS))
    child.kill()
    child.communicate()
    cache = tmp_path / "hub"
    assert "not complete" in customer(cache, offline=True)[1]
    folder, _ = customer(cache)
    assert folder is not None
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == hub.files


# --- caches that cannot be written -------------------------------------------------------------------


def test_a_cache_that_is_read_only_is_told_with_a_remedy(hub: Hub, customer: Customer, tmp_path: Path) -> None:
    """A file in the place of the folder binds root, too."""
    (tmp_path / "cache").write_text("")
    folder, told = customer(tmp_path / "cache")
    assert folder is None
    assert "let HF_HOME name a folder" in told


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
def test_what_is_complete_in_a_read_only_cache_is_read_by_who_may_not_write(
    hub: Hub, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, _ = customer(Path(place))
        Path(place).chmod(0o755)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", place)
        assert find_model("org/name") == folder  # what has to be imported may be readable to root alone
        os.seteuid(65534)
        try:
            assert not os.access(place, os.W_OK, effective_ids=True)
            assert find_model("org/name") == folder
            assert find_model("org/name", offline=True) == folder
        finally:
            os.seteuid(0)


# --- no network --------------------------------------------------------------------------------------


def command_without(address: str, tmp_path: Path) -> tuple[int, str]:
    """Status and last line of a command that needs the hub; in the thorough profile (an idle machine), within 3 s."""
    command = [sys.executable, "-m", "minispec", "generate", "-m", "org/name", "x"]
    began = time.perf_counter()
    child = subprocess.run(command, env=environment(address, tmp_path), capture_output=True, text=True, check=False)
    assert not THOROUGH or time.perf_counter() - began <= 3
    return child.returncode, child.stderr.splitlines()[-1]


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://no-such-host.invalid", "nonsense"])
def test_an_address_where_nobody_is(address: str, tmp_path: Path) -> None:
    """A refused connection, a name that no one has, and no address at all."""
    status, told = command_without(address, tmp_path)
    assert status == 2
    assert "org/name is not in the cache and could not be downloaded" in told
    assert "take story-target and story-draft" in told


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a full queue refuses")
def test_an_address_that_swallows_everything(tmp_path: Path) -> None:
    """A queue for connections that is full: Linux then answers nothing, like a firewall."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        with socket.create_connection(deaf.getsockname()):
            status, told = command_without(f"http://127.0.0.1:{deaf.getsockname()[1]}", tmp_path)
    assert status == 2
    assert "could not be downloaded" in told
