"""What minispec promises, tested on the real loop. Change a text, its law or a bit, and this file goes red.

The law       sampled text has exactly the target's law: every outcome is walked, none is estimated
Consequences  how often guesses are kept, how many tokens a pass writes: to the last fraction
Draws         the dice of use have the odds that the walks suppose
Same seed     with Gumbel noise, sampled text is the text of plain decoding, token for token
Greedy        is plain decoding, for every drafter, draft length, backend and number of threads
Bits          a row's logits and its row of the cache do not depend on the passes that made them

The models and drafters are in toys.py, random cases of them in strategies.py. test_mutants.py breaks the code on
purpose and watches this file go red.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy  # its parts come when they are asked for: stats takes a second
import toys
from bits import assert_same_bits
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, cases, histories, mixed, row_pairs, samplings

from minispec.draft_length import AutoLength
from minispec.drafters import SmallModelDrafter
from minispec.enumeration import Script, law
from minispec.gumbel import KEPT, Gumbel
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.protocols import Step
from minispec.sampling import Sampling
from minispec.speculative import Dice, speculate
from minispec.verify_cases import threads
from minispec.verify_known import GOLDEN, logits_hash
from minispec.verify_stand_ins import AsTheyAre

BACKENDS = ["numba", "numpy"]
ANY, GREEDY = Sampling(1.0), Sampling()


# --- the law ---------------------------------------------------------------------------------------


def test_the_textbook_example() -> None:
    """One guess on four tokens, walked by hand and by `law`: kept with chance sum(min(p, q)) = 0.55, written with p."""
    p, q = ([Fraction(n, 100) for n in row] for row in ([15, 35, 10, 40], [50, 20, 20, 10]))
    target, draft = (toys.Exact(mixed([tuple(row)], 0), 4) for row in (p, q))

    def first(choices: Script) -> tuple[int, int]:
        """Run the real loop with these choices: guesses kept in the first round, and the first token written."""
        options: Any = {"max_new_tokens": 2, "n_draft": 1, "sampling": AsTheyAre(), "choices": choices}
        step = next(speculate(target, SmallModelDrafter(draft), [0], **options))
        return step.n_accepted, step.committed[0]

    # A guess of token 0 comes with chance 0.50 and is kept with chance 0.15 / 0.50. A refused one, which all in all has
    # chance 0.45, gives way to a token of which p has more than q: 1 by 0.15, or 3 by 0.30.
    kept = {(1, 0): 15, (1, 1): 20, (1, 2): 10, (1, 3): 10}
    replaced = {(0, 1): 15, (0, 3): 30}
    assert law(first) == {outcome: Fraction(n, 100) for outcome, n in (kept | replaced).items()}


Outcome = tuple[tuple[int, ...], str | None]  # the new tokens, and why the text ended


def targets_law(case: Case, probs: Callable[[tuple[int, ...]], Any]) -> dict[Outcome, Any]:
    """The law of the target's text by its definition: chances multiply along the text, up to its end."""
    chances: dict[Outcome, Any] = {}

    def write(new: tuple[int, ...], chance: Any) -> None:
        text = case.prompt + new
        ends = {
            "stop": bool(new) and case.stop is not None and case.stop(new),
            "length": len(new) == case.max_new_tokens,
            "context": len(text) == case.n_ctx,
        }
        if any(ends.values()):
            chances[new, next(why for why, yes in ends.items() if yes)] = chance
            return
        for token, more in enumerate(probs(text)):
            if more > 0:
                write((*new, token), chance * more)

    write((), 1)
    return chances


def laws(case: Case, kind: type[toys.Table], sampling: Any) -> list[dict[Outcome, Any]]:
    """The laws of plain and of speculative decoding, by walking every outcome of the real loops."""
    target, drafter = kind(case.target, case.n_vocab, case.n_ctx), case.make_drafter(kind)
    options: Any = {"max_new_tokens": case.max_new_tokens, "sampling": sampling, "stop": case.stop}

    def outcome(steps: Iterator[Step]) -> Outcome:
        told = list(steps)
        return toys.ids_of(told), told[-1].finish

    def speculative(choices: Script) -> Outcome:
        return outcome(speculate(target, drafter, case.prompt, n_draft=case.n_draft, choices=choices, **options))

    return [
        law(lambda choices: outcome(generate(target, case.prompt, choices=choices, **options))),
        law(speculative),
    ]


def differences(got: dict[Outcome, Any], expected: dict[Outcome, Any], tolerance: float = 1e-12) -> dict[Outcome, Any]:
    """Outcomes whose chances differ by more, with both."""
    pairs = {outcome: (got.get(outcome, 0), expected.get(outcome, 0)) for outcome in got.keys() | expected.keys()}
    return {outcome: pair for outcome, pair in pairs.items() if not abs(pair[0] - pair[1]) < tolerance}


@given(cases())
def test_the_law_is_the_targets_to_the_last_fraction(case: Case) -> None:
    expected = targets_law(case, case.target)
    assert sum(expected.values()) == 1
    for got in laws(case, toys.Exact, AsTheyAre()):
        assert got == expected


@given(cases(tiny=True), samplings)
def test_the_law_is_the_targets_with_temperature_top_k_and_top_p(case: Case, sampling: Sampling) -> None:
    model = toys.Table(case.target, case.n_vocab)
    expected = targets_law(case, lambda text: sampling.probs(model.logits(text)))
    assert abs(sum(expected.values()) - 1) < 1e-12
    for got in laws(case, toys.Table, sampling):
        assert not differences(got, expected)


@pytest.mark.parametrize("length", [toys.Wary(3), AutoLength(toys.CHEAP, 3)], ids=["wary", "auto"])
@pytest.mark.parametrize("seed", range(3))
def test_the_law_where_certainty_ends_a_draft(seed: int, length: Any) -> None:
    """Whether to guess on depends on the guess that was drawn, and that one stays."""
    one, other = toys.table(3, seed), toys.table(3, seed + 10)
    case = Case(one.rule, other.rule, 3, (seed,), 4, length, 64, "model", None)
    expected = targets_law(case, lambda text: ANY.probs(one.logits(text)))
    for got in laws(case, toys.Table, ANY):
        assert not differences(got, expected)


FILTERS = [Sampling(0.6), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.6), Sampling(1.5, top_k=3, top_p=0.8), GREEDY]


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_law_with_filters_where_all_is_possible(seed: int, sampling: Sampling) -> None:
    one, other = toys.table(4, seed), toys.table(4, seed + 10)
    case = Case(one.rule, other.rule, 4, (seed % 4,), 3, 2, 64, "model", None)
    expected = targets_law(case, lambda text: sampling.probs(one.logits(text)))
    for got in laws(case, toys.Table, sampling):
        assert not differences(got, expected)


@pytest.mark.parametrize("drafter", ["model", "moody"])
@pytest.mark.parametrize("stop", [None, 1])
@pytest.mark.parametrize(("n_vocab", "n", "n_draft"), [(3, 4, 4), (4, 4, 1), (5, 3, 4), (2, 5, 4)])
def test_the_law_where_all_is_possible(n_vocab: int, n: int, n_draft: int, stop: int | None, drafter: str) -> None:
    """The largest walks: no zero thins them out."""
    one, other = toys.table(n_vocab, 1), toys.table(n_vocab, 2)
    ends = None if stop is None else (lambda new: new[-1] == stop)
    case = Case(one.rule, other.rule, n_vocab, (0,), n, n_draft, 64, drafter, ends)
    expected = targets_law(case, one.rule)
    for got in laws(case, toys.Exact, AsTheyAre()):
        assert not differences(got, expected)


# --- consequences ------------------------------------------------------------------------------------


def overlap(target_probs: Any, draft_probs: Any) -> Any:
    return sum(min(p, q) for p, q in zip(target_probs, draft_probs, strict=True))


models = st.integers(2, 4).flatmap(lambda n: st.lists(row_pairs(n, 3), min_size=1, max_size=3))


def steps_of(target: toys.Table, draft: toys.Table, n: int, n_draft: int) -> Callable[[Script], Iterator[Step]]:
    options: Any = {"max_new_tokens": n, "n_draft": n_draft, "sampling": AsTheyAre()}
    return lambda choices: speculate(target, SmallModelDrafter(draft), [0], choices=choices, **options)


@given(models, st.integers(1, 4), st.integers(0, 99))
def test_a_guess_is_kept_with_the_chance_of_the_overlap(pairs: Any, n_draft: int, salt: int) -> None:
    """At every place of the block: sum(min(p, q)) there, over the guesses that were kept before."""
    n_vocab = len(pairs[0][0])
    target, draft = (toys.Exact(mixed(side, salt), n_vocab) for side in zip(*pairs, strict=True))
    run = steps_of(target, draft, n_draft + 1, n_draft)
    kept = law(lambda choices: next(run(choices)).n_accepted)
    reached: dict[tuple[int, ...], Any] = {(0,): Fraction(1)}  # texts, with the chance that their guesses were kept
    for place in range(1, n_draft + 1):
        expected = sum(chance * overlap(target.rule(text), draft.rule(text)) for text, chance in reached.items())
        assert sum(chance for n, chance in kept.items() if n >= place) == expected
        reached = {
            (*text, token): chance * min(target.rule(text)[token], draft.rule(text)[token])
            for text, chance in reached.items()
            for token in range(n_vocab)
        }


@given(row_pairs(3, 3), st.integers(0, 4))
def test_tokens_a_pass_are_those_of_the_formula(pair: Any, n_draft: int) -> None:
    """(1 - a^(k + 1)) / (1 - a) for an accept rate a that is the same everywhere."""
    target, draft = (toys.Exact(mixed([row], 0), 3) for row in pair)
    a, k = overlap(*pair), n_draft
    run = steps_of(target, draft, n_draft + 1, n_draft)
    lengths = law(lambda choices: len(next(run(choices)).committed))
    assert sum(chance * n for n, chance in lengths.items()) == (k + 1 if a == 1 else (1 - a ** (k + 1)) / (1 - a))


@given(row_pairs(2, 2), st.integers(0, 3), st.integers(1, 5))
def test_passes_are_those_that_the_accept_rate_foretells(pair: Any, n_draft: int, n: int) -> None:
    """A block of k guesses writes j + 1 tokens with chance a^j (1 - a), or a^k where j = k."""
    target, draft = (toys.Exact(mixed([row], 0), 2) for row in pair)
    a = overlap(*pair)

    @cache
    def expected(left: int) -> Any:
        k = min(n_draft, left - 1)
        chances = [a**j * (1 - a) for j in range(k)] + [a**k]
        return 1 + sum(chance * expected(left - j - 1) for j, chance in enumerate(chances) if j + 1 < left)

    run = steps_of(target, draft, n, n_draft)
    passes = law(lambda choices: sum(1 for _ in run(choices)))
    assert sum(chance * n for n, chance in passes.items()) == expected(n)


# --- draws -----------------------------------------------------------------------------------------

# The walks above put `Script` in the place of dice. These show that the dice of use have the same odds.


class Fixed:
    """A generator that always says the same number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def dice(value: float) -> Dice:
    fixed = Dice(0)
    fixed.rng = Fixed(value)  # type: ignore[assignment]
    return fixed


@pytest.mark.parametrize("uniform", [0.0, 2.0**-1074, 0.5, 1 - 2.0**-24, 1 - 2.0**-53])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_token_without_probability_is_never_drawn(uniform: float, kind: Any) -> None:
    probs = np.zeros(50_257, kind)
    probs[3], probs[40_000] = 0.3, 0.7
    assert dice(uniform).draw(probs) in (3, 40_000)
    assert dice(0.0).draw(probs) == 3
    assert dice(1 - 2.0**-53).draw(probs) == 40_000
    for total in (0.1, 0.7, 3.0):  # rounding up u * total must not fall off the end
        assert dice(1 - 2.0**-53).draw(np.array([total / 3] * 3 + [0.0], kind)) == 2


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
def test_acceptance_at_its_edges(uniform: float) -> None:
    coin = dice(uniform)
    assert not coin.accept(0.0, 0.0)
    assert not coin.accept(0.0, 0.1)
    assert coin.accept(0.1, 0.0)
    assert coin.accept(0.3, 0.3)
    assert coin.accept(5e-324, 5e-324)
    assert not coin.accept(0.0, -1.0)
    assert coin.accept(0.2, 0.4) == (uniform < 0.5)


def test_dice_have_53_bits() -> None:
    uniform = 0.3
    for step in (np.nextafter(uniform, 1), uniform):  # the smallest probability above it, and itself
        assert dice(uniform).accept(step, 1.0) == (step > uniform)
        assert dice(uniform).draw(np.array([step, 1 - step])) == (0 if step > uniform else 1)
    assert len({Dice(seed).rng.random() for seed in (0, 1, 2**32, 2**64)}) == 4


def test_draws_follow_their_law() -> None:
    """False-alarm odds 1e-6 for each of the two checks; seeded."""
    probs, coin, n = np.array([0.1, 0.0, 0.25, 0.05, 0.6]), Dice(1), 100_000
    counts = np.bincount([coin.draw(probs) for _ in range(n)], minlength=5)
    assert counts[1] == 0
    assert scipy.stats.chisquare(counts[[0, 2, 3, 4]], n * probs[[0, 2, 3, 4]]).pvalue > 1e-6
    accepted = sum(coin.accept(0.3, 0.8) for _ in range(n))
    assert scipy.stats.binomtest(accepted, n, 0.3 / 0.8).pvalue > 1e-6


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_draws_from_a_large_vocabulary_follow_their_law(kind: Any) -> None:
    """50,257 tokens of which seven are possible. Chi-square, false-alarm odds 1e-6 each; seeded."""
    possible, coin, n = [0, 1, 777, 25_000, 25_001, 50_000, 50_256], Dice(2), 10_000
    probs = np.zeros(50_257, kind)
    probs[possible] = [0.3, 0.02, 0.1, 0.08, 0.2, 0.1, 0.2]
    counts = np.bincount([coin.draw(probs) for _ in range(n)], minlength=len(probs))
    assert counts.sum() == counts[possible].sum()
    expected = n * probs[possible].astype(float) / probs.sum(dtype=float)
    assert scipy.stats.chisquare(counts[possible], expected).pvalue > 1e-6


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
    target, drafter = toys.Table(lambda _: target_probs, 4), SmallModelDrafter(toys.Table(lambda _: draft_probs, 4))
    dice = Dice(3)
    counts = np.zeros((4, 4))
    for _ in range(n):
        steps = speculate(target, drafter, [0], max_new_tokens=2, sampling=ANY, n_draft=1, choices=dice)
        counts[toys.ids_of(steps)] += 1
    assert scipy.stats.chisquare(counts.ravel(), n * np.outer(target_probs, target_probs).ravel()).pvalue > 1e-6


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

    model = toys.table(3, 4)
    dice = Dice(0)
    dice.rng = Counter(dice.rng)  # type: ignore[assignment]
    dice.accept(0.3, 0.8), dice.draw(np.array([0.5, 0.5]))
    assert dice.rng.count == 2  # type: ignore[attr-defined]
    step = next(iter(speculate(model, SmallModelDrafter(model), [0], max_new_tokens=9, sampling=ANY, n_draft=3,
                               choices=Counting(0))))  # fmt: skip
    assert step.n_accepted == 3
    assert thrown == ["draw"] * 3 + ["coin"] * 3 + ["draw"]


# --- same seed, same text ------------------------------------------------------------------------------


class AnyNoise(Gumbel):
    """Noise from nowhere near Gumbel's law, with ties and extremes: plain and speculative must agree even so."""

    def noise(self, position: int, n_vocab: int) -> Any:
        return np.array(
            [[2.3e-308, 0.5, 1, 1, 2, 1e300][toys.whim(self.seed, position, i) % 6] for i in range(n_vocab)]
        )


@given(cases(tiny=True), samplings, st.integers(0, 99), st.sampled_from([Gumbel, AnyNoise]))
def test_toys_write_the_text_of_plain_decoding(case: Case, sampling: Sampling, seed: int, noise: type[Gumbel]) -> None:
    target = toys.Table(case.target, case.n_vocab, case.n_ctx)
    options: Any = {"max_new_tokens": case.max_new_tokens, "sampling": noise(sampling, seed), "stop": case.stop}
    plain = list(generate(target, case.prompt, **options))
    steps = list(speculate(target, case.make_drafter(toys.Table), case.prompt, n_draft=case.n_draft, **options))
    assert toys.ids_of(steps) == toys.ids_of(plain)
    assert steps[-1].finish == plain[-1].finish


numbers = st.integers(0, 10**6)


def runs(*models: str) -> Any:
    """A model, a prompt, a drafter, a draft length and the threads of each side."""
    return st.fixed_dictionaries(
        {
            "model": st.sampled_from(models),
            "prompt": st.lists(numbers, min_size=1, max_size=8),
            "temper": st.sampled_from(toys.TEMPERS),
            "n_draft": st.integers(1, 8),
            "threads": st.permutations([1, 2]),
        }
    )


def both_ways(backend: str, run: dict[str, Any], sampling: Any) -> None:
    """Plain on one number of threads, speculative on another: the same ids; its own guesses are all kept."""
    if run["model"] == "stories":
        target, n = toys.story_model("story-target", backend), 16 if backend == "numba" else 5
    else:
        target, n = toys.tiny_model(TINY if run["model"] == "tiny" else toys.ODD, 0, backend), 40
    ids = [number % target.n_vocab for number in run["prompt"]]
    drafter = toys.drafter_for(target, run["temper"], backend)
    options: Any = {"max_new_tokens": n, "sampling": sampling}
    one, other = run["threads"]
    with toys.all_work_shared(target):
        with threads(target, one):
            plain = list(generate(target, ids, **options))
        with threads(target, other):
            steps = list(speculate(target, drafter, ids, n_draft=run["n_draft"], **options))
    assert toys.ids_of(steps) == toys.ids_of(plain)
    assert steps[-1].finish == plain[-1].finish
    if run["temper"] == "itself":
        assert all(step.n_accepted == len(step.drafted) for step in steps)


@given(run=runs("tiny", "odd", "stories"), sampling=samplings, seed=st.integers(0, 99))
def test_sampled_text_of_a_seed_is_identical(run: dict[str, Any], sampling: Sampling, seed: int) -> None:
    both_ways("numba", run, Gumbel(sampling, seed))


@given(run=runs("tiny", "odd"), sampling=samplings, seed=st.integers(0, 99))
def test_sampled_text_of_a_seed_is_identical_in_plain_numpy(run: dict[str, Any], sampling: Sampling, seed: int) -> None:
    both_ways("numpy", run, Gumbel(sampling, seed))


@given(samplings, st.lists(st.integers(-6, 6), min_size=1, max_size=9), st.integers(0, 99), st.integers(0, 2**40))
def test_a_pick_is_the_argmax_of_log_probability_and_gumbel_noise(
    sampling: Sampling, logits: list[int], seed: int, first: int
) -> None:
    """Of the distribution after temperature, top-k and top-p."""
    gumbel, row = Gumbel(sampling, seed), np.array(logits, np.float32) / 3
    for position in range(first, first + 20):
        with np.errstate(divide="ignore"):
            scores = np.log(sampling.probs(row)) - np.log(gumbel.noise(position, len(row)))
        assert np.array_equal(gumbel.probs(row, position), np.eye(len(row))[np.argmax(scores)])


@pytest.mark.parametrize("of", ["seeds", "places"])
def test_picks_by_noise_follow_their_law(of: str) -> None:
    """Over seeds at one place, and over places for one seed. Chi-square, false-alarm odds 1e-6 each."""
    probs, n, one = np.array([0.1, 0.0, 0.25, 0.05, 0.6]), 40_000, Gumbel(ANY, 3)
    picks = [Gumbel(ANY, i).pick(probs, 7) if of == "seeds" else one.pick(probs, i) for i in range(n)]
    counts = np.bincount(picks, minlength=5)
    assert counts[1] == 0
    alive = [0, 2, 3, 4]
    assert scipy.stats.chisquare(counts[alive], n * probs[alive]).pvalue > 1e-6


def test_the_law_of_text_by_noise_is_the_targets() -> None:
    """Two tokens and a draft of one, over seeds, with places that depend on each other if noise is used twice.

    Chi-square over all texts, false-alarm odds 1e-6; and guesses are kept with the chance that gumbel.py states.
    """
    target, draft, n = toys.table(3, 5), toys.table(3, 6), 20_000
    counts, kept = np.zeros((3, 3)), 0
    for seed in range(n):
        options: Any = {"max_new_tokens": 2, "n_draft": 1, "sampling": Gumbel(ANY, seed)}
        steps = list(speculate(target, SmallModelDrafter(draft), [0], **options))
        counts[toys.ids_of(steps)] += 1
        kept += steps[0].n_accepted
    p, q = target.rule((0,)), draft.rule((0,))
    expected = np.array([p[a] * target.rule((0, a)) for a in range(3)])
    assert scipy.stats.chisquare(counts.ravel(), n * expected.ravel()).pvalue > 1e-6
    chance = sum(1 / sum(max(p[y] / p[x], q[y] / q[x]) for y in range(3)) for x in range(3))
    assert scipy.stats.binomtest(kept, n, chance).pvalue > 1e-6
    assert (1 - (1 - overlap(p, q))) / (1 + (1 - overlap(p, q))) < chance < overlap(p, q)


def test_noise_belongs_to_a_seed_and_a_place_alone() -> None:
    forth, back = Gumbel(ANY, 3), Gumbel(ANY, 3)
    there = {i: forth.noise(i, 9).tobytes() for i in range(200)}  # more than are remembered
    assert there == {i: back.noise(i, 9).tobytes() for i in reversed(range(200))}
    assert there == {i: forth.noise(i, 9).tobytes() for i in range(200)}
    others = {Gumbel(ANY, seed).noise(i, 9).tobytes() for seed in (0, 4, 2**32, 2**32 + 3, 2**200) for i in range(200)}
    assert len(others | set(there.values())) == 1200
    assert (forth.noise(0, 9).astype(np.float32) != forth.noise(0, 9)).any()  # it has all bits of float64
    assert [len(forth.noise(0, n)) for n in (9, 5, 9)] == [9, 5, 9]  # two vocabularies with one object
    new = Gumbel(ANY, 3)
    for n in (KEPT, KEPT + 1):
        for i in range(n):
            new.noise(i, 9)
        assert set(new._noise) == {(i, 9) for i in range(n - KEPT, n)}  # so many are remembered, and no more
    with pytest.raises(ValueError, match="seed is -1"):
        Gumbel(ANY, -1)
    with pytest.raises(ValueError, match=r"0\.7 is no sampling"):
        Gumbel(0.7)  # type: ignore[arg-type]


# --- greedy identity ---------------------------------------------------------------------------------


@given(run=runs("tiny", "odd", "stories"))
def test_greedy_text_is_identical(run: dict[str, Any]) -> None:
    both_ways("numba", run, GREEDY)


@given(run=runs("tiny", "odd"))
def test_greedy_text_is_identical_in_plain_numpy(run: dict[str, Any]) -> None:
    both_ways("numpy", run, GREEDY)


@pytest.mark.parametrize("temper", toys.TEMPERS)
@pytest.mark.parametrize("sampling", [GREEDY, Gumbel(ANY, 1)], ids=["greedy", "gumbel"])
def test_stories_are_identical_in_plain_numpy(sampling: Any, temper: str) -> None:
    """Slow, so these few."""
    run = {"model": "stories", "prompt": [7, 77, 777], "temper": temper, "n_draft": 3, "threads": [1, 1]}
    both_ways("numpy", run, sampling)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    prompt=st.lists(st.integers(0, 70), min_size=1, max_size=12),
    draft_seed=st.integers(0, 3),
    n_draft=st.integers(0, 8),
    n=st.integers(1, 24),
)
def test_both_caches_are_right_after_every_round(
    backend: str, prompt: list[int], draft_seed: int, n_draft: int, n: int
) -> None:
    target, draft = (
        toys.Watched(toys.tiny_model(toys.ODD, 0, backend)),
        toys.Watched(toys.tiny_model(toys.ODD, draft_seed, backend)),
    )
    text = list(prompt)
    for step in speculate(target, SmallModelDrafter(draft), prompt, max_new_tokens=n, sampling=GREEDY, n_draft=n_draft):
        before = list(text)
        text += step.committed
        assert toys.bits(target.model, target.caches[0]) == toys.fresh_bits(target.model, text[:-1])
        if step.drafted:
            assert toys.bits(draft.model, draft.caches[0]) == toys.fresh_bits(
                draft.model, [*before, *step.drafted[:-1]]
            )
    assert tuple(text[len(prompt) :]) == toys.greedy_oracle(target.model, prompt, n)


@pytest.mark.parametrize("n_draft", [1, 3, 8])
def test_the_worst_drafter_changes_nothing_but_the_time(n_draft: int) -> None:
    model = toys.tiny_model(TINY)
    drafter = SmallModelDrafter(toys.Contrary(model))
    steps = list(speculate(model, drafter, [3, 4], max_new_tokens=20, sampling=GREEDY, n_draft=n_draft))
    assert toys.ids_of(steps) == toys.greedy_oracle(model, [3, 4], 20)
    assert sum(step.n_accepted for step in steps) == 0
    assert len(steps) == 20


# --- bits ---------------------------------------------------------------------------------------------

SHAPES = [
    GPT2Config(n_layer=n_layer, n_head=n_head, n_embd=n_head * d_head, n_ctx=80, n_vocab=n_vocab, n_inner=n_inner)
    for n_layer, n_head, d_head, n_vocab, n_inner in [
        (1, 1, 1, 2, 1), (2, 1, 7, 31, 13), (1, 3, 5, 32, 64),
        (2, 2, 16, 33, 65), (1, 4, 33, 97, 31), (2, 5, 13, 257, 130),
    ]
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    config=st.sampled_from([*SHAPES, TINY, toys.ODD]),
    stored=st.sampled_from(["f32", "int8"]),
    share=st.floats(0, 1),
    data=st.data(),
    order=st.permutations([1, 2]),
    seed=st.integers(0, 99),
)
def test_logits_and_cache_have_the_bits_of_one_pass(
    backend: str, config: GPT2Config, stored: str, share: float, data: Any, order: list[int], seed: int
) -> None:
    """Passes of all sizes, guesses that are rolled back, and roll-backs into what was kept."""
    model, rng = toys.tiny_model(config, 0, backend, stored), np.random.default_rng(seed)
    ids = rng.integers(0, config.n_vocab, 1 + round(share * (config.n_ctx - 1))).tolist()
    whole, cache = model.new_cache(), model.new_cache()
    with toys.all_work_shared(model):
        with threads(model, order[0]):
            expected = model.forward(ids, whole)
        with threads(model, order[1]):
            for rubbish, kept, n in data.draw(histories(len(ids), config.n_ctx)):
                if rubbish:
                    model.forward(rng.integers(0, config.n_vocab, rubbish).tolist(), cache)
                cache.truncate(kept)
                rows = model.forward(ids[kept : kept + n], cache)
                assert_same_bits(rows, expected[kept : kept + n])
    assert toys.bits(model, cache) == toys.bits(model, whole)


CHILD = """
import numba
from minispec import kernels, load_model
from minispec.verify_known import logits_hash
hashes = [logits_hash(load_model(name)) for name in ("story-target", "story-draft")]
print(kernels.ROWS, numba.threading_layer(), *hashes)
"""


def test_logits_of_the_pair_have_the_bits_of_every_other_machine() -> None:
    """The constants were made on one machine; nothing in the kernels but fused multiply-add decides about bits."""
    if not toys.story_model("story-target", "numba").ops.fused():
        pytest.skip("without compiled fused multiply-add the bits are other ones")
    for n in (1, 2):
        with threads(toys.story_model("story-target", "numba"), n):
            assert {name: logits_hash(toys.story_model(name, "numba")) for name in GOLDEN} == GOLDEN


def test_code_compiled_for_another_processor_has_the_same_bits() -> None:
    """AVX2 in a child process: shorter vectors and smaller tiles than AVX-512's, and Numba's own threads."""
    binding = pytest.importorskip("llvmlite.binding")
    if not all(binding.get_host_cpu_features().get(name, False) for name in ("avx2", "fma")):
        pytest.skip("this machine cannot run code for AVX2")
    features = "+avx2,+fma,+avx,+sse4.2,+bmi2,+f16c"
    environment = os.environ | {
        "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features, "NUMBA_THREADING_LAYER": "workqueue",
    }  # fmt: skip
    child = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False)
    assert child.stdout.split() == ["3", "workqueue", *GOLDEN.values()], child.stderr
