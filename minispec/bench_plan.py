"""What a benchmark is to measure: models, parts and their options, and what must hold before anything takes time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from minispec.bench_llama import llama_program
from minispec.bench_models import Model
from minispec.bench_transformers import check_installed
from minispec.draft_option import is_model, parts_of
from minispec.hub import find_model
from minispec.session import Pair, open_pair
from minispec.settings import Settings
from minispec.tokenizer import check_same_vocabulary, load_tokenizer
from minispec.viz import counted
from minispec.weights import read_config

SHORT_DRAFT = 4  # guesses a round for short replies and for drafters side by side


@dataclass(frozen=True)
class Plan:
    """What to measure: the models, the parts of PARTS, and the options of these."""

    settings: Settings
    models: tuple[Model, ...]  # a target, and what drafts, a model or methods, if there is something
    parts: Sequence[str]
    lengths: Sequence[int]
    prompts: Sequence[str]
    repetitions: int
    against: Sequence[str] = ()
    gguf: str | None = None
    gguf_draft: str | None = None
    accepts: Sequence[float] = ()  # of a scripted pair
    batches: Sequence[int] = ()  # sizes, for the part batch
    drafts: Sequence[str] = ()  # for the part drafters

    def asks_for(self, part: str) -> bool:
        """Whether a part is wanted, and there is what it measures."""
        draft = self.models[1:]
        needed = {
            "costs": draft, "prediction": self.accepts, "drafters": self.drafts, "short": draft,
            "batch": draft and self.batches,
        }  # fmt: skip
        return part in self.parts and bool(needed.get(part, True))


def short_length(plan: Plan) -> int:
    """SHORT_DRAFT, or the nearest to it of the lengths that are tried."""
    return min(plan.lengths, key=lambda k: abs(k - SHORT_DRAFT))


def load_pair(plan: Plan) -> Pair:
    """The target, and the drafter if there is one."""
    return open_pair(pair_settings(plan))


def pair_settings(plan: Plan) -> Settings:
    """The settings of the target, and of the drafter if there is one."""
    target, *draft = plan.models
    settings = replace(plan.settings, target=target.name, weights=target.weights, draft="none")
    if draft:
        settings = replace(settings, draft=draft[0].name, draft_weights=draft[0].weights)
    return settings


def draft_models(plan: Plan) -> list[Model]:
    """The models that guess: none for most methods, a copy of the target for some."""
    target, *draft = plan.models
    models = []
    for one in draft:
        for part in parts_of(one.name):
            if part.method is None:
                models.append(Model(part.name, one.weights, one.label if is_model(one.name) else part.name))
            elif part.method.copy is not None:
                models.append(Model(target.name, part.method.copy, target.label))
    return models


def models_to_time(plan: Plan) -> list[Model]:
    """The pair as it is used, and 8-bit copies of what is used in float32."""
    used = [plan.models[0], *draft_models(plan)]
    return list(dict.fromkeys([*used, *(Model(model.name, "int8", model.label) for model in used)]))


def check_programs(plan: Plan) -> None:
    """Raise ValueError, before anything takes time, for a program that is asked for and not there."""
    if "transformers" in plan.against:
        check_installed()
    if "llama.cpp" in plan.against:
        llama_program(plan.gguf, plan.gguf_draft, plan.prompts, 1, [1], 1)


def versions(plan: Plan) -> list[str]:
    """Notes on the versions of what minispec is compared with, where they can be known."""
    if "transformers" not in plan.against:
        return []
    return [f"transformers {version('transformers')} with torch {version('torch')}"]


def prompt_ids(plan: Plan) -> list[list[int]]:
    """The prompts as ids. Raises ValueError where one does not fit, or the two models have different vocabularies."""
    target = plan.models[0]
    tokenizer = load_tokenizer(target.name, offline=plan.settings.offline)
    for draft in draft_models(plan):
        check_same_vocabulary(tokenizer, load_tokenizer(draft.name, offline=plan.settings.offline))
    n_ctx = read_config(find_model(target.name, plan.settings.offline)).n_ctx
    prompts, n = [tokenizer.encode(prompt) for prompt in plan.prompts], plan.settings.max_new_tokens
    for ids in prompts:
        if not ids or len(ids) + n > n_ctx:
            raise ValueError(
                f"a prompt of {counted(len(ids), 'token')} and {n} new ones do not fit the context window of {n_ctx}: "
                "give a smaller -n, and prompts that are not empty"
            )
    return prompts
