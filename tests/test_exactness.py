"""What minispec promises, tested on the real loop. Break any rule in it, and this file goes red.

The law       sampled text has exactly the target's law: every outcome is walked, none is estimated
Consequences  how often guesses are kept, how many tokens a pass writes: to the last fraction
Same seed     with Gumbel noise, sampled text is the text of plain decoding, token for token
Greedy        is plain decoding, for every drafter, draft length, backend and number of threads
Bits          a row's logits and its row of the cache do not depend on the passes that made them

The draws themselves are in test_sampling.py; test_mutants.py breaks the code on purpose and watches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from llvmlite.binding import get_host_cpu_features
from scipy import stats
from strategies import Toy, histories, mixed, row_pairs, samplings, toys

# fmt: off
from toys import (
    ODD,
    AsTheyAre,
    Contrary,
    Exact,
    Moody,
    Table,
    Teasing,
    certain,
    greedy_oracle,
    ids_of,
    table,
    threads,
    tiny_model,
    whim,
)

# fmt: on
from minispec import load_model
from minispec.drafters import SmallModelDrafter
from minispec.enumeration import Script, every_outcome, law
from minispec.gumbel import Gumbel
from minispec.model import GPT2Config
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.speculative import Step, speculate
from minispec.verify import GOLDEN, fused, logits_hash

BACKENDS = ["numba", "numpy"]
ANY, GREEDY = Sampling(1.0), Sampling()


# --- the law ---------------------------------------------------------------------------------------


def targets_law(toy: Toy, probs: Callable[[tuple[int, ...]], Any]) -> dict[tuple[int, ...], Any]:
    """The law of the target's text by its definition: chances multiply along the text, up to its end."""
    chances: dict[tuple[int, ...], Any] = {}

    def write(new: tuple[int, ...], chance: Any) -> None:
        text = toy.prompt + new
        stopped = bool(new) and toy.stop is not None and toy.stop(new)
        if stopped or len(new) == toy.max_new_tokens or len(text) == toy.n_ctx:
            chances[new] = chance
            return
        for token, more in enumerate(probs(text)):
            if more > 0:
                write((*new, token), chance * more)

    write((), 1)
    return chances


def drafter_of(toy: Toy, kind: type[Table]) -> Any:
    n_ctx = len(toy.prompt) + 1 if toy.drafter == "narrow" else toy.n_ctx
    model = kind(toy.draft, toy.n_vocab, n_ctx)
    drafters = {"moody": Moody(model), "certain": certain(toy.n_vocab, kind is Exact)}
    return drafters.get(toy.drafter, SmallModelDrafter(model))


def laws(toy: Toy, kind: type[Table], sampling: Any) -> list[dict[tuple[int, ...], Any]]:
    """The laws of plain and of speculative decoding, by walking every outcome of the real loops."""
    target, drafter = kind(toy.target, toy.n_vocab, toy.n_ctx), drafter_of(toy, kind)
    options: Any = {"max_new_tokens": toy.max_new_tokens, "sampling": sampling, "stop": toy.stop}
    prompt, n_draft = toy.prompt, toy.n_draft
    return [
        law(lambda choices: ids_of(generate(target, prompt, choices=choices, **options))),
        law(lambda choices: ids_of(speculate(target, drafter, prompt, n_draft=n_draft, choices=choices, **options))),
    ]


@given(toys())
def test_the_law_is_the_targets_to_the_last_fraction(toy: Toy) -> None:
    expected = targets_law(toy, toy.target)
    assert sum(expected.values()) == 1
    for got in laws(toy, Exact, AsTheyAre()):
        assert got == expected


@given(toys(tiny=True), samplings)
def test_the_law_is_the_targets_with_temperature_top_k_and_top_p(toy: Toy, sampling: Sampling) -> None:
    model = Table(toy.target, toy.n_vocab)
    expected = targets_law(toy, lambda text: sampling.probs(model.logits(text)))
    assert abs(sum(expected.values()) - 1) < 1e-12
    for got in laws(toy, Table, sampling):
        assert all(abs(got.get(text, 0) - expected.get(text, 0)) < 1e-12 for text in got.keys() | expected.keys())


@pytest.mark.parametrize("drafter", ["model", "moody"])
@pytest.mark.parametrize(("n_vocab", "n", "n_draft"), [(3, 4, 4), (4, 4, 1), (5, 3, 4), (2, 4, 4)])
def test_the_law_where_everything_is_possible(n_vocab: int, n: int, n_draft: int, drafter: str) -> None:
    """The largest walks: no zero thins them out."""
    one, other = table(n_vocab, 1), table(n_vocab, 2)
    toy = Toy(one.rule, other.rule, n_vocab, (0,), n, n_draft, 64, drafter, None)
    expected = targets_law(toy, one.rule)
    for got in laws(toy, Exact, AsTheyAre()):
        assert got.keys() == expected.keys()
        assert all(abs(got[text] - expected[text]) < 1e-12 for text in expected)


# --- consequences ------------------------------------------------------------------------------------


def overlap(target_probs: Any, draft_probs: Any) -> Any:
    return sum(min(p, q) for p, q in zip(target_probs, draft_probs, strict=True))


models = st.integers(2, 4).flatmap(lambda n: st.lists(row_pairs(n, 3), min_size=1, max_size=3))


def steps_of(target: Any, drafter: Any, n: int, n_draft: int) -> Callable[[Script], tuple[Step, ...]]:
    options: Any = {"max_new_tokens": n, "n_draft": n_draft, "sampling": AsTheyAre()}

    def run(choices: Script) -> tuple[Step, ...]:
        return tuple(speculate(target, drafter, [0], choices=choices, **options))

    return run


@given(models, st.integers(1, 3), st.integers(0, 99))
def test_a_guess_is_kept_with_the_chance_of_the_overlap(pairs: Any, n_draft: int, salt: int) -> None:
    """At every place of the block: sum(min(p, q)) there, over the guesses that were kept before."""
    n_vocab = len(pairs[0][0])
    target, draft = (Exact(mixed(side, salt), n_vocab) for side in zip(*pairs, strict=True))
    run = steps_of(target, SmallModelDrafter(draft), n_draft + 1, n_draft)
    kept = law(lambda choices: run(choices)[0].n_accepted)
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
    target, draft = (Exact(mixed([row], 0), 3) for row in pair)
    a, k = overlap(*pair), n_draft
    run = steps_of(target, SmallModelDrafter(draft), n_draft + 1, n_draft)
    tokens = sum(chance * len(steps[0].committed) for steps, chance in every_outcome(run))
    assert tokens == (k + 1 if a == 1 else (1 - a ** (k + 1)) / (1 - a))


@given(row_pairs(2, 2), st.integers(0, 3), st.integers(1, 5))
def test_passes_are_those_that_the_accept_rate_foretells(pair: Any, n_draft: int, n: int) -> None:
    """A block of k guesses writes j + 1 tokens with chance a^j (1 - a), or a^k where j = k."""
    target, draft = (Exact(mixed([row], 0), 2) for row in pair)
    a = overlap(*pair)

    @cache
    def expected(left: int) -> Any:
        k = min(n_draft, left - 1)
        chances = [a**j * (1 - a) for j in range(k)] + [a**k]
        return 1 + sum(chance * expected(left - j - 1) for j, chance in enumerate(chances) if j + 1 < left)

    run = steps_of(target, SmallModelDrafter(draft), n, n_draft)
    assert sum(chance * len(steps) for steps, chance in every_outcome(run)) == expected(n)


def test_the_textbook_example() -> None:
    target_probs, draft_probs = np.array([0.15, 0.35, 0.10, 0.40]), np.array([0.5, 0.2, 0.2, 0.1])
    target, draft = Exact(lambda _: target_probs, 4), Exact(lambda _: draft_probs, 4)
    run = steps_of(target, SmallModelDrafter(draft), 2, 1)
    first = law(lambda choices: (run(choices)[0].n_accepted, run(choices)[0].committed[0]))
    assert abs(sum(chance for (kept, _), chance in first.items() if kept) - 0.55) < 1e-12


# --- same seed, same text ------------------------------------------------------------------------------


class AnyNoise(Gumbel):
    """Noise from nowhere near Gumbel's law, with ties and extremes: plain and speculative must agree even so."""

    def noise(self, position: int, n_vocab: int) -> Any:
        return np.array([[2.3e-308, 0.5, 1, 1, 2, 1e300][whim(self.seed, position, i) % 6] for i in range(n_vocab)])


@given(toys(tiny=True), samplings, st.integers(0, 99), st.sampled_from([Gumbel, AnyNoise]))
def test_toys_write_the_text_of_plain_decoding(toy: Toy, sampling: Sampling, seed: int, noise: type[Gumbel]) -> None:
    target = Table(toy.target, toy.n_vocab, toy.n_ctx)
    options: Any = {"max_new_tokens": toy.max_new_tokens, "sampling": noise(sampling, seed), "stop": toy.stop}
    plain = list(generate(target, toy.prompt, **options))
    steps = list(speculate(target, drafter_of(toy, Table), toy.prompt, n_draft=toy.n_draft, **options))
    assert ids_of(steps) == ids_of(plain)
    assert steps[-1].finish == plain[-1].finish


@cache
def story_model(name: str, backend: str) -> Any:
    return load_model(name, backend=backend)


def drafter_for(target: Any, kind: str, backend: str) -> Any:
    """Every temper of drafter: trained, random, adversarial, erratic, and the target itself."""
    n_vocab = target.n_vocab
    other = story_model("story-draft", backend) if n_vocab == 4096 else tiny_model(target.config, 1, backend)
    drafters: dict[str, Callable[[], Any]] = {
        "itself": lambda: SmallModelDrafter(target),
        "another": lambda: SmallModelDrafter(other),
        "contrary": lambda: SmallModelDrafter(Contrary(target)),
        "teasing": lambda: Teasing(target),
        "moody": lambda: Moody(other),
        "rubbish": lambda: certain(n_vocab),
    }
    return drafters[kind]()


KINDS = ["itself", "another", "contrary", "teasing", "moody", "rubbish"]
numbers = st.integers(0, 10**6)


def runs(*models: str) -> Any:
    """A model, a prompt, a drafter, a draft length and the threads of each side."""
    return st.fixed_dictionaries(
        {
            "model": st.sampled_from(models),
            "prompt": st.lists(numbers, min_size=1, max_size=8),
            "kind": st.sampled_from(KINDS),
            "n_draft": st.integers(1, 8),
            "threads": st.permutations([1, 2]),
        }
    )


def both_ways(backend: str, run: dict[str, Any], sampling: Any) -> None:
    """Plain on one number of threads, speculative on another: the same ids; its own guesses are all kept."""
    if run["model"] == "stories":
        target, n = story_model("story-target", backend), 16 if backend == "numba" else 5
    else:
        target, n = tiny_model(TINY if run["model"] == "tiny" else ODD, 0, backend), 40
    ids = [number % target.n_vocab for number in run["prompt"]]
    drafter = drafter_for(target, run["kind"], backend)
    with pytest.MonkeyPatch.context() as patch:
        if backend == "numba" and run["model"] != "stories":
            patch.setattr(target.ops, "WORTH_SHARING", 0)  # small models share their work too
        one, other = (threads(n) if backend == "numba" else nullcontext() for n in run["threads"])
        with one:
            plain = list(generate(target, ids, max_new_tokens=n, sampling=sampling))
        with other:
            steps = list(speculate(target, drafter, ids, max_new_tokens=n, n_draft=run["n_draft"], sampling=sampling))
    assert ids_of(steps) == ids_of(plain)
    assert steps[-1].finish == plain[-1].finish
    if run["kind"] == "itself":
        assert all(step.n_accepted == len(step.drafted) for step in steps)


@given(run=runs("tiny", "odd", "stories"), sampling=samplings, seed=st.integers(0, 99))
def test_sampled_text_of_a_seed_is_identical(run: dict[str, Any], sampling: Sampling, seed: int) -> None:
    both_ways("numba", run, Gumbel(sampling, seed))


@given(run=runs("tiny", "odd"), sampling=samplings, seed=st.integers(0, 99))
def test_sampled_text_of_a_seed_is_identical_in_plain_numpy(run: dict[str, Any], sampling: Sampling, seed: int) -> None:
    both_ways("numpy", run, Gumbel(sampling, seed))


@pytest.mark.parametrize("of", ["seeds", "places"])
def test_picks_by_noise_follow_their_law(of: str) -> None:
    """Over seeds at one place, and over places for one seed. Chi-square, false-alarm odds 1e-6 each."""
    probs, n, one = np.array([0.1, 0.0, 0.25, 0.05, 0.6]), 40_000, Gumbel(ANY, 3)
    picks = [Gumbel(ANY, i).pick(probs, 7) if of == "seeds" else one.pick(probs, i) for i in range(n)]
    counts = np.bincount(picks, minlength=5)
    assert counts[1] == 0
    alive = [0, 2, 3, 4]
    assert stats.chisquare(counts[alive], n * probs[alive]).pvalue > 1e-6


def test_the_law_of_text_by_noise_is_the_targets() -> None:
    """Two tokens and a draft of one, over seeds, with places that depend on each other if noise is used twice.

    Chi-square over all texts, false-alarm odds 1e-6; and guesses are kept with the chance that gumbel.py states.
    """
    target, draft, n = table(3, 5), table(3, 6), 20_000
    counts, kept = np.zeros((3, 3)), 0
    for seed in range(n):
        options: Any = {"max_new_tokens": 2, "n_draft": 1, "sampling": Gumbel(ANY, seed)}
        steps = list(speculate(target, SmallModelDrafter(draft), [0], **options))
        counts[ids_of(steps)] += 1
        kept += steps[0].n_accepted
    p, q = target.rule((0,)), draft.rule((0,))
    expected = np.array([p[a] * target.rule((0, a)) for a in range(3)])
    assert stats.chisquare(counts.ravel(), n * expected.ravel()).pvalue > 1e-6
    chance = sum(1 / sum(max(p[y] / p[x], q[y] / q[x]) for y in range(3)) for x in range(3))
    assert stats.binomtest(kept, n, chance).pvalue > 1e-6
    assert (1 - (1 - overlap(p, q))) / (1 + (1 - overlap(p, q))) < chance < overlap(p, q)


def test_noise_belongs_to_a_seed_and_a_place_alone() -> None:
    forth, back = Gumbel(ANY, 3), Gumbel(ANY, 3)
    there = {i: forth.noise(i, 9).tobytes() for i in range(200)}  # more than are remembered
    assert there == {i: back.noise(i, 9).tobytes() for i in reversed(range(200))}
    assert there == {i: forth.noise(i, 9).tobytes() for i in range(200)}
    others = {Gumbel(ANY, seed).noise(i, 9).tobytes() for seed in (0, 4, 2**32, 2**32 + 3, 2**200) for i in range(200)}
    assert len(others | set(there.values())) == 1200
    with pytest.raises(ValueError, match="seed is -1"):
        Gumbel(ANY, -1)


# --- greedy identity ---------------------------------------------------------------------------------


@given(run=runs("tiny", "odd", "stories"))
def test_greedy_text_is_identical(run: dict[str, Any]) -> None:
    both_ways("numba", run, GREEDY)


@given(run=runs("tiny", "odd"))
def test_greedy_text_is_identical_in_plain_numpy(run: dict[str, Any]) -> None:
    both_ways("numpy", run, GREEDY)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [GREEDY, Gumbel(ANY, 1)], ids=["greedy", "gumbel"])
def test_stories_are_identical_in_plain_numpy(sampling: Any, kind: str) -> None:
    """Slow, so these few."""
    run = {"model": "stories", "prompt": [7, 77, 777], "kind": kind, "n_draft": 3, "threads": [1, 1]}
    both_ways("numpy", run, sampling)


def bits(model: Any, cache: Any) -> list[bytes]:
    """Keys and values of every layer, as far as the cache is filled."""
    return [side.tobytes() for layer in cache.layers for side in model.ops.fetch(*layer, cache.length)]


def fresh_bits(model: Any, ids: Sequence[int]) -> list[bytes]:
    fresh = model.new_cache()
    if ids:
        model.forward(ids, fresh)
    return bits(model, fresh)


class Watched:
    """A model that notes the caches it hands out."""

    def __init__(self, model: Any) -> None:
        self.model, self.n_ctx, self.n_vocab = model, model.n_ctx, model.n_vocab
        self.caches: list[Any] = []

    def new_cache(self) -> Any:
        self.caches.append(self.model.new_cache())
        return self.caches[-1]

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> Any:
        return self.model.forward(ids, cache, n_logits)


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
    target, draft = Watched(tiny_model(ODD, 0, backend)), Watched(tiny_model(ODD, draft_seed, backend))
    text = list(prompt)
    for step in speculate(target, SmallModelDrafter(draft), prompt, max_new_tokens=n, sampling=GREEDY, n_draft=n_draft):
        before = list(text)
        text += step.committed
        assert bits(target.model, target.caches[0]) == fresh_bits(target.model, text[:-1])
        if step.drafted:
            assert bits(draft.model, draft.caches[0]) == fresh_bits(draft.model, [*before, *step.drafted[:-1]])
    assert tuple(text[len(prompt) :]) == greedy_oracle(target.model, prompt, n)


@pytest.mark.parametrize("n_draft", [1, 3, 8])
def test_the_worst_drafter_changes_nothing_but_the_time(n_draft: int) -> None:
    model = tiny_model(TINY)
    drafter = SmallModelDrafter(Contrary(model))
    steps = list(speculate(model, drafter, [3, 4], max_new_tokens=20, sampling=GREEDY, n_draft=n_draft))
    assert ids_of(steps) == greedy_oracle(model, [3, 4], 20)
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
    config=st.sampled_from([*SHAPES, TINY, ODD]),
    history=st.integers(1, 30).flatmap(histories),
    order=st.permutations([1, 2]),
    seed=st.integers(0, 99),
)
def test_logits_and_cache_have_the_bits_of_one_pass(
    backend: str, config: GPT2Config, history: list[tuple[int, int]], order: list[int], seed: int
) -> None:
    model, rng = tiny_model(config, 0, backend), np.random.default_rng(seed)
    ids = rng.integers(0, config.n_vocab, sum(n for _, n in history)).tolist()
    whole, cache = model.new_cache(), model.new_cache()
    with pytest.MonkeyPatch.context() as patch:
        if backend == "numba":
            patch.setattr(model.ops, "WORTH_SHARING", 0)
        one, other = (threads(n) if backend == "numba" else nullcontext() for n in order)
        with one:
            expected = model.forward(ids, whole)
        with other:
            for rubbish, n in history:
                at = cache.length
                if rubbish and at + rubbish <= config.n_ctx:
                    model.forward(rng.integers(0, config.n_vocab, rubbish).tolist(), cache)
                    cache.truncate(at)
                assert model.forward(ids[at : at + n], cache).tobytes() == expected[at : at + n].tobytes()
    assert bits(model, cache) == bits(model, whole)


CHILD = """
from minispec import kernels, load_model
from minispec.verify import logits_hash
print(kernels.ROWS, *(logits_hash(load_model(name)) for name in ("story-target", "story-draft")))
"""


@pytest.mark.skipif(not fused(), reason="without compiled fused multiply-add the bits are other ones")
@pytest.mark.parametrize("n", [1, 2])
def test_logits_of_the_pair_have_the_bits_of_every_other_machine(n: int) -> None:
    """The constants were made on one machine; nothing in the kernels but fused multiply-add decides about bits."""
    with threads(n):
        assert {name: logits_hash(story_model(name, "numba")) for name in GOLDEN} == GOLDEN


@pytest.mark.skipif(
    not fused() or not get_host_cpu_features().get("avx2", False), reason="this machine cannot run code for AVX2"
)
def test_code_compiled_for_another_processor_has_the_same_bits() -> None:
    """AVX2 in a child process: shorter vectors and smaller tiles than AVX-512's."""
    features = "+avx2,+fma,+avx,+sse4.2,+bmi2,+f16c"
    environment = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features}
    child = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["3", *GOLDEN.values()]
