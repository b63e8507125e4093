"""Small JSON files, read strictly: what is broken, doubled or too large is an error and never a guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError for a broken, doubled or oversized one."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r:.80} is there twice")
        return dict(pairs)

    def refuse(constant: str) -> object:
        raise ValueError(f"{constant} is not JSON")

    try:
        if not path.is_file():
            raise ValueError("no such file")
        if path.stat().st_size > max_bytes:
            raise ValueError(f"{path.stat().st_size} bytes are more than the {max_bytes} that it may have")
        content = json.loads(path.read_bytes(), object_pairs_hook=once, parse_constant=refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be used ({error}): mend it or get it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a JSON {type(content).__name__} where an object must be: get it again")
    return content
