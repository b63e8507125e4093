"""The command line: options to settings, steps to text, errors to one line.

Text goes to standard output, everything else to standard error. Exit 0: done; 1: a check failed;
2: wrong use or input; 130: interrupted. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minispec import __version__
from minispec.session import Settings

if TYPE_CHECKING:
    from minispec.session import Pair
    from minispec.trace import Run

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULTS = Settings()


# --- values of options ---------------------------------------------------------------------------


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.3 on
    """A finite float, or an integer, within limits."""

    def __init__(self, kind: type[int] | type[float], low: float = 0, high: float = math.inf) -> None:
        self.kind, self.low, self.high = kind, low, high
        self.name = "integer" if kind is int else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = self.kind(value)
        except ValueError:
            number = None
        if number is None or not math.isfinite(number) or not self.low <= number <= self.high:
            limits = f"{self.low} or more" if self.high == math.inf else f"from {self.low} to {self.high}"
            kind = "an integer" if self.kind is int else "a number"
            self.fail(f"{value!r} cannot be used: give {kind}, {limits}", param, ctx)
        return number


class DraftTokens(Number):
    """A draft length; `auto` is a word of the contract that has no meaning yet."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == "auto":
            self.fail("'auto' is not available yet: give a number", param, ctx)
        return super().convert(value, param, ctx)


SHARED_OPTIONS = [
    click.argument("prompt", required=False),
    click.option("-p", "--prompt", "prompt_option", metavar="TEXT", help="The prompt, instead of the argument."),
    click.option("-f", "--prompt-file", metavar="FILE", help="Read the prompt from a file (- is standard input)."),
    click.option("-m", "--target", "--model", default=DEFAULTS.target, show_default=True, metavar="NAME",
                 help="The model whose text is written: story-target, gpt2-medium, a hub id or a folder."),
    click.option("-d", "--draft", "--draft-model", metavar="NAME|none",
                 help="The model that guesses; none for plain decoding.  [default: by target]"),
    click.option("-k", "--num-draft-tokens", type=DraftTokens(int), default=DEFAULTS.num_draft_tokens,
                 show_default=True, metavar="N", help="Guesses a round."),
    click.option("-n", "--max-new-tokens", "--max-tokens", type=Number(int), default=DEFAULTS.max_new_tokens,
                 show_default=True, metavar="N", help="The most tokens to write."),
    click.option("--temperature", "--temp", type=Number(float), default=DEFAULTS.temperature, show_default=True,
                 metavar="X", help="0 is greedy, 1 the model's own law."),
    click.option("--top-k", type=Number(int), default=DEFAULTS.top_k, show_default=True, metavar="N",
                 help="Draw from the N most likely tokens; 0 is off."),
    click.option("--top-p", type=Number(float, 0, 1), default=DEFAULTS.top_p, show_default=True, metavar="X",
                 help="Draw from the most likely tokens that reach this mass; 1 is off."),
    click.option("--seed", type=Number(int), default=DEFAULTS.seed, show_default=True, metavar="N",
                 help="The dice of sampling."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given again."),
    click.option("--threads", type=Number(int, 1), metavar="N", help="Cores to use.  [default: all]"),
    click.option("--weights", type=click.Choice(["f32", "int8"]), default=DEFAULTS.weights, show_default=True,
                 help="How the target's weights are kept."),
    click.option("--draft-weights", type=click.Choice(["f32", "int8"]), default=DEFAULTS.draft_weights,
                 show_default=True, help="How the draft's weights are kept."),
    click.option("--backend", type=click.Choice(["numba", "numpy"]), default=DEFAULTS.backend, show_default=True,
                 help="Compiled kernels, or the plain NumPy to read (slow)."),
    click.option("--offline", is_flag=True, help="Never download; use what is in the cache."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    click.option("--color", type=click.Choice(["auto", "on", "off"]), default="auto", show_default=True,
                 help="Tell guesses, corrections and bonus tokens apart (NO_COLOR is honoured)."),
    click.option("--coupling", type=click.Choice(["optimal", "gumbel"]), default="optimal", show_default=True,
                 help="How sampled guesses are judged (gumbel is not available yet)."),
    click.option("--no-stream", is_flag=True, help="Print the text when it is whole."),
    click.option("-q", "--quiet", is_flag=True, help="Only the result."),
    click.option("-v", "--verbose", is_flag=True, help="Show every round."),
]  # fmt: skip


def shared_options(command: Command) -> Command:
    """The options that every command on a prompt takes, in this order in --help."""
    for option in reversed(SHARED_OPTIONS):
        command = option(command)
    return command


def settings_from(options: dict[str, Any]) -> Settings:
    """The frozen settings among a command's options; from here on NumPy may be imported."""
    if options["coupling"] != "optimal":
        raise click.UsageError("--coupling is 'gumbel', which is not available yet: leave it out")
    limit_threads(options["threads"], options["backend"])
    return Settings(**{name: options[name] for name in asdict(DEFAULTS)})


# --- what every command does -----------------------------------------------------------------------


def note(text: str) -> None:
    """A line for the reader, on standard error."""
    click.echo(text, err=True)


def read_prompt(argument: str | None, option: str | None, file: str | None) -> str:
    """The prompt from the one place that was given. A file or a pipe loses its last line end."""
    given = [name for name, value in (("PROMPT", argument), ("-p", option), ("-f", file)) if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"the prompt is given twice, by {' and '.join(given)}: give one")
    if option is not None or (argument is not None and argument != "-"):
        prompt = option if option is not None else argument
    elif file is not None and file != "-":
        prompt = _without_line_end(_as_text(_bytes_of(file), file))
    elif not given and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError('no prompt: give a text, as in minispec generate "Once upon a time", or -f FILE')
    else:
        prompt = _without_line_end(_as_text(sys.stdin.buffer.read(), "standard input"))
    if not prompt:
        raise click.UsageError("the prompt is empty: give at least one character")
    return prompt


def _bytes_of(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise click.UsageError(f"--prompt-file {file}: {error.strerror}: give a file with text") from None


def _as_text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source} is not UTF-8 (byte {error.start}): convert it") from None


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def limit_threads(threads: int | None, backend: str) -> None:
    """Let the backend use so many cores. NumPy's BLAS reads the environment when it is imported."""
    if threads is None:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads > cores:
        raise click.UsageError(f"--threads is {threads}: this machine offers 1 to {cores}")
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[name] = str(threads)
    if backend == "numba" and find_spec("numba"):
        import numba

        numba.set_num_threads(threads)


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


def prepare(settings: Settings, prompt: str, quiet: bool) -> tuple[Pair, list[int]]:
    """A loaded pair and the prompt's ids, checked, with the kernels compiled."""
    from minispec.session import open_pair

    with announced(f"loading {settings.target} ...", quiet):
        pair = open_pair(settings)
    with announced("compiling the kernels (once on this machine, about 10 s) ...", quiet):
        pair.target.ops.warm_up()
    ids = pair.tokenizer.encode(prompt)
    if len(ids) >= pair.target.n_ctx:
        raise click.UsageError(
            f"the prompt has {len(ids)} tokens and {settings.target} a context window of {pair.target.n_ctx}: "
            f"shorten it to {pair.target.n_ctx - 1} or fewer"
        )
    return pair, ids


def use_color(choice: str) -> bool:
    """Whether to print colours: `auto` asks whether a person looks, and honours NO_COLOR and TERM=dumb."""
    if choice != "auto":
        return choice == "on"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def text_of(run: Run, pair: Pair, settings: Settings) -> str:
    """The text of a whole run, cut before a stop."""
    from minispec.tokenizer import TextStream

    stream = TextStream(pair.tokenizer, settings.stop)
    return "".join(stream.push(token) for token in run.ids) + stream.flush()


# --- commands --------------------------------------------------------------------------------------


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="minispec")
def cli() -> None:
    """Speculative decoding for GPT-2 on a CPU: a small model guesses, the big one checks, the text is the
    big one's, token for token.

    \b
    minispec generate "Once upon a time"
    minispec compare "Once upon a time" -n 100
    minispec generate -m gpt2-medium -d gpt2 "The cat sat on the"
    """


@cli.command()
@shared_options
def generate(prompt: str | None, prompt_option: str | None, prompt_file: str | None, **options: Any) -> None:
    """Write text after PROMPT, speculatively."""
    settings, quiet = settings_from(options), options["quiet"]
    from minispec.session import decode
    from minispec.tokenizer import TextStream
    from minispec.trace import Run, token_kinds
    from minispec.viz import closing_line, legend, rounds, style

    text = read_prompt(prompt, prompt_option, prompt_file)
    pair, ids = prepare(settings, text, quiet)
    steps, run = decode(settings, pair, ids), Run(ids)
    if options["as_json"]:
        for _ in run.record(steps):
            pass
        click.echo(json.dumps(run.as_json(text_of(run, pair, settings), settings.as_json())))
        return

    color = use_color(options["color"])
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
        click.echo()
    if quiet:
        return
    if options["verbose"]:
        for line in rounds(run, pair.tokenizer):
            note(line)
    note(closing_line(run, settings.seed if settings.temperature > 0 else None))
    if color and run.drafted:
        click.echo(legend(), err=True, color=sys.stderr.isatty())


@cli.command()
@shared_options
@click.option("--repetitions", type=Number(int, 1), default=3, show_default=True, metavar="N",
              help="Times each way is run, in turn; the medians count.")  # fmt: skip
def compare(
    prompt: str | None, prompt_option: str | None, prompt_file: str | None, repetitions: int, **options: Any
) -> None:
    """Write the same text plainly and speculatively: is it the same, and how much faster?"""
    settings = settings_from(options)
    from minispec.session import decode
    from minispec.trace import run_all
    from minispec.viz import comparison, rounds, why_slower

    if settings.draft_name is None:
        raise click.UsageError("-d is none: compare needs a draft model")
    text = read_prompt(prompt, prompt_option, prompt_file)
    pair, ids = prepare(settings, text, options["quiet"])

    def seconds(run: Run) -> float:
        return run.seconds

    def write(plain: bool) -> Run:
        return run_all(ids, decode(settings, pair, ids, plain=plain))

    write(True), write(False)  # warm-up
    runs = [(write(True), write(False)) for _ in range(repetitions)]
    plain, speculative = (sorted(side, key=seconds)[repetitions // 2] for side in zip(*runs, strict=True))
    same = None
    if settings.temperature == 0:
        same = all(one.ids == other.ids and one.finish == other.finish for one, other in runs)
    medians = [median(map(seconds, side)) for side in zip(*runs, strict=True)]
    speedup = medians[0] / medians[1] if speculative.ids else 1.0
    if options["as_json"]:
        sides = {
            name: run.as_json(text_of(run, pair, settings), settings.as_json() | extra)
            for name, run, extra in (
                ("plain", plain, {"draft": None, "num_draft_tokens": 0}),
                ("speculative", speculative, {}),
            )
        }
        click.echo(json.dumps({"identical": same, **sides, "speedup": speedup, "repetitions": repetitions}))
    else:
        if not options["quiet"]:
            click.echo(text + text_of(speculative, pair, settings) + "\n")
        if options["verbose"]:
            for line in rounds(speculative, pair.tokenizer):
                note(line)
        seed = settings.seed if settings.temperature > 0 else None
        click.echo(comparison(plain, speculative, same, speedup, seed))
    if speedup < 1:
        click.echo(why_slower(plain, speculative), err=options["as_json"])
    if same is False:
        raise SystemExit(1)


# --- the entry point -------------------------------------------------------------------------------


def complain(message: str) -> None:
    """One line that says what is wrong."""
    note("minispec: " + " ".join(message.split()))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every error ends in one line and an exit status, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
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
        complain(error.format_message())
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
