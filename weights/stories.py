"""The stories that everything in the box is made from, and those that are held out: read alike by every recipe."""

from __future__ import annotations

import hashlib
from pathlib import Path

END = "<|endoftext|>"
HELD_OUT = 6  # of 256 stories, about one in 43, are never trained on


def read_stories(corpus: Path) -> tuple[list[str], list[str]]:
    """The stories of every .txt file below `corpus`: (for training, held out), parted by their hash."""
    stories = [
        story.strip()
        for file in sorted(corpus.rglob("*.txt"))
        for story in file.read_text(encoding="utf-8").split(END)
        if story.strip()
    ]
    if not stories:
        raise SystemExit(f"train: no stories in {corpus}: give a folder with .txt files")
    held = [s for s in stories if hashlib.sha256(s.encode()).digest()[0] < HELD_OUT]
    kept = set(held)
    return [s for s in stories if s not in kept], held
