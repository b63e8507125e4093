"""Ctrl-C in the recipes of `weights`: status 130, one line, and a checkpoint that is whole."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from children import ended_by
from hostile import THOROUGH

if os.name == "nt":
    pytest.skip("signals of POSIX", allow_module_level=True)

WEIGHTS = Path(__file__).resolve().parents[1] / "weights"
GOES_ON = "{}: interrupted; run the same command again to go on from the last checkpoint"
LINES = {name: GOES_ON.format(name) for name in ("train", "train_heads")} | {"ngram": "ngram: interrupted"}
WRITING = "torch/serialization.py:_save"  # into a file that is open

# Where it is pressed, and whether the quick profile does it.
MOMENTS = {
    "train": {
        "import": ("torch/__init__.py:<module>", 1, True),
        "the end of an import": ("train.py:Recipe", 1, False),
        "tokenizer": ("train.py:train_tokenizer", 1, False),
        "step": ("train.py:MLP.forward", 3, False),
    },
    "train_heads": {
        "import": ("torch/__init__.py:<module>", 1, True),
        "target": ("frozen_target.py:FrozenTarget.__init__", 1, False),
        "step": ("heads_medusa.py:Medusa.loss", 2, True),
    },
    "ngram": {"import": ("numpy/__init__.py:<module>", 1, True), "counts": ("ngram_table.py:count_table", 1, True)},
}
SMALL = """
import runpy, sys

sys.path[0] = {folder!r}
import train

train.N_VOCAB, train.N_CTX, train.TARGET = 300, 32, train.Recipe("story-target", 2, 2, 16, 0, 1e-2, batch=2)
runpy.run_path({folder!r} + "/train.py", run_name="__main__")
"""
CASES = [(name, moment) for name, moments in MOMENTS.items() for moment in moments if THOROUGH or moments[moment][2]]


def command(name: str, folder: Path, small: bool) -> list[str]:
    """A recipe on some stories, with two steps; small: those of the pair as if it were a toy."""
    (folder / "corpus").mkdir(exist_ok=True)
    stories = [f"Once upon a time, {who} had a {what}." for who in ("Tom", "Lily", "Ben") for what in ("dog", "cat")]
    (folder / "corpus" / "stories.txt").write_text("\n<|endoftext|>\n".join(stories * 20), encoding="utf-8")
    script, corpus, work = str(WEIGHTS / f"{name}.py"), str(folder / "corpus"), ["--work", str(folder / "work")]
    if name == "train":
        if small:
            script = str(folder / "small.py")
            Path(script).write_text(SMALL.format(folder=str(WEIGHTS)), encoding="utf-8")
        return [script, corpus, "--out", str(folder / "out"), *work, "--threads", "1", "--target-tokens", "128"]
    if name == "ngram":
        return [script, corpus, "--out", str(folder / "out")]
    few = ["--tokens", "64", "--window", "16", "--threads", "1"]
    return [script, "medusa", str(WEIGHTS / "story-target"), corpus, "--out", str(folder / "out"), *work, *few]


def interrupted(name: str, place: str, n_calls: int, folder: Path, small: bool = True) -> list[Path]:
    """The checkpoints that are there when a recipe was interrupted there, in one line."""
    if name != "ngram" and not all(map(importlib.util.find_spec, ("torch", "tokenizers"))):
        pytest.skip("needs torch and tokenizers: pip install -e .[train]")
    status, _, said = ended_by("SIGINT", place, n_calls, command(name, folder, small))
    assert (status, said) == (130, [LINES[name]])
    return sorted(folder.glob("work/*.pt"))


@pytest.mark.parametrize(("name", "moment"), CASES)
def test_ctrl_c_is_one_line_and_130(name: str, moment: str, tmp_path: Path) -> None:
    place, n_calls, _ = MOMENTS[name][moment]
    assert interrupted(name, place, n_calls, tmp_path, "import" not in moment) == []


@pytest.mark.skipif(not THOROUGH, reason="trains, for half a minute")
@pytest.mark.parametrize(("name", "next_"), [("train", "train.py:export"), ("train_heads", "train_heads.py:export")])
def test_a_checkpoint_is_whole_or_not_there(name: str, next_: str, tmp_path: Path) -> None:
    """Nothing of the first one that is not whole, and then the old one while a new one is written."""
    assert interrupted(name, WRITING, 1, tmp_path) == []
    (checkpoint,) = interrupted(name, next_, 1, tmp_path)
    whole = checkpoint.read_bytes()
    assert interrupted(name, WRITING, 1, tmp_path) == [checkpoint]
    assert checkpoint.read_bytes() == whole
