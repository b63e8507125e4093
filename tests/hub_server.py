"""A hub on this machine that can be told to misbehave: what a download needs of the Hugging Face hub's interface.

Source: the requests that huggingface_hub 0.27 to 2.4 send for model_info and hf_hub_download.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OWN_QUESTION = "/api/agent-harnesses"  # of huggingface_hub 2.4, now and then, without a token: about no model
LARGE = (".safetensors", ".bin")  # what the hub keeps as large files, with a hash of its own


class Answer(BaseHTTPRequestHandler):
    """One request. `hub.faults` decides whether it is answered as it should be."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        """Answer, rightly or as the next fault for this file wants it."""
        path = self.path.split("?")[0]
        if path == OWN_QUESTION:
            self.send(b"", status=404)
            return
        kind = "api" if path.startswith("/api/") else self.command
        name = path.rsplit("/", 1)[-1]
        self.hub.asked.append((kind, name, self.headers.get("Authorization"), self.headers.get("Range")))
        faults = self.hub.faults[kind, name if kind != "api" else ""] or self.hub.faults[kind, "*"]
        fault = faults.pop(0) if faults else None
        if fault is not None:
            fault(self)
        elif kind == "api":
            self.send(self.hub.listing(), {"Content-Type": "application/json"})
        elif name in self.hub.files:
            self.send_file(name)
        else:
            self.send(b"", {"X-Error-Code": "EntryNotFound"}, 404)

    do_HEAD = do_GET  # noqa: N815

    def send(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        """A whole answer; a header of "" is left out."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, name: str, body: bytes | None = None, **headers: str) -> None:
        """A file, or other bytes in its place, from where the request wants it."""
        body = self.hub.files[name] if body is None else body
        status, wanted = 200, self.headers.get("Range")
        if wanted:
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            if first >= len(body):
                self.send(b"", status=416)
                return
            headers |= {"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"}
            status, body = 206, body[first:]
        headers = {field.replace("_", "-"): value for field, value in headers.items()}
        etag = self.hub.hashes(name)[-1]
        self.send(body, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, **headers}, status)

    def begin(self, name: str, n_bytes: int) -> None:
        """The head of a right answer and its first bytes; what comes then is up to the fault."""
        body = self.hub.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:n_bytes])
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Nothing: tests look at `asked`."""


Fault = Callable[[Answer], None]


class Hub:
    """A server on 127.0.0.1 with one repository.

    faults: for ("api" | "HEAD" | "GET", file name or "*"), what its next answers are to be, first to last.
    asked: what was asked for: kind, file, token, range.
    """

    def __init__(self) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("_", (Answer,), {"hub": self}))
        self.server.daemon_threads = True
        self.over = threading.Event()
        self.reset({})
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self, files: dict[str, bytes]) -> None:
        """Begin anew, with these files and no faults."""
        self.files = files
        self.asked: list[tuple[str, str, str | None, str | None]] = []
        self.faults: defaultdict[tuple[str, str], list[Fault]] = defaultdict(list)

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def close(self) -> None:
        """End, and let answers that wait end."""
        self.over.set()
        self.server.shutdown()
        self.server.server_close()

    def hashes(self, name: str) -> tuple[str, ...]:
        """git's id of a file's bytes and, of large files, their hash."""
        body = self.files[name]
        git_id = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
        return (git_id, hashlib.sha256(body).hexdigest()) if name.endswith(LARGE) else (git_id,)

    def listing(self) -> bytes:
        """What the hub tells of its repository."""
        siblings: list[dict[str, Any]] = []
        for name, body in self.files.items():
            git_id, *sha256 = self.hashes(name)
            siblings.append({"rfilename": name, "size": len(body), "blobId": git_id})
            if sha256:  # the size of the note that stands for the file is no matter here
                siblings[-1]["lfs"] = {"sha256": sha256[0], "size": len(body), "pointerSize": 134}
        return json.dumps({"id": "org/name", "modelId": "org/name", "sha": COMMIT, "siblings": siblings}).encode()


# --- what may go wrong -----------------------------------------------------------------------------


def says(status: int, body: bytes = b"no", **headers: str) -> Fault:
    """An answer of a fixed kind."""
    return lambda answer: answer.send(body, {k.replace("_", "-"): v for k, v in headers.items()}, status)


def breaks_off(name: str, n_bytes: int) -> Fault:
    """The connection ends after so many bytes of a file, though all were promised."""

    def fault(answer: Answer) -> None:
        answer.begin(name, n_bytes)
        answer.close_connection = True

    return fault


def is_reset(name: str, n_bytes: int) -> Fault:
    """The same, the hard way."""

    def fault(answer: Answer) -> None:
        answer.begin(name, n_bytes)
        answer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        answer.close_connection = True

    return fault


def falls_silent(name: str = "", n_bytes: int = 0) -> Fault:
    """Nothing comes any more, and the connection stays."""

    def fault(answer: Answer) -> None:
        if name:
            answer.begin(name, n_bytes)
        answer.hub.over.wait(60)
        answer.close_connection = True

    return fault


def sends(name: str, body: bytes, **headers: str) -> Fault:
    """Other bytes in the place of a file."""
    return lambda answer: answer.send_file(name, body, **headers)


def sends_chunks(name: str, n_bytes: int) -> Fault:
    """The first bytes of a file as if they were all: an answer without a length, ended in order."""

    def fault(answer: Answer) -> None:
        answer.send_response(200)
        answer.send_header("Transfer-Encoding", "chunked")
        answer.end_headers()
        body = answer.hub.files[name][:n_bytes]
        answer.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))

    return fault


def leads_to(url: str, **headers: str) -> Fault:
    """Another place; {path} in its address becomes the path that was asked for."""
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda answer: answer.send(b"", {"Location": url.replace("{path}", answer.path), **more}, 302)
