"""`minispec trace`: every round of a run, as a page to look at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from minispec.commands.shared import announced, note, prepare
from minispec.draft_option import epilog
from minispec.options import (
    JUDGING_OPTIONS,
    OUTPUT_OPTIONS,
    PAIR_OPTIONS,
    PROMPT_OPTIONS,
    RUN_OPTIONS,
    TEXT_OPTIONS,
    settings_from,
    with_options,
)
from minispec.prompt_source import read_prompt
from minispec.user_path import user_path

if TYPE_CHECKING:
    from minispec.session import Pair
    from minispec.settings import Settings
    from minispec.trace_run import Trace


@click.command(short_help="Every round of a run, as a page to look at.", epilog=epilog())
@with_options(PROMPT_OPTIONS, PAIR_OPTIONS, TEXT_OPTIONS, JUDGING_OPTIONS, RUN_OPTIONS, OUTPUT_OPTIONS)
@click.option("-o", "--output", metavar="FILE",
              help="The page: one HTML file that needs nothing else; - is standard output. Another trace page is "
              "replaced, any other file is not.  [default: trace.html; with --json none]")  # fmt: skip
def trace(
    prompt: str | None, prompt_option: str | None, prompt_file: str | None, output: str | None, **options: Any
) -> None:
    """Write text after PROMPT, and show why each token is there: what was guessed, its probabilities, the coin."""
    settings, quiet = settings_from(options), options["quiet"]
    from minispec.trace_data import trace_data
    from minispec.trace_page import DEFAULT_NAME, page
    from minispec.trace_run import Trace, check_traceable, trace_plain, warm_up
    from minispec.viz import closing_line

    check_traceable(settings)
    if output is None and not options["as_json"]:
        output = DEFAULT_NAME
    if output == "-" and options["as_json"]:
        raise click.UsageError("--json and -o - both go to standard output: give one, or name a file")
    check_output(output)
    text = read_prompt(prompt, prompt_option, prompt_file)
    settings, pair, ids = prepare(settings, text, quiet)
    with announced("writing the text, speculatively and plainly ...", quiet):
        warm_up(settings, pair, ids)
        main = Trace(settings, pair, ids).finish()
        data = trace_data(settings, pair, text, main, trace_plain(settings, pair, ids))
    if options["as_json"]:
        click.echo(json.dumps(data))
    if output == "-":
        click.echo(page(data), nl=False)
    elif output is not None:
        keep(output, data, quiet)
    if not quiet and not options["as_json"]:
        note(closing_line(main.run, pair.tokenizer.end_of_text, settings.seed if settings.temperature > 0 else None))


# --- what generate and compare use, too --------------------------------------------------------------


def check_trace_file(file: str | None, settings: Settings) -> None:
    """Refuse a --trace that could not be made, or would not be seen."""
    if file is None:
        return
    from minispec.trace_run import check_traceable

    if file == "-":
        raise click.UsageError("--trace - would go where the text goes: name a file, or take minispec trace -o -")
    check_traceable(settings)
    check_output(file)


def check_output(output: str | None) -> None:
    """Refuse, before anything is worked out, a file that no page can be written to."""
    if output not in (None, "-"):
        from minispec.trace_page import check_page_file

        check_page_file(user_path(output))


def keep(output: str, data: dict[str, Any], quiet: bool) -> None:
    """Write the page of a run, and say where."""
    from minispec.trace_page import page, write_page

    path = user_path(output)
    write_page(path, page(data))
    if not quiet:
        note(f"trace: {path} ({path.stat().st_size // 1000:,} kB): open it in a browser")


def keep_beside(
    output: str, settings: Settings, pair: Pair, prompt: str, main: Trace, quiet: bool, speedup: float | None = None
) -> None:
    """Write the page of a text that was written with notes, after the same by plain decoding."""
    from minispec.trace_data import trace_data
    from minispec.trace_run import trace_plain

    with announced("writing the text by plain decoding, too, for the trace to compare with ...", quiet):
        plain = trace_plain(settings, pair, main.run.prompt_ids)
    keep(output, trace_data(settings, pair, prompt, main, plain, speedup), quiet)
