"""What a drafter is made of: the models whose passes it needs, stand-ins for them, and its name for tables of prices.

A drafter keeps its model in `model`, drafters that it is put together from in `drafters`, and says in `branches` if it
guesses trees. What a drafter does not have, it need not say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any


def is_model(thing: Any) -> bool:
    """Whether passes can be made with it."""
    return hasattr(thing, "forward") and hasattr(thing, "new_cache")


def models_of(drafter: Any) -> list[Any]:
    """The models that guess, none for a drafter without."""
    own = getattr(drafter, "model", None)
    inner = [model for one in getattr(drafter, "drafters", ()) for model in models_of(one)]
    return [own, *inner] if is_model(own) else inner


def with_models(drafter: Any, stand_in: Callable[[Any], Any]) -> Any:
    """The same drafter on stand-ins for its models; the drafter itself where it has none."""
    if not models_of(drafter):
        return drafter
    twin = copy(drafter)
    if is_model(getattr(drafter, "model", None)):
        twin.model = stand_in(drafter.model)
    if is_combined(drafter):
        twin.drafters = [with_models(one, stand_in) for one in drafter.drafters]
    return twin


def sees_target(drafter: Any) -> bool:
    """Whether it guesses from the target's own cache, and not from the text alone."""
    own = bool(getattr(drafter, "taps", ())) or hasattr(drafter, "borrow")
    return own or any(sees_target(one) for one in getattr(drafter, "drafters", ()))


def branches(drafter: Any) -> bool:
    """Whether its drafts may be trees."""
    own = bool(getattr(drafter, "branches", False))
    return own or any(branches(one) for one in getattr(drafter, "drafters", ()))


def is_combined(drafter: Any) -> bool:
    """Whether it is several drafters that guess in turn."""
    return hasattr(drafter, "drafters")


def with_tree(drafter: Any, tree: Sequence[int]) -> Any:
    """The same drafter where it has trees of another shape, given by its parents; or chains, for a tree of none."""
    if hasattr(drafter, "with_tree"):
        return drafter.with_tree(tree)
    if not is_combined(drafter):
        return drafter
    twin = copy(drafter)
    twin.drafters = [with_tree(one, tree) for one in drafter.drafters]
    return twin


def warm_up(drafter: Any) -> None:
    """Compile what its guesses need, or load it."""
    if hasattr(drafter, "warm_up"):
        drafter.warm_up()
    for thing in (*models_of(drafter), *getattr(drafter, "drafters", ())):
        warm_up(thing)


def describe(drafter: Any) -> str:
    """Its kind, and what its price depends on besides its models."""
    told: str = drafter.describe() if hasattr(drafter, "describe") else type(drafter).__name__
    return told
