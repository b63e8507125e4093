"""What `minispec bench` refuses: options that contradict each other, or that would have no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from minispec.commands.shared import given
from minispec.options import PARTS
from minispec.settings import AUTO

if TYPE_CHECKING:
    from minispec.bench_plan import Plan


def check_options(context: click.Context, options: dict[str, Any]) -> None:
    """Refuse options that contradict each other, or that would have no effect."""
    ways = ["--random"] * (options["shape"] is not None) + ["--scripted"] * (options["accepts"] is not None)
    ways += ["-m"] * given(context, "target")
    if len(ways) > 1:
        raise click.UsageError(f"the target is given twice, by {' and '.join(ways)}: give one")
    if options["accepts"] is not None and given(context, "draft"):
        raise click.UsageError("--scripted makes up the draft as well: leave out -d")
    if options["accepts"] is None and given(context, "shapes"):
        raise click.UsageError("--shapes are those of a scripted pair: add --scripted 0.8")
    if options["accepts"] is None and "prediction" in options["parts"]:
        raise click.UsageError("--only prediction needs a pair whose acceptance is known: add --scripted 0.5,0.8")
    if len(options["accepts"] or ()) > 1 and set(options["parts"]) - {"prediction", "bandwidth"}:
        raise click.UsageError("--scripted with several chances is for --only prediction: give one for other parts")
    if options["plot_file"] is not None:
        from minispec.plot_file import check_plot_file

        if "prediction" not in (options["parts"] or default_parts(options)):
            raise click.UsageError("--plot-file draws predictions: add --scripted with several chances")
        check_plot_file(options["plot_file"])
    if options["shapes"].count(",") != 1:
        raise click.UsageError(f"--shapes is {options['shapes']!r}: give two, as in gpt2-medium,gpt2")
    if options["against"] and options["parts"] and "end-to-end" not in options["parts"]:
        raise click.UsageError("--against compares texts: leave out --only, or add --only end-to-end")
    if options["batches"] and options["parts"] and "batch" not in options["parts"]:
        raise click.UsageError("--batch is a part of its own: leave out --only, or add --only batch")
    if "drafters" in options["parts"] and options["drafters"] is None:
        raise click.UsageError("--only drafters needs them: add --drafters")
    if options["drafters"] is not None and "drafters" not in (options["parts"] or ["drafters"]):
        raise click.UsageError("--drafters is a part of its own: leave out --only, or add --only drafters")
    if "batch" in options["parts"] and not options["batches"]:
        raise click.UsageError("--only batch needs sizes: add --batch 1,2,4,8,16")
    if (options["gguf"] or options["gguf_draft"]) and "llama.cpp" not in options["against"]:
        raise click.UsageError("--gguf is for llama.cpp: add --against llama.cpp")


def default_parts(options: dict[str, Any]) -> list[str]:
    """Predictions are what several chances are for, drafters what a list of them is; else everything but these."""
    if options["drafters"] is not None:
        asked = {"end-to-end": options["against"], "drafters": True, "batch": options["batches"]}
        return [part for part, wanted in asked.items() if wanted]
    several = len(options["accepts"] or ()) > 1
    return [part for part in PARTS if (part == "prediction") == several]


def check_plan(plan: Plan, only: Sequence[str]) -> None:
    """Refuse what is about guesses where nothing guesses; only: the parts that --only names."""
    alone = len(plan.models) < 2
    measured = {"end-to-end", "costs"} if plan.settings.tree == AUTO else {"end-to-end"}
    if plan.settings.tree and (alone or not measured & {*plan.parts}):
        raise click.UsageError("--tree is for texts of a pair: leave out -d none, and --only or add --only end-to-end")
    if plan.batches and alone:
        raise click.UsageError("--batch compares with speculation: leave out -d none")
    about_guesses = [part for part in only if part in ("costs", "short", "batch")]
    if about_guesses and alone:
        raise click.UsageError(f"--only {about_guesses[0]} is about guesses: leave out -d none")
