"""`minispec bench`: what passes cost on this machine, and what speculation makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minispec.commands.bench_checks import check_options, check_plan, default_parts
from minispec.commands.shared import choose_tree, given, note, output_format
from minispec.draft_option import epilog, takes_draft_weights
from minispec.option_types import Number, Numbers
from minispec.options import (
    DEFAULTS,
    MACHINE_OPTIONS,
    OUTPUT_OPTIONS,
    PAIR_OPTIONS,
    PARTS,
    TREE_OPTION,
    settings_from,
    with_options,
)
from minispec.settings import AUTO
from minispec.user_path import user_path

if TYPE_CHECKING:
    from minispec.bench_models import Model
    from minispec.bench_plan import Plan
    from minispec.settings import Settings

EVERY = "every"  # of --drafters
BETWEEN = re.compile(r",(?!(?:first|recent|\d+)(?:[,+]|$))")  # two drafts, not the words of prompt-lookup:4,first
ANY_PAIR = 0.8  # of the scripted pairs, for what makes it agree with other chances in memory
PROGRAMS = ("transformers", "llama.cpp")


# fmt: off
MADE_UP_OPTIONS = [
    click.option("--random", "shape", metavar="SHAPE",
                 help="Instead of -m: make up a checkpoint of this shape, such as gpt2-medium."),
    click.option("--scripted", "accepts", type=Numbers(0, 1, float), metavar="ACCEPT,...",
                 help="Instead of -m and -d: make up a pair at full cost whose draft agrees with this chance; "
                 "it drafts in 8 bits unless --draft-weights says f32. Several chances: see prediction."),
    click.option("--shapes", default="gpt2-medium,gpt2", show_default=True, metavar="TARGET,DRAFT",
                 help="The shapes of the scripted pair."),
    click.option("--folder", metavar="DIR", help="Keep made-up checkpoints here.  [default: the user's cache folder]"),
]
MEASURE_OPTIONS = [
    click.option("-k", "--num-draft-tokens", "lengths", type=Numbers(1), default="2,4,6,8", show_default=True,
                 metavar="N,...", help="Draft lengths to try; the best one counts."),
    click.option("-n", "--max-new-tokens", "--max-tokens", type=Number(int, 1), default=DEFAULTS.max_new_tokens,
                 show_default=True, metavar="N", help="Tokens of a text."),
    click.option("-p", "--prompt", "prompts", multiple=True, default=["Once upon a time"], show_default=True,
                 metavar="TEXT", help="What a text begins with; may be given again."),
    click.option("--repetitions", type=Number(int, 1), default=5, show_default=True, metavar="N",
                 help="Times everything is measured, in turn; the medians count."),
    click.option("--batch", "batches", type=Numbers(1), metavar="N,...",
                 help="Write batches of so many texts as well, such as 1,2,4,8,16; long with full-size models."),
    click.option("--only", "parts", type=click.Choice(PARTS), multiple=True, metavar="PART",
                 help=f"Measure this alone; may be given again: {', '.join(PARTS)}."),
    click.option("--against", type=click.Choice(PROGRAMS), multiple=True, metavar="PROGRAM",
                 help=f"Write the same texts with another program as well: {' or '.join(PROGRAMS)}."),
    click.option("--gguf", metavar="FILE", help="The target for llama.cpp."),
    click.option("--gguf-draft", metavar="FILE", help="The draft for llama.cpp."),
    click.option("--drafters", is_flag=False, flag_value=EVERY, metavar="[NAME,...]",
                 help="Ways to draft side by side, all or these; without --only, this is all that is measured."),
    click.option("--plot-file", type=click.Path(path_type=Path), metavar="FILE",
                 help="Draw the predictions as well: .png or .svg (needs the extra notebooks)."),
    click.option("--output", type=click.Choice(["md", "csv", "json"]), help="How to print it.  [default: md]"),
]
# fmt: on


@click.command(short_help="What do passes cost here, and what does speculation make of it?", epilog=epilog())
@with_options(PAIR_OPTIONS, MADE_UP_OPTIONS, MEASURE_OPTIONS, [TREE_OPTION], MACHINE_OPTIONS, OUTPUT_OPTIONS)
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> None:
    """Measure passes, memory and texts on this machine. Everything is timed in turn, and passes with a read of memory
    before and after, so that ratios hold where speed itself changes.

    \b
    bandwidth    how fast all threads read memory; always measured
    passes       a pass over 1 to 16 rows, and far into the context
    costs        what rounds of guesses and a check cost, which -k auto goes by
    prefill      a pass over a prompt, against NumPy's BLAS
    memory       peak memory and the time to load
    start        from the start of the process to the first text
    end-to-end   texts, plain and speculative, greedy
    prediction   speed-ups of a scripted pair beside what two formulas foretell
    drafters     every way to draft side by side, with --drafters
    short        replies of 1 to 8 tokens, with a draft and without
    batch        texts written together, with --batch

    \b
    minispec bench
    minispec bench --scripted 0.8 --against transformers
    minispec bench --scripted 0.3,0.5,0.7,0.8,0.9,0.95 -k 1,2,4,6,8,12 -n 256
    minispec bench --random gpt2-medium --only passes --output csv
    minispec bench --drafters
    minispec bench --drafters suffix,story-draft,suffix+story-draft
    """
    output = output_format(options)
    check_options(context, options)
    settings, quiet = settings_from(options), options["quiet"]
    from minispec import bench_report
    from minispec.bench import run_bench
    from minispec.bench_plan import Plan

    def say(text: str) -> None:
        if not quiet:
            note(text)

    parts = options["parts"] or default_parts(options)
    models = made_up_models(context, options, say) or named_models(settings, needed=parts != ["drafters"])
    plan = Plan(
        settings, models, parts, options["lengths"], options["prompts"], options["repetitions"], options["against"],
        options["gguf"], options["gguf_draft"], options["accepts"] or (), options["batches"] or (),
        drafts_of(options["drafters"], models[0].name),
    )  # fmt: skip
    check_plan(plan, options["parts"])
    if settings.tree == AUTO:
        plan = with_chosen_tree(plan, say, quiet)
    report = run_bench(plan, say, quiet)
    if options["plot_file"] is not None:
        from minispec.bench_plot import write_predictions

        write_predictions(options["plot_file"], report.tables["prediction"])
    render = {"md": bench_report.as_markdown, "csv": bench_report.as_csv, "json": bench_report.as_json}[output]
    click.echo(render(report, what_was_asked(plan)))
    ours = [row for row in report.tables.get("end_to_end", []) if row.program == "minispec"]
    if not all(row.same_text for row in [*ours, *report.tables.get("batch", [])]):
        note("minispec: THE TEXTS DIFFER: speculative decoding wrote another text; minispec verify looks further")
        raise SystemExit(1)


def with_chosen_tree(plan: Plan, say: Callable[[str], None], quiet: bool) -> Plan:
    """A plan with the tree that pays best in place of auto, which is measured anew where costs are."""
    from minispec.bench_plan import load_pair, pair_settings

    pair = load_pair(plan)
    pair.warm_up()
    chosen, _, line = choose_tree(pair_settings(plan), pair, quiet, anew="costs" in plan.parts)
    say(line)
    return replace(plan, settings=replace(plan.settings, tree=chosen.tree))


def what_was_asked(plan: Plan) -> dict[str, Any]:
    """What was measured, as the report repeats it."""
    target, *drafts = plan.models
    told: dict[str, Any] = {"target": target.label, "weights": target.weights, "draft": None, "draft_weights": None}
    for draft in drafts:
        told |= {"draft": draft.label, "draft_weights": draft.weights if takes_draft_weights(draft.name) else None}
    told |= {"prompts": list(plan.prompts), "max_new_tokens": plan.settings.max_new_tokens}
    told |= {"tree": list(plan.settings.tree)} if plan.settings.tree else {}
    return told | {"repetitions": plan.repetitions}


def drafts_of(names: str | None, target: str) -> list[str]:
    """The drafts that --drafters names, each once. Raises ValueError for one that cannot be."""
    from minispec.bench_drafters import every_draft
    from minispec.draft_option import parts_of

    if names is None:
        return []
    drafts = every_draft(target) if names == EVERY else list(dict.fromkeys(BETWEEN.split(names)))
    for draft in drafts:
        parts_of(draft)
    return drafts


def named_models(settings: Settings, needed: bool) -> tuple[Model, ...]:
    """The pair that -m and -d name. A draft that is not needed may be missing."""
    from minispec.bench_models import Model
    from minispec.settings import default_draft

    target = Model(settings.target, settings.weights, settings.target)
    name = settings.draft_name if needed or settings.draft is not None else default_draft(settings.target)
    return (target,) if name is None else (target, Model(name, settings.draft_weights, name))


def made_up_models(
    context: click.Context, options: dict[str, Any], say: Callable[[str], None]
) -> tuple[Model, ...] | None:
    """The models of --random or --scripted, made up unless they are there; None without these."""
    from minispec.bench_models import Model, random_folder, scripted_folders
    from minispec.user_cache import cache_folder

    base = user_path(options["folder"]) if options["folder"] else cache_folder("made-up")
    if options["shape"] is not None:
        folder = random_folder(options["shape"], base, say)
        target = Model(str(folder), options["weights"], f"random {options['shape']}")
        draft = options["draft"]
        return (target,) if draft in (None, "none") else (target, Model(draft, options["draft_weights"], draft))
    if options["accepts"] is None:
        return None
    target_shape, _, draft_shape = options["shapes"].partition(",")
    accept = options["accepts"][0] if len(options["accepts"]) == 1 else ANY_PAIR
    folders = scripted_folders(accept, (target_shape, draft_shape), base, say)
    # A draft's text is not the result, so the cheaper copy is the one to take.
    draft_weights = options["draft_weights"] if given(context, "draft_weights") else "int8"
    return (
        Model(str(folders[0]), options["weights"], f"scripted {target_shape}"),
        Model(str(folders[1]), draft_weights, f"scripted {draft_shape}"),
    )
