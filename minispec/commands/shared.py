"""What the commands do alike: say what is going on, load a pair, show its rounds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from minispec.draft_option import is_lossy, takes_draft_weights
from minispec.options import use_color
from minispec.settings import AUTO
from minispec.user_path import CONTROL

if TYPE_CHECKING:
    from minispec.costs import Costs
    from minispec.session import Pair
    from minispec.settings import Settings
    from minispec.trace import Run


PATIENCE = 1.0  # seconds: what takes longer is announced
PREPARING = "preparing the kernels (a first start compiles them, about 15 s; later ones do not) ..."


def note(text: str) -> None:
    """A line for the reader, on standard error. Control characters, as of a file's name, are shown and not obeyed."""
    shown = CONTROL.sub(lambda match: match[0] if match[0] in "\t\n" else ascii(match[0])[1:-1], text)
    click.echo(shown, err=True)


@contextmanager
def announced(message: str, quiet: bool) -> Iterator[None]:
    """Say what is going on if it takes long."""
    timer = threading.Timer(PATIENCE, note, [message])
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
    with announced(PREPARING, quiet):
        pair.warm_up()
    return pair


def prices(pair: Pair, settings: Settings, quiet: bool) -> Costs:
    """What guesses and checks cost here."""
    message = f"measuring once what guesses and checks of {settings.target} with {settings.draft_name} cost here ..."
    with announced(message, quiet):
        return pair.costs


def choose_tree(
    settings: Settings, pair: Pair, quiet: bool, n_text: int = 1, anew: bool = False
) -> tuple[Settings, Pair, str]:
    """The tree that --tree auto takes in place of the word, and a line on it; else all as it was, and no line."""
    from minispec.tree_auto import with_best_tree

    message = f"measuring once which guesses of {settings.draft_name} {settings.target} keeps, and what they cost ..."
    with announced(message, quiet):
        settings, pair, choice = with_best_tree(settings, pair, n_text, anew)
    return settings, pair, "" if choice is None else choice.line()


def made_ready(
    settings: Settings, pair: Pair, quiet: bool, verbose: bool = False, n_text: int = 1
) -> tuple[Settings, Pair]:
    """A pair with all that its guesses depend on measured; and the settings, with nothing left to choose."""
    settings, pair, line = choose_tree(settings, pair, quiet, n_text)
    is_plain = settings.num_draft_tokens == 0  # which nobody asked for, if there is a line
    if line and (verbose or is_plain) and not quiet:
        note(line)
    if settings.num_draft_tokens == AUTO and pair.drafter is not None:
        prices(pair, settings, quiet)
    return settings, pair


def prepare(settings: Settings, prompt: str, quiet: bool, verbose: bool = False) -> tuple[Settings, Pair, list[int]]:
    """Settings and a pair, made ready, and the prompt's ids, checked."""
    asked, pair = settings, load(settings, quiet)
    ids = pair.tokenizer.encode(prompt)
    check_room(ids, pair, "the prompt", settings)  # before anything is measured
    settings, pair = made_ready(settings, pair, quiet, verbose)
    if not quiet:
        for line in hints(asked, prompt):
            note(line)
    return settings, pair, ids


def check_room(ids: Sequence[int], pair: Pair, what: str, settings: Settings) -> None:
    """Refuse a prompt that leaves no room for a token."""
    if len(ids) >= pair.target.n_ctx:
        raise click.UsageError(
            f"{what} has {len(ids)} tokens and {settings.target} a context window of {pair.target.n_ctx}: "
            f"shorten it to {pair.target.n_ctx - 1} or fewer"
        )


def hints(settings: Settings, prompt: str) -> Iterator[str]:
    """What was asked for and will not do what one may expect."""
    if settings.temperature == 0 and (settings.top_k or settings.top_p < 1):
        yield "note: --top-k and --top-p have no effect at temperature 0: add --temperature 1"
    if settings.temperature == 0 and settings.coupling != "optimal":
        yield "note: --coupling has no effect at temperature 0: add --temperature 1"
    if is_lossy(settings.draft_name) and not settings.determined:
        yield f"note: {settings.draft_name} is lossy: what is written has another law than the target's"
    if settings.draft_weights != "f32" and not takes_draft_weights(settings.draft_name):
        why = f"{settings.draft_name} is made of none" if settings.draft_name else "leave out -d none"
        yield f"note: --draft-weights has no effect without a draft model: {why}"
    if settings.schedule != "sequential" and settings.draft_name is None:
        yield "note: --schedule has no effect without a draft: leave out -d none"
    if settings.tree and settings.draft_name is None:
        yield "note: --tree has no effect without a draft: leave out -d none"
    if settings.verification != "token" and (settings.temperature == 0 or settings.coupling != "optimal"):
        yield "note: --verification has no effect where the text is determined: add --temperature 1"
    if settings.weights != "f32":
        yield f"note: {settings.target} in {settings.weights} is a model of its own: its text may differ from f32's"
    if prompt != prompt.rstrip(" "):
        yield "note: the prompt ends in a space, but words begin with theirs: the text is better without it"


def show_rounds(run: Run, pair: Pair, settings: Settings, color: str) -> None:
    """Every round of a run, on standard error; color is what --color says."""
    from minispec.viz_rounds import rounds

    colored = use_color(color, sys.stderr)
    for line in rounds(run, pair.tokenizer, colored, block=settings.verification == "block"):
        click.echo(line, err=True, color=colored)


def output_format(options: dict[str, Any]) -> str:
    """md, csv or json."""
    if options["as_json"] and options["output"] not in (None, "json"):
        raise click.UsageError(f"--json and --output {options['output']} are both given: give one")
    return "json" if options["as_json"] else options["output"] or "md"


def given(context: click.Context, option: str) -> bool:
    """Whether the user gave this option, and not its default."""
    return context.get_parameter_source(option) not in (None, click.core.ParameterSource.DEFAULT)


def text_of(run: Run, pair: Pair, settings: Settings) -> str:
    """The text of a whole run, cut before a stop."""
    from minispec.tokenizer import TextStream

    stream = TextStream(pair.tokenizer, settings.stop)
    return "".join(stream.push(token) for token in run.ids) + stream.flush()
