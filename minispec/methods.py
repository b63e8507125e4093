"""Ways to draft by name: what `-d` takes besides a model's name, and how each becomes a `Drafter`.

    MODEL             a smaller model of the same vocabulary guesses
    METHOD            a way that is named here
    METHOD:ARGUMENT   the same, with what it is to work with
    ONE+OTHER         of several, the first that proposes anything drafts the round

A method has an entry in METHODS: what the help text says of it, and a function that builds its drafter. Nothing heavy
is imported before one is built: the help text is made of this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from minispec.hub import BOX, SHORT_NAMES, find_model, names_a_model

if TYPE_CHECKING:
    from minispec.drafters.eagle import EagleDrafter
    from minispec.model import GPT2
    from minispec.session import Settings
    from minispec.speculative import Drafter
    from minispec.tokenizer import Tokenizer

LIST = "minispec generate --help lists the methods"
NAMES, WIDE = 24, 76  # columns of a help text: of names, and of all


def _no_taps(target: GPT2, argument: str | None) -> tuple[int, ...]:
    return ()


def _no_files(settings: Settings, argument: str | None) -> list[Path]:
    return []


@dataclass(frozen=True)
class Method:
    """A way to draft.

    about: a line for the help text. build: settings, target, its tokenizer and the argument to a drafter; ValueError in
    one line for what cannot be. argument: what may stand after the colon, in brackets where it may be left out.
    lossy: whether what is written has another law than the target's. branches: whether it can guess trees, by --tree.
    own_model: whether it has a model of its own, kept as --draft-weights says. taps: the depths whose hidden states it
    wants in the target's cache. files: what its guesses depend on besides target, draft weights and argument. copy: how
    the copy of the target is kept that it drafts with, if it does. training: what has to be trained before.
    """

    about: str
    build: Callable[[Settings, GPT2, Tokenizer, str | None], Drafter]
    argument: str = ""
    lossy: bool = False
    branches: bool = False
    own_model: bool = False
    taps: Callable[[GPT2, str | None], tuple[int, ...]] = _no_taps
    files: Callable[[Settings, str | None], list[Path]] = _no_files
    copy: str | None = None
    training: str = "none"
    weights: bool = False

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


def _small_model(model: GPT2, settings: Settings) -> Drafter:
    from minispec.drafters.small_model import SmallModelDrafter
    from minispec.drafters.small_model_tree import SmallModelTreeDrafter

    return SmallModelTreeDrafter(model, settings.tree) if settings.tree else SmallModelDrafter(model)


def _self_int8(settings: Settings, target: GPT2, tokenizer: Tokenizer, argument: str | None) -> Drafter:
    from minispec.weights import load_model

    if target.stored == "int8":
        raise ValueError(
            f"self-int8 drafts with the 8-bit copy of {settings.target}, which is kept in 8 bits already: leave out "
            "--weights int8, or take another draft"
        )
    return _small_model(load_model(settings.target, "int8", settings.backend, settings.offline), settings)


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
    from minispec.drafters.marginals import of_widths
    from minispec.drafters.medusa import MedusaDrafter, TypicalMedusaDrafter
    from minispec.heads import read_heads

    (path,) = _medusa_files(settings, argument)
    tree = of_widths(settings.tree) if settings.tree else ()
    kind = TypicalMedusaDrafter if typical else MedusaDrafter
    return kind(target, read_heads(path, "medusa", target), tree)


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
    "self-int8": Method("the target's 8-bit copy, a quarter of a pass a guess", _self_int8, copy="int8", branches=True),
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


# --- what a draft is made of -----------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One of the drafters that a draft names: a method with its argument, or, without a method, a model."""

    name: str
    method: Method | None = None
    argument: str | None = None

    @property
    def branches(self) -> bool:
        """Whether it can guess trees."""
        return self.method is None or self.method.branches

    def build(self, settings: Settings, target: GPT2, tokenizer: Tokenizer) -> Drafter:
        """Its drafter. Raises ValueError for what cannot be had."""
        if self.method is not None:
            return self.method.build(settings, target, tokenizer, self.argument)
        from minispec.weights import load_model

        model = load_model(self.name, settings.draft_weights, settings.backend, settings.offline)
        return _small_model(model, settings)


def parts_of(draft: str) -> list[Part]:
    """The parts of what -d says. Raises ValueError for a name that is neither a method's nor can be a model's."""
    if draft not in METHODS and os.path.isdir(draft):  # its name may hold any of our signs
        return [Part(draft)]
    parts = [_part(text) for text in draft.split("+")]
    for part in parts:
        if part.method is not None and part.method.lossy and len(parts) > 1:
            raise ValueError(
                f"the draft {draft!r:.80} has {part.name} among others, and that judges guesses by a rule of its own: "
                "give it alone"
            )
    return parts


def _part(text: str) -> Part:
    name, colon, argument = text.partition(":")
    method = METHODS.get(name)
    if method is None:
        if not names_a_model(text):
            raise _unknown(text)
        return Part(text)
    if colon and not method.argument:
        raise ValueError(f"the draft {text!r:.80} gives {name} an argument, and it takes none: leave out :{argument}")
    if method.needs_argument and not argument:
        raise ValueError(f"the draft {text!r:.80} lacks its argument: give {name}:{method.argument} ({LIST})")
    if colon and not argument:
        raise ValueError(f"the draft {text!r:.80} ends in a colon: leave it out, or give {usage(name)}")
    return Part(name, method, argument or None)


def _unknown(text: str) -> ValueError:
    word = text.partition(":")[0].strip().lower()
    near = get_close_matches(word, [*METHODS, *BOX, *SHORT_NAMES], n=3, cutoff=0.5)
    choice = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join([*BOX, *SHORT_NAMES])}"
    return ValueError(
        f"no model is called {text!r:.80}, and no method: {choice} ({LIST}; or give a hub id org/name, or a folder)"
    )


def models_in(draft: str | None) -> list[str]:
    """The names of the models that a draft is made of, target not included."""
    return [] if draft is None else [part.name for part in parts_of(draft) if part.method is None]


def takes_draft_weights(draft: str | None) -> bool:
    """Whether there is a model in a draft that is kept as --draft-weights says."""
    parts = [] if draft is None else parts_of(draft)
    return any(part.method is None or part.method.own_model for part in parts)


def is_model(draft: str | None) -> bool:
    """Whether a draft is one model, and no method."""
    return models_in(draft) == [draft]


def is_lossy(draft: str | None) -> bool:
    """Whether what is written with a draft has another law than the target's."""
    parts = [] if draft is None else parts_of(draft)
    return any(part.method is not None and part.method.lossy for part in parts)


def training_of(draft: str) -> str:
    """What has to be trained for a draft."""
    told = ["a model" if part.method is None else part.method.training for part in parts_of(draft)]
    return " + ".join(sorted({what for what in told if what != "none"})) or "none"


def taps_of(parts: Sequence[Part], target: GPT2) -> tuple[int, ...]:
    """The depths of all hidden states that the parts want, in order."""
    wanted = [part.method.taps(target, part.argument) for part in parts if part.method is not None]
    return tuple(sorted({depth for depths in wanted for depth in depths}))


def build_drafter(parts: Sequence[Part], settings: Settings, target: GPT2, tokenizer: Tokenizer) -> Drafter:
    """The drafter of all parts together. Raises ValueError for what cannot be had."""
    drafters = [part.build(settings, target, tokenizer) for part in parts]
    if len(drafters) == 1:
        return drafters[0]
    from minispec.drafters.combined import CombinedDrafter

    return CombinedDrafter(drafters)


# --- help ------------------------------------------------------------------------------------------


def usage(name: str) -> str:
    """A method's name with what may stand after its colon: ngram[:PATH]."""
    argument = METHODS[name].argument
    if argument.startswith("["):
        return f"{name}[:{argument[1:]}"
    return f"{name}:{argument}" if argument else name


def help_lines() -> Iterator[str]:
    """What each method is, in lines of a help text: its name, and beside it what it does."""
    for name, method in METHODS.items():
        about = f"{method.about}{' (lossy: another law than the target)' * method.lossy}"
        head, *more = wrap(about, WIDE - NAMES)
        yield f"{usage(name):{NAMES}}{head}"
        yield from (f"{'':{NAMES}}{line}" for line in more)


def epilog() -> str:
    """The methods as the end of a command's help, in lines of their own."""
    return "\n".join(["\b", "Methods of -d:", *(f"  {line}" for line in help_lines())])
