"""Ways to draft by name, besides a model's: what the help text says of each, and a function that builds its drafter.

Nothing heavy is imported before one is built: the help text is made of this. All that `-d` may say: `draft_option.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minispec.hub import find_model

if TYPE_CHECKING:
    from minispec.drafters.eagle import EagleDrafter
    from minispec.model import GPT2
    from minispec.protocols import Drafter
    from minispec.settings import Settings
    from minispec.tokenizer import Tokenizer


def _no_taps(target: GPT2, argument: str | None) -> tuple[int, ...]:
    return ()


def _no_files(settings: Settings, argument: str | None) -> list[Path]:
    return []


@dataclass(frozen=True)
class Method:
    """A way to draft.

    build: settings, target, its tokenizer and the argument to a drafter. Raises ValueError, in one line, for what
    cannot be.
    """

    about: str  # a line for the help text
    build: Callable[[Settings, GPT2, Tokenizer, str | None], Drafter]
    argument: str = ""  # what may stand after the colon, in brackets where it may be left out
    lossy: bool = False  # whether what is written has another law than the target's
    branches: bool = False  # whether it can guess trees, by --tree
    own_model: bool = False  # whether it has a model of its own, kept as --draft-weights says
    taps: Callable[[GPT2, str | None], tuple[int, ...]] = _no_taps  # depths whose features it looks at
    files: Callable[[Settings, str | None], list[Path]] = _no_files  # what its guesses depend on, too
    copy: str | None = None  # how the copy of the target is kept that it drafts with, if it does
    training: str = "none"  # what has to be trained before

    @property
    def needs_argument(self) -> bool:
        """Whether it cannot do without."""
        return bool(self.argument) and not self.argument.startswith("[")


# --- the methods -----------------------------------------------------------------------------------


def _prompt_lookup(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.drafters.prompt_lookup import LONGEST, PLACES, SENSIBLE, PromptLookupDrafter

    longest, which = LONGEST, PLACES[0]
    for word in argument.split(",") if argument else []:
        if word in PLACES:
            which = word
        elif word.isascii() and word.isdigit() and 0 < int(word) <= SENSIBLE:
            longest = int(word)
        else:
            raise ValueError(
                f"the draft prompt-lookup:{argument!s:.60} has {word!r:.40}: give the tokens to look for, 1 to "
                f"{SENSIBLE}, or {' or '.join(PLACES)}, as in prompt-lookup:4,first"
            )
    return PromptLookupDrafter(target.n_vocab, longest, which)


def _suffix(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.drafters.suffix import SuffixDrafter

    return SuffixDrafter(target.n_vocab)


def _ngram(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.drafters.ngram import open_ngram

    (path,) = _ngram_files(settings, argument)
    return open_ngram(path, tokenizer)


def _ngram_files(settings: Settings, argument: str | None) -> list[Path]:
    from minispec.drafters.ngram import table_of
    from minispec.user_path import user_path

    if argument is None:
        return [table_of(find_model(settings.target, settings.offline))]
    path = user_path(argument)
    if not path.is_file():
        raise ValueError(f"the draft ngram:{argument:.200} names no file: give one that weights/ngram.py has written")
    return [path]


def small_model(model: GPT2, settings: Settings) -> Drafter:
    """The drafter of a model: of trees, where --tree is given; for auto, of the wide one that it is chosen by."""
    from minispec.drafters.small_model import SmallModelDrafter
    from minispec.drafters.small_model_tree import SmallModelTreeDrafter

    tree = _parents(settings)
    return SmallModelTreeDrafter(model, tree) if tree else SmallModelDrafter(model)


def _parents(settings: Settings) -> tuple[int, ...]:
    from minispec.tree_counts import wide_tree
    from minispec.trees import tree_parents

    if isinstance(settings.tree, str):
        return wide_tree()
    return tree_parents(settings.tree) if settings.tree else ()


def _self_int8(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.weights import load_model

    if target.stored == "int8":
        raise ValueError(
            f"self-int8 drafts with the 8-bit copy of {settings.target}, which is kept in 8 bits already: leave out "
            "--weights int8, or take another draft"
        )
    return small_model(load_model(settings.target, "int8", settings.backend, settings.offline), settings)


def _early_exit(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.drafters.early_exit import EarlyExitDrafter

    n_layer, word = target.config.n_layer, argument or ""
    if n_layer < 2:
        raise ValueError(f"early-exit drafts with some of the target's layers, and {settings.target} has only one")
    if not (word.isascii() and word.isdigit() and 1 <= int(word) < n_layer):
        raise ValueError(
            f"the draft early-exit:{word:.40} cannot be: {settings.target} has {n_layer} layers, give 1 to "
            f"{n_layer - 1} of them, as in early-exit:{max(1, n_layer // 3)}"
        )
    return EarlyExitDrafter(target, int(word))


def _medusa(
    settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None, typical: bool = False
) -> Drafter:
    from minispec.drafters.medusa import MedusaDrafter, TypicalMedusaDrafter
    from minispec.heads import read_heads

    (path,) = _medusa_files(settings, argument)
    kind = TypicalMedusaDrafter if typical else MedusaDrafter
    return kind(target, read_heads(path, "medusa", target), _parents(settings))


def _parallel(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.drafters.parallel import ParallelDrafter
    from minispec.heads import read_heads

    (path,) = _parallel_files(settings, argument)
    return ParallelDrafter.of(target, read_heads(path, "parallel", target), settings.draft_weights)


def _heads_files(method: str, settings: Settings, argument: str | None) -> list[Path]:
    from minispec.heads import find_heads

    return [find_heads(settings.target, method, argument, settings.offline)]


_medusa_files = partial(_heads_files, "medusa")
_parallel_files = partial(_heads_files, "parallel")


def _last_row(target: GPT2, argument: str | None) -> tuple[int, ...]:
    return (target.config.n_layer,)


def _eagle(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None, name: str) -> EagleDrafter:
    from minispec.drafters.eagle import EagleDrafter
    from minispec.heads import read_heads

    (path,) = _heads_files(name, settings, argument)
    return EagleDrafter.of(target, read_heads(path, name, target))


def _eagle_tree(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.drafters.eagle_tree import EagleTreeDrafter

    return EagleTreeDrafter(_eagle(settings, target, tokenizer, argument, "eagle"))


def _mtp(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.drafters.mtp import MTPDrafter
    from minispec.heads import read_heads

    (path,) = _heads_files("mtp", settings, argument)
    return MTPDrafter.of(target, read_heads(path, "mtp", target))


def _three_taps(target: GPT2, argument: str | None) -> tuple[int, ...]:
    from minispec.drafters.eagle import three_depths

    return three_depths(target.config.n_layer)


METHODS: dict[str, Method] = {
    "prompt-lookup": Method(
        "what followed the last N (3) tokens where they stood before, most recently or first", _prompt_lookup,
        argument="[N,first]",
    ),
    "suffix": Method("the same with counts, and the longer the match the longer the draft", _suffix),
    "ngram": Method(
        "a table of what mostly follows 0 to 4 tokens, counted over the training text", _ngram, argument="[PATH]",
        files=_ngram_files, training="counting",
    ),
    "self-int8": Method(
        "the target's 8-bit copy: a quarter of its memory, a quarter to a half of a pass a guess", _self_int8,
        copy="int8", branches=True,
    ),
    "early-exit": Method("the target's first N layers, on its own cache", _early_exit, argument="N"),
    "medusa": Method(
        "trained heads on the target's last hidden row, all guesses at once", _medusa, argument="[PATH]",
        taps=_last_row, files=_medusa_files, branches=True, training="heads",
    ),
    "medusa-typical": Method(
        "the same heads, judged as their authors do", partial(_medusa, typical=True), argument="[PATH]", lossy=True,
        taps=_last_row, files=_medusa_files, branches=True, training="heads",
    ),
    "parallel": Method(
        "a small model trained to guess several tokens in one pass", _parallel, argument="[PATH]",
        files=_parallel_files, own_model=True, training="a model",
    ),
    "eagle": Method(
        "a trained block on the target's features of three depths (EAGLE-3)", partial(_eagle, name="eagle"),
        argument="[PATH]", taps=_three_taps, files=partial(_heads_files, "eagle"), training="heads",
    ),
    "eagle-tree": Method(
        "the same block guesses a tree of 8 tokens, four deep at most (EAGLE-2)", _eagle_tree, argument="[PATH]",
        taps=_three_taps, files=partial(_heads_files, "eagle"), training="heads",
    ),
    "eagle1": Method(
        "a trained block that guesses the target's next feature (EAGLE-1)", partial(_eagle, name="eagle1"),
        argument="[PATH]", taps=_last_row, files=partial(_heads_files, "eagle1"), training="heads",
    ),
    "mtp": Method(
        "trained layers that look back on the target's own keys and values", _mtp, argument="[PATH]", taps=_last_row,
        files=partial(_heads_files, "mtp"), training="heads",
    ),
}  # fmt: skip
