"""Every way to draft, on the same texts: what each keeps, costs and gains, in one table.

A draft of the list writes after the built-in prompts, some of each kind, each text next to plain decoding of the same
prompt. Tokens a pass and what is kept at each place are counts, and the same everywhere; costs and speeds are this
machine's, over plain passes and plain texts of the same minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from minispec.decoding import decode
from minispec.draft_option import is_lossy, is_model, parts_of, training_of
from minispec.methods import METHODS
from minispec.prompts import built_in_prompts, first_of_each_kind
from minispec.session import Pair, open_pair
from minispec.settings import AUTO, Settings, default_draft
from minispec.sweep_counts import Counts, Seconds, accept_by_place, count_run, measured_speedup, ratio, time_run
from minispec.trace import run_all
from minispec.tree_auto import with_best_tree
from minispec.trees import depth_of

OF_EACH_KIND = 3  # prompts, of six kinds
ARGUMENTS = {"early-exit": "2"}  # of methods that cannot do without
TOGETHER = "suffix"  # what is combined with a model: the two find different things
WIDTHS = (2, 2, 1)  # of a tree


@dataclass(frozen=True)
class DrafterRow:
    """A way to draft. tokens_per_pass, accept_by_position (the chance that a guess at each place is kept, given that
    all before it were; None for trees) and both speed-ups over plain decoding are of greedy texts, the latter with
    num_draft_tokens guesses and with the length that chooses itself; sampled_tokens_per_pass is at temperature 1.
    A tree that is chosen is the best for greedy texts. guess_cost: of one more guess, in plain passes. bytes: of what
    it holds beside the target."""

    draft: str
    num_draft_tokens: int
    tokens_per_pass: float | None
    sampled_tokens_per_pass: float | None
    accept_by_position: list[float | None] | None
    guess_cost: float | None
    bytes: int
    training: str
    speedup: float | None
    auto_speedup: float | None
    keeps_law: bool


def every_draft(target: str) -> list[str]:
    """A model that goes with this target by itself, every method, and the two kinds together."""
    model = default_draft(target)
    methods = [f"{name}:{ARGUMENTS[name]}" if name in ARGUMENTS else name for name in METHODS]
    return [*([model] if model else []), *methods, *([f"{TOGETHER}+{model}"] if model else [])]


def time_drafters(
    settings: Settings, drafts: Sequence[str], n_draft: int, say: Callable[[str], None], quiet: bool
) -> tuple[list[DrafterRow], list[str]]:
    """A row for each way of each draft, and notes on those that cannot be had.

    Raises ValueError where none can.
    """
    target = open_pair(replace(settings, draft="none")).target
    prompts = [prompt.text for prompt in first_of_each_kind(built_in_prompts(), OF_EACH_KIND)]
    rows, notes = [], []
    for draft in tqdm(drafts, desc="drafters", leave=False, disable=quiet or None):
        for one in ways(replace(settings, draft=draft)):
            try:
                pair = open_pair(one, target)
            except ValueError as error:
                if len(drafts) == 1:
                    raise
                notes.append(f"{draft} is left out: {error}")
                break
            say(f"writing with {name_of(one)} ...")
            pair.warm_up()
            chosen, pair, choice = with_best_tree(one, pair)
            if choice is not None:
                notes.append(f"{draft}, {choice.line()}")
            length = depth_of(one.tree) or n_draft if choice is None else choice.depth
            rows.append(replace(drafter_row(chosen, pair, prompts, length), draft=name_of(one)))
    if not rows:
        raise ValueError(f"none of these drafters can be had; {notes[0]}")
    return rows, notes


def ways(settings: Settings) -> list[Settings]:
    """A draft as it is asked for, a model also in 8 bits, and as a tree what can branch; where it keeps the law, as the
    best one, too.
    """
    assert settings.draft is not None
    found = [settings]
    if is_model(settings.draft) and settings.draft_weights == "f32":
        found.append(replace(settings, draft_weights="int8"))
    if parts_of(settings.draft)[0].branches and "+" not in settings.draft:
        found.append(replace(settings, tree=WIDTHS))
        if not is_lossy(settings.draft):
            found.append(replace(settings, tree=AUTO))
    return found


def name_of(settings: Settings) -> str:
    """What a way is called in the table."""
    kept = ", int8" * (is_model(settings.draft) and settings.draft_weights == "int8")
    tree = settings.tree if isinstance(settings.tree, str) else ",".join(map(str, settings.tree))
    return f"{settings.draft}{kept}{f', tree {tree}' * bool(tree)}"


def drafter_row(settings: Settings, pair: Pair, prompts: Sequence[str], n_draft: int) -> DrafterRow:
    """Texts with guesses of a fixed number, with those of a number that chooses itself, and sampled ones."""
    fixed = replace(settings, num_draft_tokens=n_draft)
    greedy, seconds = write(fixed, pair, prompts)
    _, auto_seconds = write(replace(settings, num_draft_tokens=AUTO), pair, prompts)
    sampled, _ = write(replace(fixed, temperature=1.0), pair, prompts)
    assert settings.draft is not None
    return DrafterRow(
        draft=name_of(settings),
        num_draft_tokens=n_draft,
        tokens_per_pass=ratio(greedy.tokens, greedy.passes),
        sampled_tokens_per_pass=ratio(sampled.tokens, sampled.passes),
        accept_by_position=None if settings.tree else accept_by_place(greedy),
        guess_cost=guess_cost(greedy, seconds),
        bytes=sum(array.nbytes for array in arrays_of(pair.drafter, shared=list(arrays_of(pair.target)))),
        training=training_of(settings.draft),
        speedup=measured_speedup(greedy, seconds),
        auto_speedup=measured_speedup(greedy, auto_seconds),
        keeps_law=not is_lossy(settings.draft),
    )


def write(settings: Settings, pair: Pair, prompts: Sequence[str]) -> tuple[Counts, Seconds]:
    """A text after each prompt, and its plain twin before it; the first of all does not count."""
    counts, seconds = Counts(), Seconds()
    for i, prompt in enumerate([prompts[0], *prompts]):
        ids = pair.tokenizer.encode(prompt)
        plain = run_all(ids, decode(settings, pair, ids, plain=True))
        run = run_all(ids, decode(settings, pair, ids))
        if i:
            counts += count_run(run, plain, settings.determined)
            seconds += time_run(run, plain)
    if counts.different and not is_lossy(settings.draft):
        raise ValueError(
            f"{settings.draft} has written another text than plain decoding: minispec verify looks further"
        )
    return counts, seconds


def guess_cost(counts: Counts, seconds: Seconds) -> float | None:
    """Of a guess, in plain passes of one row, both as they were in these texts after the first pass."""
    n_guesses = sum(n * rounds for n, rounds in enumerate(counts.later))
    one_row = ratio(seconds.later_plain, counts.later_plain)
    return sum(seconds.later_draft) / n_guesses / one_row if n_guesses and one_row else None


def arrays_of(thing: Any, shared: Sequence[np.ndarray] = (), seen: set[int] | None = None) -> Iterator[np.ndarray]:
    """The arrays that an object holds, each once, but for views of those that are shared."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        if not any(np.may_share_memory(thing, other) for other in shared):
            yield thing
        return
    inner = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else []
    if type(thing).__module__.startswith("minispec.") and hasattr(thing, "__dict__"):
        inner = [*inner, *vars(thing).values()]
    for one in inner:
        yield from arrays_of(one, shared, seen)
