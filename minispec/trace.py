"""A run as data: the steps of one text, and the counts that follow from them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from minispec.protocols import Step


def token_kinds(step: Step) -> list[tuple[int, str]]:
    """Each token of a step with how it came: an accepted guess, the replacement of a refused one, a bonus
    after one that no guess was left to follow, or plain where nothing was guessed."""
    if not step.drafted:
        return [(token, "plain") for token in step.committed]
    last = "bonus" if step.at_end else "replaced"
    return [(token, "accepted" if i < step.n_accepted else last) for i, token in enumerate(step.committed)]


@dataclass
class Run:
    """One text: its prompt, its steps, and the seconds they took (reading the prompt included)."""

    prompt_ids: list[int]
    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0

    def record(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Pass steps on as they come, keeping each; the time of whoever looks at them is not counted."""
        began = time.perf_counter()
        for step in steps:
            self.seconds += time.perf_counter() - began
            self.steps.append(step)
            yield step
            began = time.perf_counter()

    @property
    def ids(self) -> list[int]:
        """The new tokens."""
        return [token for step in self.steps for token in step.committed]

    @property
    def finish(self) -> str | None:
        """Why the text ended; None while it goes on."""
        return self.steps[-1].finish if self.steps else None

    @property
    def passes(self) -> int:
        """Passes of the target."""
        return sum(1 for step in self.steps if step.committed)

    @property
    def drafted(self) -> int:
        """Guesses that were put to the target."""
        return sum(len(step.drafted) for step in self.steps)

    @property
    def accepted(self) -> int:
        """Guesses that became text."""
        return sum(step.n_accepted for step in self.steps)

    @property
    def accept_rate(self) -> float | None:
        """accepted / drafted, or None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        """New tokens for each pass of the target, or None without a pass."""
        return len(self.ids) / self.passes if self.passes else None

    @property
    def tokens_per_second(self) -> float | None:
        """New tokens a second, or None where there was nothing to time."""
        return len(self.ids) / self.seconds if self.seconds and self.ids else None

    def as_json(self, text: str, settings: dict[str, object]) -> dict[str, object]:
        """The keys of `--json`, with the text that the ids decode to and the run's settings."""
        return {
            "text": text,
            "prompt_ids": self.prompt_ids,
            "ids": self.ids,
            "finish": self.finish,
            "passes": self.passes,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "accept_rate": self.accept_rate,
            "tokens_per_pass": self.tokens_per_pass,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
        } | settings


def run_all(prompt_ids: Sequence[int], steps: Iterable[Step]) -> Run:
    """Let a text be written to its end."""
    run = Run(list(prompt_ids))
    for _ in run.record(steps):
        pass
    return run
