"""A traced run as a page: one HTML file that needs nothing else, and asks nobody for anything.

The parts are files of their own in `page/`: what they are is seen by those who read them. Data goes in as JSON in which
no `<` is left, so no token's text can end its element; the script shows it as text alone. And the page's policy names
the hashes of its one style and its one script: whatever else might get in would not be run.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from minispec import __version__
from minispec.whole_file import check_place, write_whole

MARK = b'<meta name="generator" content="minispec trace'  # by which a page of ours is known
WITHIN = 1000  # bytes from the beginning
SCRIPTS = ("elements.js", "text.js", "reasons.js", "pictures.js", "page.js")  # each may use those before it
DEFAULT_NAME = "trace.html"


def page(data: dict[str, Any]) -> str:
    """The HTML of a run, ASCII but for what the page's own parts say."""
    style, code = part("page.css"), script()
    policy = (
        f"default-src 'none'; style-src {hashed(style)}; script-src {hashed(code)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    filled = {"VERSION": __version__, "POLICY": policy, "STYLE": style, "SCRIPT": code, "DATA": as_script(data)}
    return re.sub("@([A-Z]+)@", lambda match: filled[match[1]], part("page.html"))  # at once: parts are not searched


def part(name: str) -> str:
    """A file of the page."""
    return files("minispec").joinpath("page", name).read_text(encoding="utf-8")


def script() -> str:
    """The page's scripts, as one."""
    return "\n".join(map(part, SCRIPTS))


def hashed(text: str) -> str:
    """What a policy calls an element with this text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def as_script(data: dict[str, Any]) -> str:
    """JSON that may stand in a script element: ASCII, without `<`, `>` and `&`; lone surrogates are escaped, too."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", text)


def data_of(page_text: str) -> dict[str, Any]:
    """The data of a page. Raises ValueError for a text that is none."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page_text, re.DOTALL)
    if found is None:
        raise ValueError("this text has no data of a trace: give a page that minispec trace has written")
    data: dict[str, Any] = json.loads(found[1])
    return data


# --- its file ----------------------------------------------------------------------------------------


def check_page_file(path: Path) -> None:
    """Raise ValueError where no page could be written, or another file would be lost: before anything is worked out."""
    check_place(path, "the trace file", DEFAULT_NAME)
    if path.is_file() and not is_page(path):
        raise ValueError(f"the trace file {path} is there already and is no trace page: give another name, or move it")


def is_page(path: Path) -> bool:
    """Whether a file is a page of ours, which another may take the place of; an empty file is no loss either."""
    try:
        with path.open("rb") as file:
            beginning = file.read(WITHIN)
    except OSError:
        return False
    return MARK in beginning or not beginning


def write_page(path: Path, text: str) -> None:
    """Write a page, whole or not at all. Raises ValueError as check_page_file, and where there is no room."""
    check_page_file(path)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise ValueError(f"the trace file {path} cannot be written ({error.strerror}): name another place") from None
