"""The loop: its law by enumeration of the loop itself, its ends, its counts, its caches."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from toys import ODD, Guesses, ListCache, Table, table, tiny_model

import minispec.speculative as module
from minispec.drafters import SmallModelDrafter
from minispec.enumeration import Script, law
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.speculative import Dice, Draft, Step, residual, speculate

ANY = Sampling(1.0)
GREEDY = Sampling()


def ids_of(steps: Any) -> tuple[int, ...]:
    return tuple(token for step in steps for token in step.committed)


def close(one: dict[Any, float], other: dict[Any, float]) -> bool:
    return all(abs(one.get(key, 0) - other.get(key, 0)) < 1e-12 for key in one.keys() | other.keys())


# --- the law ---------------------------------------------------------------------------------------


class Whimsical(SmallModelDrafter):
    """Drafts on while the last guess was even: a length that depends on what was drawn, but discards nothing."""

    def start(self) -> Any:
        inner = super().start()
        draft = inner.draft

        def whim(ids: Sequence[int], n_draft: int, sampling: Any, choices: Any) -> Draft:
            tokens: list[int] = []
            probs: list[Any] = []
            while len(tokens) < n_draft and (not tokens or tokens[-1] % 2 == 0):
                one = draft([*ids, *tokens], 1, sampling, choices)
                if not one.tokens:
                    break  # its context window is full
                tokens += one.tokens
                probs += one.probs
            return Draft(tokens, probs)

        inner.draft = whim  # type: ignore[method-assign]
        return inner


@given(
    size=st.sampled_from([(2, 4), (3, 3), (4, 2), (5, 2)]),  # tokens in the vocabulary, tokens to write
    n_draft=st.integers(0, 4),
    zeros=st.sampled_from([0.0, 0.3, 0.8]),
    same=st.booleans(),
    whim=st.booleans(),
    n_ctx=st.sampled_from([3, 64]),
    stop_token=st.sampled_from([None, 0, 1]),
    sampling=st.sampled_from([ANY, Sampling(0.5), Sampling(1.0, top_k=2), Sampling(1.5, top_p=0.7), GREEDY]),
    seed=st.integers(0, 999),
)
def test_the_joint_law_is_the_targets(
    size: tuple[int, int], n_draft: int, zeros: float, same: bool, whim: bool, n_ctx: int,
    stop_token: int | None, sampling: Sampling, seed: int,
) -> None:  # fmt: skip
    n_vocab, max_new_tokens = size
    target = table(n_vocab, seed, zeros, n_ctx)
    draft = target if same else table(n_vocab, seed + 1, zeros, n_ctx)
    drafter = Whimsical(draft) if whim else SmallModelDrafter(draft)
    options: Any = {
        "max_new_tokens": max_new_tokens,
        "sampling": sampling,
        "stop": None if stop_token is None else lambda new: new[-1] == stop_token,
    }

    def plain(choices: Script) -> tuple[int, ...]:
        return ids_of(generate(target, [0, 1], choices=choices, **options))

    def speculative(choices: Script) -> tuple[int, ...]:
        return ids_of(speculate(target, drafter, [0, 1], n_draft=n_draft, choices=choices, **options))

    expected, got = law(plain), law(speculative)
    assert abs(sum(expected.values()) - 1) < 1e-12
    assert close(expected, got)


def test_plain_decoding_has_the_product_law() -> None:
    """The baseline itself: chances multiply along the text."""
    target = table(3, 5)
    got = law(lambda choices: ids_of(generate(target, [0], max_new_tokens=2, sampling=ANY, choices=choices)))
    for a in range(3):
        for b in range(3):
            assert abs(got[a, b] - target.rule((0,))[a] * target.rule((0, a))[b]) < 1e-12


@pytest.mark.parametrize("guess", [0, 1, 2])
def test_a_certain_guess_is_a_one_hot_distribution(guess: int) -> None:
    """A guess that was not drawn must not be judged by a soft distribution (0.75 for 0.6 is the usual sign)."""
    target = table(3, 8)
    drafter = Guesses(3, lambda ids, n: [guess] * n)
    plain = law(lambda c: ids_of(generate(target, [1], max_new_tokens=3, sampling=ANY, choices=c)))
    got = law(lambda c: ids_of(speculate(target, drafter, [1], max_new_tokens=3, sampling=ANY, n_draft=2, choices=c)))
    assert close(plain, got)


def test_the_chance_of_acceptance_is_the_overlap() -> None:
    """The textbook example on four tokens: sum(min(p, q)) = 0.55."""
    target_probs, draft_probs = np.array([0.15, 0.35, 0.10, 0.40]), np.array([0.5, 0.2, 0.2, 0.1])
    target, draft = Table(lambda _: target_probs, 4), Table(lambda _: draft_probs, 4)

    def first(choices: Script) -> tuple[int, ...]:
        step = next(iter(speculate(target, SmallModelDrafter(draft), [0], max_new_tokens=2, sampling=ANY, n_draft=1,
                                   choices=choices)))  # fmt: skip
        return step.n_accepted, step.committed[0]

    outcomes = law(first)
    assert abs(sum(chance for (n, _), chance in outcomes.items() if n) - 0.55) < 1e-12
    for token in range(4):
        assert abs(sum(c for (_, first), c in outcomes.items() if first == token) - target_probs[token]) < 1e-12


def test_residual_of_equal_distributions_is_the_target() -> None:
    probs = np.array([0.25, 0.75])
    assert np.array_equal(residual(probs, probs), probs)
    assert np.array_equal(residual(np.array([0.5, 0.5, 0]), np.array([0, 0, 1.0])), [0.5, 0.5, 0])


# --- greedy identity, with both caches looked at after every round ----------------------------------


def greedy_oracle(model: Any, ids: Sequence[int], n: int) -> list[int]:
    """No cache, no loop to share: argmax over a fresh pass for every token."""
    text = list(ids)
    for _ in range(min(n, model.n_ctx - len(ids))):
        text.append(int(np.argmax(model.forward(text, model.new_cache())[-1])))
    return text[len(ids) :]


class Watched:
    """A model that notes the caches it hands out and the largest number of positions ever asked for."""

    def __init__(self, model: Any) -> None:
        self.model, self.n_ctx, self.n_vocab = model, model.n_ctx, model.n_vocab
        self.caches: list[Any] = []

    def new_cache(self) -> Any:
        self.caches.append(self.model.new_cache())
        return self.caches[-1]

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        return self.model.forward(ids, cache, n_logits)


def same_rows(model: Any, cache: Any, ids: Sequence[int]) -> bool:
    """Whether the cache holds, bit for bit, what a fresh pass over these ids stores."""
    fresh = model.new_cache()
    model.forward(ids, fresh)
    probe = [1]
    cache_length = cache.length
    used = model.forward(probe, cache).tobytes() if cache.length < cache.n_ctx else b""
    cache.truncate(cache_length)
    return cache_length == len(ids) and (not used or used == model.forward(probe, fresh).tobytes())


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@given(
    prompt=st.lists(st.integers(0, 70), min_size=1, max_size=12),
    draft_seed=st.integers(0, 3),
    n_draft=st.integers(0, 8),
    n=st.integers(1, 24),
)
def test_greedy_text_is_identical_and_both_caches_are_right_after_every_round(
    backend: str, prompt: list[int], draft_seed: int, n_draft: int, n: int
) -> None:
    target, draft = Watched(tiny_model(ODD, 0, backend)), Watched(tiny_model(ODD, draft_seed, backend))
    text = list(prompt)
    for step in speculate(target, SmallModelDrafter(draft), prompt, max_new_tokens=n, sampling=GREEDY, n_draft=n_draft):
        if draft_seed == 0:
            assert step.n_accepted == len(step.drafted)  # the target itself guesses: everything is kept
        before = list(text)
        text += step.committed
        assert same_rows(target.model, target.caches[0], text[:-1])
        if step.drafted:
            assert same_rows(draft.model, draft.caches[0], [*before, *step.drafted[:-1]])
    assert text[len(prompt) :] == greedy_oracle(target.model, prompt, n)


def worst_guess(model: Any) -> Guesses:
    """Always guesses what the target likes least."""

    def guess(ids: Sequence[int], n: int) -> list[int]:
        text = list(ids)
        for _ in range(n):
            text.append(int(np.argmin(model.forward(text, model.new_cache())[-1])))
        return text[len(ids) :]

    return Guesses(model.n_vocab, guess)


@pytest.mark.parametrize("n_draft", [1, 3, 8])
def test_the_worst_drafter_changes_nothing_but_the_time(n_draft: int) -> None:
    model = tiny_model(TINY)
    steps = list(speculate(model, worst_guess(model), [3, 4], max_new_tokens=20, sampling=GREEDY, n_draft=n_draft))
    assert list(ids_of(steps)) == greedy_oracle(model, [3, 4], 20)
    assert sum(step.n_accepted for step in steps) == 0
    assert len(steps) == 20


def test_a_run_leaves_nothing_behind_for_the_next() -> None:
    model, drafter = tiny_model(TINY), SmallModelDrafter(tiny_model(TINY, 1))

    def write(ids: list[int]) -> tuple[int, ...]:
        return ids_of(speculate(model, drafter, ids, max_new_tokens=15, sampling=ANY, seed=7))

    first, other = write([1, 2, 3]), write([9] * 10)
    abandoned = iter(speculate(model, drafter, [5], max_new_tokens=9, sampling=ANY, seed=1))
    next(abandoned)
    one, two = (
        iter(speculate(model, drafter, ids, max_new_tokens=15, sampling=ANY, seed=7)) for ids in ([1, 2, 3], [9] * 10)
    )
    pairs = [(next(one, None), next(two, None)) for _ in range(15)]
    assert ids_of(step for step, _ in pairs if step) == first == write([1, 2, 3])
    assert ids_of(step for _, step in pairs if step) == other


# --- where a text ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("n_draft", [1, 2, 5, 8])
@pytest.mark.parametrize("draft_seed", [0, 1])
def test_length_limit_inside_a_block(n_draft: int, draft_seed: int) -> None:
    model, drafter = tiny_model(TINY), SmallModelDrafter(tiny_model(TINY, draft_seed))
    longest = tuple(greedy_oracle(model, [3, 1], 9))
    for n in range(10):
        steps = list(speculate(model, drafter, [3, 1], max_new_tokens=n, sampling=GREEDY, n_draft=n_draft))
        assert ids_of(steps) == longest[:n]
        assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["length"]


@pytest.mark.parametrize("n_prompt", range(26, 33))
@pytest.mark.parametrize("n_draft", [0, 1, 5])
@pytest.mark.parametrize("kind", ["self", "other", "worst", "narrow"])
def test_end_of_the_context_window(n_prompt: int, n_draft: int, kind: str) -> None:
    from dataclasses import replace

    model = tiny_model(TINY)
    drafters: dict[str, Any] = {
        "self": SmallModelDrafter(model),
        "other": SmallModelDrafter(tiny_model(TINY, 1)),
        "worst": worst_guess(model),
        "narrow": SmallModelDrafter(tiny_model(replace(TINY, n_ctx=28), 1)),
    }
    drafter = drafters[kind]
    prompt = [i % 97 for i in range(n_prompt)]
    plain = list(generate(model, prompt, max_new_tokens=50, sampling=GREEDY))
    steps = list(speculate(model, drafter, prompt, max_new_tokens=50, sampling=GREEDY, n_draft=n_draft))
    assert ids_of(steps) == ids_of(plain) == tuple(greedy_oracle(model, prompt, 50))
    assert len(ids_of(steps)) == 32 - n_prompt
    assert steps[-1].finish == plain[-1].finish == "context"


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("n_draft", [1, 4, 8])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8)], ids=["greedy", "sampled"])
def test_stop_anywhere_in_a_block(place: int, n_draft: int, sampling: Sampling) -> None:
    model = tiny_model(TINY)

    def write(stop: Any = None, **options: Any) -> list[Step]:
        return list(speculate(model, SmallModelDrafter(model), [7], sampling=sampling, n_draft=n_draft, stop=stop,
                              **{"max_new_tokens": 12} | options))  # fmt: skip

    whole = ids_of(write())
    stop = lambda new: new[-1] == whole[place]  # noqa: E731
    end = whole.index(whole[place]) + 1
    steps = write(stop)
    assert ids_of(steps) == whole[:end]
    assert steps[-1].finish == "stop"
    assert sum(step.n_accepted for step in steps) <= end
    if sampling == GREEDY:
        assert write(stop, max_new_tokens=end)[-1].finish == "stop"  # a stop beats a limit at the same token
        assert ids_of(generate(model, [7], max_new_tokens=12, sampling=GREEDY, stop=stop)) == ids_of(steps)


def test_a_draft_that_ends_the_text_does_not_if_the_target_goes_on() -> None:
    target = Table(lambda _: np.array([0.0, 1.0, 0.0]), 3)
    steps = list(speculate(target, Guesses(3, lambda ids, n: [1, 2, 2][:n]), [0], max_new_tokens=6, sampling=ANY,
                           stop=lambda new: new[-1] == 2))  # fmt: skip
    assert ids_of(steps) == (1,) * 6
    assert steps[-1].finish == "length"


def test_counts_of_a_run_worked_by_hand() -> None:
    """The target writes 1 1 1 ...; guesses are right 4, 2 and 0 times, then the limit clips the last block."""
    target = Table(lambda _: np.array([0.0, 1.0]), 2)
    right = iter([4, 2, 0, 4])
    drafter = Guesses(2, lambda ids, n: ([1] * next(right) + [0] * 4)[:n])
    steps = list(speculate(target, drafter, [0], max_new_tokens=11, sampling=ANY, n_draft=4))
    assert [(len(step.drafted), step.n_accepted, len(step.committed)) for step in steps] == [
        (4, 4, 5), (4, 2, 3), (2, 0, 1), (1, 1, 2)
    ]  # fmt: skip


# --- dice, errors, broken parts ------------------------------------------------------------------------


def test_the_same_seed_writes_the_same_text_whatever_else_throws_dice() -> None:
    model, drafter = tiny_model(TINY), SmallModelDrafter(tiny_model(TINY, 1))

    def write(seed: int) -> tuple[int, ...]:
        return ids_of(speculate(model, drafter, [1], max_new_tokens=25, sampling=ANY, seed=seed))

    first = write(0)
    np.random.seed(3)  # noqa: NPY002
    assert write(0) == first
    assert len({write(seed) for seed in range(6)}) == 6


class BrokenDraft(Table):
    """A model whose logits are not numbers at every third position."""

    def forward(self, ids: Sequence[int], cache: ListCache, n_logits: int | None = None) -> Any:
        logits = super().forward(ids, cache, n_logits)
        positions = len(cache.ids) - np.arange(len(logits))[::-1, None]
        return np.where(positions % 3 == 0, np.nan, logits)


def test_a_drafter_with_nan_costs_speed_and_not_the_text() -> None:
    target, broken = table(3, 1), BrokenDraft(table(3, 2).rule, 3)
    plain = law(lambda c: ids_of(generate(target, [0], max_new_tokens=3, sampling=ANY, choices=c)))
    got = law(lambda c: ids_of(speculate(target, SmallModelDrafter(broken), [0], max_new_tokens=3, sampling=ANY,
                                         n_draft=3, choices=c)))  # fmt: skip
    assert close(plain, got)


def test_a_target_with_nan_is_refused() -> None:
    broken = BrokenDraft(table(3, 2).rule, 3)
    for steps in (
        generate(broken, [0], max_new_tokens=5, sampling=GREEDY),
        speculate(broken, SmallModelDrafter(table(3, 1)), [0], max_new_tokens=5, sampling=GREEDY),
    ):
        with pytest.raises(ValueError, match="weights are broken"):
            list(steps)


def test_a_draft_without_a_distribution_for_each_token_is_refused() -> None:
    class Short(Guesses):
        def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any) -> Draft:
            whole = super().draft(ids, n_draft, sampling, choices)
            return Draft(whole.tokens, whole.probs[:-1])

    drafter = Short(3, lambda ids, n: [0, 1][:n])
    with pytest.raises(ValueError, match="2 tokens and 1 distributions"):
        list(speculate(table(3, 0), drafter, [0], max_new_tokens=5, sampling=ANY))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft([0] * 5, [np.eye(3)[0]] * 5), "guessed 5 tokens where 4"),
        (Draft([3], [np.eye(3)[0]]), "token id 3 is outside"),
        (Draft([0], [np.ones(1)]), r"shape \(1,\): it must be \(3,\)"),
    ],
)
def test_a_drafter_that_breaks_its_promise_is_refused(draft: Draft, message: str) -> None:
    class Faulty(Guesses):
        def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any) -> Draft:
            ids.clear()  # type: ignore[attr-defined]  # not its own, but no harm is done
            return draft

    with pytest.raises(ValueError, match=message):
        list(speculate(table(3, 0), Faulty(3, lambda ids, n: []), [0], max_new_tokens=9, sampling=ANY))


def test_counts_of_any_width() -> None:
    model = table(3, 0)
    steps = generate(model, [0] * 30, max_new_tokens=np.int8(100), sampling=ANY)  # type: ignore[arg-type]
    assert len(ids_of(steps)) == 34
    assert Sampling(1.0, np.uint8(2)).probs(np.arange(300.0)).nonzero()[0].tolist() == [298, 299]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ids": "Once"}, "the prompt is the text 'Once': give token ids"),
        ({"drafter": table(3, 0)}, "is no drafter: wrap a model"),
        ({"ids": [1.9]}, "token id 1.9 is outside the vocabulary"),
        ({"ids": ["1"]}, "token id '1' is outside"),
        ({"ids": [3]}, "token id 3 is outside the vocabulary: ids are integers from 0 to 2"),
        ({"ids": [-1]}, "token id -1 is outside"),
        ({"ids": []}, "the prompt has no tokens"),
        ({"ids": [0] * 65}, "65 tokens and the context window holds 64"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5"),
        ({"n_draft": -1}, "n_draft is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"drafter": SmallModelDrafter(table(4, 0))}, "the draft has 4 tokens and the target 3"),
    ],
)
def test_nonsense_is_refused_at_once(wrong: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"drafter": SmallModelDrafter(table(3, 0)), "ids": [0], "max_new_tokens": 4, "n_draft": 2}
    call |= {"seed": 0} | wrong
    drafter, ids = call.pop("drafter"), call.pop("ids")
    with pytest.raises(ValueError, match=message):
        speculate(table(3, 0), drafter, ids, sampling=ANY, **call)


class Counter:
    """A generator that counts the numbers it gives."""

    def __init__(self, rng: Any) -> None:
        self.rng, self.count = rng, 0

    def random(self) -> float:
        self.count += 1
        return float(self.rng.random())


def test_the_dice_of_the_real_loop_give_the_law() -> None:
    """Seeded; false-alarm odds 1e-6. A uniform used for both the coin and the draw shows here."""
    target_probs, draft_probs, n = np.array([0.15, 0.35, 0.10, 0.40]), np.array([0.5, 0.2, 0.2, 0.1]), 20_000
    target, drafter = Table(lambda _: target_probs, 4), SmallModelDrafter(Table(lambda _: draft_probs, 4))
    dice = Dice(3)
    counts = np.zeros((4, 4))
    for _ in range(n):
        steps = speculate(target, drafter, [0], max_new_tokens=2, sampling=ANY, n_draft=1, choices=dice)
        counts[ids_of(steps)] += 1
    assert stats.chisquare(counts.ravel(), n * np.outer(target_probs, target_probs).ravel()).pvalue > 1e-6


def test_a_round_throws_no_dice_that_it_does_not_need() -> None:
    """One draw a guess, one coin a guess that was judged, one draw at the end: none is used twice."""
    thrown: list[str] = []

    class Counting(Dice):
        def accept(self, target_prob: Any, draft_prob: Any) -> bool:
            thrown.append("coin")
            return super().accept(target_prob, draft_prob)

        def draw(self, probs: Any) -> int:
            thrown.append("draw")
            return super().draw(probs)

    model = table(3, 4)
    dice = Dice(0)
    dice.rng = Counter(dice.rng)  # type: ignore[assignment]
    dice.accept(0.3, 0.8), dice.draw(np.array([0.5, 0.5]))
    assert dice.rng.count == 2  # type: ignore[attr-defined]
    step = next(iter(speculate(model, SmallModelDrafter(model), [0], max_new_tokens=9, sampling=ANY, n_draft=3,
                               choices=Counting(0))))  # fmt: skip
    assert step.n_accepted == 3
    assert thrown == ["draw"] * 3 + ["coin"] * 3 + ["draw"]


# --- the file stands alone -----------------------------------------------------------------------------


def test_the_loop_imports_numpy_and_the_standard_library_only(tmp_path: Path) -> None:
    source = Path(module.__file__).read_text(encoding="utf-8")
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    assert names - set(sys.stdlib_module_names) == {"numpy"}
    (tmp_path / "alone.py").write_text(source, encoding="utf-8")
    subprocess.run([sys.executable, "-c", "import alone; alone.speculate"], cwd=tmp_path, check=True)
