"""A batch writes each text as if it were alone: the same tokens, steps, logits and cache, bit for bit."""

from __future__ import annotations

import _thread
import gc
import itertools
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits
from checkpoints import TINY
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import stop_at
from toys import ODD, TEMPERS, Contrary, all_work_shared, bits, certain, drafter_for, story_model, table, tiny_model

from minispec import Gumbel, Sampling, generate, generate_batch, load_tokenizer, model, speculate, speculate_batch
from minispec.drafters import SmallModelDrafter
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.passes import Request, cut
from minispec.protocols import Draft, Step

KINDS = [("numba", "f32"), ("numba", "int8"), ("numpy", "f32")]
kinds = st.sampled_from([*KINDS, KINDS[0], KINDS[0]])
SHAPES = [TINY, ODD]


# --- the pass ------------------------------------------------------------------------------------


@st.composite
def requests(draw: Any, config: GPT2Config) -> list[tuple[list[int], list[int], int, int]]:
    """For each text of a batch: the ids before, the new ones, how many logits, and in which block its cache is."""
    token = st.integers(0, config.n_vocab - 1)
    before, new = st.lists(token, max_size=20), st.lists(token, min_size=1, max_size=11)
    texts = draw(st.lists(st.tuples(before, new), min_size=1, max_size=6))
    return [(*text, draw(st.integers(0, len(text[1]))), draw(st.sampled_from([0, 0, 0, 1]))) for text in texts]


def caches_for(a_model: GPT2, texts: Sequence[tuple[list[int], list[int], int, int]]) -> list[Any]:
    """A cache for each text, in the block that it says, filled with what comes before."""
    blocks = [a_model.new_caches(len(texts)) for _ in range(2)]
    caches = [blocks[block].pop() for *_, block in texts]
    for (before, *_), cache in zip(texts, caches, strict=True):
        if before:
            a_model.forward(before, cache)
    return caches


@given(st.sampled_from(SHAPES), kinds, st.sampled_from([256, 7, 1]), st.data())
def test_logits_and_caches_of_a_batch_have_the_bits_of_each_alone(
    config: GPT2Config, kind: tuple[str, str], most_rows: int, data: st.DataObject
) -> None:
    """However many rows a pass may have, and in whatever order the blocks come."""
    a_model, texts = tiny_model(config, 0, *kind), data.draw(requests(config))
    caches, alone = caches_for(a_model, texts), caches_for(a_model, texts)
    with pytest.MonkeyPatch.context() as patch, all_work_shared(a_model):
        patch.setattr(model, "MOST_ROWS", most_rows)
        asked = [(new, cache, n) for (_, new, n, _), cache in zip(texts, caches, strict=True)]
        together = a_model.forward_batch(asked)
    assert len(together) == len(texts)
    for (before, new, n_logits, _), logits, cache, own in zip(texts, together, caches, alone, strict=True):
        assert_same_bits(logits, a_model.forward(new, own, n_logits))
        assert cache.length == len(before) + len(new)
        assert bits(a_model, cache) == bits(a_model, own)


def test_a_prompt_longer_than_a_pass_is_read_in_company() -> None:
    target = story_model("story-target", "numba")
    texts = [list(range(300)), [7], list(range(9, 250))]
    caches = target.new_caches(len(texts))
    together = target.forward_batch([(ids, cache, 1) for ids, cache in zip(texts, caches, strict=True)])
    for ids, logits in zip(texts, together, strict=True):
        assert_same_bits(logits, target.forward(ids, target.new_cache(), 1))


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=6), st.integers(1, 20))
def test_cutting_keeps_order_rows_and_logits(sizes: list[tuple[int, int]], most_rows: int) -> None:
    cache: Any = object()
    asked = [Request(np.arange(n) + 100 * i, cache, min(n, k)) for i, (n, k) in enumerate(sizes)]
    passes = list(cut(asked, most_rows))
    pieces = [piece for together in passes for piece in together]
    assert [token for ids, _, _ in pieces for token in ids] == [token for ids, _, _ in asked for token in ids]
    wanted = [token for ids, _, k in pieces for token in ids[len(ids) - k :]]
    assert wanted == [token for ids, _, k in asked for token in ids[len(ids) - k :]]
    lengths = [sum(len(ids) for ids, _, _ in together) for together in passes]
    assert all(n == most_rows for n in lengths[:-1])
    assert all(0 < n <= most_rows for n in lengths[-1:])
    assert all(len({ids[0] // 100 for ids, _, _ in together}) == len(together) for together in passes)


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_error_all_caches_are_as_they_were(kind: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    a_model, other = tiny_model(TINY, 0, *kind), tiny_model(TINY, 1)
    one, two = a_model.new_caches(2)
    a_model.forward([1, 2, 3], one)
    wrong: list[tuple[list[tuple[Any, Any, Any]], str]] = [
        ([([4], one, None), ([97], two, None)], "token id 97 is outside"),
        ([([4], one, None), ([], two, None)], "non-empty list"),
        ([([4], one, None), ([5], two, 2)], "n_logits is 2"),
        ([([4], one, None), ([5] * 33, two, None)], "do not fit"),
        ([([4], one, None), ([5], other.new_cache(), None)], "another model"),
        ([([4], one, None), ([5], one, None)], "in the batch twice"),
    ]
    for batch, message in wrong:
        with pytest.raises(ValueError, match=message):
            a_model.forward_batch(batch)
        assert (one.length, two.length) == (3, 0)
    # and where a pass fails after others have been made
    monkeypatch.setattr(model, "MOST_ROWS", 2)
    passes = iter([a_model._pass])
    monkeypatch.setattr(a_model, "_pass", lambda *args: next(passes)(*args))
    with pytest.raises(StopIteration):
        a_model.forward_batch([([4, 5, 6], one, None), ([7], two, None)])
    assert (one.length, two.length) == (3, 0)
    monkeypatch.undo()
    assert a_model.forward_batch([]) == []
    assert_same_bits(a_model.forward([9], one), a_model.forward([1, 2, 3, 9], two, 1))


# --- the loops -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What one text of a batch is asked for."""

    ids: list[int]
    max_new_tokens: int
    n_draft: int
    seed: int
    stop: Any
    sampling: Any


@st.composite
def all_rows(draw: Any, n_vocab: int, longest: int = 12) -> list[Row]:
    """Texts of a batch that differ in everything."""
    token = st.integers(0, n_vocab - 1)
    laws = st.sampled_from([Sampling(), Sampling(1.0), Sampling(0.7, top_k=5), Gumbel(Sampling(1.0), seed=3)])
    row = st.builds(
        Row,
        ids=st.lists(token, min_size=1, max_size=9),
        max_new_tokens=st.integers(0, longest),
        n_draft=st.integers(0, 4),
        seed=st.integers(0, 9),
        stop=st.none() | st.lists(token, min_size=1, max_size=1).map(tuple).map(stop_at),
        sampling=laws,
    )
    return list(draw(st.lists(row, min_size=1, max_size=5)))


def options(rows: Sequence[Row], *names: str) -> dict[str, list[Any]]:
    return {name: [getattr(row, name) for row in rows] for name in names}


def by_row(batch: Any, n: int) -> list[list[tuple[Any, ...]]]:
    """What each text's steps say, but for the seconds."""
    steps: list[list[tuple[Any, ...]]] = [[] for _ in range(n)]
    for row, step in batch:
        steps[row].append(said(step))
    return steps


def said(step: Step) -> tuple[Any, ...]:
    return step.drafted, step.n_accepted, step.committed, step.finish


def assert_equal_to_solo(target: Any, drafter: Any, rows: Sequence[Row]) -> None:
    """Both loops, each text against its own run."""
    ids = [row.ids for row in rows]
    names: tuple[str, ...] = ("max_new_tokens", "seed", "stop", "sampling")
    batch = generate_batch(target, ids, **options(rows, *names))
    solo = [generate(target, row.ids, **{name: getattr(row, name) for name in names}) for row in rows]
    assert by_row(batch, len(rows)) == [[said(step) for step in steps] for steps in solo]
    names = (*names, "n_draft")
    given: Any = options(rows, *names)
    batch = speculate_batch(target, drafter, ids, **given)
    solo = [speculate(target, drafter, row.ids, **{name: getattr(row, name) for name in names}) for row in rows]
    assert by_row(batch, len(rows)) == [[said(step) for step in steps] for steps in solo]
    assert not texts_alive()


def texts_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("minispec text")]


@settings(max_examples=60)
@given(st.sampled_from(SHAPES), kinds, st.sampled_from(TEMPERS), st.data())
def test_each_text_is_its_solo_text(
    config: GPT2Config, kind: tuple[str, str], temper: str, data: st.DataObject
) -> None:
    """Tokens, steps and finish, for drafters of every temper, up to the end of the context window."""
    target = tiny_model(config, 0, *kind)
    drafter = drafter_for(target, temper, kind[0])
    assert_equal_to_solo(
        target, drafter, data.draw(all_rows(config.n_vocab, config.n_ctx if kind[0] == "numba" else 9))
    )


@given(st.integers(2, 5), st.booleans(), st.data())
def test_each_text_is_its_solo_text_with_models_that_know_no_batch(
    n_vocab: int, modelled: bool, data: st.DataObject
) -> None:
    target, other = table(n_vocab, 0, zeros=0.3, n_ctx=15), table(n_vocab, 1, zeros=0.3, n_ctx=12)
    assert_equal_to_solo(
        target, SmallModelDrafter(other) if modelled else certain(n_vocab), data.draw(all_rows(n_vocab))
    )


def test_the_pair_in_the_box_writes_a_batch_as_one_by_one() -> None:
    target, drafter = story_model("story-target", "numba"), SmallModelDrafter(story_model("story-draft", "numba"))
    tokenizer = load_tokenizer("story-target")
    prompts = ["Once upon a time", "Lily and Tom went to the park. They saw a big dog and ran", "zqé %% 123", "The"]
    rows = [
        Row(tokenizer.encode(prompt), 20 + 9 * i, i + 1, i, None, Sampling(i % 2)) for i, prompt in enumerate(prompts)
    ]
    assert_equal_to_solo(target, drafter, rows)


# --- what is shared ------------------------------------------------------------------------------


class Noted:
    """A GPT-2 that notes the passes it is asked for, and by which thread."""

    def __init__(self, inner: GPT2) -> None:
        self.inner, self.n_ctx, self.n_vocab = inner, inner.n_ctx, inner.n_vocab
        self.new_cache, self.new_caches = inner.new_cache, inner.new_caches
        self.passes: list[list[int]] = []
        self.threads: set[threading.Thread] = set()

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        raise AssertionError("a pass that is not shared")

    def forward_batch(self, requests: Any) -> Any:
        self.passes.append([len(ids) for ids, _, _ in requests])
        self.threads.add(threading.current_thread())
        assert len({id(cache.block_keys) for _, cache, _ in requests}) == 1
        return self.inner.forward_batch(requests)


def test_texts_share_their_passes_and_one_that_ends_leaves() -> None:
    """Worked by hand: the target drafts for itself, so every guess is kept."""
    target, draft = Noted(tiny_model()), Noted(tiny_model())
    prompts, limits = [[1, 2, 3], [4], [5, 6]], [3, 7, 5]
    batch = generate_batch(target, prompts, max_new_tokens=limits, sampling=Sampling())
    order = [row for row, _ in batch]
    assert target.passes == [[3, 1, 2], [1, 1, 1], [1, 1, 1], [1, 1], [1, 1], [1], [1]]
    assert order == [0, 1, 2] * 3 + [1, 2] * 2 + [1] * 2
    target.passes.clear()
    drafter = SmallModelDrafter(draft)
    batch = speculate_batch(
        target,
        drafter,
        prompts,
        max_new_tokens=limits,
        n_draft=2,
        sampling=Sampling(),
    )
    assert [len(step.committed) for _, step in batch] == [3, 3, 3, 3, 2, 1]
    assert target.passes == [[5, 3, 4], [3, 2], [1]]
    # texts 1 and 2 have 4 and 2 tokens to go: 2 guesses and 1; the last token of text 1 is written without a guess
    assert draft.passes == [[3, 1, 2], [1, 1, 1], [2, 2], [1]]
    assert target.threads == draft.threads == {threading.current_thread()}


def test_one_text_runs_at_a_time() -> None:
    """So that what texts share needs no lock, however threads are scheduled."""
    running: list[int] = []

    def stop(new: Sequence[int]) -> bool:
        running.append(1)
        assert len(running) == 1
        threading.Event().wait(0.001)  # others could run now
        running.pop()
        return False

    list(generate_batch(table(3, 0), [[0]] * 5, max_new_tokens=4, sampling=Sampling(1.0), stop=stop))


def test_a_text_sees_the_errstate_of_the_caller() -> None:
    def stop(new: Sequence[int]) -> bool:
        np.float32(1e30) * np.float32(1e30)
        return False

    with np.errstate(over="raise"), pytest.raises(FloatingPointError) as caught:
        list(generate_batch(table(3, 0), [[0]], max_new_tokens=4, sampling=Sampling(), stop=stop))
    assert caught.value.__notes__ == ["(in text 0 of a batch)"]


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_steps", [0, 1, 4, 7])
def test_no_thread_is_left_where_the_caller_stops(n_steps: int) -> None:
    target = tiny_model()
    batch = speculate_batch(
        target, SmallModelDrafter(target), [[1, 2], [3], [4]], max_new_tokens=20, sampling=Sampling(1.0)
    )
    for _ in range(n_steps):
        next(batch)
    assert len(texts_alive()) == (3 if n_steps else 0)
    batch.close()  # type: ignore[attr-defined]
    assert not texts_alive()
    del batch
    gc.collect()


class Failing(SmallModelDrafter):
    """Fails at the second draft of the text that begins with 9."""

    def __init__(self, inner: Any, error: BaseException) -> None:
        super().__init__(inner)
        self.error = error

    def start(self, cache: Any = None) -> Any:
        inner = super().start(cache)
        honest = inner.draft

        def draft(ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *_: Any) -> Draft:
            if ids[0] == 9 and len(ids) > 3:
                raise self.error
            return honest(ids, n_draft, sampling, choices)

        inner.draft = draft  # type: ignore[method-assign, assignment]
        return inner


@pytest.mark.parametrize("error", [ValueError("no idea"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_in_one_text_is_raised_and_ends_all(error: BaseException) -> None:
    target = tiny_model()
    batch = speculate_batch(target, Failing(target, error), [[1], [9], [2]], max_new_tokens=20, sampling=Sampling())
    assert [row for row, _ in itertools.islice(batch, 3)] == [0, 1, 2]
    with pytest.raises(type(error)) as caught:
        list(batch)
    assert caught.value is error
    assert "(in text 1 of a batch)" in error.__notes__
    assert not texts_alive()


def test_an_error_of_a_shared_pass_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Noted(tiny_model())
    batch = generate_batch(target, [[1], [2]], max_new_tokens=20, sampling=Sampling())
    next(batch)

    def interrupted(requests: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(target, "forward_batch", interrupted)
    next(batch)
    with pytest.raises(KeyboardInterrupt):
        next(batch)
    assert not texts_alive()


def test_an_interrupt_while_a_text_runs_ends_all() -> None:
    def stop(new: Sequence[int]) -> bool:
        if len(new) == 3:
            _thread.interrupt_main()
        return False

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told us to ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            list(generate_batch(table(3, 0), [[0]] * 3, max_new_tokens=50, sampling=Sampling(1.0), stop=stop))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not texts_alive()


class Stubborn:
    """A drafter that takes no exception for an answer, but for those that are none of its business."""

    n_vocab = 97

    def __init__(self, inner: Any) -> None:
        self.model = inner

    def start(self, cache: Any = None) -> Any:
        return self

    def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *rest: Any) -> Draft:
        cache = self.model.new_cache()
        for _ in range(3):
            try:
                self.model.forward(ids, cache, 1)
            except Exception:
                continue
        return Draft([], [])


def test_a_drafter_that_swallows_errors_ends_with_the_batch() -> None:
    target = tiny_model()
    batch = speculate_batch(target, Stubborn(target), [[1], [2]], max_new_tokens=20, sampling=Sampling())
    for _ in range(3):
        next(batch)
    batch.close()  # type: ignore[attr-defined]
    assert not texts_alive()


# --- arguments -----------------------------------------------------------------------------------


def test_an_empty_batch_is_nothing() -> None:
    target = tiny_model()
    assert list(generate_batch(target, [], max_new_tokens=3, sampling=Sampling())) == []
    assert list(speculate_batch(target, SmallModelDrafter(target), [], max_new_tokens=3, sampling=Sampling())) == []


def test_equal_prompts_with_one_seed_are_equal_texts_and_with_others_are_not() -> None:
    target = tiny_model()
    for seed, n_texts in ((5, 1), (range(4), 4)):
        batch = generate_batch(target, [[1, 2]] * 4, max_new_tokens=20, sampling=Sampling(2.0), seed=seed)
        assert len({repr(text) for text in by_row(batch, 4)}) == n_texts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": [[1], []]}, "text 1 of the batch: the prompt has no tokens"),
        ({"prompts": [[1], [97]]}, "text 1 of the batch: token id 97"),
        ({"prompts": [1, 2]}, "text 0 of the batch: the prompt is 1: a batch is a list of prompts"),
        ({"prompts": ["one", "two"]}, "text 0 of the batch: the prompt is the text 'one'"),
        ({"max_new_tokens": [3]}, "max_new_tokens has 1 values and the batch 2 prompts"),
        ({"max_new_tokens": [3, -1]}, "text 1 of the batch: max_new_tokens is -1"),
        ({"seed": [0, -1]}, "text 1 of the batch: seed is -1"),
        ({"n_draft": range(3)}, "n_draft has 3 values"),
    ],
)
def test_wrong_arguments_are_refused_at_once(change: dict[str, Any], message: str) -> None:
    target = tiny_model()
    asked: dict[str, Any] = {"prompts": [[1], [2]], "max_new_tokens": 3, "sampling": Sampling()} | change
    prompts = asked.pop("prompts")
    with pytest.raises(ValueError, match=message):
        speculate_batch(target, SmallModelDrafter(target), prompts, **asked)
    if "n_draft" not in asked:
        with pytest.raises(ValueError, match=message):
            generate_batch(target, prompts, **asked)
    assert not texts_alive()


@pytest.mark.parametrize("prompts", [[[1, 2], [3]], [(1,)], np.ones((2, 2), np.int64)])
def test_the_solo_loops_say_where_a_batch_goes(prompts: Any) -> None:
    target = tiny_model()
    solo: list[Callable[[], Any]] = [
        lambda: generate(target, prompts, max_new_tokens=3, sampling=Sampling()),
        lambda: speculate(target, SmallModelDrafter(target), prompts, max_new_tokens=3, sampling=Sampling()),
    ]
    for call in solo:
        with pytest.raises(ValueError, match="a batch goes to speculate_batch or generate_batch"):
            call()


def test_a_stand_in_is_of_no_use_outside_its_batch() -> None:
    kept = []

    class Keeping(SmallModelDrafter):
        def start(self, cache: Any = None) -> Any:
            kept.append(self.model)
            return super().start(cache)

    target = tiny_model()
    drafter = Keeping(target)
    list(speculate_batch(target, drafter, [[1]], max_new_tokens=3, sampling=Sampling()))
    assert drafter.model is target
    with pytest.raises(ValueError, match="outside it, use the model itself"):
        kept[0].forward([1], target.new_cache())


def test_a_model_without_blocks_of_caches_drafts_for_one_with_them() -> None:
    target = tiny_model()
    rows = [Row([1, 2], 9, 3, 0, None, Sampling(1.0)), Row([5], 4, 2, 1, None, Sampling())]
    assert_equal_to_solo(target, SmallModelDrafter(Contrary(target)), rows)
