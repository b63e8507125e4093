"""The loop: where a text ends, what is counted, what is refused. (Its law and its caches: test_exactness.py.)"""

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
from toys import Contrary, Guesses, Table, greedy_oracle, ids_of, table, tiny_model

import minispec.speculative as module
from minispec.drafters import SmallModelDrafter
from minispec.enumeration import law
from minispec.plain import generate
from minispec.protocols import Draft, Step
from minispec.sampling import Sampling
from minispec.speculative import residual, speculate
from minispec.verify_stand_ins import ReadTexts

ANY = Sampling(1.0)
GREEDY = Sampling()


def close(one: dict[Any, float], other: dict[Any, float]) -> bool:
    return all(abs(one.get(key, 0) - other.get(key, 0)) < 1e-12 for key in one.keys() | other.keys())


# --- pieces ---------------------------------------------------------------------------------------


def test_residual_of_equal_distributions_is_the_target() -> None:
    probs = np.array([0.25, 0.75])
    assert np.array_equal(residual(probs, probs), probs)
    assert np.array_equal(residual(np.array([0.5, 0.5, 0]), np.array([0, 0, 1.0])), [0.5, 0.5, 0])


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
        "worst": SmallModelDrafter(Contrary(model)),
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
    assert [step.n_accepted for step in steps[:-1]] == [n_draft] * (len(steps) - 1)  # the target itself guessed
    assert steps[-1].n_accepted == min(len(steps[-1].committed), n_draft)
    if sampling == GREEDY:
        assert write(stop, max_new_tokens=end)[-1].finish == "stop"  # a stop beats a limit at the same token
        assert ids_of(generate(model, [7], max_new_tokens=12, sampling=GREEDY, stop=stop)) == ids_of(steps)


@pytest.mark.parametrize("n_draft", [0, 3])
def test_a_text_that_reaches_both_limits_at_once_ends_by_length(n_draft: int) -> None:
    model = table(3, 0, n_ctx=6)
    options: Any = {"max_new_tokens": 5, "sampling": ANY}
    steps = speculate(model, SmallModelDrafter(model), [0], n_draft=n_draft, **options)
    assert {list(steps)[-1].finish, list(generate(model, [0], **options))[-1].finish} == {"length"}
    options["max_new_tokens"] = 6
    assert list(generate(model, [0], **options))[-1].finish == "context"


def test_a_drafter_may_do_as_it_likes_with_the_ids_it_is_given() -> None:
    def guess(ids: Any, n: int) -> list[int]:
        ids.append(1)
        return [1] * n

    model = table(3, 0)
    options: Any = {"max_new_tokens": 6, "sampling": GREEDY}
    assert ids_of(speculate(model, Guesses(3, guess), [0], **options)) == ids_of(generate(model, [0], **options))


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
    plain = {ids_of(generate(model, [1], max_new_tokens=25, sampling=ANY, seed=seed)) for seed in (0, 1, 2, 3, 2, 1)}
    assert len(plain) == 4


class BrokenDraft(Table):
    """A model whose logits are not numbers at every third position."""

    def forward(self, ids: Sequence[int], cache: ReadTexts, n_logits: int | None = None) -> Any:
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
        def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *_: Any) -> Draft:
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
        def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *_: Any) -> Draft:
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


# --- the loop stands alone -----------------------------------------------------------------------------


def test_the_loop_is_three_files_that_need_numpy_and_the_standard_library_only(tmp_path: Path) -> None:
    alone = tmp_path / "minispec"
    alone.mkdir()
    (alone / "__init__.py").touch()
    names = set()
    for name in ("speculative", "protocols", "text"):
        source = Path(module.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        (alone / f"{name}.py").write_text(source, encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").partition(".")[0])
    assert names - set(sys.stdlib_module_names) == {"numpy", "minispec"}
    code = "import minispec.speculative as loop; loop.speculate; print(loop.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert Path(done.stdout.strip()) == alone / "speculative.py"
