"""Settings to a loaded pair, and a pair to steps: what the command line and the checks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minispec.hub import short_name

if TYPE_CHECKING:
    from minispec.model import GPT2
    from minispec.speculative import Drafter, Sampler, Step
    from minispec.tokenizer import Tokenizer

DEFAULT_DRAFTS = {
    "story-target": "story-draft",
    "gpt2": "distilgpt2",
    "gpt2-medium": "gpt2",
    "gpt2-large": "gpt2",
    "gpt2-xl": "gpt2",
}


@dataclass(frozen=True)
class Settings:
    """Everything that a run depends on; the defaults of every command are here and nowhere else."""

    target: str = "story-target"
    draft: str | None = None  # None: DEFAULT_DRAFTS has one for the target; "none": no drafter
    num_draft_tokens: int = 4
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    coupling: str = "optimal"
    stop: tuple[str, ...] = ()
    weights: str = "f32"
    draft_weights: str = "f32"
    backend: str = "numba"
    offline: bool = False

    @property
    def determined(self) -> bool:
        """Whether plain and speculative decoding write the same text, not only the same law."""
        return self.temperature == 0 or self.coupling == "gumbel"

    @property
    def draft_name(self) -> str | None:
        """The drafter's name, or None for plain decoding. Raises ValueError where there is no default."""
        name = DEFAULT_DRAFTS.get(short_name(self.target)) if self.draft is None else self.draft
        if name is None:
            raise ValueError(
                f"no draft model goes by itself with {self.target!r}: name a smaller one with the same tokenizer, "
                "as in -d story-draft, or -d none for plain decoding"
            )
        return None if name == "none" else name

    def as_json(self) -> dict[str, object]:
        """The settings that `--json` repeats."""
        return {
            "target": self.target,
            "draft": self.draft_name,
            "num_draft_tokens": self.num_draft_tokens if self.draft_name else 0,
            "weights": self.weights,
            "draft_weights": self.draft_weights if self.draft_name else None,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Pair:
    """A target, its tokenizer, and a drafter that shares the vocabulary, if there is one."""

    target: GPT2
    tokenizer: Tokenizer
    drafter: Drafter | None = field(default=None)

    def warm_up(self) -> None:
        """Compile the kernels, or load them."""
        self.target.warm_up()
        model = getattr(self.drafter, "model", None)
        if model is not None:
            model.warm_up()


def open_pair(settings: Settings, target: GPT2 | None = None) -> Pair:
    """Load what the settings name; `target` is their target where it is loaded already.

    Raises ValueError for models that cannot be had, or whose vocabularies differ.
    """
    from minispec.drafters import SmallModelDrafter
    from minispec.tokenizer import check_same_vocabulary, load_tokenizer
    from minispec.weights import load_model

    tokenizer = load_tokenizer(settings.target, offline=settings.offline)
    name = settings.draft_name
    if name is not None:  # before the weights are read
        check_same_vocabulary(tokenizer, load_tokenizer(name, offline=settings.offline))
    if target is None:
        target = load_model(settings.target, settings.weights, settings.backend, settings.offline)
    if name is None:
        return Pair(target, tokenizer)
    draft = load_model(name, settings.draft_weights, settings.backend, settings.offline)
    return Pair(target, tokenizer, SmallModelDrafter(draft))


def decode(settings: Settings, pair: Pair, prompt_ids: Sequence[int], *, plain: bool = False) -> Iterator[Step]:
    """The steps of one text: speculative where the pair has a drafter, unless `plain`."""
    from minispec.gumbel import Gumbel
    from minispec.plain import generate
    from minispec.sampling import Sampling
    from minispec.speculative import speculate
    from minispec.tokenizer import stop_rule

    sampling: Sampler = Sampling(settings.temperature, settings.top_k, settings.top_p)
    if settings.coupling == "gumbel" and settings.temperature > 0:  # greedy decoding needs no noise
        sampling = Gumbel(sampling, settings.seed)
    stop = stop_rule(pair.tokenizer, settings.stop)
    if plain or pair.drafter is None:
        return generate(
            pair.target,
            prompt_ids,
            max_new_tokens=settings.max_new_tokens,
            sampling=sampling,
            seed=settings.seed,
            stop=stop,
        )
    return speculate(
        pair.target,
        pair.drafter,
        prompt_ids,
        max_new_tokens=settings.max_new_tokens,
        n_draft=settings.num_draft_tokens,
        sampling=sampling,
        seed=settings.seed,
        stop=stop,
    )
