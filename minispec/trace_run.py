"""A text written with notes, and beside it the same by plain decoding: settings and a loaded pair to traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from minispec.decoding import decode, decoding_options, draft_length, verification
from minispec.session import Pair
from minispec.settings import Settings
from minispec.trace import Run
from minispec.trace_notes import Notes
from minispec.trace_reasons import Round

WARM_UP = 4  # tokens that are written before the clock counts


class Trace:
    """One text on its way: `run` as of any other, and `rounds`, which has the reasons."""

    def __init__(self, settings: Settings, pair: Pair, prompt_ids: Sequence[int], *, plain: bool = False) -> None:
        """Raises ValueError as `decode`, and for a schedule that is not traced."""
        from minispec import speculative
        from minispec.plain import generate

        check_traceable(settings)
        options = decoding_options(settings, pair)
        rules = {"token": speculative.judge, "block": speculative.judge_block}
        self.plain = plain or pair.drafter is None
        way: Any = None if self.plain else verification(settings, pair)
        self.notes = Notes(options["sampling"], settings.seed, rules.get(way, way))
        options |= {"sampling": self.notes.sampling, "choices": self.notes.choices}
        if pair.drafter is None or self.plain:
            self.steps = generate(pair.target, prompt_ids, **options)
        else:
            options |= {"n_draft": draft_length(settings, pair), "verification": self.notes.judge}
            self.steps = speculative.speculate(pair.target, pair.drafter, prompt_ids, **options)
        self.run = Run(list(prompt_ids))
        self.rounds: list[Round] = []

    def record(self) -> Iterator[Any]:
        """The steps as they come; notes are read while the run's clock stands still."""
        for step in self.run.record(self.steps):
            self.rounds.append(self.notes.round_of(step))
            yield step

    def finish(self) -> Trace:
        """Let the text be written to its end."""
        for _ in self.record():
            pass
        return self


def check_traceable(settings: Settings) -> None:
    """Raise ValueError for a schedule whose rounds are not those of the page."""
    if settings.schedule != Settings.schedule and settings.draft_name is not None:
        raise ValueError(
            f"a trace shows rounds that draft, then check, and --schedule {settings.schedule} does both at once: "
            "leave it out"
        )


def warm_up(settings: Settings, pair: Pair, prompt_ids: Sequence[int]) -> None:
    """Write a few tokens both ways, so that neither pays for a first touch of the weights."""
    few = replace(settings, max_new_tokens=min(WARM_UP, settings.max_new_tokens))
    for plain in (True, False):
        for _ in decode(few, pair, prompt_ids, plain=plain):
            pass


def trace_plain(settings: Settings, pair: Pair, prompt_ids: Sequence[int]) -> Trace | None:
    """Plain decoding of the same prompt, to be compared with; None where the run is plain decoding already."""
    return None if pair.drafter is None else Trace(settings, pair, prompt_ids, plain=True).finish()
