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
from strategies import samplings
from test_on_features import ANY, BACKENDS, FEW, FILTERED, GREEDY, Checked, Forced, pair, read
from toys import Watched, bits, fresh_bits, ids_of

from minispec.drafters.certain import one_hot
from minispec.drafters.eagle_tree import EagleTreeDrafter, EagleTreeDrafting
from minispec.enumeration import Script, law
from minispec.gumbel import Gumbel
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.protocols import Draft, Step, always
from minispec.sampling import Sampling
from minispec.speculative import Dice, speculate

both = pytest.mark.parametrize("backend", BACKENDS)
THREE = GPT2Config(n_layer=2, n_head=2, n_embd=8, n_ctx=9, n_vocab=3, n_inner=16)  # a tree has many outcomes


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
    draft = EagleTreeDrafter(drafter, n_node, 99).start(read(target, ids)).draft(ids, 2, GREEDY, Dice(0))
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
        draft = drafting.draft(ids, n_draft, GREEDY, Dice(0), partial(note, asked))
        assert len(draft.tokens) == (min(n_node, 4 * (n_pass if n_draft > 1 else 1)) if n_draft else 0)
        if n_draft:
            assert max(map(len, paths(draft))) <= min(n_draft, n_pass)
            assert len(set(paths(draft))) == len(draft.tokens)
        assert len(asked) <= n_pass - 1
        assert asked == sorted(asked, reverse=True)


@given(ids=st.lists(st.integers(0, 96), min_size=2, max_size=12), n_node=st.integers(1, 9), n_pass=st.integers(1, 5))
def test_a_drawn_tree_has_all_its_guesses(ids: list[int], n_node: int, n_pass: int) -> None:
    """Also where one pass has to do; and guesses for one place are different tokens."""
    target, drafter = pair("eagle", "numba")
    drafting = EagleTreeDrafter(drafter, n_node, n_pass).start(read(target, ids))
    for n_draft in (0, 1, 3, 2):
        asked: list[float] = []
        draft = drafting.draft(ids, n_draft, ANY, Dice(n_draft), partial(note, asked))
        assert len(draft.tokens) == (min(n_node, 4 * (n_pass if n_draft > 1 else 1)) if n_draft else 0)
        if n_draft:
            assert draft.depth <= min(n_draft, n_pass)
            assert len(set(paths(draft))) == len(draft.tokens)
            assert len(asked) == len(set(draft.parents or ())) - 1 < n_pass
            assert all(0 < chance < 1 for chance in asked)


@given(ids=st.lists(st.integers(0, 96), min_size=2, max_size=9), seed=st.integers(0, 99), filtered=st.booleans())
def test_a_drawn_guess_has_the_chains_law_less_its_elder_siblings(ids: list[int], seed: int, filtered: bool) -> None:
    """Each law is that of the chain along the path, without what was drawn for the same place before, rescaled."""
    target, drafter = pair("eagle", "numba")
    sampling = Sampling(0.8, top_k=30) if filtered else ANY
    draft = EagleTreeDrafter(drafter, 9, 4).start(read(target, ids)).draft(ids, 3, sampling, Dice(seed))
    assert draft.parents is not None
    for guess, path in enumerate(paths(draft)):
        forced = Forced(path)
        drafter.start(read(target, ids)).draft(ids, len(path), forced, forced)
        law = sampling.probs(forced.logits[-1])
        elder = [draft.tokens[i] for i in draft.children(draft.parents[guess]) if i < guess]
        law[elder] = 0
        assert draft.probs[guess] == pytest.approx(law / law.sum(), rel=1e-9, abs=0)


def test_told_to_stop_a_drawn_tree_keeps_what_it_has() -> None:
    target, drafter = pair("eagle", "numba")
    ids = [5, 6, 7]
    whole = EagleTreeDrafter(drafter, 8, 4).start(read(target, ids)).draft(ids, 4, ANY, Dice(0))
    first = EagleTreeDrafter(drafter, 8, 4).start(read(target, ids)).draft(ids, 4, ANY, Dice(0), lambda _: False)
    n = len(first.tokens)
    assert 1 <= n < 8
    assert first.tokens == whole.tokens[:n]
    assert first.parents == whole.parents[:n] == [-1] * n  # type: ignore[index]


class Opened:
    """A sampler whose first token of a text is certain: the first round has no guesses, and is walked elsewhere."""

    def __init__(self, sampling: Sampling, place: int, token: int) -> None:
        self.sampling, self.place, self.token = sampling, place, token

    def probs(self, logits: Any, position: int) -> Any:
        return one_hot(self.token, len(logits)) if position == self.place else self.sampling.probs(logits, position)


class Once:
    """Guesses in the second round alone, whose trees have outcomes enough; none further where `enough` is not met."""

    def __init__(self, n_draft: int, enough: float) -> None:
        self.n_draft, self.enough, self.n_round = n_draft, enough, 0

    def start(self) -> Once:
        return Once(self.n_draft, self.enough)

    def most(self) -> int:
        self.n_round += 1
        return self.n_draft if self.n_round == 2 else 0

    def go_on(self, surety: Callable[[], float]) -> bool:
        return surety() > self.enough

    def learn(self, n_guess: int, n_accepted: int, n_judged: int) -> None:
        """Nothing is learned."""


@pytest.mark.parametrize(
    ("kind", "backend", "sampling", "n_node", "enough"),
    [
        ("eagle", "numba", ANY, 3, 0.0),
        ("eagle1", "numba", ANY, 3, 0.3),
        ("eagle", "numba", Sampling(0.7, top_k=2), 4, 0.0),
        ("eagle1", "numba", Sampling(1.3, top_p=0.8), 3, 0.0),
        ("eagle", "numpy", Sampling(0.7, top_k=2), 3, 0.3),
    ],
    ids=str,
)
def test_the_law_is_the_targets(kind: str, backend: str, sampling: Sampling, n_node: int, enough: float) -> None:
    """Every outcome of the real loop: every tree that may be drawn, and every verdict on it."""
    target, drafter = pair(kind, backend, THREE)
    options: Any = {"max_new_tokens": 4, "sampling": Opened(sampling, 2, 1)}
    options["stop"] = lambda new: list(new[-2:]) == [2, 0]
    seen: set[Any] = set()

    def outcome(steps: Iterator[Step]) -> Any:
        told = list(steps)
        seen.update((step.parents, step.n_accepted) for step in told if step.parents)
        return ids_of(told), told[-1].finish

    def speculative(choices: Script) -> Any:
        tree, length = EagleTreeDrafter(drafter, n_node, 2), Once(2, enough)
        return outcome(speculate(target, tree, [0, 2], n_draft=length, choices=choices, **options))

    got = law(speculative)
    expected = law(lambda choices: outcome(generate(target, [0, 2], choices=choices, **options)))
    assert got.keys() <= expected.keys()
    assert max(abs(got.get(text, 0) - chance) for text, chance in expected.items()) < 1e-12
    assert any(len(set(parents)) < len(parents) and n_kept for parents, n_kept in seen)  # siblings, of which some stay
    if sampling == ANY:
        assert {n_kept for _, n_kept in seen} == {0, 1, 2}
        assert len({parents for parents, _ in seen}) > 1  # what was drawn decides where the next is


def test_the_law_of_certain_trees_is_the_targets() -> None:
    """Guesses of the greedy kind, judged by a target that samples."""
    target, drafter = pair("eagle", "numba", FEW)
    options: Any = {"max_new_tokens": 4, "sampling": FILTERED}

    class Likeliest(EagleTreeDrafting):
        def draft(self, ids: Any, n_draft: int, sampling: Any, choices: Any, go_on: Any = always) -> Draft:
            return super().draft(ids, n_draft, GREEDY, choices, go_on)

    class Trees(EagleTreeDrafter):
        def start(self, seen: Any) -> EagleTreeDrafting:
            return Likeliest(self.drafter.start(seen), self.n_node, self.n_pass)

    tree = Trees(drafter, 5, 3)
    got = law(lambda choices: ids_of(speculate(target, tree, [0, 3], n_draft=2, choices=choices, **options)))
    expected = law(lambda choices: ids_of(generate(target, [0, 3], choices=choices, **options)))
    assert got.keys() <= expected.keys()
    assert max(abs(got.get(text, 0) - chance) for text, chance in expected.items()) < 1e-12


@both
@given(
    prompt=st.lists(st.integers(0, 96), min_size=1, max_size=9),
    sampling=samplings,
    n_draft=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_both_caches_are_right_after_every_round(
    backend: str, prompt: list[int], sampling: Sampling, n_draft: int, seed: int
) -> None:
    """The target's, and the block's: what it guesses is what a fresh one would."""
    inner, drafter = pair("eagle", backend)
    target, text = Watched(inner), list(prompt)
    tree = Checked(inner, EagleTreeDrafter(drafter, 6, 3))
    for step in speculate(target, tree, prompt, max_new_tokens=12, n_draft=n_draft, sampling=sampling, seed=seed):
        text += step.committed
        assert bits(inner, target.caches[0]) == fresh_bits(inner, text[:-1])


@both
@given(prompt=st.lists(st.integers(0, 96), min_size=1, max_size=9), sampling=samplings, seed=st.integers(0, 99))
def test_with_noise_tied_to_places_text_is_that_of_plain_decoding(
    backend: str, prompt: list[int], sampling: Sampling, seed: int
) -> None:
    target, drafter = pair("eagle", backend)
    options: Any = {"max_new_tokens": 12, "sampling": Gumbel(sampling, seed)}
    steps = list(speculate(target, EagleTreeDrafter(drafter, 6, 3), prompt, n_draft=3, **options))
    assert ids_of(steps) == ids_of(generate(target, prompt, **options))


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
