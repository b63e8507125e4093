"""Settings to a loaded pair: what the command line and the checks share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from minispec.settings import AUTO, Settings

if TYPE_CHECKING:
    from minispec.costs import Costs
    from minispec.model import GPT2
    from minispec.protocols import Drafter
    from minispec.tokenizer import Tokenizer


@dataclass(frozen=True)
class Pair:
    """A target, its tokenizer, and a drafter that shares the vocabulary, if there is one."""

    target: GPT2
    tokenizer: Tokenizer
    drafter: Drafter | None = None

    @property
    def has_trees(self) -> bool:
        """Whether the drafter branches."""
        from minispec.drafters.models import branches

        return branches(self.drafter)

    @cached_property
    def costs(self) -> Costs:
        """What guesses and checks cost on this machine: kept from an earlier run, or measured, which takes seconds."""
        from minispec.kept_costs import costs_of

        return costs_of(self)

    def warm_up(self) -> None:
        """Compile the kernels, or load them."""
        from minispec.drafters.models import warm_up

        self.target.warm_up()
        warm_up(self.drafter)


def open_pair(settings: Settings, target: GPT2 | None = None) -> Pair:
    """Load what the settings name; `target` is their target where it is loaded already.

    Where the tree is AUTO, the drafter guesses the wide one that `tree_auto.with_best_tree` chooses by.
    Raises ValueError for models and methods that cannot be had, and for vocabularies that differ.
    """
    from minispec.draft_option import build_drafter, models_in, parts_of, taps_of
    from minispec.tokenizer import check_same_vocabulary, load_tokenizer
    from minispec.weights import load_model

    tokenizer = load_tokenizer(settings.target, offline=settings.offline)
    name = settings.draft_name
    check_ways(settings)
    parts = [] if name is None else parts_of(name)
    for model in models_in(name):  # before the weights are read
        check_same_vocabulary(tokenizer, load_tokenizer(model, offline=settings.offline))
    if target is None:
        target = load_model(settings.target, settings.weights, settings.backend, settings.offline)
    if not parts:
        return Pair(target, tokenizer)
    taps = taps_of(parts, target)
    if taps:
        target = target.tapped(taps)  # type: ignore[attr-defined,unused-ignore]
    pair = Pair(target, tokenizer, build_drafter(parts, settings, target, tokenizer))
    check_drafter(settings, pair)
    return pair


def check_ways(settings: Settings) -> None:
    """Raise ValueError for ways to guess and to judge that do not go together, or a tree that nothing could guess."""
    from minispec.draft_option import parts_of
    from minispec.trees import tree_parents

    if settings.schedule != Settings.schedule and (settings.tree or settings.verification != Settings.verification):
        other = "--tree" if settings.tree else f"--verification {settings.verification}"
        raise ValueError(f"--schedule {settings.schedule} judges chains, guess by guess: leave out {other}")
    if settings.tree:
        if not isinstance(settings.tree, str):
            tree_parents(settings.tree)
        name = settings.draft_name
        if name is not None and not any(part.branches for part in parts_of(name)):
            raise ValueError(
                f"--tree is for a model that guesses, or medusa, and {name} does not branch by it: leave it out, or "
                "take another draft"
            )


def check_drafter(settings: Settings, pair: Pair) -> None:
    """Raise ValueError for a drafter that does not go with the schedule, or with the way to judge."""
    from minispec.drafters.models import branches, sees_target, with_tree

    name = settings.draft_name
    if settings.tree == AUTO and branches(with_tree(pair.drafter, ())):
        raise ValueError(
            f"--tree auto chooses by what is kept of its own tree, and {name} guesses another as well: give widths, as "
            "in 3,2,1, or leave eagle-tree out"
        )
    if settings.schedule == "overlapped" and sees_target(pair.drafter):
        raise ValueError(
            f"--schedule overlapped drafts while the target's cache is written to, and {name} looks at that: leave it "
            "out, or take another draft"
        )
    if settings.verification == "block" and pair.has_trees:
        raise ValueError(f"--verification block judges chains, and {name} guesses trees: leave it out")
    if settings.verification == "block" and hasattr(pair.drafter, "judge"):
        raise ValueError(f"--verification block is not for {name}, which has a rule of its own: leave it out")
