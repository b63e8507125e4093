"""Everything that a run depends on, with the defaults of every command."""

from __future__ import annotations

from dataclasses import dataclass

from minispec.draft_option import takes_draft_weights
from minispec.hub import short_name

AUTO = "auto"  # the draft length that pays best at what things cost here
SCHEDULES = ("sequential", "overlapped")  # whether the drafter waits while the target checks
DEFAULT_DRAFTS = {
    "story-target": "story-draft",
    "gpt2": "distilgpt2",
    "gpt2-medium": "gpt2",
    "gpt2-large": "gpt2",
    "gpt2-xl": "gpt2",
}


def default_draft(target: str) -> str | None:
    """The draft model that goes with a target by itself, or None."""
    return DEFAULT_DRAFTS.get(short_name(target))


@dataclass(frozen=True)
class Settings:
    """Everything that a run depends on; the defaults of every command are here and nowhere else."""

    target: str = "story-target"
    draft: str | None = None  # as draft_option.py has it; None: DEFAULT_DRAFTS has one; "none": no drafter
    num_draft_tokens: int | str = AUTO  # a number, or AUTO
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    coupling: str = "optimal"
    schedule: str = "sequential"
    stop: tuple[str, ...] = ()
    weights: str = "f32"
    draft_weights: str = "f32"
    backend: str = "numba"
    offline: bool = False
    tree: tuple[int, ...] | str = ()  # guesses for each place, by depth, or parents; () for chains; or AUTO
    verification: str = "token"

    @property
    def determined(self) -> bool:
        """Whether plain and speculative decoding write the same text, not only the same law."""
        return self.temperature == 0 or self.coupling == "gumbel"

    @property
    def draft_name(self) -> str | None:
        """What drafts, as `draft_option.py` has it, or None. Raises ValueError where there is no default."""
        name = default_draft(self.target) if self.draft is None else self.draft
        if name is None:
            raise ValueError(
                f"no draft model goes by itself with {self.target!r}: name a smaller one with the same tokenizer, "
                "as in -d story-draft, or -d none for plain decoding"
            )
        return None if name == "none" else name

    def as_json(self) -> dict[str, object]:
        """The settings that `--json` repeats; draft_weights are those of models that only draft."""
        told: dict[str, object] = {
            "target": self.target,
            "draft": self.draft_name,
            "num_draft_tokens": self.num_draft_tokens if self.draft_name else 0,
            "weights": self.weights,
            "draft_weights": self.draft_weights if takes_draft_weights(self.draft_name) else None,
            "schedule": self.schedule if self.draft_name else None,
            "seed": self.seed,
        }
        if self.tree and self.draft_name:
            told["tree"] = self.tree if self.tree == AUTO else list(self.tree)
        if self.verification != Settings.verification:
            told["verification"] = self.verification
        return told
