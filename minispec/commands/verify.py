"""`minispec verify`: the exactness checks as a report."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import click

from minispec.commands.shared import choose_tree, load, note
from minispec.draft_option import epilog
from minispec.option_types import Number
from minispec.options import CHECKS, OUTPUT_OPTIONS, PAIR_OPTIONS, RUN_OPTIONS, TREE_OPTION, settings_from, with_options


@click.command(short_help="Is the text exact, on this machine, with this pair?", epilog=epilog())
@with_options(PAIR_OPTIONS, [TREE_OPTION], RUN_OPTIONS, OUTPUT_OPTIONS)
@click.option(
    "--coupling",
    "couplings",
    type=click.Choice(["both", "optimal", "gumbel"]),
    default="both",
    show_default=True,
    help="The coupling to check: optimal leaves out gumbel; gumbel leaves out law and dice.",
)
@click.option(
    "--only",
    type=click.Choice(CHECKS),
    multiple=True,
    metavar="CHECK",
    help=f"Make this check alone; may be given again: {', '.join(CHECKS)}.",
)
@click.option("--quick", is_flag=True, help="Fewer trials: about eight seconds for the pair in the box.")
@click.option("--thorough", type=Number(float, 0.01), is_flag=False, flag_value="10", metavar="[MINUTES]",
              help="More and more trials for so many minutes in all, 10 if no number is given.")  # fmt: skip
def verify(couplings: str, only: tuple[str, ...], quick: bool, thorough: float | None, **options: Any) -> None:
    """Check on this machine, with this pair, that speculation changes nothing: the same greedy and sampled text, the
    same bits however a text is cut into passes, the same law. Texts and settings are chosen at random, by --seed.
    Exit status 1 if a check fails.

    \b
    greedy         speculative text is that of plain decoding, whoever guesses
    gumbel         so is sampled text, with noise that is tied to places
    bits           logits and cache do not depend on the passes that made them
    law            the exact probabilities of what the loop writes are the target's
    dice           the dice of sampling have the odds that the law supposes
    golden         logits of the pair in the box have the bits of every other machine
    known outputs  GPT-2's own weights write what others found (where they are in the cache)
    """
    settings, silent = settings_from(options), options["quiet"]
    if quick and thorough is not None:
        raise click.UsageError("--quick and --thorough are both given: give one")
    from minispec.verify import plan_checks, run_checks
    from minispec.verify_known import logits_hashes, the_same_everywhere
    from minispec.viz_checks import check_line, hash_line, runs_on, verdict, verify_command

    began = time.perf_counter()
    unasked = {"both": (), "optimal": ("gumbel",), "gumbel": ("law", "dice")}[couplings]
    chosen = [name for name in only or CHECKS if name not in unasked]
    asked = settings
    settings, pair, _ = choose_tree(settings, load(settings, silent), silent)
    hashes = logits_hashes(pair, settings)
    plans, left_out = plan_checks(pair, settings, hashes, chosen, quick)
    if not silent:
        for name, reason in left_out.items():
            note(f"left out: {name} ({reason})")
    if not plans:
        raise click.UsageError(f"nothing to check: {', '.join(only)} cannot be made here, or --coupling leaves it out")
    checks = []
    for check in run_checks(plans, pair, settings.seed, None if thorough is None else 60 * thorough, silent):
        checks.append(check)
        if not options["as_json"] and not (silent and check.passed):
            click.echo(check_line(check, verify_command(asked, check, options["threads"], quick)))
    passed = all(check.passed for check in checks)
    if options["as_json"]:
        result = {"passed": passed, "checks": [asdict(check) for check in checks], "left_out": left_out}
        result |= {"target": settings.target, "draft": settings.draft_name, "weights": settings.weights}
        result |= {"backend": pair.target.backend, "seed": settings.seed, "logits_sha256": hashes}
        click.echo(json.dumps(result | {"seconds": time.perf_counter() - began}))
    else:
        if not silent:
            for name, digest in hashes.items():
                click.echo(hash_line(name, digest, the_same_everywhere(pair.target)))
        click.echo(verdict(checks, runs_on(settings, pair)))
    if not passed:
        raise SystemExit(1)
