"""What the commands share: their options, and the settings that come of them.

Nothing heavy is imported here: `--threads` must take hold before NumPy starts its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import IO, Any, TypeVar

import click

from minispec.cores import count_cores, tell_numba
from minispec.option_types import DraftTokens, Number, Widths
from minispec.settings import AUTO, SCHEDULES, Settings

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULTS = Settings()
CHECKS = ("greedy", "gumbel", "bits", "law", "dice", "golden", "known outputs")  # of verify, in this order
RULES = (  # of simulate, in this order
    "right", "equal", "no-residual", "absolute-residual", "swapped", "reuse-uniform", "argmax-draft", "argmax-target",
    "discard", "keep-all",
)  # fmt: skip
TRIALS = 20_000_000  # of simulate: less than a second
PARTS = (  # of bench, in this order
    "bandwidth", "passes", "costs", "prefill", "memory", "start", "end-to-end", "prediction", "drafters", "short",
    "batch",
)  # fmt: skip

# fmt: off
PROMPT_OPTIONS = [
    click.argument("prompt", required=False),
    click.option("-p", "--prompt", "prompt_option", metavar="TEXT", help="The prompt, instead of the argument."),
    click.option("-f", "--prompt-file", metavar="FILE",
                 help="Read one prompt from a file, less its last line end; - is standard input. A pipe is read too."),
]
PAIR_OPTIONS = [
    click.option("-m", "--target", "--model", default=DEFAULTS.target, show_default=True, metavar="NAME",
                 help="The model whose text is written: story-target, gpt2-medium, a hub id or a folder."),
    click.option("-d", "--draft", "--draft-model", metavar="NAME|METHOD|none",
                 help="What guesses: a smaller model, or a method; none for plain decoding. With +, as in "
                 "prompt-lookup+story-draft, the first that proposes anything drafts the round. Methods: at the end "
                 "of this page.  [default: story-draft for story-target, distilgpt2 for gpt2, gpt2 for the larger "
                 "ones]"),
]
FILTER_OPTIONS = [
    click.option("--top-k", type=Number(int), default=DEFAULTS.top_k, show_default=True, metavar="N",
                 help="Draw from the N most likely tokens; 0 is off."),
    click.option("--top-p", type=Number(float, 0, 1), default=DEFAULTS.top_p, show_default=True, metavar="X",
                 help="Draw from the most likely tokens that reach this mass; 1 is off."),
]
TEXT_OPTIONS = [
    click.option("-k", "--num-draft-tokens", type=DraftTokens(int), default=DEFAULTS.num_draft_tokens,
                 show_default=True, metavar="N|auto",
                 help="Guesses a round; auto goes as far as it pays, by what was kept so far and by what guesses and "
                 "checks cost here (measured once)."),
    click.option("-n", "--max-new-tokens", "--max-tokens", type=Number(int), default=DEFAULTS.max_new_tokens,
                 show_default=True, metavar="N", help="The most tokens to write."),
    click.option("-t", "--temperature", "--temp", type=Number(float), default=DEFAULTS.temperature, show_default=True,
                 metavar="X", help="0 is greedy, 1 the model's own law."),
    *FILTER_OPTIONS,
    click.option("--coupling", type=click.Choice(["optimal", "gumbel"]), default=DEFAULTS.coupling, show_default=True,
                 help="How sampled guesses are judged: optimal keeps the most; gumbel writes the same text for a "
                 "seed, whatever guesses, and with none."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given again."),
]
SCHEDULE_OPTIONS = [
    click.option("--schedule", type=click.Choice(SCHEDULES), default=DEFAULTS.schedule, show_default=True,
                 help="overlapped: the draft model guesses the next block while the target checks the last, on a core "
                 "of its own; the text's law is the same, and greedy text to the letter."),
]
TREE_OPTION = click.option(
    "--tree", type=Widths(), default=(), metavar="N,...|auto",
    help="Guess a tree: so many guesses for each place, by depth, as in 3,2,1, whatever -k says; near the end of the "
    "context window it is as deep as there is room. auto takes the one that pays best, by what was kept of a wide one "
    "and what guesses and checks cost here (measured once), or chains, or none; -k N limits its depth.")
JUDGING_OPTIONS = [
    TREE_OPTION,
    click.option("--verification", type=click.Choice(["token", "block"]), default=DEFAULTS.verification,
                 show_default=True,
                 help="How sampled guesses are judged: one by one, or as a block, which keeps a few more."),
]
MACHINE_OPTIONS = [
    click.option("--threads", type=Number(int, 1), metavar="N", help="Cores to use.  [default: all]"),
    click.option("--weights", type=click.Choice(["f32", "int8"]), default=DEFAULTS.weights, show_default=True,
                 help="How the target's weights are kept: int8 is smaller and faster, and writes a text of its own."),
    click.option("--draft-weights", type=click.Choice(["f32", "int8"]), default=DEFAULTS.draft_weights,
                 show_default=True,
                 help="How the draft's weights are kept: int8 changes guesses; greedy text stays, and the law always."),
    click.option("--backend", type=click.Choice(["numba", "numpy"]), default=DEFAULTS.backend, show_default=True,
                 help="Compiled kernels, or the plain NumPy to read (slow)."),
    click.option("--offline", is_flag=True, help="Never download; use what is in the cache."),
]
RUN_OPTIONS = [
    click.option("--seed", type=Number(int), default=DEFAULTS.seed, show_default=True, metavar="N",
                 help="Decides every random choice; where an auto samples, with what was measured here."),
    *MACHINE_OPTIONS,
]
OUTPUT_OPTIONS = [
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    click.option("-q", "--quiet", is_flag=True, help="Only the result, whatever -v says."),
]
VIEW_OPTIONS = [
    click.option("--color", type=click.Choice(["auto", "on", "off"]), default="auto", show_default=True,
                 help="Tell guesses, corrections and bonus tokens apart (NO_COLOR is honoured)."),
    click.option("--no-stream", is_flag=True, help="Print the text when it is whole."),
    click.option("-v", "--verbose", is_flag=True,
                 help="Show every round: guesses kept, refused and not judged, the target's own token."),
]
TRACE_OPTION = click.option(
    "--trace", "trace_file", metavar="FILE",
    help="Write every round with its reasons to a page, as minispec trace does; plain decoding runs as well, to be "
    "compared with.")
# fmt: on


def with_options(*groups: Sequence[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    """A decorator that gives a command the options of these groups, in this order in --help."""

    def decorate(command: Command) -> Command:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return decorate


shared_options = with_options(  # of every command on a prompt
    PROMPT_OPTIONS,
    PAIR_OPTIONS,
    TEXT_OPTIONS,
    JUDGING_OPTIONS,
    SCHEDULE_OPTIONS,
    RUN_OPTIONS,
    OUTPUT_OPTIONS,
    VIEW_OPTIONS,
)


def settings_from(options: dict[str, Any]) -> Settings:
    """The frozen settings, with defaults for options that a command lacks; from here on NumPy may be imported."""
    if options.get("tree") and options.get("verification") == "block":
        raise click.UsageError("--verification block judges chains: leave out --tree")
    limit_threads(options["threads"], options["backend"])
    settings = Settings(**{name: options[name] for name in asdict(DEFAULTS) if name in options})
    if settings.tree and not isinstance(settings.tree, str):
        from minispec.trees import check_widths

        check_widths(settings.tree)
        if settings.num_draft_tokens == AUTO:  # which goes by the prices of chains
            settings = replace(settings, num_draft_tokens=len(settings.tree))
    return settings


def limit_threads(threads: int | None, backend: str) -> None:
    """Let the backend use so many cores. NumPy's BLAS reads the environment when it is imported."""
    if threads is None:
        return
    if threads > count_cores():
        raise click.UsageError(f"--threads is {threads}: this machine offers 1 to {count_cores()}")
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[name] = str(threads)
    if backend == "numba" and find_spec("numba"):
        tell_numba()
        import numba

        numba.set_num_threads(threads)


def use_color(choice: str, stream: IO[str] | None = None) -> bool:
    """Whether to print colours, to standard output or to another stream.

    `auto` asks whether a person looks, and honours NO_COLOR and TERM=dumb.
    """
    if choice != "auto":
        return choice == "on"
    return (
        (stream or sys.stdout).isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", "")
    )
