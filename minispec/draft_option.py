"""What `-d` says, and the drafter that comes of it.

MODEL             a smaller model of the same vocabulary guesses
METHOD            a way that `methods.py` names
METHOD:ARGUMENT   the same, with what it is to work with
ONE+OTHER         of several, the first that proposes anything drafts the round
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from textwrap import wrap
from typing import TYPE_CHECKING

from minispec.hub import BOX, SHORT_NAMES, names_a_model
from minispec.methods import METHODS, Method, small_model

if TYPE_CHECKING:
    from minispec.model import GPT2
    from minispec.protocols import Drafter
    from minispec.settings import Settings
    from minispec.tokenizer import Tokenizer

LIST = "minispec generate --help lists the methods"
NAMES, WIDE = 24, 76  # columns of a help text: of names, and of all


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
        return small_model(model, settings)


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
    near = get_close_matches(word, [*METHODS, *BOX, *SHORT_NAMES], n=3)
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
