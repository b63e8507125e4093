"""Drafting while checking, on the real loop: the law, greedy text, caches, seeds, threads that overlap and end.

Laws are walked with both sides in one thread, one after the other. Threads are made to meet, or to wait, by barriers
and events, never by how long something takes.
"""

from __future__ import annotations

import _thread
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy  # its parts come when they are asked for: stats takes a second
import toys
from bits import assert_same_bits
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, cases, mixed, row_pairs, samplings
from test_exactness import AnyNoise, Outcome, differences, targets_law

from minispec.backends import _passes
from minispec.decoding import decode
from minispec.drafters import SmallModelDrafter, SmallModelTreeDrafter
from minispec.enumeration import Script, law
from minispec.gumbel import Gumbel
from minispec.overlapped import InTurn, OverlappedStep, speculate_overlapped, two_dice
from minispec.plain import generate
from minispec.protocols import Draft
from minispec.sampling import Sampling
from minispec.session import open_pair
from minispec.settings import Settings
from minispec.verify_stand_ins import AsTheyAre

ANY, GREEDY = Sampling(1.0), Sampling()
Steps = Iterator[OverlappedStep]


# --- the law ---------------------------------------------------------------------------------------


def walked(case: Case, kind: type[toys.Table], sampling: Any) -> dict[Outcome, Any]:
    """The law of overlapped decoding, by walking every outcome of the real loop."""
    target, drafter = kind(case.target, case.n_vocab, case.n_ctx), case.make_drafter(kind)
    options: Any = {"max_new_tokens": case.max_new_tokens, "sampling": sampling, "stop": case.stop}

    def outcome(choices: Script) -> Outcome:
        both: Any = {"choices": (choices, choices), "executor": InTurn()}
        told = list(speculate_overlapped(target, drafter, case.prompt, n_draft=case.n_draft, **both, **options))
        return toys.ids_of(told), told[-1].finish

    return law(outcome)


@st.composite
def short_cases(draw: Any, tiny: bool = False) -> Case:
    """Cases with a number for a draft length, and texts so short that thrown away blocks can be walked as well."""
    case: Case = draw(cases(tiny))
    n_draft = draw(st.sampled_from([2, 3, 1, 2, 4, 0]))
    return replace(case, n_draft=n_draft, max_new_tokens=min(case.max_new_tokens, 4 if n_draft < 3 else 3))


@given(short_cases())
def test_the_law_is_the_targets_to_the_last_fraction(case: Case) -> None:
    expected = targets_law(case, case.target)
    assert walked(case, toys.Exact, AsTheyAre()) == expected


@given(short_cases(tiny=True), samplings)
def test_the_law_is_the_targets_with_temperature_top_k_and_top_p(case: Case, sampling: Sampling) -> None:
    model = toys.Table(case.target, case.n_vocab)
    expected = targets_law(case, lambda text: sampling.probs(model.logits(text)))
    assert not differences(walked(case, toys.Table, sampling), expected)


@pytest.mark.parametrize("drafter", ["model", "moody"])
@pytest.mark.parametrize("stop", [None, 1])
@pytest.mark.parametrize(("n_vocab", "n", "n_draft"), [(3, 3, 2), (3, 3, 3), (4, 3, 1), (2, 4, 2)])
def test_the_law_where_all_is_possible(n_vocab: int, n: int, n_draft: int, stop: int | None, drafter: str) -> None:
    """No zero thins these walks out, and every block is kept whole in some of them."""
    one, other = toys.table(n_vocab, 1), toys.table(n_vocab, 2)
    ends = None if stop is None else (lambda new: new[-1] == stop)
    case = Case(one.rule, other.rule, n_vocab, (0,), n, n_draft, 64, drafter, ends)
    assert not differences(walked(case, toys.Exact, AsTheyAre()), targets_law(case, one.rule))


def test_the_law_of_a_tiny_gpt2() -> None:
    """A real cache that is rolled back, top-k 2 so that the walk ends."""
    model, drafter = toys.tiny_model(toys.ODD), SmallModelDrafter(toys.tiny_model(toys.ODD, 1))
    sampling = Sampling(1.0, top_k=2)

    def run(choices: Script) -> tuple[int, ...]:
        options: Any = {"n_draft": 2, "choices": (choices, choices), "executor": InTurn()}
        return toys.ids_of(speculate_overlapped(model, drafter, [5], max_new_tokens=3, sampling=sampling, **options))

    def plain(choices: Script) -> tuple[int, ...]:
        return toys.ids_of(generate(model, [5], max_new_tokens=3, sampling=sampling, choices=choices))

    got, expected = law(run), law(plain)
    assert got.keys() == expected.keys()
    assert all(abs(got[ids] - expected[ids]) < 1e-12 for ids in got)


@given(row_pairs(2, 2), st.integers(1, 3))
def test_modes_follow_each_other_as_the_simulation_has_it(pair: Any, n_draft: int) -> None:
    """The chances of the first two rounds: their modes, and what they write."""
    target, draft = (toys.Exact(mixed([row], 0), 2) for row in pair)
    a, k = sum(min(p, q) for p, q in zip(*pair, strict=True)), n_draft

    def rounds(choices: Script) -> tuple[tuple[int, int], ...]:
        both: Any = {"choices": (choices, choices), "executor": InTurn(), "n_draft": k}
        steps = speculate_overlapped(
            target, SmallModelDrafter(draft), [0], max_new_tokens=2 * k + 2, sampling=AsTheyAre(), **both
        )
        return tuple((step.n_waiting, len(step.committed)) for step in (next(steps), next(steps)))

    expected: dict[Any, Any] = {}

    def add(outcome: Any, chance: Any) -> None:
        expected[outcome] = expected.get(outcome, 0) + chance

    add(((0, 1), (0, 1)), 1 - a)  # refused: again with nothing waiting
    for kept in range(k):
        add(((0, 1), (k - 1, kept + 1)), a * a**kept * (1 - a))
    add(((0, 1), (k - 1, k)), a * a**k)
    assert law(rounds) == {outcome: chance for outcome, chance in expected.items() if chance}


# --- greedy, and same seed -------------------------------------------------------------------------

numbers = st.integers(0, 10**6)
runs = st.fixed_dictionaries(
    {
        "config": st.sampled_from([TINY, toys.ODD]),
        "prompt": st.lists(numbers, min_size=1, max_size=8),
        "temper": st.sampled_from(toys.TEMPERS),
        "n_draft": st.integers(1, 8),
        "n": st.integers(0, 40),
        "crews": st.sampled_from([(None, None), (1, 1), (2, 1)]),
    }
)


def with_crew(model: Any, n_crew: int | None) -> Any:
    return model if n_crew is None else model.with_crew(n_crew)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@given(run=runs, noise=st.none() | st.integers(0, 99))
def test_text_is_that_of_plain_decoding(backend: str, run: dict[str, Any], noise: int | None) -> None:
    """Greedy, and by Gumbel noise, in threads: the ids and the end, for every drafter."""
    target, (one, other) = toys.tiny_model(run["config"], 0, backend), run["crews"]
    drafter = toys.drafter_for(target, run["temper"], backend)
    if other and type(drafter) is SmallModelDrafter and hasattr(drafter.model, "with_crew"):
        drafter = SmallModelDrafter(drafter.model.with_crew(other))
    sampling: Any = GREEDY if noise is None else Gumbel(ANY, noise)
    ids = [number % target.n_vocab for number in run["prompt"]]
    plain = list(generate(target, ids, max_new_tokens=run["n"], sampling=sampling))
    with toys.all_work_shared(target):
        steps = list(
            speculate_overlapped(
                with_crew(target, one), drafter, ids, max_new_tokens=run["n"], sampling=sampling, n_draft=run["n_draft"]
            )
        )
    assert toys.ids_of(steps) == toys.ids_of(plain)
    assert steps[-1].finish == plain[-1].finish
    if run["temper"] == "itself":
        assert all(step.n_accepted == len(step.drafted) for step in steps)


@given(short_cases(tiny=True), samplings, st.integers(0, 99))
def test_toys_write_the_text_of_plain_decoding(case: Case, sampling: Sampling, seed: int) -> None:
    target = toys.Table(case.target, case.n_vocab, case.n_ctx)
    options: Any = {"max_new_tokens": case.max_new_tokens, "sampling": AnyNoise(sampling, seed), "stop": case.stop}
    plain = list(generate(target, case.prompt, **options))
    drafter = case.make_drafter(toys.Table)
    steps = list(speculate_overlapped(target, drafter, case.prompt, n_draft=case.n_draft, **options))
    assert toys.ids_of(steps) == toys.ids_of(plain)
    assert steps[-1].finish == plain[-1].finish


class Noted(SmallModelDrafter):
    """Notes what it begins."""

    drafting: Any

    def start(self, cache: Any = None) -> Any:
        self.drafting = super().start(cache)
        return self.drafting


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@given(
    prompt=st.lists(st.integers(0, 70), min_size=1, max_size=12),
    draft_seed=st.integers(0, 3),
    n_draft=st.integers(0, 8),
    n=st.integers(1, 24),
    sampled=st.booleans(),
)
def test_both_caches_are_right_after_every_round(
    backend: str, prompt: list[int], draft_seed: int, n_draft: int, n: int, sampled: bool
) -> None:
    """The target has read the text but for its last token; the draft, what it was asked to go on from."""
    target, draft = (toys.Watched(toys.tiny_model(toys.ODD, seed, backend)) for seed in (0, draft_seed))
    drafter, text, sampling = Noted(draft), list(prompt), ANY if sampled else GREEDY
    for step in speculate_overlapped(target, drafter, prompt, max_new_tokens=n, sampling=sampling, n_draft=n_draft):
        asked = [*text, *step.drafted]
        text += step.committed
        assert toys.bits(target.model, target.caches[0]) == toys.fresh_bits(target.model, text[:-1])
        assert step.committed[: step.n_accepted] == step.drafted[: step.n_accepted]
        cached = drafter.drafting.cached
        assert toys.bits(draft.model, draft.caches[0]) == toys.fresh_bits(draft.model, cached)
        n_known = min(len(asked), len(cached))
        assert cached[:n_known] == asked[:n_known]
    if not sampled:
        assert tuple(text[len(prompt) :]) == toys.greedy_oracle(target.model, prompt, n)


# --- counts, ends ----------------------------------------------------------------------------------


def certain_steps(n: int, right: Callable[[int], bool], n_draft: int = 3, **options: Any) -> list[OverlappedStep]:
    """Steps of a target that counts 1, 2, 3 ... and a drafter that is right where a rule of the place says so."""
    n_vocab = 50
    target = toys.Table(lambda text: np.eye(n_vocab)[(text[-1] + 1) % n_vocab], n_vocab)

    def guess(ids: Sequence[int], n_guess: int) -> list[int]:
        return [(ids[-1] + 1 + i if right(len(ids) + i) else 0) % n_vocab for i in range(n_guess)]

    drafter = toys.Guesses(n_vocab, guess)
    return list(
        speculate_overlapped(target, drafter, [0], max_new_tokens=n, sampling=GREEDY, n_draft=n_draft, **options)
    )


def shown(steps: list[OverlappedStep]) -> list[tuple[int, int, tuple[int, ...], int]]:
    return [(step.n_waiting, step.n_accepted, step.committed, step.n_lost) for step in steps]


def test_rounds_worked_by_hand() -> None:
    """k = 3, and place 8 guessed wrong. All kept writes k a round: two that waited, one fresh, none as a bonus."""
    steps = certain_steps(12, lambda place: place != 8)
    assert shown(steps) == [
        (0, 1, (1,), 0),
        (2, 3, (2, 3, 4), 0),
        (2, 3, (5, 6, 7), 0),
        (2, 0, (8,), 2),  # place 8 waited: the fresh block after it is thrown away, the guess for it judged by nobody
        (0, 1, (9,), 0),
        (2, 3, (10, 11, 12), 0),
    ]
    assert steps[2].drafted == (5, 6, 7)
    assert steps[3].drafted == (0, 9, 10)
    assert [step.finish for step in steps] == [None] * 5 + ["length"]


def test_a_first_guess_that_is_refused() -> None:
    steps = certain_steps(3, lambda place: False)
    assert shown(steps) == [(0, 0, (1,), 2), (0, 0, (2,), 1), (0, 0, (3,), 0)]


def test_a_drafter_that_has_nothing_to_say_gets_a_bonus_token() -> None:
    """Where no fresh guess takes its place: with no guesses at all it is plain decoding."""
    assert shown(certain_steps(3, lambda place: True, n_draft=0)) == [(0, 0, (n,), 0) for n in (1, 2, 3)]
    calls = iter([2, 0, 2, 0, 0])
    target = toys.Table(lambda text: np.eye(9)[(text[-1] + 1) % 9], 9)
    drafter = toys.Guesses(9, lambda ids, n: [ids[-1] + 1 + i for i in range(min(n, next(calls)))])
    steps = list(speculate_overlapped(target, drafter, [0], max_new_tokens=7, sampling=GREEDY, n_draft=2))
    assert shown(steps) == [(0, 1, (1,), 0), (1, 1, (2, 3), 0), (0, 1, (4,), 0), (1, 1, (5, 6), 0), (0, 0, (7,), 0)]


@pytest.mark.parametrize("n_draft", [1, 2, 3, 5])
@pytest.mark.parametrize("end", range(1, 9))
def test_a_stop_ends_the_text_wherever_it_stands_in_a_block(end: int, n_draft: int) -> None:
    steps = certain_steps(20, lambda place: True, n_draft, stop=lambda new: new[-1] == end)
    assert toys.ids_of(steps) == tuple(range(1, end + 1))
    assert steps[-1].finish == "stop"


@pytest.mark.parametrize("n", range(10))
@pytest.mark.parametrize("n_draft", [1, 2, 4, 8])
def test_limits_end_the_text_where_plain_decoding_ends(n: int, n_draft: int) -> None:
    steps = certain_steps(n, lambda place: True, n_draft)
    assert toys.ids_of(steps) == tuple(range(1, n + 1))
    assert steps[-1].finish == "length"
    model = toys.tiny_model(TINY)
    prompt = list(range(TINY.n_ctx - n))
    steps = list(
        speculate_overlapped(model, SmallModelDrafter(model), prompt, max_new_tokens=50, sampling=GREEDY,
                             n_draft=n_draft)
    )  # fmt: skip
    assert len(toys.ids_of(steps)) == n
    assert steps[-1].finish == "context"


# --- seeds and threads -------------------------------------------------------------------------------


class Late:
    """A model whose passes take a random time more."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model, self.n_ctx, self.n_vocab, self.new_cache = model, model.n_ctx, model.n_vocab, model.new_cache
        self.random = random.Random(seed)

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        time.sleep(self.random.choice([0, 0, 1e-4, 4e-4]))
        return self.model.forward(ids, cache, n_logits)


def test_same_seed_same_text_however_threads_are_scheduled() -> None:
    """50 runs with delays on both sides, and one in a single thread: the same steps but for their seconds."""
    target, draft = toys.table(6, 1), toys.table(6, 2)

    def run(seed: int, delays: int | None) -> list[OverlappedStep]:
        late = [model if delays is None else Late(model, delays + i) for i, model in enumerate((target, draft))]
        executor = InTurn() if delays is None else None
        steps = speculate_overlapped(
            late[0], SmallModelDrafter(late[1]), [0], max_new_tokens=20, sampling=ANY, n_draft=3, seed=seed,
            executor=executor,
        )  # fmt: skip
        return [replace(step, draft_seconds=0.0, target_seconds=0.0) for step in steps]

    expected = run(3, None)
    assert all(run(3, delays) == expected for delays in range(0, 100, 2))
    assert run(4, 0) != expected


def test_the_dice_of_drafter_and_judge_give_the_law() -> None:
    """Seeded; chi-square over all texts of two tokens, false-alarm odds 1e-6. One stream for both shows here."""
    p, q, n = np.array([0.15, 0.35, 0.10, 0.40]), np.array([0.5, 0.2, 0.2, 0.1]), 8_000
    target, drafter = toys.Table(lambda _: p, 4), SmallModelDrafter(toys.Table(lambda _: q, 4))
    counts = np.zeros((4, 4))
    for seed in range(n):
        counts[
            toys.ids_of(
                speculate_overlapped(
                    target, drafter, [0], max_new_tokens=2, sampling=ANY, n_draft=2, seed=seed, executor=InTurn()
                )
            )
        ] += 1
    assert scipy.stats.chisquare(counts.ravel(), n * np.outer(p, p).ravel()).pvalue > 1e-6


def test_two_dice_are_two() -> None:
    rolls = [tuple(dice.rng.random(3)) for seed in (0, 1) for dice in two_dice(seed)]
    assert len(set(rolls)) == 4
    assert rolls[:2] == [tuple(dice.rng.random(3)) for dice in two_dice(0)]


class Meeting:
    """A model whose passes begin only when both sides are there, each in a thread of its own."""

    def __init__(self, model: Any, barrier: threading.Barrier) -> None:
        self.model, self.n_ctx, self.n_vocab, self.new_cache = model, model.n_ctx, model.n_vocab, model.new_cache
        self.barrier, self.n_passes = barrier, 0

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        self.n_passes += 1
        self.barrier.wait(timeout=10)
        return self.model.forward(ids, cache, n_logits)


def test_draft_and_check_are_under_way_at_the_same_time() -> None:
    """One guess a round, so every pass of the one meets a pass of the other."""
    barrier = threading.Barrier(2)
    target, draft = Meeting(toys.table(4, 1), barrier), Meeting(toys.table(4, 2), barrier)
    steps = speculate_overlapped(target, SmallModelDrafter(draft), [0], max_new_tokens=12, sampling=ANY, n_draft=1)
    assert len(toys.ids_of(steps)) == 12
    assert target.n_passes == draft.n_passes == 12


def test_a_pass_of_one_thread_waits_for_no_other() -> None:
    """While another pass is on, one with a crew of its own runs; without, it waits its turn."""
    model, alone = toys.tiny_model(TINY), toys.tiny_model(TINY).with_crew(1)
    expected = model.forward([1, 2, 3], model.new_cache())
    logits: dict[Any, Any] = {}

    def begin(one: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: logits.update({one: one.forward([1, 2, 3], one.new_cache())}))
        thread.start()
        return thread

    with _passes[model.ops.__name__]:
        waiting = begin(model)
        begin(alone).join(timeout=10)
        assert list(logits) == [alone]
    waiting.join(timeout=10)
    for one in (alone, model):
        assert_same_bits(logits[one], expected)


def test_python_runs_beside_a_pass() -> None:
    from minispec.kernels import whole_pass
    from minispec.kernels.compilation import JIT

    if not JIT:
        pytest.skip("nothing is compiled")
    compiled: Any = whole_pass.run
    assert compiled.targetoptions["nogil"]


def test_a_crew_shares_weights_and_has_caches_of_its_own() -> None:
    model = toys.tiny_model(TINY)
    other = model.with_crew(1)
    assert other.weights is model.weights
    assert (other.threads, model.n_crew) == (1, None)
    with pytest.raises(ValueError, match="belongs to another model"):
        other.forward([1], model.new_cache())
    with pytest.raises(ValueError, match="n_crew is 0"):
        model.with_crew(0)


# --- errors and ends of threads ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("minispec draft")] == []


class Failing(toys.Guesses):
    """Guesses one token three times, then raises."""

    def __init__(self) -> None:
        self.calls = 0
        super().__init__(4, lambda ids, n: [0] * n)

    def draft(self, *arguments: Any) -> Draft:
        self.calls += 1
        if self.calls > 3:
            raise RuntimeError("out of guesses")
        return super().draft(*arguments)


def test_an_error_of_the_drafter_is_raised_in_the_round_that_it_comes_in() -> None:
    target, drafter = Meeting(toys.table(4, 1), threading.Barrier(1)), Failing()
    steps = speculate_overlapped(target, drafter, [0], max_new_tokens=40, sampling=ANY, n_draft=1)
    with pytest.raises(RuntimeError, match="out of guesses"):
        list(steps)
    assert (target.n_passes, drafter.calls) == (4, 4)


class Endless(SmallModelDrafter):
    """Its drafts have no end but the loop's word: each guess is followed by another, if it may be."""

    begun: threading.Event

    def start(self, cache: Any = None) -> Any:
        inner, begun = super().start(cache), threading.Event()
        self.begun = begun

        def draft(ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, go_on: Any = None) -> Draft:
            begun.set()
            while go_on(lambda: 1.0):
                time.sleep(0)
            return Draft((), ())

        inner.draft = draft  # type: ignore[method-assign]
        return inner


class Dying:
    """A target whose pass fails once the draft is under way."""

    def __init__(self, model: Any, die: Callable[[], None]) -> None:
        self.model, self.n_ctx, self.n_vocab, self.new_cache = model, model.n_ctx, model.n_vocab, model.new_cache
        self.die = die

    def forward(self, *arguments: Any, **named: Any) -> Any:
        self.die()
        return self.model.forward(*arguments, **named)


def interrupt() -> None:
    _thread.interrupt_main()
    for _ in range(1000):
        time.sleep(0.01)  # the signal is handled here


def fail() -> None:
    raise RuntimeError("the target failed")


@pytest.mark.parametrize(("die", "error"), [(fail, RuntimeError), (interrupt, KeyboardInterrupt)])
def test_whatever_ends_a_text_ends_its_draft(die: Callable[[], None], error: type[BaseException]) -> None:
    drafter = Endless(toys.table(4, 2))

    def end() -> None:
        assert drafter.begun.wait(30)
        die()

    steps = speculate_overlapped(Dying(toys.table(4, 1), end), drafter, [0], max_new_tokens=9, sampling=ANY)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told us to ignore it
    try:
        with pytest.raises(error):
            next(steps)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("n_steps", [0, 1, 3])
def test_a_text_that_is_given_up_leaves_no_thread(n_steps: int) -> None:
    model = toys.table(4, 1)
    steps: Any = speculate_overlapped(model, SmallModelDrafter(model), [0], max_new_tokens=40, sampling=ANY)
    for _ in range(n_steps):
        next(steps)
    steps.close()


def test_what_cannot_be_is_refused_at_once() -> None:
    model, other = toys.table(4, 1), toys.table(5, 1)
    options: Any = {"max_new_tokens": 3, "sampling": ANY}
    with pytest.raises(ValueError, match="n_draft is -1"):
        speculate_overlapped(model, SmallModelDrafter(model), [0], n_draft=-1, **options)
    with pytest.raises(ValueError, match="share a vocabulary"):
        speculate_overlapped(model, SmallModelDrafter(other), [0], **options)
    with pytest.raises(ValueError, match="is no drafter"):
        speculate_overlapped(model, model, [0], **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed is -1"):
        speculate_overlapped(model, SmallModelDrafter(model), [0], seed=-1, **options)
    with pytest.raises(ValueError, match="where 3 were asked for"):
        list(speculate_overlapped(model, Chatty(), [0], n_draft=3, **options))
    with pytest.raises(ValueError, match="guesses trees"):
        list(speculate_overlapped(model, Branching(), [0], n_draft=3, **options))


class Branching(toys.Guesses):
    """Guesses two tokens for one place."""

    def __init__(self) -> None:
        super().__init__(4, lambda ids, n: [])

    def draft(self, *_: Any) -> Draft:
        return Draft([0, 1], [self.one_hot[0], self.one_hot[1]], [-1, -1])


class Chatty(toys.Guesses):
    """Guesses more than it is asked for."""

    def __init__(self) -> None:
        super().__init__(4, lambda ids, n: [])

    def draft(self, *_: Any) -> Draft:
        return Draft([0] * 9, [self.one_hot[0]] * 9)


def test_a_tree_is_refused() -> None:
    drafter = SmallModelTreeDrafter(toys.tiny_model(TINY, 1), (2, 2))
    with pytest.raises(ValueError, match="guesses trees, and a block that waits is a chain"):
        list(speculate_overlapped(toys.tiny_model(TINY), drafter, [1, 2], max_new_tokens=30, sampling=ANY))


def test_a_drafter_that_looks_at_the_targets_cache_is_refused() -> None:
    class Looking(toys.Guesses):
        def start(self, cache: Any = None) -> Any:
            self.cache = cache
            return self

        def draft(self, ids: Sequence[int], n_draft: int, *_: Any) -> Draft:
            return super().draft(ids, self.cache.length, *_)

    drafter = Looking(4, lambda ids, n: [0] * n)
    with pytest.raises(ValueError, match="being written to: draft sequentially"):
        list(speculate_overlapped(toys.table(4, 1), drafter, [0], max_new_tokens=3, sampling=ANY))


# --- the pair in the box -------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_pair_in_the_box(temperature: float) -> None:
    """Greedy and by noise: the text of plain decoding, in two threads of one thread each."""
    settings = Settings(schedule="overlapped", max_new_tokens=40, temperature=temperature, coupling="gumbel")
    pair = open_pair(settings)
    ids = pair.tokenizer.encode("Once upon a time")
    steps = list(decode(settings, pair, ids))
    assert toys.ids_of(steps) == toys.ids_of(decode(settings, pair, ids, plain=True))
    assert any(step.n_waiting for step in steps if isinstance(step, OverlappedStep))
    assert Fraction(sum(step.n_accepted for step in steps), len(toys.ids_of(steps))) > Fraction(1, 4)
