"""The benchmark: every part of a plan measured, and all of it as one report.

Every part gives rows of frozen data; nothing here knows how they are printed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from minispec.bench_batch import time_batches
from minispec.bench_batch_speed import explain
from minispec.bench_costs import price_rounds
from minispec.bench_drafters import time_drafters
from minispec.bench_llama import llama_program
from minispec.bench_machine import Machine, Probe, describe_machine
from minispec.bench_memory import measure_memory, measure_start
from minispec.bench_passes import time_passes, time_prefill
from minispec.bench_plan import (
    Plan,
    check_programs,
    draft_models,
    load_pair,
    models_to_time,
    prompt_ids,
    short_length,
    versions,
)
from minispec.bench_prediction import measure_predictions, summary
from minispec.bench_short import time_short
from minispec.bench_texts import compare_programs, minispec_program
from minispec.bench_transformers import transformers_program
from minispec.draft_option import is_model
from minispec.drafters.models import models_of
from minispec.hub import find_model
from minispec.trees import depth_of
from minispec.weights import load_model


@dataclass
class Report:
    """What was found: rows of one kind by the name of their table."""

    machine: Machine
    read_bandwidth_gb_s: float
    read_range_gb_s: tuple[float, float]
    read_by: str
    tables: dict[str, list[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """A plan under way: what its parts have in common, and where they put their rows and notes."""

    plan: Plan
    prompts: list[list[int]]
    probe: Probe
    threads: int
    say: Callable[[str], None]
    quiet: bool
    tables: dict[str, list[Any]]
    notes: list[str]


def run_bench(plan: Plan, say: Callable[[str], None], quiet: bool) -> Report:
    """Measure all parts of a plan.

    Raises ValueError for models that cannot be had, prompts that do not fit, and programs that are missing or fail.
    """
    check_programs(plan)
    prompts, notes, backend = prompt_ids(plan), versions(plan), plan.settings.backend
    say("reading memory ...")
    probe = Probe(backend)
    probe.read()
    work = Work(plan, prompts, probe, describe_machine(backend).threads, say, quiet, {"passes": []}, notes)
    for parts, measure in MEASURES.items():
        if any(map(plan.asks_for, parts)):
            measure(work)
    return Report(describe_machine(backend), probe.gb_s, probe.range_gb_s, probe.how, work.tables, work.notes)


def time_models(work: Work) -> None:
    """Passes of each model, and prompts; it is loaded once for both."""
    plan, tables = work.plan, work.tables
    for model in models_to_time(plan):
        work.say(f"timing passes of {model.label} {model.weights} ...")
        loaded = load_model(model.name, model.weights, plan.settings.backend, plan.settings.offline)
        about = loaded, model.label, model.weights
        if plan.asks_for("passes"):
            passes, context = time_passes(*about, work.probe, plan.repetitions, work.quiet)
            tables["passes"] += passes
            tables.setdefault("context", []).append(context)
        if plan.asks_for("prefill"):
            prefill = time_prefill(*about, work.threads, plan.repetitions, work.quiet)
            tables.setdefault("prefill", []).append(prefill)


def price(work: Work) -> None:
    """Rounds of each draft length, of chains."""
    work.say("pricing guesses and checks ...")
    plan = replace(work.plan, settings=replace(work.plan.settings, tree=()))
    work.tables["costs"] = price_rounds(load_pair(plan))


def weigh(work: Work) -> None:
    """The memory of each model, and of all together."""
    work.say("measuring memory ...")
    every = [work.plan.models[0], *draft_models(work.plan)]
    groups = [[model] for model in every] + [every] * (len(every) > 1)
    work.tables["memory"] = [measure_memory(group, work.plan.settings, work.threads) for group in groups]


def start_anew(work: Work) -> None:
    """From the start of a process to its first text."""
    work.say("starting anew ...")
    plan = work.plan
    work.tables["start"] = [measure_start(plan.models, plan.settings, work.threads, plan.repetitions)]


def write_all(work: Work) -> None:
    """Texts by minispec and by the programs that it is compared with, which draft with a model or not at all."""
    plan, prompts = work.plan, work.prompts
    settings, n = plan.settings, plan.settings.max_new_tokens
    work.say("writing texts ...")
    pair, named = load_pair(plan), [model.name for model in plan.models[:1]]
    named += [model.name for model in plan.models[1:] if is_model(model.name)]
    with ExitStack() as stack:
        lengths = range(1, depth_of(settings.tree) + 1) or plan.lengths  # of a tree, all depths
        programs = [minispec_program(pair.target, pair.drafter, prompts, n, lengths)]
        if "transformers" in plan.against:
            target, *draft = (str(find_model(name, settings.offline)) for name in named)
            other = transformers_program(target, draft[0] if draft else None, prompts, n, plan.lengths, work.threads)
            programs.append(stack.enter_context(other))
        if "llama.cpp" in plan.against:
            programs.append(llama_program(plan.gguf, plan.gguf_draft, plan.prompts, n, plan.lengths, work.threads))
        found = compare_programs(programs, plan.repetitions, work.quiet)
    work.tables["draft_lengths"], work.tables["end_to_end"] = found


def predict(work: Work) -> None:
    """Speed-ups of a scripted pair, and what was foretold."""
    work.say("writing scripted texts ...")
    plan, pair = work.plan, load_pair(work.plan)
    (draft,) = models_of(pair.drafter)
    n, tables = plan.settings.max_new_tokens, work.tables
    tables["prediction"] = measure_predictions(pair.target, draft, plan.accepts, plan.lengths, n, work.quiet)
    work.notes.extend(summary(tables["prediction"]))


def try_drafters(work: Work) -> None:
    """Every way to draft."""
    plan, target = work.plan, work.plan.models[0]
    one = replace(plan.settings, target=target.name, weights=target.weights)
    work.tables["drafters"], left_out = time_drafters(one, plan.drafts, short_length(plan), work.say, work.quiet)
    work.notes.extend(left_out)


def reply(work: Work) -> None:
    """Very short texts."""
    plan, pair = work.plan, load_pair(work.plan)
    assert pair.drafter is not None
    short = pair.target, pair.drafter, work.prompts[0], short_length(plan)
    work.tables["short"] = list(time_short(*short, plan.repetitions, work.quiet))


def write_together(work: Work) -> None:
    """Texts that share their passes."""
    plan, pair = work.plan, load_pair(work.plan)
    assert pair.drafter is not None
    work.say("writing batches ...")
    many = pair.target, pair.drafter, work.prompts, plan.settings.max_new_tokens, plan.lengths, plan.batches
    work.tables["batch"] = list(time_batches(*many, plan.repetitions, work.quiet))
    work.notes.append(explain(work.tables["batch"]))


MEASURES = {  # of parts, in this order
    ("passes", "prefill"): time_models,
    ("costs",): price,
    ("memory",): weigh,
    ("start",): start_anew,
    ("end-to-end",): write_all,
    ("prediction",): predict,
    ("drafters",): try_drafters,
    ("short",): reply,
    ("batch",): write_together,
}
