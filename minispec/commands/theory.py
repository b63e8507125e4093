"""`minispec theory`: what speculation should gain, by the textbook and by what this machine takes."""

from __future__ import annotations

import locale
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minispec.commands.shared import given, load, note, output_format, prices
from minispec.option_types import Number, Numbers
from minispec.options import DEFAULTS, MACHINE_OPTIONS, OUTPUT_OPTIONS, settings_from, with_options
from minispec.theory import MOST_DRAFT

if TYPE_CHECKING:
    from minispec.parameters import GPT2Config
    from minispec.settings import Settings
    from minispec.theory import MeasuredCosts, Memory
    from minispec.theory_report import Question

EXAMPLE = "gpt2-medium"  # whose passes take about as long as the default times say
LONGEST = 1000  # draft length that is taken
LEAST_MS, MOST_MS = 0.001, 1e6
TEXTBOOK = "note: this takes a check for as dear as one token, which on a CPU it is not: --measured takes real costs"

# fmt: off
QUESTION_OPTIONS = [
    click.option("--accept", "accepts", type=Numbers(0, 1, float), default="0.95,0.9,0.8,0.7,0.5,0.3",
                 show_default=True, metavar="A,...",
                 help="The chance that a guess is kept, where those before it were. Reports count guesses after a "
                 "refused one as well, so their rate is lower: the answer to one A and one K says how much."),
    click.option("-k", "--num-draft-tokens", "lengths", type=Numbers(0, LONGEST), default="4,6,8,12",
                 show_default=True, metavar="K,...", help="Guesses a round; 0 is plain decoding."),
    click.option("--target-ms", type=Number(float, LEAST_MS, MOST_MS), default=40.0, show_default=True, metavar="T",
                 help="Milliseconds of a target pass that writes one token."),
    click.option("--draft-ms", type=Number(float, 0, MOST_MS), default=4.0, show_default=True, metavar="D",
                 help="Milliseconds of a draft pass; 0 is a drafter that costs nothing."),
    click.option("--cost-ratio", type=Number(float, 0, 1e6), metavar="C",
                 help="D over T, instead of both; 0 is a drafter that costs nothing."),
    click.option("--measured", is_flag=True,
                 help="Take the costs of this pair on this machine, measured now (seconds) or before: how long a "
                 "guess takes, and how long a check takes by its length, which the textbook leaves out."),
    click.option("-n", "--max-new-tokens", "--max-tokens", type=Number(int, 0, 10**9), default=300,
                 show_default=True, metavar="N", help="Tokens of the reply whose time is told, without its prompt."),
    click.option("--most", type=Number(int, 1, LONGEST), metavar="N",
                 help="The longest draft that is looked at for the best.  "
                 f"[default: {MOST_DRAFT}, or the longest of K]"),
]
OVERLAP_OPTIONS = [
    click.option("--overlap", is_flag=True,
                 help="Predict drafting while checking instead (generate --schedule overlapped): the best draft length "
                 "of both schedules, or of the -k that are given; for one A and one K also a picture of who works "
                 "when."),
    click.option("--interference", "interferences", type=Numbers(1, 1000, float), default="1,1.25,1.5,2",
                 show_default=True, metavar="X,...",
                 help="With --overlap: while drafter and target both work, each takes X times as long; 1 where each "
                 "has a processor, 2 where they take turns on one."),
]
MODEL_OPTIONS = [
    click.option("-m", "--target", "--model", metavar="NAME",
                 help=f"The target, for its memory and --measured.  [default: {EXAMPLE}; measured: {DEFAULTS.target}]"),
    click.option("-d", "--draft", "--draft-model", metavar="NAME|METHOD|none",
                 help="The draft, likewise.  [default: as for generate]"),
]
SHOW_OPTIONS = [
    click.option("--output", type=click.Choice(["md", "csv", "json"]), help="How to print it.  [default: md]"),
    click.option("--plot", type=click.Choice(["auto", "ascii"]), is_flag=False, flag_value="auto", metavar="[ascii]",
                 help="Draw speed-up against draft length, a curve for each accept rate; ascii for terminals that "
                 "lack other letters."),
    click.option("--plot-file", type=click.Path(path_type=Path), metavar="FILE",
                 help="Write that plot to a .png or .svg (needs the extra notebooks)."),
]
# fmt: on


@click.command(short_help="What should speculation gain, by the textbook and by measured costs?")
@with_options(QUESTION_OPTIONS, OVERLAP_OPTIONS, MODEL_OPTIONS, SHOW_OPTIONS, MACHINE_OPTIONS, OUTPUT_OPTIONS)
@click.pass_context
def theory(context: click.Context, /, **options: Any) -> None:
    """Predict the speed-up of speculative decoding from an accept rate A, a draft length K, and what passes cost.

    \b
    tokens a round   (1 - A^(K+1)) / (1 - A): guesses up to the first that is refused, and one of the target's own
    speed-up         tokens a round / (K c + 1), c = D / T: what plain decoding would take for them, over a round
    best k           the draft length with the highest speed-up, the shortest of equals; 0 is plain decoding
    breaks even at   the accept rate below which this draft length is slower than plain decoding
    memory           weights, and keys and values of a full context window, for both models

    The formula (Leviathan et al. 2023) takes a check of K + 1 tokens for as dear as writing one. So it is where
    nothing but reading the weights takes time. On a CPU arithmetic soon shows: a pass over several rows takes longer,
    v(rows) times as long, and long drafts gain less than the formula says. --measured puts K c + v(K + 1), and the
    token that the draft reads along after a block that was kept whole, in place of K c + 1, and shows both. Either way
    every guess is supposed to be as hard as any other, which in a real text it is not.

    \b
    minispec theory
    minispec theory --accept 0.8 -k 6 --target-ms 40 --draft-ms 4
    minispec theory --accept 0.6,0.8 --cost-ratio 0.1 --plot
    minispec theory --measured -m gpt2-medium -d gpt2 --draft-weights int8
    minispec theory --overlap --accept 0.8 -k 6
    """
    output, quiet = output_format(options), options["quiet"]
    check_options(context, options, output)
    if options["target"] is None:
        options["target"] = DEFAULTS.target if options["measured"] else EXAMPLE
    settings = settings_from(options)
    question = ask(options, settings, quiet)
    if options["overlap"]:
        show_overlap(question, options, given(context, "lengths"), output)
        if question.measured is None and not quiet:
            note(TEXTBOOK)
        return
    from minispec import theory_report, theory_text

    if options["plot_file"] is not None:
        from minispec.plot_file import write_plot

        names = theory_text.X_NAME, theory_text.Y_NAME
        write_plot(options["plot_file"], theory_report.panels(question), *names, compare=1.0, legend="accept rate")
    render = {"md": theory_text.as_text, "csv": theory_report.as_csv, "json": theory_report.as_json}[output]
    click.echo(render(question))
    if options["plot"] is not None:
        plain = options["plot"] == "ascii" or not terminal_shows_plots()
        click.echo("\n" + theory_text.as_plot(question, shutil.get_terminal_size().columns, plain))
    if not quiet:
        for line in hints(question):
            note(line)


def check_options(context: click.Context, options: dict[str, Any], output: str) -> None:
    """Refuse options that contradict each other, or that would have no effect, before anything is measured."""
    from minispec.plot import MOST_CURVES
    from minispec.plot_file import check_plot_file

    ways = [f"--{name.replace('_', '-')}" for name in ("target_ms", "draft_ms", "cost_ratio") if given(context, name)]
    if options["measured"] and ways:
        raise click.UsageError(f"{ways[0]} and --measured both say what passes cost: give one")
    if options["cost_ratio"] is not None and len(ways) > 1:
        raise click.UsageError(f"{ways[0]} and --cost-ratio both say what a guess costs: give one")
    machine = [name for name in ("threads", "backend") if given(context, name)]
    if machine and not options["measured"]:
        raise click.UsageError(f"--{machine[0]} changes nothing that is not measured: add --measured")
    if options["measured"] and options["draft"] == "none":
        raise click.UsageError("--measured needs a draft to time: leave out -d none")
    if given(context, "interferences") and not options["overlap"]:
        raise click.UsageError("--interference is between drafter and target that work at once: add --overlap")
    drawings = [f"--{name.replace('_', '-')}" for name in ("plot", "plot_file") if options[name] is not None]
    if options["overlap"] and drawings:
        raise click.UsageError(f"{drawings[0]} draws the sequential schedule alone: leave out --overlap")
    if options["plot"] is not None and output != "md":
        raise click.UsageError(f"--plot draws between lines of text: leave out {output}, or take --plot-file")
    drawn = options["plot"] is not None or options["plot_file"] is not None
    if drawn and len(options["accepts"]) > MOST_CURVES:
        raise click.UsageError(f"{len(options['accepts'])} accept rates are too many to draw: give {MOST_CURVES}")
    if options["plot_file"] is not None:
        check_plot_file(options["plot_file"])


def ask(options: dict[str, Any], settings: Settings, quiet: bool) -> Question:
    """The question that the options put, with costs measured where they are asked for."""
    from minispec.theory_report import Question

    costs, guess, target_ms = None, options["cost_ratio"], None
    if options["measured"]:
        costs = measure(settings, quiet)
        guess, target_ms = costs.guess, 1e3 * costs.pass_seconds
    elif guess is None:
        guess, target_ms = options["draft_ms"] / options["target_ms"], options["target_ms"]
    return Question(
        accepts=options["accepts"][::-1],
        lengths=options["lengths"],
        guess=guess,
        target_ms=target_ms,
        max_new_tokens=options["max_new_tokens"],
        measured=costs,
        memory=list(memory_of_pair(settings)),
        most=options["most"] or max(MOST_DRAFT, *options["lengths"]),
    )


def show_overlap(question: Question, options: dict[str, Any], chosen: bool, output: str) -> None:
    """Print what both schedules gain, at the lengths that were chosen or at the best of all."""
    from minispec import overlap_report
    from minispec.theory import Textbook

    costs = Textbook(question.guess) if question.measured is None else question.measured
    kind = "the textbook's costs" if question.measured is None else "costs measured here"
    lengths = question.lengths if chosen else range(question.most + 1)
    source = f"{kind}, a guess {question.guess:.3g} of a target pass"
    overlap = overlap_report.Overlap(question.accepts, lengths, options["interferences"], costs, source)
    if output == "md":
        click.echo(overlap_report.as_text(overlap, min(shutil.get_terminal_size().columns, 100)))
    else:
        click.echo(overlap_report.as_json(overlap) if output == "json" else overlap_report.as_csv(overlap))


def measure(settings: Settings, quiet: bool) -> MeasuredCosts:
    """What passes of this pair cost on this machine."""
    return prices(load(settings, quiet), settings, quiet)


def memory_of_pair(settings: Settings) -> Iterator[tuple[str, str, Memory]]:
    """Name, kind of weights and memory of the target, and of the models that draft."""
    from minispec.draft_option import models_in
    from minispec.theory import memory

    yield settings.target, settings.weights, memory(shape_named(settings.target), settings.weights)
    for draft in models_in(settings.draft_name):
        yield draft, settings.draft_weights, memory(shape_named(draft), settings.draft_weights)


def shape_named(name: str) -> GPT2Config:
    """The shape of a model that is well known or on this machine; nothing is downloaded."""
    from minispec.hub import find_model, short_name
    from minispec.made_up import SHAPES, shape_of
    from minispec.weights import read_config

    known = short_name(name)
    return shape_of(known) if known in SHAPES else read_config(find_model(name, offline=True))


def terminal_shows_plots() -> bool:
    """Whether letters of a plot can be shown; our own output is UTF-8, but the terminal may not be."""
    from minispec.plot import can_show

    return sys.platform == "win32" or can_show(locale.getencoding())


def hints(question: Question) -> Iterator[str]:
    """What the reader of these figures should know."""
    from minispec.theory_report import CURVE_ROWS, answer

    best = [prediction.best_k for cells in answer(question).values() for prediction in cells.values()]
    if max(best) == question.most:
        yield f"note: a best k of {question.most} is where the search ended: --most looks further"
    if question.measured is None:
        yield TEXTBOOK
    elif max(*question.lengths, *best) >= CURVE_ROWS:
        yield f"note: v was measured up to {CURVE_ROWS} rows; beyond, it is extended by its last slope"
