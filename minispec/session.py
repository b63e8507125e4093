"""Settings to a loaded pair, and a pair to steps: what the command line and the checks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from minispec.draft_option import takes_draft_weights
from minispec.hub import short_name

if TYPE_CHECKING:
    from minispec.costs import Costs
    from minispec.model import GPT2
    from minispec.protocols import Drafter, DraftLength, Sampler, Step
    from minispec.tokenizer import Tokenizer

AUTO = "auto"  # the draft length that pays best at what things cost here
SCHEDULES = ("sequential", "overlapped")  # whether the drafter waits while the target checks
MOST_BESIDE = 8  # guesses that AUTO makes beside a target pass, however cheap they are
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
    tree: tuple[int, ...] = ()  # guesses for each place, by depth; () for chains
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
            told["tree"] = list(self.tree)
        if self.verification != Settings.verification:
            told["verification"] = self.verification
        return told


@dataclass(frozen=True)
class Pair:
    """A target, its tokenizer, and a drafter that shares the vocabulary, if there is one."""

    target: GPT2
    tokenizer: Tokenizer
    drafter: Drafter | None = None

    @property
    def has_trees(self) -> bool:
        """Whether the drafter branches."""
        from minispec.drafters.models import branches

        return branches(self.drafter)

    @cached_property
    def costs(self) -> Costs:
        """What guesses and checks cost on this machine: kept from an earlier run, or measured, which takes seconds."""
        from minispec.costs import costs_of

        return costs_of(self)

    def warm_up(self) -> None:
        """Compile the kernels, or load them."""
        from minispec.drafters.models import warm_up

        self.target.warm_up()
        warm_up(self.drafter)


def open_pair(settings: Settings, target: GPT2 | None = None) -> Pair:
    """Load what the settings name; `target` is their target where it is loaded already.

    Raises ValueError for models and methods that cannot be had, and for vocabularies that differ.
    """
    from minispec.draft_option import build_drafter, models_in, parts_of, taps_of
    from minispec.tokenizer import check_same_vocabulary, load_tokenizer
    from minispec.weights import load_model

    tokenizer = load_tokenizer(settings.target, offline=settings.offline)
    name = settings.draft_name
    check_ways(settings)
    parts = [] if name is None else parts_of(name)
    for model in models_in(name):  # before the weights are read
        check_same_vocabulary(tokenizer, load_tokenizer(model, offline=settings.offline))
    if target is None:
        target = load_model(settings.target, settings.weights, settings.backend, settings.offline)
    if not parts:
        return Pair(target, tokenizer)
    taps = taps_of(parts, target)
    if taps:
        target = target.tapped(taps)  # type: ignore[attr-defined,unused-ignore]
    pair = Pair(target, tokenizer, build_drafter(parts, settings, target, tokenizer))
    check_drafter(settings, pair)
    return pair


def check_ways(settings: Settings) -> None:
    """Raise ValueError for ways to guess and to judge that do not go together, or a tree that nothing could guess."""
    from minispec.draft_option import parts_of
    from minispec.drafters.small_model_tree import check_widths

    if settings.schedule != Settings.schedule and (settings.tree or settings.verification != Settings.verification):
        other = "--tree" if settings.tree else f"--verification {settings.verification}"
        raise ValueError(f"--schedule {settings.schedule} judges chains, guess by guess: leave out {other}")
    if settings.tree:
        check_widths(settings.tree)
        name = settings.draft_name
        if name is not None and not any(part.branches for part in parts_of(name)):
            raise ValueError(f"--tree is for the guesses of a model, and {name} has none: name one, or leave it out")


def check_drafter(settings: Settings, pair: Pair) -> None:
    """Raise ValueError for a drafter that does not go with the schedule, or with the way to judge."""
    from minispec.drafters.models import sees_target

    name = settings.draft_name
    if settings.schedule == "overlapped" and sees_target(pair.drafter):
        raise ValueError(
            f"--schedule overlapped drafts while the target's cache is written to, and {name} looks at that: leave it "
            "out, or take another draft"
        )
    if settings.verification == "block" and pair.has_trees:
        raise ValueError(f"--verification block judges chains, and {name} guesses trees: leave it out")
    if settings.verification == "block" and hasattr(pair.drafter, "judge"):
        raise ValueError(f"--verification block is not for {name}, which has a rule of its own: leave it out")


def decode(settings: Settings, pair: Pair, prompt_ids: Sequence[int], *, plain: bool = False) -> Iterator[Step]:
    """The steps of one text: speculative where the pair has a drafter, unless `plain`."""
    from minispec.plain import generate
    from minispec.speculative import speculate

    options = decoding_options(settings, pair)
    if plain or pair.drafter is None:
        return generate(pair.target, prompt_ids, **options)
    if settings.schedule == "overlapped":
        from minispec.overlapped import InTurn, speculate_overlapped

        target, drafter = split_cores(pair)
        options |= {"n_draft": beside_a_pass(settings, pair), "executor": None if pair.target.threads > 1 else InTurn()}
        return speculate_overlapped(target, drafter, prompt_ids, **options)
    options |= {"n_draft": draft_length(settings, pair), "verification": verification(settings, pair)}
    return speculate(pair.target, pair.drafter, prompt_ids, **options)


def decode_batch(settings: Settings, pair: Pair, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Step]]:
    """The steps of texts that are written together, with the number of the text: each text is that of `decode`.

    Where a text is the same with any draft length, AUTO goes by the prices of a batch, whose checks have more rows;
    else by those of a single text.
    """
    from minispec.batch import generate_batch, speculate_batch
    from minispec.tokenizer import stop_rule

    options = decoding_options(settings, pair)
    options["stop"] = [stop_rule(pair.tokenizer, settings.stop) for _ in prompts]
    if pair.drafter is None:
        return generate_batch(pair.target, prompts, **options)
    options["n_draft"] = draft_length(settings, pair, len(prompts) if settings.determined else 1)
    return speculate_batch(pair.target, pair.drafter, prompts, verification=verification(settings, pair), **options)


def verification(settings: Settings, pair: Pair) -> Any:
    """How guesses are judged: as the settings say, but for drafters of lossy methods, which have rules of their own."""
    return getattr(pair.drafter, "judge", settings.verification)


def decoding_options(settings: Settings, pair: Pair) -> dict[str, Any]:
    """What plain and speculative decoding take alike."""
    from minispec.gumbel import Gumbel
    from minispec.sampling import Sampling
    from minispec.tokenizer import stop_rule

    sampling: Sampler = Sampling(settings.temperature, settings.top_k, settings.top_p)
    if settings.coupling == "gumbel" and settings.temperature > 0:  # greedy decoding needs no noise
        sampling = Gumbel(sampling, settings.seed)
    stop = stop_rule(pair.tokenizer, settings.stop)
    return {"max_new_tokens": settings.max_new_tokens, "sampling": sampling, "seed": settings.seed, "stop": stop}


def split_cores(pair: Pair) -> tuple[GPT2, Drafter]:
    """Target and drafter for working at once: the drafter's model on one core, the target on the others.

    With two cores both have one thread; on a single one they take turns. A drafter without a model stays as it is.
    """
    from minispec.drafters.models import with_models
    from minispec.model import GPT2

    def on_one_core(model: Any) -> Any:
        return model.with_crew(1) if isinstance(model, GPT2) else model

    drafter: Drafter = with_models(pair.drafter, on_one_core)
    return pair.target.with_crew(max(pair.target.threads - 1, 1)), drafter


def beside_a_pass(settings: Settings, pair: Pair) -> int:
    """The number of guesses a round; for AUTO, as many as fit beside a target pass of one row."""
    if settings.num_draft_tokens != AUTO:
        return int(settings.num_draft_tokens)
    return max(round((1 - pair.costs.first) / max(pair.costs.guess, 1 / MOST_BESIDE)), 1)


def draft_length(settings: Settings, pair: Pair, n_text: int = 1) -> int | DraftLength:
    """The number of guesses a round, or what chooses it at the prices of this pair, where n_text texts share passes."""
    from minispec.draft_length import AutoLength

    return (
        AutoLength(pair.costs.of_batch(n_text)) if settings.num_draft_tokens == AUTO else int(settings.num_draft_tokens)
    )
