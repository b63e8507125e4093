"""`minispec sweep`: acceptance and speed over many prompts, drafters, draft lengths and temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from minispec.commands.shared import PREPARING, announced, note, output_format
from minispec.cores import count_cores
from minispec.option_types import Number, Numbers
from minispec.options import (
    DEFAULTS,
    OUTPUT_OPTIONS,
    PAIR_OPTIONS,
    RUN_OPTIONS,
    TEXT_OPTIONS,
    settings_from,
    with_options,
)
from minispec.user_path import user_path

if TYPE_CHECKING:
    from minispec.prompts import Prompt
    from minispec.settings import Settings
    from minispec.sweep import Job, Result
    from minispec.sweep_file import ResultsFile
    from minispec.sweep_workers import Workers

TARGET, _ = PAIR_OPTIONS
_, LENGTH, _, *LAW = TEXT_OPTIONS  # all but -k and -t, of which a sweep takes several

# fmt: off
SWEEP_OPTIONS = [
    click.option("-f", "--prompts", "prompt_file", metavar="FILE",
                 help='Prompts, one a line (as generate takes by --prompts): as text, or as {"prompt": "...", '
                 '"kind": "..."}.  [default: 60 that come along, of six kinds]'),
    click.option("--per-kind", type=Number(int, 1), metavar="N", help="Take the first N prompts of each kind."),
    click.option("-d", "--draft", "--draft-model", "drafts", multiple=True, metavar="NAME|METHOD|none",
                 help="What guesses, as in generate; may be given again.  [default: as in generate]"),
    click.option("-k", "--num-draft-tokens", "lengths", type=Numbers(1), default="1,2,4,6,8", show_default=True,
                 metavar="N,...", help="Draft lengths: numbers, as what auto does depends on the machine."),
    click.option("-t", "--temperature", "--temp", "temperatures", type=Numbers(0, kind=float), metavar="X,...",
                 default=f"{DEFAULTS.temperature:g}", show_default=True, help="Temperatures, as in 0,0.7,1."),
]
WORK_OPTIONS = [
    click.option("--workers", type=Number(int, 1), metavar="N",
                 help="Processes that share the jobs and this machine's cores: the counts stay the same, the seconds "
                 "are those of a busy machine.  [default: this one alone]"),
    click.option("--dask", "address", metavar="ADDRESS",
                 help="Give the jobs to the workers of this Dask scheduler, as in tcp://10.0.0.1:8786."),
    click.option("--output-file", metavar="FILE",
                 help="Keep every finished job here, and go on from it after a stop (.jsonl)."),
    click.option("--by", type=click.Choice(["kind"]), help="Show each kind of prompt as well."),
    click.option("--output", type=click.Choice(["md", "csv", "json"]), help="How to print it.  [default: md]"),
]
# fmt: on


@click.command(short_help="Acceptance and speed over many prompts, drafters and draft lengths.")
@with_options([TARGET], SWEEP_OPTIONS, [LENGTH, *LAW], WORK_OPTIONS, RUN_OPTIONS, OUTPUT_OPTIONS)
def sweep(**options: Any) -> None:
    """Write after every prompt with every drafter, draft length and temperature, and count which guesses are kept.

    Each text is written plainly as well, by the same process: the measured speed-up is over that. The predicted one is
    E / (k c + v): E from the guesses kept at each place, c and v from the seconds in the two models' passes.
    A guess counts as judged where all before it were kept.

    \b
    minispec sweep
    minispec sweep -k 2,4,8 --temperature 0,1 --by kind --workers 2
    minispec sweep -m gpt2-medium -d gpt2 -d distilgpt2 --output-file sweep.jsonl
    """
    output = output_format(options)
    if options["address"] is not None and (options["workers"] is not None or options["threads"] is not None):
        other = "--workers" if options["workers"] is not None else "--threads"
        raise click.UsageError(f"{other} is for this machine and --dask for a cluster, whose workers say it: give one")
    if options["workers"] is not None and options["workers"] > count_cores():
        raise click.UsageError(f"--workers is {options['workers']}: this machine offers 1 to {count_cores()} cores")
    settings = settings_from(options)
    from minispec import sweep_report
    from minispec.sweep import check_prompts, make_jobs
    from minispec.sweep_file import open_results

    prompts, drafts = read(options), options["drafts"] or [None]
    with announced("looking at the models ...", options["quiet"]):
        jobs = make_jobs(settings, prompts, drafts, options["lengths"], options["temperatures"])
        check_prompts(settings, prompts)
    workers = choose_workers(options, settings)
    file = nullcontext() if options["output_file"] is None else open_results(user_path(options["output_file"]))
    with file as kept:
        results = do(jobs, workers, kept, options["quiet"])
    rows = sweep_report.make_rows(jobs, results, options["by"] == "kind")
    names = ("target", "weights", "draft_weights", "backend", "max_new_tokens", "top_k", "top_p", "coupling", "seed")
    about = {name: getattr(settings, name) for name in names} | {"stop": list(settings.stop), "prompts": len(prompts)}
    render = {"md": sweep_report.as_markdown, "csv": sweep_report.as_csv, "json": sweep_report.as_json}[output]
    click.echo(render(rows, about))
    different = sum(row.counts.different for row in rows if row.kind == sweep_report.ALL)
    if different:
        note(f"minispec: {different} TEXTS DIFFER from those of plain decoding; minispec verify looks further")
        raise SystemExit(1)


def read(options: dict[str, Any]) -> list[Prompt]:
    """The prompts that were asked for."""
    from minispec.prompts import built_in_prompts, first_of_each_kind, read_prompts

    file, per_kind = options["prompt_file"], options["per_kind"]
    prompts = built_in_prompts() if file is None else read_prompts(user_path(file))
    return prompts if per_kind is None else first_of_each_kind(prompts, per_kind)


def choose_workers(options: dict[str, Any], settings: Settings) -> Workers:
    """Who does the jobs. Here kernels are compiled, if they are not yet, before several processes would."""
    from minispec.sweep_workers import cluster, in_process, processes

    if options["address"] is not None:
        return cluster(options["address"])
    warm_up(settings, options["quiet"])
    if options["workers"] is None:
        return in_process()
    threads = max(1, (options["threads"] or count_cores()) // options["workers"])
    return processes(options["workers"], threads, settings.backend)


def warm_up(settings: Settings, quiet: bool) -> None:
    """Compile the kernels, or load them."""
    import numpy as np

    from minispec.backends import operations
    from minispec.model import STORED

    with announced(PREPARING, quiet):
        for stored in {settings.weights, settings.draft_weights}:
            operations(settings.backend).warm_up(np.dtype(STORED[stored]))


def do(jobs: Sequence[Job], workers: Workers, file: ResultsFile | None, quiet: bool) -> dict[str, Result]:
    """The results of all jobs: those of the file, and those that are done now and kept there."""
    from tqdm import tqdm

    from minispec.sweep import group_jobs
    from minispec.sweep_workers import do_groups

    by_key = {job.key: job for job in jobs}
    results = {key: file.results[key] for key in by_key if key in file.results} if file is not None else {}
    if file is not None and file.results and not quiet:
        note(f"{len(results)} of {len(jobs)} texts are in {file.path} already ({len(file.results)} lines)")
    try:
        with tqdm(total=len(jobs), initial=len(results), desc="texts", leave=False, disable=quiet or None) as bar:
            for _, done in do_groups(group_jobs(jobs, results), workers):
                for result in done:
                    results[result.key] = result
                    if file is not None:
                        file.append(by_key[result.key], result)
                bar.update(len(done))
    except BaseException:
        if file is not None:
            note(f"{len(results)} of {len(jobs)} texts are in {file.path}: the same command goes on from there")
        elif results:
            note(f"{len(results)} of {len(jobs)} texts were done, and are lost: --output-file FILE would keep them")
        raise
    return results
