"""Count the n-gram table that drafts for a target: `-d ngram`.

    python weights/ngram.py CORPUS                        # for story-target, beside its weights
    python weights/ngram.py CORPUS --target FOLDER        # for any other model, beside its weights

CORPUS is a folder of .txt files, texts parted by <|endoftext|>. The same texts are held out as in `train.py`, and the
table is tried on them: how many tokens a pass would be written if the target wrote them. NumPy only, some seconds.
"""

from __future__ import annotations

if __name__ == "__main__":  # before NumPy is imported: Ctrl-C is heard from here on
    from minispec.interrupts import run_main

    run_main("ngram", "ngram: interrupted")

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from stories import read_stories

from minispec import load_tokenizer
from minispec.drafters.ngram import FILE
from minispec.hub import find_model
from minispec.ngram_table import LEAST, LONGEST, NgramTable, count_table, save_table


def tokens_a_pass(table: NgramTable, texts: Sequence[Sequence[int]], n_draft: int) -> float:
    """Tokens a pass where these texts are what the target writes, from their second token on."""
    tokens = passes = 0
    for ids in texts:
        place = 1
        while place < len(ids):
            n_kept, end = 0, list(ids[max(place - table.longest, 0) : place])
            while n_kept < n_draft and place + n_kept < len(ids):
                guess, _ = table.guess(end)
                if guess != ids[place + n_kept]:
                    break
                n_kept, end = n_kept + 1, [*end, guess][-table.longest :]
            place += n_kept + 1
            passes += 1
        tokens += len(ids) - 1
    return tokens / passes


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder of .txt files")
    parser.add_argument("--target", default="story-target", help="a model by name, or its folder")
    parser.add_argument("--out", type=Path, help=f"the file to write; {FILE} beside the target's weights by default")
    parser.add_argument("--longest", type=int, help=f"tokens of a context; {LONGEST} or as many as fit by default")
    parser.add_argument("--least", type=int, default=LEAST, help="times that a longer context's best token was seen")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    folder = find_model(options.target)
    tokenizer = load_tokenizer(folder)
    end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    texts, held = ([[*tokenizer.encode(story), *end] for story in part] for part in read_stories(options.corpus))
    table = count_table(texts, tokenizer.n_vocab, options.longest, options.least)
    figures = {
        "texts": len(texts),
        "tokens": sum(map(len, texts)),
        "least": options.least,
        "contexts": [len(level.keys) for level in table.levels],
        "held_out_texts": len(held),
        "held_out_tokens_a_pass": {n: round(tokens_a_pass(table, held, n), 3) for n in (1, 2, 4, 8)} if held else {},
    }
    out = options.out or folder / FILE
    save_table(out, table, tokenizer, figures)
    print(
        json.dumps(figures | {"bytes": out.stat().st_size, "seconds": round(time.perf_counter() - began, 1)}, indent=2)
    )
