"""`minispec generate`: text after a prompt, as it is written."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from minispec.commands.shared import note, prepare, text_of
from minispec.options import read_prompt, settings_from, shared_options, use_color


@click.command(short_help="Write text after PROMPT.")
@shared_options
def generate(prompt: str | None, prompt_option: str | None, prompt_file: str | None, **options: Any) -> None:
    """Write text after PROMPT, speculatively."""
    settings, quiet = settings_from(options), options["quiet"]
    from minispec.session import decode
    from minispec.tokenizer import TextStream
    from minispec.trace import Run, run_all, token_kinds
    from minispec.viz import closing_line, legend, rounds, style

    text = read_prompt(prompt, prompt_option, prompt_file)
    pair, ids = prepare(settings, text, quiet)
    steps = decode(settings, pair, ids)
    if options["as_json"]:
        run = run_all(ids, steps)
        click.echo(json.dumps(run.as_json(text_of(run, pair, settings), settings.as_json())))
        return

    run, color = Run(ids), use_color(options["color"])
    if not quiet and sys.stdout.isatty() and sys.stderr.isatty():
        click.echo(text, err=True, nl=False)  # the reader sees the prompt; standard output holds new text only
    stream = TextStream(pair.tokenizer, settings.stop)
    pieces: list[str] = []

    def show(piece: str, kind: str) -> None:
        pieces.append(piece)
        if not options["no_stream"]:
            click.echo(style(piece, kind) if color else piece, nl=False, color=color)

    try:
        kind = "plain"
        for step in run.record(steps):
            for token, kind in token_kinds(step):
                show(stream.push(token), kind)
        show(stream.flush(), kind)
        if options["no_stream"]:
            click.echo("".join(pieces), nl=False)
    finally:
        if pieces or run.finish:
            click.echo()
    if quiet:
        return
    if options["verbose"]:
        for line in rounds(run, pair.tokenizer):
            note(line)
    note(closing_line(run, settings.seed if settings.temperature > 0 else None))
    if color and run.drafted:
        click.echo(legend(), err=True, color=sys.stderr.isatty())
