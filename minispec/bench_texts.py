"""Whole texts, plain against speculative, by minispec and by any other program, in turn and in one run.

First every draft length is tried, and each program keeps its best. Then every program writes plainly and
speculatively, one after the other, again and again; what counts are ratios within a turn, and their medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tqdm import tqdm

from minispec.drafters.models import models_of, with_models
from minispec.model import GPT2
from minispec.plain import generate
from minispec.protocols import Drafter
from minispec.sampling import Sampling
from minispec.speculative import speculate
from minispec.trace import run_all

TRIES = 2  # of every draft length; the better one counts, as the first also warms up
OURS = "minispec"
PLAIN, SPECULATIVE = "plain", "speculative"


@dataclass(frozen=True)
class Written:
    """The texts that a program wrote, one for each prompt, and how: None for what it does not tell.

    outside_share: the part of the time that was not spent in the models' passes.
    """

    n_tokens: int
    seconds: float
    ids: tuple[tuple[int, ...], ...] | None = None
    passes: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    outside_share: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """New tokens a second."""
        return self.n_tokens / self.seconds


Arm = Callable[[], Written]  # writes the texts, each time anew


@dataclass(frozen=True)
class Program:
    """A program's ways to write the texts: plainly, and speculatively by draft length."""

    name: str
    plain: Arm
    speculative: Mapping[int, Arm] = field(default_factory=dict)


@dataclass(frozen=True)
class DraftLength:
    """A draft length that was tried: speed over that of the program's plain decoding in the same try."""

    program: str
    num_draft_tokens: int
    tokens_per_second: float
    speedup: float


@dataclass(frozen=True)
class Speed:
    """A program's way to write, over all repetitions. `speedup` is over its own plain decoding; `minispec_over_it`
    minispec's speed in the same mode over this one; `same_text` whether it wrote what minispec writes plainly."""

    program: str
    mode: str
    num_draft_tokens: int
    tokens: int
    seconds: float
    tokens_per_second: float
    speedup: float
    minispec_over_it: float
    accept_rate: float | None
    tokens_per_pass: float | None
    outside_share: float | None
    same_text: bool | None


class TimedModel:
    """A target, or a draft, that counts the seconds spent in its passes."""

    def __init__(self, model: GPT2) -> None:
        self.model = model
        self.n_ctx, self.n_vocab, self.new_cache = model.n_ctx, model.n_vocab, model.new_cache
        self.seconds = 0.0

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        """The model's own pass, timed."""
        began = time.perf_counter()
        logits = self.model.forward(ids, cache, n_logits)
        self.seconds += time.perf_counter() - began
        return logits

    def forward_tree(self, *tree: Any) -> Any:
        """The model's own pass over a tree, timed."""
        began = time.perf_counter()
        logits = self.model.forward_tree(*tree)
        self.seconds += time.perf_counter() - began
        return logits


def minispec_program(
    target: GPT2, drafter: Drafter | None, prompts: Sequence[Sequence[int]], n: int, lengths: Sequence[int]
) -> Program:
    """Our own ways to write n greedy tokens after each prompt; the end of the text is a token like others."""

    def arm(n_draft: int) -> Arm:
        return lambda: write_texts(target, drafter if n_draft else None, prompts, n, n_draft)

    return Program(OURS, arm(0), {n_draft: arm(n_draft) for n_draft in lengths} if drafter is not None else {})


def write_texts(
    target: GPT2, drafter: Drafter | None, prompts: Sequence[Sequence[int]], n: int, n_draft: int
) -> Written:
    """Write n greedy tokens after each prompt, speculatively where there is a drafter."""
    timed, drafter = TimedModel(target), with_models(drafter, TimedModel)
    models = [timed, *models_of(drafter)]
    greedy = Sampling(temperature=0.0)
    runs = []
    for ids in prompts:
        if drafter is None:
            steps = generate(timed, ids, max_new_tokens=n, sampling=greedy)
        else:
            steps = speculate(timed, drafter, ids, max_new_tokens=n, n_draft=n_draft, sampling=greedy)
        runs.append(run_all(ids, steps))
    seconds = sum(run.seconds for run in runs)
    return Written(
        n_tokens=sum(len(run.ids) for run in runs),
        seconds=seconds,
        ids=tuple(tuple(run.ids) for run in runs),
        passes=sum(run.passes for run in runs),
        drafted=sum(run.drafted for run in runs),
        accepted=sum(run.accepted for run in runs),
        outside_share=1 - sum(model.seconds for model in models) / seconds,
    )


# --- in turn -----------------------------------------------------------------------------------------


def compare_programs(
    programs: Sequence[Program], repetitions: int, quiet: bool
) -> tuple[list[DraftLength], list[Speed]]:
    """Find each program's best draft length, then time all of them in turn. The first program is minispec."""
    bar = tqdm(total=count_arms(programs, repetitions), desc="texts", leave=False, disable=quiet or None)

    def write(arm: Arm) -> Written:
        written = arm()
        bar.update()
        return written

    with bar:
        lengths, arms = [], {}
        for program in programs:
            tries = [
                {n_draft: write(arm) for n_draft, arm in ({0: program.plain} | dict(program.speculative)).items()}
                for _ in range(TRIES)
            ]
            lengths += compare_lengths(program.name, tries)
            arms[program.name, 0] = program.plain
            if program.speculative:
                best = best_length(program.name, lengths)
                arms[program.name, best] = program.speculative[best]
        turns = [{key: write(arm) for key, arm in arms.items()} for _ in range(repetitions)]
    return lengths, compare_speeds(turns)


def count_arms(programs: Sequence[Program], repetitions: int) -> int:
    """How many times anything is written."""
    tries = sum(TRIES * (1 + len(program.speculative)) for program in programs)
    return tries + repetitions * sum(1 + bool(program.speculative) for program in programs)


def compare_lengths(program: str, tries: Sequence[Mapping[int, Written]]) -> list[DraftLength]:
    """The better try of each draft length against the better try of plain decoding, which is 0."""
    best = {n_draft: max(one[n_draft].tokens_per_second for one in tries) for n_draft in tries[0]}
    return [DraftLength(program, n_draft, speed, speed / best[0]) for n_draft, speed in best.items() if n_draft]


def best_length(program: str, lengths: Sequence[DraftLength]) -> int:
    """The draft length of a program's fastest try."""
    own = [length for length in lengths if length.program == program]
    return max(own, key=lambda length: length.tokens_per_second).num_draft_tokens


def compare_speeds(turns: Sequence[Mapping[tuple[str, int], Written]]) -> list[Speed]:
    """Medians over turns of speeds and of ratios within a turn. Keys are a program and a draft length, 0 for plain."""

    def ratio(key: tuple[str, int], other: tuple[str, int]) -> float:
        return median(turn[key].tokens_per_second / turn[other].tokens_per_second for turn in turns)

    keys = list(turns[0])
    ours = {bool(n_draft): (program, n_draft) for program, n_draft in keys if program == OURS}
    text = turns[0][ours[False]].ids
    speeds = []
    for key in keys:
        program, n_draft = key
        all_written = [turn[key] for turn in turns]
        one = all_written[0]
        outside = [written.outside_share for written in all_written if written.outside_share is not None]
        speeds.append(
            Speed(
                program=program,
                mode=SPECULATIVE if n_draft else PLAIN,
                num_draft_tokens=n_draft,
                tokens=one.n_tokens,
                seconds=median(written.seconds for written in all_written),
                tokens_per_second=median(written.tokens_per_second for written in all_written),
                speedup=ratio(key, (program, 0)),
                minispec_over_it=ratio(ours[bool(n_draft)], key),
                accept_rate=one.accepted / one.drafted if one.accepted is not None and one.drafted else None,
                tokens_per_pass=one.n_tokens / one.passes if one.passes else None,
                outside_share=median(outside) if outside else None,
                same_text=None if one.ids is None else all(written.ids == text for written in all_written),
            )
        )
    return speeds
