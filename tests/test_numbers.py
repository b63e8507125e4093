"""Numbers at their ends: what is no law is refused, what is one is kept, and the plain loop and the speculative agree.

Logits       NaN or infinity in the target end the text in one line, and in a draft cost guesses, never the law
Temperature  from 1e-300 to 1e30, and top-p at both ends: always a law, and the same text or law on both paths
Laws         of samplers and drafters that anyone may write: negative, unscaled or NaN is refused on every path
Weights      denormal ones are numbers like any other; ones that overflow are refused
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import toys
from checkpoints import TINY, tiny_tensors
from hostile import THOROUGH
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from toys import Guesses, Table, ids_of, table

from minispec.batch import generate_batch, speculate_batch
from minispec.drafters import SmallModelDrafter, SmallModelTreeDrafter
from minispec.enumeration import law
from minispec.gumbel import Gumbel
from minispec.made_up import random_tensors
from minispec.model import GPT2
from minispec.overlapped import InTurn, OverlappedStep, speculate_overlapped
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.protocols import Draft
from minispec.sampling import Sampling
from minispec.speculative import speculate
from minispec.typical import judge_typical

SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(0.7, top_k=2), Sampling(1.3, top_p=0.8), Sampling(1.0, 3, 0.5)]


def raised(*logits: float) -> Callable[[tuple[int, ...]], Any]:
    """These logits after every text, as the rule of `Logits`."""
    return lambda context: np.array(logits, np.float32)


class Logits(Table):
    """A model given by a rule from context to logits."""

    def logits(self, context: tuple[int, ...]) -> Any:
        return self.rule(context)


def paths(
    target: Any, drafter: Any, sampling: Any, n: int = 3, tree: Any = None, **options: Any
) -> dict[str, Callable[[], Iterator[Any]]]:
    """Every way to write a text, by its name. tree: the drafter of trees, where the other is no small model.

    Two texts are in a batch, of which the second is told; an error has a note there. A walk through all outcomes knows
    no batches.
    """
    some: Any = {"max_new_tokens": n, "sampling": sampling, **options}
    two = some | {"choices": (options["choices"],) * 2, "executor": InTurn()} if "choices" in options else some
    prompts = [[1], [0]]
    return {
        "plain": lambda: generate(target, [0], **some),
        "token": lambda: speculate(target, drafter, [0], n_draft=2, **some),
        "block": lambda: speculate(target, drafter, [0], n_draft=2, verification="block", **some),
        "tree": lambda: speculate(target, tree or branched(drafter), [0], n_draft=2, **some),
        "typical": lambda: speculate(target, drafter, [0], n_draft=2, verification=judge_typical, **some),
        "overlapped": lambda: speculate_overlapped(target, drafter, [0], n_draft=2, **two),
        "plain batch": lambda: second(generate_batch(target, prompts, **some)),
        "batch": lambda: second(speculate_batch(target, drafter, prompts, n_draft=2, **some)),
    }


def branched(drafter: SmallModelDrafter) -> SmallModelTreeDrafter:
    return SmallModelTreeDrafter(drafter.model, (2, 1))


def second(steps: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    """The steps of the second text of a batch."""
    return (step for row, step in steps if row == 1)


PATHS = ["plain", "token", "block", "tree", "typical", "overlapped", "plain batch", "batch"]
SPECULATIVE = [path for path in PATHS if not path.startswith("plain")]


class Fork(Guesses):
    """Two guesses for the next token, 0 and 1, with certainty or with the law that it is given."""

    def __init__(self, n_vocab: int, law: Any = None) -> None:
        super().__init__(n_vocab, lambda ids, n: [])
        self.law = law

    def draft(self, ids: Any, n_draft: int, *_: Any) -> Draft:
        if n_draft < 1:
            return Draft([], [], [])
        return Draft([0, 1], list(self.one_hot[:2]) if self.law is None else [self.law] * 2, [-1, -1])


class Chain(Guesses):
    """Guesses 0 each time, with a law that it is given."""

    def __init__(self, n_vocab: int, law: Any) -> None:
        super().__init__(n_vocab, lambda ids, n: [])
        self.law = law

    def draft(self, ids: Any, n_draft: int, *_: Any) -> Draft:
        return Draft([0] * n_draft, [self.law] * n_draft)


@pytest.mark.parametrize("path", PATHS)
def test_each_path_is_what_it_is_called(path: str) -> None:
    """With sound laws: else what is refused below would say nothing of it."""
    target, certainly = table(3, 1), Guesses(3, lambda ids, n: [0] * n)
    for drafter, tree in (
        (SmallModelDrafter(table(3, 2)), None),
        (certainly, Fork(3)),
        (Chain(3, np.ones(3) / 3), Fork(3)),
    ):
        steps = list(paths(target, drafter, Sampling(1.0), 8, tree)[path]())
        assert len(ids_of(steps)) == 8
        assert any(step.parents is not None and step.drafted for step in steps) == (path == "tree")
        assert any(isinstance(step, OverlappedStep) for step in steps) == (path == "overlapped")
        assert any(step.drafted for step in steps) == (path in SPECULATIVE)


# --- logits -------------------------------------------------------------------------------------------

BROKEN = [
    (math.nan, 1, 2), (1, math.nan, 2), (1, 2, math.nan), (math.nan,) * 3, (math.inf, 1, 2), (1, 2, math.inf),
    (-math.inf,) * 3, (math.inf, -math.inf, math.nan),
]  # fmt: skip


@pytest.mark.parametrize("row", BROKEN)
@pytest.mark.parametrize("path", PATHS)
def test_a_target_whose_logits_are_no_numbers_is_refused_alike(row: tuple[float, ...], path: str) -> None:
    target, drafter = Logits(raised(*row), 3), SmallModelDrafter(table(3, 2))
    for sampling in (*SAMPLINGS, Gumbel(Sampling(1.0))):
        with pytest.raises(
            ValueError, match=r"(?m)^the model's largest logit is (nan|-?inf) .*: its weights are broken$"
        ):
            list(paths(target, drafter, sampling)[path]())


@pytest.mark.parametrize("row", BROKEN)
@pytest.mark.parametrize("path", ["token", "block", "tree", "overlapped"])
@pytest.mark.parametrize("always", [True, False])
def test_a_drafter_whose_logits_are_no_numbers_never_changes_the_law(
    row: tuple[float, ...], path: str, always: bool
) -> None:
    """Broken everywhere, or after every other text."""
    target, good = table(3, 1), table(3, 2)

    def rule(context: tuple[int, ...]) -> Any:
        return np.array(row) if always or toys.whim(context) % 2 else good.logits(context)

    drafter = SmallModelDrafter(Logits(rule, 3))
    for sampling in (Sampling(1.0), Sampling(0.7, top_k=2)):
        n = 2 if path == "overlapped" else 3  # a walk through three takes long
        options: Any = {"max_new_tokens": n, "sampling": sampling}
        plain = law(lambda c, o=options: ids_of(generate(target, [0], choices=c, **o)))  # type: ignore[misc]
        got = law(lambda c, s=sampling, n=n: ids_of(paths(target, drafter, s, n, choices=c)[path]()))  # type: ignore[misc]
        assert_same_law(got, plain)


def assert_same_law(got: dict[Any, Any], expected: dict[Any, Any]) -> None:
    for outcome in got.keys() | expected.keys():
        assert abs(got.get(outcome, 0) - expected.get(outcome, 0)) < 1e-12, outcome


# --- temperature, top-p ----------------------------------------------------------------------------------

TEMPERATURES = [0.0, 5e-324, 1e-300, 1e-38, 1e-10, 1e-6, 1e-4, 0.01, 1.0, 100.0, 1e30, 1.7e308]
TOP_P = [0.0, 5e-324, 1e-300, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0]
SIZES = [1e-42, 50.0, 1e4, 3e38]  # of logits: from denormals to the largest that there are


def of_size(size: float, seed: int) -> Logits:
    """A model with logits of this size, in another order after each text."""

    def rule(context: tuple[int, ...]) -> Any:
        rng = np.random.default_rng([seed, *context])
        return np.float32(size) * rng.choice([-1, -0.5, 0.25, 0.9, 1], 4, replace=False).astype(np.float32)

    return Logits(rule, 4)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("size", SIZES)
def test_every_temperature_has_the_same_law_on_all_paths(temperature: float, size: float) -> None:
    """Greedy where the temperature is tiny."""
    target, drafter = of_size(size, 1), SmallModelDrafter(of_size(size, 2))
    for top_p in TOP_P:
        sampling = Sampling(temperature, top_p=top_p)
        some: Any = {"max_new_tokens": 2, "sampling": sampling}
        plain = law(lambda c, some=some: ids_of(generate(target, [0], choices=c, **some)))  # type: ignore[misc]
        assert abs(sum(plain.values()) - 1) < 1e-12
        for path in ("token", "block", "tree"):
            got = law(lambda c, s=sampling, p=path: ids_of(paths(target, drafter, s, 2, choices=c)[p]()))  # type: ignore[misc]
            assert_same_law(got, plain)
        one = law(lambda c, s=sampling: ids_of(paths(target, drafter, s, 1, choices=c)["plain"]()))  # type: ignore[misc]
        got = law(lambda c, s=sampling: ids_of(paths(target, drafter, s, 1, choices=c)["overlapped"]()))  # type: ignore[misc]
        assert_same_law(got, one)  # a walk through two takes a minute
        if (temperature <= 1e-4 and size > 1) or top_p <= 1e-300:
            assert plain == {ids_of(generate(target, [0], max_new_tokens=2, sampling=Sampling())): 1}
        if temperature >= 1e30 and top_p == 1.0 and size <= 1e4:
            assert all(abs(chance - 1 / 16) < 1e-12 for chance in plain.values())


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("top_p", [0.0, 0.5, 1.0])
def test_every_temperature_has_the_same_text_on_all_paths_with_gumbel(
    temperature: float, size: float, top_p: float
) -> None:
    target, drafter = of_size(size, 1), SmallModelDrafter(of_size(size, 2))
    sampling = Gumbel(Sampling(temperature, top_p=top_p), 3)
    plain = ids_of(paths(target, drafter, sampling, 6)["plain"]())
    for path in ("token", "block", "tree", "overlapped", "plain batch", "batch"):
        assert ids_of(paths(target, drafter, sampling, 6)[path]()) == plain, path
    certain = (temperature <= 1e-4 and size > 1) or top_p == 0
    assert not certain or plain == ids_of(generate(target, [0], max_new_tokens=6, sampling=Sampling()))


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1e-45, -3.4e38, 3.4e38]
)


@given(
    logits=arrays(np.float32, st.integers(1, 40), elements=numbers | st.just(-math.inf)),
    temperature=st.just(0.0) | st.floats(-300, 30).map(lambda power: 10.0**power),
    top_k=st.sampled_from([0, 1, 2, 39, 10**9]),
    top_p=st.sampled_from(TOP_P) | st.floats(0, 1),
)
@example(np.array([3.4e38, -3.4e38], np.float32), 1e-300, 0, 1.0)
@example(np.array([1e-45, 0.0], np.float32), 5e-324, 0, 0.5)
def test_whatever_the_numbers_probabilities_are_a_law(
    logits: Any, temperature: float, top_k: int, top_p: float
) -> None:
    if logits.max() == -math.inf:
        return
    probs = Sampling(temperature, top_k, top_p).probs(logits)
    assert probs.shape == logits.shape
    assert (probs >= 0).all()
    assert abs(probs.sum() - 1) < 1e-12
    kept = probs > 0
    assert kept[int(np.argmax(logits))]
    assert not kept[logits == -math.inf].any()
    assert not top_k or kept.sum() <= top_k
    order = np.argsort(-logits, kind="stable")
    assert (np.diff(probs[order]) <= 1e-15).all()


# --- laws of others -------------------------------------------------------------------------------------

NO_LAWS = {
    "NaN": (math.nan, 0.5, 0.5),
    "NaN elsewhere": (0.5, 0.5, math.nan),
    "infinite": (math.inf, 0.0, 0.0),
    "negative": (1.5, -0.5, 0.0),
    "negative by little": (0.5, 0.500001, -0.000001),
    "above one": (1.0, 1.0, 1.0),
    "too small": (0.5, 0.25, 0.0),
    "nothing": (0.0, 0.0, 0.0),
}
EVERYWHERE = range(99)


class Careless:
    """A sampler that gives the same for all logits at some places of the text, and what is right elsewhere."""

    def __init__(self, probs: tuple[float, ...], places: range = EVERYWHERE) -> None:
        self.wrong, self.places = np.array(probs), places

    def probs(self, logits: Any, position: int) -> Any:
        return self.wrong if position in self.places else Sampling(1.0).probs(logits)


@pytest.mark.parametrize("kind", NO_LAWS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("places", [EVERYWHERE, range(2, 99), range(2, 3), range(3, 4)], ids=str)
def test_a_sampler_that_gives_no_law_is_refused_alike(kind: str, path: str, places: range) -> None:
    """Also where it is for the replacement after some guesses, and right again in the next round."""
    target, drafter = table(3, 1), Guesses(3, lambda ids, n: [0] * n)
    careless = Careless(NO_LAWS[kind], places)
    for sampling in (careless, Gumbel(careless)):
        with pytest.raises(
            ValueError, match=r"(?m)^the sampler gave no law: .* they must be from 0 up and sum to one$"
        ):
            list(paths(target, drafter, sampling, 8, Fork(3))[path]())


@pytest.mark.parametrize("kind", NO_LAWS)
@pytest.mark.parametrize("path", SPECULATIVE)
def test_a_drafter_that_gives_no_law_is_refused(kind: str, path: str) -> None:
    law = np.array(NO_LAWS[kind])
    with pytest.raises(ValueError, match=r"(?m)^the drafter gave no law: .* they must be from 0 up and sum to one$"):
        list(paths(table(3, 1), Chain(3, law), Sampling(1.0), 9, Fork(3, law))[path]())


@pytest.mark.parametrize("path", SPECULATIVE)
def test_a_guess_that_its_law_cannot_have_made_is_refused(path: str) -> None:
    """Else it would be kept wherever the target has any chance for it, which is too often."""
    law = np.array([0.0, 0.5, 0.5])
    with pytest.raises(ValueError, match="the drafter guessed token 0, to which its own distribution gives no chance"):
        list(paths(table(3, 1), Chain(3, law), Sampling(1.0), 9, Fork(3, law))[path]())


def test_a_law_in_float32_is_a_law() -> None:
    class Halves(Careless):
        def probs(self, logits: Any, position: int) -> Any:
            return Sampling(1.0).probs(logits).astype(np.float32)

    model, sampling = table(5000, 1), Halves(())
    assert len(ids_of(generate(model, [0], max_new_tokens=3, sampling=sampling))) == 3
    assert len(ids_of(speculate(model, SmallModelDrafter(model), [0], max_new_tokens=3, sampling=sampling))) == 3


# --- weights ----------------------------------------------------------------------------------------------


def scaled(by: float, names: str = "") -> dict[str, Any]:
    """The tiny model's tensors, those whose names hold these letters times a number."""
    with np.errstate(over="ignore", under="ignore"):
        return {
            name: (tensor * np.float32(by)).astype(np.float32) if names in name else tensor
            for name, tensor in tiny_tensors(TINY).items()
        }


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("stored", ["f32", "int8"])
@pytest.mark.parametrize(("by", "names"), [(1e-40, ""), (1e-40, "c_"), (1e-42, "wte"), (1e-45, "mlp"), (0.0, "")])
def test_denormal_weights_are_numbers_like_any_other(backend: str, stored: str, by: float, names: str) -> None:
    model = GPT2(replace(TINY), scaled(by, names), backend, stored)
    drafter = SmallModelDrafter(toys.tiny_model(TINY, 1, backend))
    logits = model.forward([1, 2, 3], model.new_cache())
    assert np.isfinite(logits).all()
    cache = model.new_cache()
    one_by_one = np.concatenate([model.forward([token], cache) for token in (1, 2, 3)])
    assert np.array_equal(one_by_one, logits)
    for sampling in (Sampling(), Gumbel(Sampling(1.0), 3)):
        plain = ids_of(generate(model, [1], max_new_tokens=12, sampling=sampling))
        assert ids_of(speculate(model, drafter, [1], max_new_tokens=12, sampling=sampling)) == plain


@pytest.mark.skipif(not THOROUGH, reason="takes a minute, and tells something where nothing else is at work")
@pytest.mark.parametrize(("backend", "stored"), [("numba", "f32"), ("numba", "int8"), ("numpy", "f32")])
@pytest.mark.parametrize("names", ["", "c_"])
def test_denormal_weights_take_no_longer(backend: str, stored: str, names: str) -> None:
    """All of them, or those of products alone, whose rows are then as large as ever; a layer as wide as GPT-2's.

    Medians of passes in turn, so that a busy moment meets both models.
    """
    tensors = random_tensors(GPT2Config(1, 12, 768, 32, 4096, 3072))
    denormal = {n: t * np.float32(1e-40 if names in n else 1) for n, t in tensors.items()}
    models = [GPT2(GPT2Config(1, 12, 768, 32, 4096, 3072), some, backend, stored) for some in (tensors, denormal)]
    seconds: list[list[float]] = [[], []]
    for _ in range(40):
        for model, times in zip(models, seconds, strict=True):
            cache = model.new_cache()
            began = time.perf_counter()
            for token in range(20):
                model.forward([token], cache)
            times.append(time.perf_counter() - began)
    assert np.median(seconds[1]) < 2 * np.median(seconds[0])


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize(("by", "names"), [(1e38, ""), (1e38, "wte"), (3e38, "ln_f"), (1e30, "c_fc"), (1e38, "c_attn")])
def test_weights_that_overflow_are_refused_or_give_numbers(backend: str, by: float, names: str) -> None:
    """Never a warning; and the two paths agree, be it on a text or on the refusal."""
    tensors = {name: np.nan_to_num(tensor) for name, tensor in scaled(by, names).items()}
    model = GPT2(TINY, tensors, backend)
    drafter = SmallModelDrafter(toys.tiny_model(TINY, 1, backend))

    def end(steps: Iterator[Any]) -> Any:
        try:
            return ids_of(steps)
        except ValueError as error:
            return str(error).partition(": ")[2]

    for sampling in (Sampling(), Gumbel(Sampling(1.0), 3)):
        plain = end(generate(model, [1], max_new_tokens=6, sampling=sampling))
        assert plain == "its weights are broken" or len(plain) == 6
        assert end(speculate(model, drafter, [1], max_new_tokens=6, sampling=sampling)) == plain
