"""Prompts for a sweep: read from a file, or the 60 that come along.

A file of JSON lines has an object in each: {"prompt": "...", "kind": "...", "id": "..."}, of which kind and id may
be left out; other keys are ignored. Any other file has a prompt in each line. Empty lines are passed over.

The built-in prompts (prompts.jsonl) were written for this project: ten of each of six kinds, in the plain words that
the small story models know, and sensible to GPT-2 as well. How well guesses do depends on the kind more than on
anything else, so a figure of one kind says little about another.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
SUFFIXES = (".jsonl", ".ndjson")  # of JSON lines, whatever they begin with
NO_KIND = "other"
EXAMPLE = '{"prompt": "Once upon a time", "kind": "story"}'


@dataclass(frozen=True)
class Prompt:
    """A text to continue, its kind, and a name by which it can be found again."""

    text: str
    kind: str = NO_KIND
    id: str = ""


def built_in_prompts() -> list[Prompt]:
    """The prompts that come along."""
    return read_prompts(BUILT_IN)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file.

    Raises ValueError, with the number of the line, for one that is no prompt; and for a file without any.
    """
    lines = _lines(path)
    as_json = path.suffix.lower() in SUFFIXES or next(iter(lines.values()), "").startswith("{")
    prompts = []
    for number, line in lines.items():
        try:
            prompts.append(_prompt(line, number) if as_json else Prompt(line, id=f"line {number}"))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not prompts:
        raise ValueError(f"{path}: holds no prompt: give one a line, as text or as {EXAMPLE}")
    return prompts


def first_of_each_kind(prompts: Iterable[Prompt], n: int) -> list[Prompt]:
    """The first n prompts of every kind, in their order."""
    seen: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        seen[prompt.kind] += 1
        if seen[prompt.kind] <= n:
            chosen.append(prompt)
    return chosen


def _lines(path: Path) -> dict[int, str]:
    """The lines of a file that are not empty, by their numbers from 1 on."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}: give a file with a prompt a line") from None
    lines = {}
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            line = raw.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 (byte {error.start}): convert the file") from None
        if line.strip():
            lines[number] = line
    return lines


def _prompt(line: str, number: int) -> Prompt:
    """The prompt in a line of JSON. Raises ValueError, without its place."""
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}): give an object, as {EXAMPLE}") from None
    if not isinstance(content, dict):
        raise ValueError(f"a JSON {type(content).__name__} where an object must be: give one, as {EXAMPLE}")
    if "prompt" not in content:
        raise ValueError(f'the object has no "prompt": give one, as {EXAMPLE}')
    text = content["prompt"]
    if not isinstance(text, str) or not text:
        raise ValueError(f'"prompt" is {json.dumps(text)[:80]}: give a text that is not empty, as {EXAMPLE}')
    kind, name = content.get("kind", NO_KIND), content.get("id", f"line {number}")
    if not isinstance(kind, str) or not kind:
        raise ValueError(f'"kind" is {json.dumps(kind)[:80]}: give a word, or leave it out')
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError(f'"id" is {json.dumps(name)[:80]}: give a word or a whole number, or leave it out')
    try:
        (text + kind + str(name)).encode()
    except UnicodeEncodeError:
        raise ValueError("half a character (a lone surrogate such as \\ud800): write the whole one") from None
    return Prompt(text, kind, str(name))
