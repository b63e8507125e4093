"""Every outcome of a run with its probability, in place of dice: the exact law of the real loop.

The loop makes two kinds of choice, and both go through the object it is given as `choices`. `Script` is such
an object that follows a path of choices and notes the turnings it did not take. `law` runs the loop along
every path there is: what comes out is not an estimate, and with fractions.Fraction it is not even rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from minispec.protocols import Probs

Result = TypeVar("Result", bound=Hashable)


@dataclass
class Script:
    """Choices along one path: those of `path` first, then always the first that is possible.

    probability is that of the choices taken so far; untried holds the paths that part from this one after `path`.
    """

    path: tuple[Any, ...] = ()
    probability: Any = 1  # an int, so that fractions stay fractions
    taken: tuple[Any, ...] = ()
    untried: list[tuple[Any, ...]] = field(default_factory=list)

    def accept(self, target_prob: Any, draft_prob: Any) -> bool:
        """True with probability min(1, target_prob / draft_prob); never where target_prob is 0."""
        if target_prob <= 0:
            return False
        chance = 1 if target_prob >= draft_prob else target_prob / draft_prob
        return bool(self._choose([(True, chance), (False, 1 - chance)]))

    def draw(self, probs: Probs) -> int:
        """A token with these probabilities."""
        return int(self._choose([(int(token), probs[token]) for token in np.flatnonzero(probs)]))

    def _choose(self, options: list[tuple[Any, Any]]) -> Any:
        possible = {value: chance for value, chance in options if chance > 0}
        depth = len(self.taken)
        if depth < len(self.path):
            value = self.path[depth]
        else:
            value, *others = possible
            self.untried += [(*self.taken, other) for other in others]
        self.probability *= possible[value]
        self.taken += (value,)
        return value


def every_outcome(run: Callable[[Script], Result]) -> Iterator[tuple[Result, Any]]:
    """`run` along every path of choices: each result with the probability of its path."""
    paths: list[tuple[Any, ...]] = [()]
    while paths:
        script = Script(paths.pop())
        yield run(script), script.probability
        paths += script.untried


def law(run: Callable[[Script], Result]) -> dict[Result, Any]:
    """The exact law of what `run` returns: each possible result with its probability."""
    chances: dict[Result, Any] = {}
    for result, chance in every_outcome(run):
        chances[result] = chances.get(result, 0) + chance
    return chances
