"""`minispec compare`: the same text both ways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from minispec.commands.shared import prepare, show_rounds, text_of
from minispec.commands.trace import check_trace_file, keep_beside
from minispec.draft_option import epilog
from minispec.option_types import Number
from minispec.options import TRACE_OPTION, settings_from, shared_options
from minispec.prompt_source import read_prompt

if TYPE_CHECKING:
    from minispec.session import Pair
    from minispec.settings import Settings
    from minispec.trace import Run


@click.command(short_help="Plain and speculative: same text? how much faster?", epilog=epilog())
@shared_options
@TRACE_OPTION
@click.option("--repetitions", type=Number(int, 1), default=5, show_default=True, metavar="N",
              help="Times each way is run, in turn; the medians count.")  # fmt: skip
def compare(
    prompt: str | None, prompt_option: str | None, prompt_file: str | None, repetitions: int, trace_file: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Write the same text plainly and speculatively: is it the same, and how much faster?"""
    settings = settings_from(options)
    from minispec.viz import comparison, why_slower

    if settings.draft_name is None or settings.num_draft_tokens == 0:
        raise click.UsageError("compare needs guesses to compare: give -d a draft model and -k 1 or more")
    check_trace_file(trace_file, settings)
    text = read_prompt(prompt, prompt_option, prompt_file)
    settings, pair, ids = prepare(settings, text, options["quiet"], options["verbose"])
    runs = write_both_ways(settings, pair, ids, repetitions)
    plain, speculative, speedup = medians(runs)
    same = None
    if settings.determined:
        same = all(one.ids == other.ids and one.finish == other.finish for one, other in runs)
    if options["as_json"]:
        both = both_as_json(plain, speculative, pair, settings)
        click.echo(json.dumps({"identical": same, **both, "speedup": speedup, "repetitions": repetitions}))
    else:
        if not options["quiet"]:
            click.echo(text + text_of(speculative, pair, settings) + "\n")
        if options["verbose"]:
            show_rounds(speculative, pair, settings, options["color"])
        pairs = sorted(one.seconds / other.seconds for one, other in runs if other.ids)
        seed = settings.seed if settings.temperature > 0 else None
        click.echo(comparison(plain, speculative, same, speedup, pairs, seed))
    if speedup < 1:
        click.echo(why_slower(plain, speculative), err=options["as_json"])
    if trace_file is not None:  # written once more, so that what was measured was not watched
        from minispec.trace_run import Trace

        main = Trace(settings, pair, ids).finish()
        keep_beside(trace_file, settings, pair, text, main, options["quiet"], speedup)
    if same is False:
        raise SystemExit(1)


def write_both_ways(settings: Settings, pair: Pair, ids: list[int], repetitions: int) -> list[tuple[Run, Run]]:
    """The text plainly and speculatively, in turn, after a warm-up."""
    from minispec.decoding import decode
    from minispec.trace import run_all

    def write(plain: bool) -> Run:
        return run_all(ids, decode(settings, pair, ids, plain=plain))

    write(True), write(False)  # warm-up
    return [(write(True), write(False)) for _ in range(repetitions)]


def medians(runs: Sequence[tuple[Run, Run]]) -> tuple[Run, Run, float]:
    """The middle one of plain and of speculative runs, and how much faster the latter are."""
    sides = list(zip(*runs, strict=True))
    plain, speculative = (sorted(side, key=attrgetter("seconds"))[len(side) // 2] for side in sides)
    plain_seconds, speculative_seconds = (median(run.seconds for run in side) for side in sides)
    return plain, speculative, plain_seconds / speculative_seconds if speculative.ids else 1.0


def both_as_json(plain: Run, speculative: Run, pair: Pair, settings: Settings) -> dict[str, Any]:
    """Both runs as generate would print them."""
    without = {"draft": None, "num_draft_tokens": 0}
    return {
        "plain": plain.as_json(text_of(plain, pair, settings), settings.as_json() | without),
        "speculative": speculative.as_json(text_of(speculative, pair, settings), settings.as_json()),
    }
