"""Drafters that use what the target has seen, or guess several tokens in one pass: law, identity, caches.

Early exit    guesses by the target's first layers, on its own cache
Medusa        guesses by heads on the target's last hidden row
Parallel      guesses by one pass of a model with masks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import toys
from bits import assert_same_bits
from checkpoints import TINY
from heads_files import medusa_tensors, parallel_parts, write_heads
from hypothesis import given
from hypothesis import strategies as st
from small_heads import drafter_on
from strategies import samplings
from test_verify import Letters
from toys import ODD, tiny_model

from minispec.batch import speculate_batch
from minispec.drafters import (
    CombinedDrafter,
    EagleTreeDrafter,
    EarlyExitDrafter,
    MedusaDrafter,
    ParallelDrafter,
    SmallModelDrafter,
    SmallModelTreeDrafter,
    SuffixDrafter,
)
from minispec.drafters.marginals import draw_each, level_order
from minispec.enumeration import Script, law
from minispec.gumbel import Gumbel
from minispec.heads import read_heads
from minispec.methods import METHODS as METHODS_BY_NAME
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.protocols import Draft, Step, always, depths
from minispec.reference import quantise
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.speculative import Dice, speculate
from minispec.trees import of_widths
from minispec.typical import judge_typical, likely_enough
from minispec.verify_bits import same_bits
from minispec.verify_laws import same_law
from minispec.verify_texts import same_text

BACKENDS = ["numba", "numpy"]
METHODS = ["early-exit", "medusa", "medusa-tree", "parallel"]
TREE = (-1, 0, -1, 0, 2)  # two guesses, three on these; not in the order of their depths
ANY, GREEDY = Sampling(1.0), Sampling()
FEW = GPT2Config(n_layer=2, n_head=2, n_embd=8, n_ctx=9, n_vocab=3, n_inner=16)


@lru_cache(maxsize=64)
def target_for(config: GPT2Config = ODD, backend: str = "numba", stored: str = "f32") -> GPT2:
    """A random target that keeps its last hidden rows, and more than is asked for."""
    return tiny_model(config, 0, backend, stored).tapped((0, config.n_layer))


@lru_cache(maxsize=64)
def drafter_for(method: str, target: GPT2) -> Any:
    """A random drafter of a method; its guesses are not all bad, and mostly are."""
    if method == "early-exit":
        return EarlyExitDrafter(target, target.config.n_layer - 1)
    with TemporaryDirectory() as folder:
        if method in ("medusa", "medusa-tree"):
            path = write_heads(Path(folder, "x"), "medusa", target, medusa_tensors(target.config))
            return MedusaDrafter(target, read_heads(path, "medusa", target), TREE if method == "medusa-tree" else ())
        tensors, told = parallel_parts(target.config)
        path = write_heads(Path(folder, "x"), method, target, tensors, **told)
        return ParallelDrafter.of(target, read_heads(path, method, target))


# --- the law ---------------------------------------------------------------------------------------


def law_of_text(target: Any, prompt: Sequence[int], n: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The law of n tokens by its definition: chances multiply along the text."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(n):
        longer: dict[tuple[int, ...], float] = {}
        for text, chance in chances.items():
            probs = sampling.probs(target.forward([*prompt, *text], target.new_cache(), 1)[0])
            longer |= {(*text, token): chance * more for token, more in enumerate(probs) if more > 0}
        chances = longer
    return chances


@pytest.mark.parametrize("sampling", [ANY, Sampling(0.6, top_k=2), Sampling(1.4, top_p=0.8)], ids=str)
@pytest.mark.parametrize(("n", "n_draft"), [(4, 2), (5, 1), (3, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_the_law_is_the_targets(method: str, n: int, n_draft: int, sampling: Sampling) -> None:
    """Every outcome of the real loop is walked."""
    target = target_for(FEW)
    drafter = drafter_for(method, target)
    if method == "medusa-tree":
        n, n_draft = min(n, 4), min(n_draft, 2)
    drafted: set[tuple[int, ...]] = set()

    def text(choices: Script) -> tuple[int, ...]:
        options: Any = {"max_new_tokens": n, "n_draft": n_draft, "sampling": sampling, "choices": choices}
        steps = list(speculate(target, drafter, [1, 0], **options))
        drafted.update(step.drafted for step in steps)
        return toys.ids_of(steps)

    expected, got = law_of_text(target, [1, 0], n, sampling), law(text)
    assert got.keys() == expected.keys()
    assert max(abs(got[text] - chance) for text, chance in expected.items()) < 1e-12
    assert len(drafted) > 2


@pytest.mark.parametrize("tree", [(), TREE])
def test_typical_acceptance_has_another_law(tree: tuple[int, ...]) -> None:
    """It is lossy, and says so; where there is one token to choose, it writes that."""
    target = target_for(FEW)
    drafter = drafter_for("medusa", target)

    def text(choices: Script, sampling: Any = ANY) -> tuple[int, ...]:
        options: Any = {"max_new_tokens": 4, "n_draft": 2, "sampling": sampling, "choices": choices}
        drafter.tree = level_order(tree)
        try:
            return toys.ids_of(speculate(target, drafter, [1, 0], verification=judge_typical, **options))
        finally:
            drafter.tree = ()

    expected, got = law_of_text(target, [1, 0], 4, ANY), law(text)
    assert abs(sum(got.values()) - 1) < 1e-12
    assert sum(abs(got.get(text, 0) - chance) for text, chance in expected.items()) / 2 > 0.01
    assert law(lambda choices: text(choices, GREEDY)) == {toys.greedy_oracle(target, [1, 0], 4): 1}
    assert METHODS_BY_NAME["medusa-typical"].lossy


def test_what_is_likely_enough() -> None:
    assert likely_enough(np.array([1.0, 0, 0])) == pytest.approx(0.09)
    assert likely_enough(np.full(10, 0.1)) == pytest.approx(0.009)
    draft = Draft([1, 2, 3], [np.eye(5)[token] for token in (1, 2, 3)])
    logits = np.log(np.array([[0.2] * 5, [0.2, 0.2, 0.3, 0.2, 0.1], [0.9, 0.097, 0.001, 0.001, 0.001], [0.2] * 5]))
    told = list(judge_typical(draft, logits, 7, ANY, Script()))
    assert told[:2] == [(1, 1), (2, 2)]
    assert told[2][1] == 0


# --- texts and caches ------------------------------------------------------------------------------


prompts = st.lists(st.integers(0, 70), min_size=1, max_size=44)


@pytest.mark.parametrize("method", METHODS)
@given(
    backend=st.sampled_from(BACKENDS), prompt=prompts, n=st.integers(1, 16), n_draft=st.integers(0, 6),
    sampling=st.just(GREEDY) | st.builds(Gumbel, samplings, st.integers(0, 99)),
)  # fmt: skip
def test_text_is_that_of_plain_decoding_and_caches_are_right_after_every_round(
    method: str, backend: str, prompt: list[int], n: int, n_draft: int, sampling: Any
) -> None:
    """Up to the end of the window, and with as many guesses as there are heads, or more."""
    target = target_for(ODD, backend)
    watched, drafter = toys.Watched(target), drafter_for(method, target)
    options: Any = {"max_new_tokens": n, "sampling": sampling}
    text, steps = list(prompt), []
    for step in speculate(watched, drafter, prompt, n_draft=n_draft, **options):
        text += step.committed
        steps.append(step)
        cache = watched.caches[0]
        if cache.length:
            assert toys.bits(target, cache) == toys.fresh_bits(target, text[:-1])
            fresh = target.new_cache()
            target.forward(text[:-1], fresh)
            for depth in target.taps:
                assert_same_bits(cache.features_at(depth), fresh.features_at(depth))
    plain = list(generate(target, prompt, **options))
    assert toys.ids_of(steps) == toys.ids_of(plain)
    assert steps[-1].finish == plain[-1].finish


@pytest.mark.parametrize("stored", ["f32", "int8"])
@pytest.mark.parametrize("method", METHODS)
def test_texts_of_a_batch_are_those_of_each_alone(method: str, stored: str) -> None:
    """The models among the drafters share their passes; heads guess for one text after the other."""
    target = target_for(ODD, "numba", stored)
    drafter = drafter_for(method, target)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
    options: Any = {"max_new_tokens": 20, "sampling": ANY, "n_draft": 3}
    texts: list[list[Step]] = [[], [], []]
    for row, step in speculate_batch(target, drafter, prompts, seed=range(3), **options):
        texts[row].append(step)
    for seed, (ids, steps) in enumerate(zip(prompts, texts, strict=True)):
        alone = list(speculate(target, drafter, ids, seed=seed, **options))
        assert [(step.drafted, step.committed) for step in alone] == [(step.drafted, step.committed) for step in steps]


@pytest.mark.parametrize("method", METHODS)
def test_a_draft_never_fails_and_asks_whether_to_go_on(method: str) -> None:
    """Full windows, texts that the target has not read, and an end after any guess."""
    target = target_for()
    drafter = drafter_for(method, target)
    cache = target.new_cache()
    drafting = drafter.start(cache)
    assert drafter.n_vocab == target.n_vocab
    assert len(drafting.draft([1, 2, 3], 0, GREEDY, Dice(0)).tokens) == 0
    target.forward([1, 2], cache)
    assert drafting.draft([1, 2, 3], 2, GREEDY, Dice(0)).depth == 2
    for asked in range(1, 4 if method != "medusa-tree" else 3):
        answers = iter([True] * (asked - 1) + [False])
        told: list[float] = []

        def go_on(surety: Callable[[], float], answers: Iterator[bool] = answers, told: list[float] = told) -> bool:
            told.append(surety())
            return next(answers)

        draft = drafting.draft([1, 2, 3], 3, ANY, Dice(1), go_on)
        assert len(draft.tokens) == len(draft.probs) >= draft.depth == len(told) == asked
        assert all(0 < chance <= 1 for chance in told)
    target.forward([3] * (ODD.n_ctx - 2), cache)
    for n_ids in (ODD.n_ctx, ODD.n_ctx + 1, ODD.n_ctx + 5, 3):
        drafting.draft([1] * n_ids, 3, ANY, Dice(0))


# --- early exit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@given(prompt=prompts.filter(lambda ids: len(ids) < 30), n_layers=st.integers(1, 2), seed=st.integers(0, 9))
def test_early_exit_guesses_as_the_first_layers_would_alone(
    backend: str, prompt: list[int], n_layers: int, seed: int
) -> None:
    """The same steps as a small model that is a checkpoint of the first layers, with a cache of its own."""
    target = tiny_model(ODD, 0, backend)
    options: Any = {"max_new_tokens": 12, "sampling": ANY, "n_draft": 3, "seed": seed}
    one = speculate(target, EarlyExitDrafter(target, n_layers), prompt, **options)
    other = speculate(target, SmallModelDrafter(target.first_layers(n_layers)), prompt, **options)
    for ours, alone in zip(one, other, strict=True):
        assert (ours.drafted, ours.committed) == (alone.drafted, alone.committed)


def test_early_exit_reads_nothing_that_the_target_has_read() -> None:
    target = tiny_model(ODD)
    drafter = EarlyExitDrafter(target, 2)
    read: list[int] = []
    real = drafter.model.forward

    def counted(ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        read.append(len(ids))
        return real(ids, cache, n_logits)

    drafter.model.forward = counted  # type: ignore[method-assign]
    list(speculate(target, drafter, [1, 2, 3, 4, 5], max_new_tokens=9, sampling=GREEDY, n_draft=2))
    assert read[0] == 5
    assert set(read[1:]) == {1}


def test_a_wrong_number_of_layers_is_refused() -> None:
    target = tiny_model(ODD)
    for wrong in (0, -1, 4, True):
        with pytest.raises(ValueError, match="layers cannot be taken: this model has 3"):
            EarlyExitDrafter(target, wrong)
    with pytest.raises(ValueError, match="3 layers are all of the target's: give 1 to 2"):
        EarlyExitDrafter(target, 3)
    with pytest.raises(ValueError, match="belongs to another model"):
        EarlyExitDrafter(target, 2).start(tiny_model(TINY).new_cache())


# --- Medusa ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ids", [[5], [3, 1, 4, 1, 5, 9]])
def test_medusa_is_what_its_formula_says(backend: str, ids: list[int]) -> None:
    """In float64 from the last feature, with the output layer as 8 bits round it."""
    target = target_for(ODD, backend)
    drafter, w = drafter_for("medusa", target), target.weights
    cache = target.new_cache()
    target.forward(ids, cache)
    x = cache.features_at(3)[-1].astype(np.float64)
    u = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w.ln_f_weight + w.ln_f_bias
    kept, scale = quantise(np.ascontiguousarray(target.ops.columns(w.lm_head, w.lm_head_scale, np.arange(71)).T))
    tensors = medusa_tensors(ODD)
    for n_guess in (1, 2, 3):
        logits = drafter.logits(cache.features_at(3)[-1:], n_guess)
        assert logits.shape == (n_guess, 71)
        for i, row in enumerate(logits):
            block = u @ tensors["weight"][i].astype(np.float16).astype(float) + tensors["bias"][i].astype(np.float16)
            assert np.allclose(row, (u + block / (1 + np.exp(-block))) @ (kept * scale), atol=1e-4)
    draft = drafter.start(cache).draft([*ids, 7], 3, ANY, Dice(0))
    for i, probs in enumerate(draft.probs):
        assert_same_bits(probs, ANY.probs(logits[i]))


def test_blocks_of_zeros_guess_what_the_target_wrote_last(tmp_path: Path) -> None:
    """So guesses come from the last row that was read, and no other."""
    target = target_for(TINY)
    zeros = {name: 0 * tensor for name, tensor in medusa_tensors(TINY).items()}
    path = write_heads(tmp_path / "x", "medusa", target, zeros)
    drafter, cache = MedusaDrafter(target, read_heads(path, "medusa", target)), target.new_cache()
    for ids in ([1, 2, 3], [4], [5, 6]):
        top = int(target.forward(ids, cache)[-1].argmax())
        assert list(drafter.start(cache).draft([0] * (cache.length + 1), 3, GREEDY, Dice(0)).tokens) == [top] * 3


def test_medusa_guesses_nothing_before_the_target_has_read_and_refuses_a_cache_without_features() -> None:
    target = target_for()
    drafter = drafter_for("medusa", target)
    assert not drafter.start(target.new_cache()).draft([1, 2], 3, GREEDY, Dice(0)).tokens
    with pytest.raises(ValueError, match=r"give it target\.tapped\(\(3,\)\)"):
        list(speculate(tiny_model(ODD), drafter, [1], max_new_tokens=3, sampling=GREEDY))


def test_a_tree_has_the_likeliest_tokens_of_each_place() -> None:
    """Greedily; and the same whatever branch leads to a place."""
    target = target_for()
    drafter, cache = drafter_for("medusa-tree", target), target.new_cache()
    target.forward([1, 2], cache)
    draft = drafter.start(cache).draft([1, 2, 3], 3, GREEDY, Dice(0))
    assert draft.parents == [-1, -1, 0, 0, 1]
    likeliest = (-drafter.logits(cache.features_at(3)[-1:], 2)).argsort(axis=1)
    assert list(draft.tokens) == [*likeliest[0, :2], *likeliest[1, :2], likeliest[1, 0]]
    assert len(drafter.start(cache).draft([1, 2, 3], 1, GREEDY, Dice(0)).tokens) == 2
    with pytest.raises(ValueError, match="the parents of 2 guesses are"):
        MedusaDrafter(target, drafter, (-1, 1))


def test_shapes_of_trees() -> None:
    assert of_widths((2, 1)) == (-1, -1, 0, 1)
    assert of_widths((1, 3, 1)) == (-1, 0, 0, 0, 1, 2, 3)
    for widths in ((1,), (3, 2), (2, 2, 2), (1, 1, 1, 4)):
        shape = of_widths(widths)
        assert level_order(shape) == shape
        assert [depths(shape).count(depth + 1) for depth in range(len(widths))] == list(np.cumprod(widths))
    assert level_order(TREE) == (-1, -1, 0, 0, 1)


# --- parallel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@given(prompt=prompts.filter(lambda ids: len(ids) < 40), n_draft=st.integers(1, 5), seed=st.integers(0, 9))
def test_masks_ask_for_the_tokens_after_next(backend: str, prompt: list[int], n_draft: int, seed: int) -> None:
    """Each guess has the law of a fresh pass over the text and the masks; none of these stays in the cache."""
    target = target_for(ODD, backend)
    drafter = drafter_for("parallel", target)
    drafting, model, text = drafter.start(), drafter.model, list(prompt)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        draft = drafting.draft(text, n_draft, ANY, Dice(0))
        asked = min(n_draft, 3, ODD.n_ctx - len(text) + 1)
        assert len(draft.tokens) == asked
        logits = model.forward([*text, 71, 72][: len(text) + asked - 1], model.new_cache(), asked)
        for row, probs in zip(logits, draft.probs, strict=True):
            assert_same_bits(probs, ANY.probs(row[:71]))
        assert toys.bits(model, drafting.cache) == toys.fresh_bits(model, text)
        kept = int(rng.integers(0, asked + 1))
        text = [*text, *draft.tokens[:kept], int(rng.integers(71))][: ODD.n_ctx]


def test_without_masks_it_is_a_small_model_that_guesses_once() -> None:
    target, model = tiny_model(ODD), tiny_model(ODD, 1)
    options: Any = {"max_new_tokens": 20, "sampling": ANY, "seed": 3}
    one = speculate(target, ParallelDrafter(model, 0), [1, 2], n_draft=4, **options)
    other = speculate(target, SmallModelDrafter(model), [1, 2], n_draft=1, **options)
    assert [step.drafted for step in one] == [step.drafted for step in other]
    with pytest.raises(ValueError, match="71 masks cannot be among 71 tokens"):
        ParallelDrafter(model, 71)


def test_a_parallel_model_may_be_of_any_shape(tmp_path: Path) -> None:
    target = tiny_model(ODD)
    tensors, told = parallel_parts(replace(TINY, n_vocab=71), 4)
    path = write_heads(tmp_path / "x", "parallel", target, tensors, **told)
    drafter = ParallelDrafter.of(target, read_heads(path, "parallel", target), "int8")
    steps = list(speculate(target, drafter, [1, 2, 3], max_new_tokens=42, sampling=GREEDY, n_draft=9))
    assert toys.ids_of(steps) == toys.greedy_oracle(target, [1, 2, 3], 42)
    assert max(len(step.drafted) for step in steps) == 5
    assert drafter.model.n_ctx == 32  # shorter than the target's: no guesses past it


# --- guesses that are drawn each by itself -----------------------------------------------------------


def test_each_row_is_a_law_of_its_own_place() -> None:
    """The noise of a place belongs to that place; and a row that is broken ends the draft."""
    rows = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    gumbel = Gumbel(ANY, 3)
    draft = draw_each(rows, 17, gumbel, Dice(0), always)
    assert list(draft.tokens) == [gumbel.pick(ANY.probs(row), 17 + i) for i, row in enumerate(rows)]
    for broken in (np.nan, np.inf):
        rows[2, 5] = broken
        assert len(draw_each(rows, 17, ANY, Dice(0), always).tokens) == 2
    rows[2] = -np.inf
    assert len(draw_each(rows, 17, ANY, Dice(0), always).tokens) == 2


# --- verify ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, "suffix+parallel", "eagle-tree", "suffix+tree"])
def test_verify_finds_nothing_in_what_is_right(method: str) -> None:
    """Whatever the drafter is made of: further tokens in its model, trees inside of it."""
    target = target_for(TINY)
    if method == "eagle-tree":
        target, inner = drafter_on("eagle", target)
        drafter: Any = EagleTreeDrafter(inner)
    elif method == "suffix+tree":
        drafter = CombinedDrafter([SuffixDrafter(TINY.n_vocab), SmallModelTreeDrafter(tiny_model(TINY, 1), (2, 1))])
    else:
        drafter = drafter_for(method.removeprefix("suffix+"), target)
        drafter = CombinedDrafter([SuffixDrafter(TINY.n_vocab), drafter]) if "+" in method else drafter
    pair = Pair(target, Letters(TINY.n_vocab), drafter)  # type: ignore[arg-type]
    assert pair.has_trees == ("tree" in method)
    for seed in range(6):  # of which some judge by block, and some guess a tree
        for sampled in (False, True):
            assert same_text(pair, np.random.default_rng(seed), sampled)["guesses"] > 0
        same_bits(pair, np.random.default_rng(seed))
    assert same_law(pair, np.random.default_rng(0))["probabilities"] > 0
