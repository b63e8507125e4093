"""The command line: steps to text, errors to one line.

Text goes to standard output, everything else to standard error. Exit 0: done; 1: a check failed;
2: wrong use or input; 130: interrupted. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from minispec import __version__
from minispec.options import (
    CHECKS,
    OUTPUT_OPTIONS,
    PAIR_OPTIONS,
    RUN_OPTIONS,
    Number,
    read_prompt,
    settings_from,
    shared_options,
    use_color,
    with_options,
)

if TYPE_CHECKING:
    from minispec.session import Pair, Settings
    from minispec.trace import Run


# --- what every command does -----------------------------------------------------------------------


def note(text: str) -> None:
    """A line for the reader, on standard error."""
    click.echo(text, err=True)


@contextmanager
def announced(message: str, quiet: bool, after: float = 1.0) -> Iterator[None]:
    """Say what is going on if it takes longer than `after` seconds."""
    timer = threading.Timer(after, note, [message])
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def load(settings: Settings, quiet: bool) -> Pair:
    """A loaded pair, with the kernels compiled."""
    from minispec.session import open_pair

    with announced(f"loading {settings.target} ...", quiet):
        pair = open_pair(settings)
    with announced("preparing the kernels (the first start of an installation compiles them, about 10 s) ...", quiet):
        pair.target.ops.warm_up()
    return pair


def prepare(settings: Settings, prompt: str, quiet: bool) -> tuple[Pair, list[int]]:
    """A loaded pair and the prompt's ids, checked."""
    pair = load(settings, quiet)
    ids = pair.tokenizer.encode(prompt)
    if len(ids) >= pair.target.n_ctx:
        raise click.UsageError(
            f"the prompt has {len(ids)} tokens and {settings.target} a context window of {pair.target.n_ctx}: "
            f"shorten it to {pair.target.n_ctx - 1} or fewer"
        )
    if not quiet:
        for line in hints(settings, prompt):
            note(line)
    return pair, ids


def hints(settings: Settings, prompt: str) -> Iterator[str]:
    """What was asked for and will not do what one may expect."""
    if settings.temperature == 0 and (settings.top_k or settings.top_p < 1):
        yield "note: --top-k and --top-p have no effect at temperature 0: add --temperature 1"
    if settings.temperature == 0 and settings.coupling != "optimal":
        yield "note: --coupling has no effect at temperature 0: add --temperature 1"
    if prompt != prompt.rstrip(" "):
        yield "note: the prompt ends in a space, but words begin with theirs: the text is better without it"


def text_of(run: Run, pair: Pair, settings: Settings) -> str:
    """The text of a whole run, cut before a stop."""
    from minispec.tokenizer import TextStream

    stream = TextStream(pair.tokenizer, settings.stop)
    return "".join(stream.push(token) for token in run.ids) + stream.flush()


# --- commands --------------------------------------------------------------------------------------


class Group(click.Group):
    """Commands, and a word of help for the likeliest mistakes: a prompt without a command, or without quotes."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if " " in args[0]:
                message = f"no command is called {args[0]!r}: did you mean: minispec generate {json.dumps(args[0])}"
                raise click.UsageError(message) from None
            raise error


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="minispec")
def cli() -> None:
    """Speculative decoding for GPT-2 on a CPU: a small model guesses, the big one checks, the text is the
    big one's, token for token.

    \b
    minispec generate "Once upon a time"
    minispec compare "Once upon a time" -n 100
    minispec verify --quick
    minispec generate -m gpt2-medium -d gpt2 "The cat sat on the"
    """


@cli.command(short_help="Write text after PROMPT.")
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


@cli.command(short_help="Plain and speculative: same text? how much faster?")
@shared_options
@click.option("--repetitions", type=Number(int, 1), default=5, show_default=True, metavar="N",
              help="Times each way is run, in turn; the medians count.")  # fmt: skip
def compare(
    prompt: str | None, prompt_option: str | None, prompt_file: str | None, repetitions: int, **options: Any
) -> None:
    """Write the same text plainly and speculatively: is it the same, and how much faster?"""
    settings = settings_from(options)
    from minispec.session import decode
    from minispec.trace import run_all
    from minispec.viz import comparison, rounds, why_slower

    if settings.draft_name is None or settings.num_draft_tokens == 0:
        raise click.UsageError("compare needs guesses to compare: give -d a draft model and -k 1 or more")
    text = read_prompt(prompt, prompt_option, prompt_file)
    pair, ids = prepare(settings, text, options["quiet"])

    def write(plain: bool) -> Run:
        return run_all(ids, decode(settings, pair, ids, plain=plain))

    write(True), write(False)  # warm-up
    runs = [(write(True), write(False)) for _ in range(repetitions)]
    sides = list(zip(*runs, strict=True))
    plain, speculative = (sorted(side, key=attrgetter("seconds"))[repetitions // 2] for side in sides)
    same = None
    if settings.determined:
        same = all(one.ids == other.ids and one.finish == other.finish for one, other in runs)
    plain_seconds, speculative_seconds = (median(run.seconds for run in side) for side in sides)
    speedup = plain_seconds / speculative_seconds if speculative.ids else 1.0
    if options["as_json"]:
        both = {
            name: run.as_json(text_of(run, pair, settings), settings.as_json() | extra)
            for name, run, extra in (
                ("plain", plain, {"draft": None, "num_draft_tokens": 0}),
                ("speculative", speculative, {}),
            )
        }
        click.echo(json.dumps({"identical": same, **both, "speedup": speedup, "repetitions": repetitions}))
    else:
        if not options["quiet"]:
            click.echo(text + text_of(speculative, pair, settings) + "\n")
        pairs = sorted(one.seconds / other.seconds for one, other in runs if other.ids)
        if options["verbose"]:
            for line in rounds(speculative, pair.tokenizer):
                note(line)
        seed = settings.seed if settings.temperature > 0 else None
        click.echo(comparison(plain, speculative, same, speedup, pairs, seed))
    if speedup < 1:
        click.echo(why_slower(plain, speculative), err=options["as_json"])
    if same is False:
        raise SystemExit(1)


@cli.command(short_help="Is the text exact, on this machine, with this pair?")
@with_options(PAIR_OPTIONS, RUN_OPTIONS, OUTPUT_OPTIONS)
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
@click.option("--quick", is_flag=True, help="Fewer trials: about ten seconds for the pair in the box.")
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
    from minispec.viz import check_line, hash_line, runs_on, verdict, verify_command

    began = time.perf_counter()
    unasked = {"both": (), "optimal": ("gumbel",), "gumbel": ("law", "dice")}[couplings]
    chosen = [name for name in only or CHECKS if name not in unasked]
    pair = load(settings, silent)
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
            click.echo(check_line(check, verify_command(settings, check, options["threads"], quick)))
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


# --- the entry point -------------------------------------------------------------------------------


def complain(message: str) -> None:
    """One line that says what is wrong."""
    with suppress(OSError):  # nobody can be told
        note("minispec: " + " ".join(message.split()))


def remedy(error: click.ClickException) -> str:
    """What to do about an argument too many."""
    if "extra argument" not in error.format_message() or not isinstance(error, click.UsageError) or not error.ctx:
        return ""
    takes_prompt = any(parameter.name == "prompt" for parameter in error.ctx.command.params)
    return ": put a prompt of several words in quotes" if takes_prompt else f": {error.ctx.info_name} takes no prompt"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every error ends in one line and an exit status, never in a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):  # Windows writes cp1252 into a pipe
            stream.reconfigure(encoding="utf-8", errors="replace")
    warnings.showwarning = lambda message, *_args, **_kwargs: complain(f"warning: {message}")
    arguments = sys.argv[1:] if arguments is None else arguments
    status = 0
    try:
        # Not cli.main(), which would end on errors in its own ways.
        with cli.make_context("minispec", arguments or ["--help"]) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        status = error.exit_code
    except click.ClickException as error:
        complain(error.format_message() + remedy(error))
        status = 2
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        status = 130
    except BrokenPipeError:
        _drop_output()
        status = 141  # what a shell reports for a reader that has gone
    except (ValueError, OSError, ImportError, MemoryError) as error:
        complain(str(error) or type(error).__name__)
        _drop_output()
        status = 2
    sys.exit(status)


def _drop_output() -> None:
    """Let what cannot be written go to nowhere, so that the interpreter does not complain at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
