"""A pair to steps: plainly or speculatively, on the schedule and with the draft length that the settings name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from minispec.session import Pair
from minispec.settings import AUTO, Settings

if TYPE_CHECKING:
    from minispec.model import GPT2
    from minispec.protocols import Drafter, DraftLength, Sampler, Step

MOST_BESIDE = 8  # guesses that AUTO makes beside a target pass, however cheap they are


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
