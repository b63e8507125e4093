"""Bring the documents up to date: outputs of commands, tables of figures, and the length of files.

    python docs/refresh.py            what is no longer true is written anew, the rest is left as it is
    python docs/refresh.py --slow     also the examples that take longer
    python docs/refresh.py --all      every output, so that all speeds are of one machine; do it on an idle one
    python docs/refresh.py --check    change nothing; exit status 1 if something is not true

Figures of speed are not measured here: they stand in docs/figures/*.json, which the commands in figures.py write.
After the pair in the box has changed, run this once with --all --slow.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blocks
import figures
import reading


def outputs(path: Path, slow: bool, every: bool) -> Iterator[tuple[blocks.Block, str]]:
    """The blocks of a document whose bodies are not true any more, each with a true one."""
    names: dict[str, Any] = {}
    before: blocks.Block | None = None
    printed = ""
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks.blocks(path):
            runs = not block.left_out or (slow and block.note.startswith("slow: "))
            if block.kind == "console" and runs:
                body = _console(block, Path(folder), every)
            elif block.kind == "text" and before is not None:
                body = block.body if block.same(block.body, printed) and not every else printed
            else:
                body = block.body
            before = block if block.kind == "python" and runs else None
            printed = blocks.run_python(block.body, names, Path(folder)) if before else ""
            if body != block.body:
                yield block, body


def _console(block: blocks.Block, folder: Path, every: bool) -> str:
    body = ""
    for command, expected in block.commands():
        status, said = blocks.run_command(command, folder)
        if status != block.status:
            raise SystemExit(f"{block.path.name}:{block.line}: {command} ends with {status}: {said}")
        said = said and said.rstrip("\n") + "\n"
        keep = not every and block.same(expected, said)
        body += f"$ {command}\n{expected if keep else cut_down(expected, said)}"
    return body


def cut_down(old: str, new: str) -> str:
    """A new output, cut as the old one was: to the lines before, after or between its `...`."""
    parts = [part.strip("\n").splitlines() for part in f"\n{old}\n".split(f"\n{blocks.ANY}\n")]
    lines = new.rstrip("\n").splitlines()
    if len(parts) == 1 or len(lines) <= sum(map(len, parts)):
        return new
    kept, place = [], 0
    for i, part in enumerate(parts):
        if i == len(parts) - 1:
            place = max(place, len(lines) - len(part))
        elif i:
            place = next((j for j in range(place, len(lines)) if part and lines[j][:9] == part[0][:9]), place)
        kept += [blocks.ANY] * bool(i) + lines[place : place + len(part)]
        place += len(part)
    return "\n".join(kept) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Do it; exit status 1 if --check found what is not true."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="run the examples that take longer, too")
    parser.add_argument("--all", action="store_true", help="write every output anew, not only what has changed")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    changed = 0
    for path in blocks.documents():
        text = old = path.read_text(encoding="utf-8")
        for block, body in reversed(list(outputs(path, options.slow, options.all))):
            text = text[: block.start] + body + text[block.start + len(block.body) :]
            print(f"{path.name}:{block.line}: its output has changed")
        text = reading.refreshed(figures.refreshed(text), path)
        changed += text != old
        if text != old:
            print(f"{path.name}: {'is out of date' if options.check else 'brought up to date'}")
        if text != old and not options.check:
            path.write_text(text, encoding="utf-8", newline="\n")
    for line in figures.missing():
        print(line)
    return bool(changed and options.check)


if __name__ == "__main__":
    sys.path.insert(0, str(blocks.ROOT))
    sys.exit(main())
