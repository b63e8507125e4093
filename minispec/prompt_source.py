"""The one prompt of a run: an argument, an option, a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import click


def read_prompt(argument: str | None, option: str | None, file: str | None) -> str:
    """The prompt from the one place that was given. A file or a pipe loses its last line end."""
    given = [name for name, value in (("PROMPT", argument), ("-p", option), ("-f", file)) if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"the prompt is given twice, by {' and '.join(given)}: give one")
    if option is not None or argument not in (None, "-"):
        source, prompt = "PROMPT", argument if option is None else option
    elif file not in (None, "-"):
        source, prompt = file, _without_line_end(_as_text(_bytes_of(file), file))
    elif sys.stdin is None:
        raise click.UsageError("standard input is closed: give the prompt as an argument, or -f FILE")
    elif not given and sys.stdin.isatty():
        raise click.UsageError('no prompt: give a text, as in minispec generate "Once upon a time", or -f FILE')
    else:
        source = "standard input"
        prompt = _without_line_end(_as_text(sys.stdin.buffer.read(), source))
    if not prompt:
        raise click.UsageError(f"the prompt is empty ({source}): give at least one character")
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
