"""Small JSON files, read strictly: what is broken, doubled or too large is an error and never a guess.

They are UTF-8, with a byte order mark or without: JSON in any other encoding is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minispec.model_files import read_text


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """The object in a JSON file of a model's folder. Raises ValueError for a broken, doubled or oversized one."""
    try:
        text = read_text(path, max_bytes, ",:[{", "utf-8-sig")
        content = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be used ({error}): mend it or get it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a JSON {type(content).__name__} where an object must be: get it again")
    return content


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object, each of whose keys is there once."""
    content, seen = dict(pairs), set[str]()
    if len(content) < len(pairs):
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name!r:.80} is there twice")
            seen.add(name)
    return content


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
