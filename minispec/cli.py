"""The command line: its commands, and errors to one line.

Text goes to standard output, everything else to standard error. Exit 0: done; 1: a check failed;
2: wrong use or input; 130: interrupted. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import suppress

import click

from minispec import __version__, streams
from minispec.commands.bench import bench
from minispec.commands.compare import compare
from minispec.commands.generate import generate
from minispec.commands.shared import note
from minispec.commands.simulate import simulate
from minispec.commands.sweep import sweep
from minispec.commands.theory import theory
from minispec.commands.trace import trace
from minispec.commands.verify import verify
from minispec.interrupts import STATUS, heard, say


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
    """Speculative decoding for GPT-2 on a CPU: a small model guesses, the big one checks. Greedy text, and
    with --coupling gumbel sampled text, is the big one's, token for token; other sampled text has exactly its law.

    \b
    minispec generate "Once upon a time"
    minispec compare "Once upon a time" -n 100
    minispec trace "Once upon a time" -n 60 -o run.html
    minispec verify --quick
    minispec bench --only passes
    minispec simulate --rule all
    minispec theory --accept 0.8 -k 6
    minispec sweep --by kind
    minispec generate -m gpt2-medium -d gpt2 "The cat sat on the"
    """


for command in (generate, compare, trace, verify, bench, simulate, theory, sweep):
    cli.add_command(command)


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
    streams.prepare()
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
        say()
        status = STATUS
    except BrokenPipeError:
        streams.drop_output()
        status = 141  # what a shell reports for a reader that has gone
    except (ValueError, OSError, ImportError, MemoryError) as error:
        if heard():  # in the middle of something that made another error of it
            raise KeyboardInterrupt from None
        complain(str(error) or type(error).__name__)
        streams.drop_output()
        status = 2
    sys.exit(status)


if __name__ == "__main__":
    main()
