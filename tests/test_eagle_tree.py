"""EAGLE-2's trees: which guesses they hold, and that the text and its law stay the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from test_on_features import ANY, BACKENDS, FEW, FILTERED, GREEDY, Forced, pair, read
from toys import ids_of

from minispec.drafters.eagle_tree import EagleTreeDrafter
from minispec.enumeration import Script, law
from minispec.plain import generate
from minispec.protocols import Draft, Step
from minispec.sampling import Sampling
from minispec.speculative import Dice, speculate

both = pytest.mark.parametrize("backend", BACKENDS)


def note(asked: list[float], surety: Callable[[], float]) -> bool:
    """Guess on, and note how sure the drafter was."""
    asked.append(surety())
    return True


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens from the text to each guess."""
    found: list[tuple[int, ...]] = []
    assert draft.parents is not None
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def chances(drafter: Any, target: Any, ids: Sequence[int], path: Sequence[int]) -> list[float]:
    """The block's own probabilities along a path, by drafting just that."""
    forced = Forced(path)
    draft = drafter.start(read(target, ids)).draft(ids, len(path), forced, forced)
    return [probs[token] for token, probs in zip(draft.tokens, draft.probs, strict=True)]


@pytest.mark.parametrize("kind", ["eagle", "eagle1"])
@given(ids=st.lists(st.integers(0, 3), min_size=2, max_size=5), n_node=st.integers(1, 12))
def test_a_tree_holds_the_likeliest_of_all_paths(kind: str, ids: list[int], n_node: int) -> None:
    """With passes for every token: against all paths of all tokens, and best first."""
    target, drafter = pair(kind, "numba", FEW)
    draft = EagleTreeDrafter(drafter, n_node, 99).start(read(target, ids)).draft(ids, 2, ANY, Dice(0))
    every = [path for n in (1, 2) for path in product(range(4), repeat=n)]
    chance = {path: float(np.prod(chances(drafter, target, ids, path))) for path in every}
    best = sorted(every, key=lambda path: -chance[path])[:n_node]
    assert sorted(chance[path] for path in paths(draft)) == pytest.approx(sorted(chance[path] for path in best))
    told = [chance[path] for path in paths(draft)]
    assert told == pytest.approx(sorted(told, reverse=True))


@given(ids=st.lists(st.integers(0, 96), min_size=2, max_size=12), n_node=st.integers(1, 9), n_pass=st.integers(1, 5))
def test_a_tree_is_as_deep_and_as_wide_as_it_may_be(ids: list[int], n_node: int, n_pass: int) -> None:
    target, drafter = pair("eagle", "numba")
    drafting = EagleTreeDrafter(drafter, n_node, n_pass).start(read(target, ids))
    for n_draft in (0, 1, 2, 4, 2):
        asked: list[float] = []
        draft = drafting.draft(ids, n_draft, ANY, Dice(0), partial(note, asked))
        assert len(draft.tokens) == (min(n_node, 4 * (n_pass if n_draft > 1 else 1)) if n_draft else 0)
        if n_draft:
            assert max(map(len, paths(draft))) <= min(n_draft, n_pass)
            assert len(set(paths(draft))) == len(draft.tokens)
        assert len(asked) <= n_pass - 1
        assert asked == sorted(asked, reverse=True)


@pytest.mark.parametrize("kind", ["eagle", "eagle1"])
@pytest.mark.parametrize(("backend", "sampling"), [("numba", ANY), ("numba", FILTERED), ("numpy", FILTERED)], ids=str)
def test_the_law_is_the_targets(backend: str, kind: str, sampling: Sampling) -> None:
    target, drafter = pair(kind, backend, FEW)
    options: Any = {"max_new_tokens": 4, "sampling": sampling}
    kept: set[tuple[int, int]] = set()

    def outcome(steps: Iterator[Step]) -> Any:
        told = list(steps)
        kept.update((len(step.drafted), step.n_accepted) for step in told)
        return ids_of(told), told[-1].finish

    def speculative(choices: Script) -> Any:
        return outcome(
            speculate(target, EagleTreeDrafter(drafter, 5, 3), [0, 3], n_draft=2, choices=choices, **options)
        )

    got = law(speculative)
    assert {(5, 0), (5, 1), (5, 2)} <= kept
    expected = law(lambda choices: outcome(generate(target, [0, 3], choices=choices, **options)))
    assert got.keys() <= expected.keys()
    assert max(abs(got.get(text, 0) - chance) for text, chance in expected.items()) < 1e-12


@both
@given(prompt=st.lists(st.integers(0, 96), min_size=1, max_size=12), n_draft=st.integers(1, 5))
def test_greedy_text_is_identical(backend: str, prompt: list[int], n_draft: int) -> None:
    """To the end of the window, where trees get flat."""
    target, drafter = pair("eagle", backend)
    n = TINY.n_ctx if backend == "numba" else 6
    prompt = prompt if backend == "numba" else [*prompt, *range(TINY.n_ctx - 6 - len(prompt))]
    options: Any = {"max_new_tokens": n, "sampling": GREEDY}
    steps = list(speculate(target, EagleTreeDrafter(drafter, 6, 3), prompt, n_draft=n_draft, **options))
    assert ids_of(steps) == ids_of(generate(target, prompt, **options))


def test_sizes_that_are_none_are_refused() -> None:
    for sizes in ((0, 1), (65, 1), (8, 0)):
        with pytest.raises(ValueError, match="a tree of"):
            EagleTreeDrafter(pair("eagle", "numba")[1], *sizes)
