"""The benchmark: what is measured on which models, and all of it as one report.

Every part gives rows of frozen data; nothing here knows how they are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

from minispec.bench_batch import time_batches
from minispec.bench_batch_speed import explain
from minispec.bench_costs import price_rounds
from minispec.bench_drafters import time_drafters
from minispec.bench_llama import llama_program
from minispec.bench_machine import Machine, Probe, describe_machine
from minispec.bench_memory import measure_memory, measure_start
from minispec.bench_models import Model
from minispec.bench_passes import time_passes, time_prefill
from minispec.bench_prediction import measure_predictions, summary
from minispec.bench_short import time_short
from minispec.bench_texts import compare_programs, minispec_program
from minispec.bench_transformers import check_installed, transformers_program
from minispec.draft_option import is_model, parts_of
from minispec.drafters.models import models_of
from minispec.hub import find_model
from minispec.session import Pair, open_pair
from minispec.settings import Settings
from minispec.tokenizer import check_same_vocabulary, load_tokenizer
from minispec.viz import counted
from minispec.weights import load_model, read_config

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


@dataclass
class Report:
    """What was found: rows of one kind by the name of their table."""

    machine: Machine
    read_bandwidth_gb_s: float
    read_range_gb_s: tuple[float, float]
    read_by: str
    tables: dict[str, list[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def run_bench(plan: Plan, say: Callable[[str], None], quiet: bool) -> Report:
    """Measure all parts of a plan.

    Raises ValueError for models that cannot be had, prompts that do not fit, and programs that are missing or fail.
    """
    settings, repetitions = plan.settings, plan.repetitions
    check_programs(plan)
    prompts = prompt_ids(plan)
    notes = versions(plan)
    say("reading memory ...")
    probe = Probe(settings.backend)
    probe.read()
    tables: dict[str, list[Any]] = {"passes": []}
    threads = describe_machine(settings.backend).threads
    if {"passes", "prefill"} & set(plan.parts):
        for model in models_to_time(plan):
            say(f"timing passes of {model.label} {model.weights} ...")
            loaded = load_model(model.name, model.weights, settings.backend, settings.offline)
            if "passes" in plan.parts:
                passes, context = time_passes(loaded, model.label, model.weights, probe, repetitions, quiet)
                tables["passes"] += passes
                tables.setdefault("context", []).append(context)
            if "prefill" in plan.parts:
                prefill = time_prefill(loaded, model.label, model.weights, threads, repetitions, quiet)
                tables.setdefault("prefill", []).append(prefill)
    if "costs" in plan.parts and len(plan.models) > 1:
        say("pricing guesses and checks ...")
        tables["costs"] = price_rounds(load_pair(plan))
    if "memory" in plan.parts:
        say("measuring memory ...")
        every = [plan.models[0], *draft_models(plan)]
        groups = [[model] for model in every] + [every] * (len(every) > 1)
        tables["memory"] = [measure_memory(group, settings, threads) for group in groups]
    if "start" in plan.parts:
        say("starting anew ...")
        tables["start"] = [measure_start(plan.models, settings, threads, repetitions)]
    if "end-to-end" in plan.parts:
        say("writing texts ...")
        tables["draft_lengths"], tables["end_to_end"] = write_all(plan, prompts, threads, quiet)
    if "prediction" in plan.parts and plan.accepts:
        say("writing scripted texts ...")
        pair, n = load_pair(plan), settings.max_new_tokens
        (draft,) = models_of(pair.drafter)
        tables["prediction"] = measure_predictions(pair.target, draft, plan.accepts, plan.lengths, n, quiet)
        notes += summary(tables["prediction"])
    if "drafters" in plan.parts and plan.drafts:
        target = plan.models[0]
        one = replace(settings, target=target.name, weights=target.weights)
        tables["drafters"], left_out = time_drafters(one, plan.drafts, short_length(plan), say, quiet)
        notes += left_out
    if {"short", "batch"} & set(plan.parts) and len(plan.models) > 1:
        pair = load_pair(plan)
        assert pair.drafter is not None
        if "short" in plan.parts:
            short = pair.target, pair.drafter, prompts[0], short_length(plan)
            tables["short"] = list(time_short(*short, repetitions, quiet))
        if "batch" in plan.parts and plan.batches:
            say("writing batches ...")
            many = pair.target, pair.drafter, prompts, settings.max_new_tokens, plan.lengths, plan.batches
            tables["batch"] = list(time_batches(*many, repetitions, quiet))
            notes.append(explain(tables["batch"]))
    return Report(describe_machine(settings.backend), probe.gb_s, probe.range_gb_s, probe.how, tables, notes)


def short_length(plan: Plan) -> int:
    """SHORT_DRAFT, or the nearest to it of the lengths that are tried."""
    return min(plan.lengths, key=lambda k: abs(k - SHORT_DRAFT))


def load_pair(plan: Plan) -> Pair:
    """The target, and the drafter if there is one."""
    target, *draft = plan.models
    settings = replace(plan.settings, target=target.name, weights=target.weights, draft="none")
    if draft:
        settings = replace(settings, draft=draft[0].name, draft_weights=draft[0].weights)
    return open_pair(settings)


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


def write_all(plan: Plan, prompts: list[list[int]], threads: int, quiet: bool) -> tuple[list[Any], list[Any]]:
    """Texts by minispec and by the programs that it is compared with, which draft with a model or not at all."""
    settings, n = plan.settings, plan.settings.max_new_tokens
    pair, named = load_pair(plan), [model.name for model in plan.models[:1]]
    named += [model.name for model in plan.models[1:] if is_model(model.name)]
    with ExitStack() as stack:
        depths = range(1, len(settings.tree) + 1) or plan.lengths  # of a tree, all
        programs = [minispec_program(pair.target, pair.drafter, prompts, n, depths)]
        if "transformers" in plan.against:
            target, *draft = (str(find_model(name, settings.offline)) for name in named)
            other = transformers_program(target, draft[0] if draft else None, prompts, n, plan.lengths, threads)
            programs.append(stack.enter_context(other))
        if "llama.cpp" in plan.against:
            programs.append(llama_program(plan.gguf, plan.gguf_draft, plan.prompts, n, plan.lengths, threads))
        return compare_programs(programs, plan.repetitions, quiet)
