"""`minispec generate`: text after a prompt, as it is written."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from minispec.commands.shared import check_room, hints, load, made_ready, note, prepare, show_rounds, text_of
from minispec.commands.trace import check_trace_file, keep_beside
from minispec.draft_option import epilog
from minispec.option_types import Number
from minispec.options import TRACE_OPTION, settings_from, shared_options, use_color
from minispec.prompt_source import read_prompt
from minispec.user_path import user_path

if TYPE_CHECKING:
    from minispec.prompts import Prompt
    from minispec.protocols import Step
    from minispec.session import Pair
    from minispec.settings import Settings
    from minispec.trace import Run


@click.command(short_help="Write text after PROMPT.", epilog=epilog())
@shared_options
@TRACE_OPTION
@click.option("--prompts", "batch_file", metavar="FILE",
              help="Write a text after each prompt of a file, some at a time (-f is for a file that is one prompt): a "
              'prompt a line, all as text or all as {"prompt": "..."}. Each text is what it is alone, with the same '
              "seed; prompts are printed, too.",
              )  # fmt: skip
@click.option("--together", type=Number(int, 1), default=8, show_default=True, metavar="N",
              help="Of the texts of --prompts, so many at a time; each has a cache of its own.")  # fmt: skip
def generate(
    prompt: str | None, prompt_option: str | None, prompt_file: str | None, batch_file: str | None, together: int,
    trace_file: str | None, **options: Any,
) -> None:  # fmt: skip
    """Write text after PROMPT, speculatively."""
    settings, quiet = settings_from(options), options["quiet"]
    if batch_file is not None:
        given = {"PROMPT": prompt, "-p": prompt_option, "-f": prompt_file, "--trace": trace_file}
        check_batch([name for name, value in given.items() if value is not None], settings, options)
        write_batch(settings, batch_file, together, options["as_json"], quiet)
        return
    from minispec.decoding import decode
    from minispec.trace import Run
    from minispec.trace_run import Trace

    check_trace_file(trace_file, settings)
    text = read_prompt(prompt, prompt_option, prompt_file)
    settings, pair, ids = prepare(settings, text, quiet, options["verbose"])
    if trace_file is None:
        run = Run(ids)
        write_text(run, run.record(decode(settings, pair, ids)), pair, settings, text, options)
        return
    trace = Trace(settings, pair, ids)
    write_text(trace.run, trace.record(), pair, settings, text, options)
    keep_beside(trace_file, settings, pair, text, trace, quiet)


def check_batch(given: list[str], settings: Settings, options: dict[str, Any]) -> None:
    """Refuse, beside --prompts, another prompt and what is for one text at a time."""
    prompts = [name for name in given if name != "--trace"]
    if prompts:
        raise click.UsageError(f"prompts are given twice, by --prompts and {prompts[0]}: give one")
    shown = [f"--{name.replace('_', '-')}" for name in ("verbose", "no_stream") if options[name]]
    shown += ["--color"] * (options["color"] == "on") + ["--trace"] * ("--trace" in given)
    if shown:
        raise click.UsageError(f"{shown[0]} shows one text as it is written: leave out --prompts")
    if settings.schedule != "sequential":
        raise click.UsageError(f"--schedule {settings.schedule} is for one text at a time: leave out --prompts")


def write_text(
    run: Run, steps: Iterator[Step], pair: Pair, settings: Settings, prompt: str, options: dict[str, Any]
) -> None:
    """Print a text as the steps of its run bring it, and what there is to say of it at the end."""
    from minispec.viz import closing_line, legend

    if options["as_json"]:
        deque(steps, maxlen=0)
        click.echo(json.dumps(run.as_json(text_of(run, pair, settings), settings.as_json())))
        return
    color, quiet = use_color(options["color"]), options["quiet"]
    if not quiet and sys.stdout.isatty() and sys.stderr.isatty():
        click.echo(prompt, err=True, nl=False)  # the reader sees the prompt; standard output holds new text only
    stream(run, steps, pair, settings, color, whole=options["no_stream"])
    if quiet:
        return
    if options["verbose"]:
        show_rounds(run, pair, settings, options["color"])
    note(closing_line(run, pair.tokenizer.end_of_text, settings.seed if settings.temperature > 0 else None))
    if color and run.drafted:
        click.echo(legend(), err=True, color=sys.stderr.isatty())


def stream(run: Run, steps: Iterator[Step], pair: Pair, settings: Settings, color: bool, whole: bool) -> None:
    """Print a text token by token, or when it is whole; a line end follows it, however it ends."""
    from minispec.tokenizer import TextStream
    from minispec.trace import token_kinds
    from minispec.viz import style

    text = TextStream(pair.tokenizer, settings.stop)
    pieces: list[str] = []

    def show(piece: str, kind: str) -> None:
        pieces.append(piece)
        if not whole:
            click.echo(style(piece, kind) if color else piece, nl=False, color=color)

    try:
        kind = "plain"
        for step in steps:
            for token, kind in token_kinds(step):
                show(text.push(token), kind)
        show(text.flush(), kind)
    finally:
        if whole:
            click.echo("".join(pieces), nl=False)
        if pieces or run.finish:
            click.echo()


def show_whole(prompt: Prompt, run: Run, pair: Pair, settings: Settings, as_json: bool) -> None:
    """Print one text of several."""
    text = text_of(run, pair, settings)
    if as_json:
        click.echo(json.dumps(run.as_json(text, settings.as_json() | {"id": prompt.id})))
    else:
        click.echo(f"{prompt.text}{text}\n")


def write_batch(settings: Settings, file: str, together: int, as_json: bool, quiet: bool) -> None:
    """Write texts after all prompts of a file, some at a time, and print them in order; in JSON, an object a line."""
    from tqdm import tqdm

    from minispec.decoding import decode_batch
    from minispec.prompts import read_prompts
    from minispec.trace import Run
    from minispec.viz import batch_line

    prompts = read_prompts(user_path(file))
    asked, pair = settings, load(settings, quiet)
    runs = [Run(pair.tokenizer.encode(prompt.text)) for prompt in prompts]
    for prompt, run in zip(prompts, runs, strict=True):
        check_room(run.prompt_ids, pair, f"{file}, {prompt.id}: the prompt", settings)
    n_text = min(together, len(prompts)) if settings.determined else 1
    settings, pair = made_ready(settings, pair, quiet, n_text=n_text)
    if not quiet:
        for line in hints(asked, ""):
            note(line)
    began = time.perf_counter()
    with tqdm(total=len(runs), desc="texts", leave=False, disable=quiet or None) as progress:
        for first in range(0, len(runs), together):
            some, start = runs[first : first + together], time.perf_counter()
            try:
                for row, step in decode_batch(settings, pair, [run.prompt_ids for run in some]):
                    some[row].steps.append(step)
                    some[row].seconds = time.perf_counter() - start
                    progress.update(step.finish is not None)
            finally:  # what is whole is printed, whatever becomes of the others
                for prompt, run in zip(prompts[first:], some, strict=False):
                    if run.finish:
                        show_whole(prompt, run, pair, settings, as_json)
    if not (quiet or as_json):
        note(batch_line(runs, time.perf_counter() - began))
