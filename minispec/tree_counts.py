"""How often a drafter's guesses are kept, by depth and rank: counted once for a target, a drafter and a way to sample.

Texts after some of the built-in prompts are written with a wide tree, which has more ranks and depths than may pay, and
each round tells of the ranks that were judged in it. The counts are kept in the user's cache, like prices; but prices
are a machine's, and counts are the same wherever these models write: so their file is named by what guesses depend on,
the weights of both sides, the files of methods, and how is sampled. What a user's texts are like they cannot know.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minispec import __version__
from minispec.tree_shape import RankCounts, count_ranks, grow
from minispec.user_cache import cache_folder
from minispec.whole_file import write_whole

if TYPE_CHECKING:
    from minispec.protocols import Step
    from minispec.session import Pair
    from minispec.settings import Settings

N_TEXT = 12  # texts that are written, of all kinds of prompts in turn
N_TOKEN = 48  # of each
SECONDS = 10.0  # after which no further round begins, if there were FEWEST: a large model has fewer counts
FEWEST = 16  # rounds, of trees or of other drafters: what is kept must not hang on one or two
WIDE = (  # chances of no drafter in particular: the wide tree is the one that would be best for these
    (0.7, 0.15, 0.08, 0.04), (0.7, 0.15, 0.08), (0.7, 0.15, 0.08), (0.7, 0.15), (0.7, 0.15), (0.7,), (0.7,), (0.7,),
)  # fmt: skip
N_WIDE = 24  # guesses of it
RECIPE = 2  # goes up when counts are made in another way


def wide_tree() -> tuple[int, ...]:
    """The parents of the tree that counts are made with."""
    return tuple(grow(WIDE, N_WIDE)[0])


# --- counting --------------------------------------------------------------------------------------


def measure_counts(settings: Settings, pair: Pair, seconds: float = SECONDS) -> RankCounts:
    """The counts of a pair whose drafter guesses the wide tree, with the settings' way to sample."""
    return count_ranks(some_rounds(settings, pair, time.perf_counter() + seconds))


def some_rounds(settings: Settings, pair: Pair, until: float) -> Iterator[Step]:
    """Rounds of texts after built-in prompts, until the clock is past `until` and they are not too few."""
    from minispec.decoding import decode

    one = replace(settings, num_draft_tokens=len(WIDE), max_new_tokens=N_TOKEN, seed=0, stop=())
    n_round = 0
    for prompt in islice(prompts_in_turn(), N_TEXT):
        ids = pair.tokenizer.encode(prompt)[: max(pair.target.n_ctx // 2, 1)]
        for step in decode(one, pair, ids):
            yield step
            n_round += 1
            if n_round >= FEWEST and time.perf_counter() > until:
                return


def prompts_in_turn() -> Iterator[str]:
    """The built-in prompts, one of each kind, then another of each."""
    from minispec.prompts import built_in_prompts

    kinds: dict[str, list[str]] = {}
    for prompt in built_in_prompts():
        kinds.setdefault(prompt.kind, []).append(prompt.text)
    return (text for some in zip(*kinds.values(), strict=False) for text in some)


# --- kept from run to run --------------------------------------------------------------------------


def counts_of(settings: Settings, pair: Pair, anew: bool = False) -> RankCounts:
    """The counts of a pair: those that were kept, or counted now and kept. anew: counted, whatever is kept."""
    file = counts_file(settings, pair)
    kept = None if anew else read_counts(file)
    if kept is None:
        kept = measure_counts(settings, pair)
        keep_counts(file, kept)
    return kept


def counts_file(settings: Settings, pair: Pair) -> Path:
    """Where the counts of such a pair are kept: its name tells all that they depend on."""
    digest = sha256(json.dumps(depends(settings, pair)).encode()).hexdigest()[:16]
    return cache_folder("tree-counts") / f"{digest}.json"


def depends(settings: Settings, pair: Pair) -> list[Any]:
    """What the counts of a pair depend on: models by their fingerprints, methods by name, argument and files."""
    from minispec.draft_option import parts_of
    from minispec.drafters.models import describe, models_of
    from minispec.heads import fingerprint
    from minispec.sweep import file_digest

    models = [[fingerprint(model), model.stored] for model in (pair.target, *models_of(pair.drafter))]
    methods: list[Any] = []
    for part in parts_of(settings.draft_name or ""):
        if part.method is not None:
            files = part.method.files(settings, part.argument)
            methods.append([part.name, *(map(file_digest, files) if files else [part.argument])])
    greedy = settings.temperature == 0
    way = [] if greedy else [settings.temperature, settings.top_k, settings.top_p, settings.coupling]
    return [RECIPE, __version__, models, methods, describe(pair.drafter), way]


def read_counts(file: Path) -> RankCounts | None:
    """Counts from a file; None where there is none, or something else is in it."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["by_depth"]
        if not isinstance(found, list) or not all(isinstance(row, list) and row for row in found):
            return None
        return RankCounts(tuple(tuple((judged, kept) for judged, kept in row) for row in found))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def keep_counts(file: Path, counts: RankCounts) -> None:
    """Write counts, whole or not at all; a folder that cannot be written to is a warning."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps({"by_depth": counts.by_depth}) + "\n").encode())
    except OSError as error:
        warnings.warn(
            f"{file.parent} cannot be written to ({error.strerror}): what --tree auto goes by is measured anew each "
            "time, so the same seed may draw another text: give --tree widths, as in 3,2,1",
            stacklevel=2,
        )
