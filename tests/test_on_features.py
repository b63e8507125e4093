"""EAGLE and MTP: what they compute, what they keep, and that the text and its law stay the target's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits
from checkpoints import TINY, tiny_tensors
from hypothesis import given
from hypothesis import strategies as st
from small_heads import KINDS, drafter_on, drafter_tensors, written_out
from strategies import samplings
from toys import ODD, greedy_oracle, ids_of, tiny_model

from minispec.batch import speculate_batch
from minispec.drafters.eagle import EagleDrafter
from minispec.drafters.mtp import MTPDrafter
from minispec.enumeration import Script, law
from minispec.gumbel import Gumbel
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.protocols import Draft, Drafting, Step, always
from minispec.sampling import Sampling
from minispec.speculative import Dice, speculate
from minispec.verify_cases import threads

BACKENDS = ["numba", "numpy"]
ANY, GREEDY = Sampling(1.0), Sampling()
both = pytest.mark.parametrize("backend", BACKENDS)
kinds = pytest.mark.parametrize("kind", KINDS)
ids_of_tiny = st.lists(st.integers(0, TINY.n_vocab - 1), min_size=2, max_size=12)


@cache
def pair(kind: str, backend: str, config: GPT2Config = TINY, seed: int = 0) -> tuple[GPT2, Any]:
    return drafter_on(kind, tiny_model(config, 0, backend), seed=seed)


def read(target: GPT2, ids: Sequence[int]) -> Any:
    """A cache of the target that has read all of ids but the last."""
    seen = target.new_cache()
    if len(ids) > 1:
        target.forward(list(ids[:-1]), seen, 0)
    return seen


class Forced:
    """Choices and sampling that draw given tokens, and note logits."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.logits: list[Any] = []

    def probs(self, logits: Any, position: int) -> Any:
        self.logits.append(np.array(logits))
        return ANY.probs(logits)

    def draw(self, probs: Any) -> int:
        return self.tokens.pop(0)

    accept: Any = None


# --- what they compute -----------------------------------------------------------------------------


@both
@kinds
@given(ids=ids_of_tiny, guesses=st.lists(st.integers(0, TINY.n_vocab - 1), min_size=1, max_size=4))
def test_guesses_are_those_of_the_model_written_out(
    backend: str, kind: str, ids: list[int], guesses: list[int]
) -> None:
    """In float64, with no cache, each feature with the token after it, and only tokens that may be guessed."""
    target, drafter = pair(kind, backend)
    forced = Forced(guesses)
    drafter.start(read(target, ids)).draft(ids, len(guesses), forced, forced)
    tensors = drafter_tensors(kind, target)
    may = tensors["tokens"].astype(int)
    for got, expected in zip(forced.logits, written_out(kind, target, tensors, ids, guesses), strict=False):
        assert np.abs(got[may] - expected).max() < 2e-3 * np.abs(expected).max()
        assert (np.delete(got, may) == -np.inf).all()
    assert len(forced.logits) == len(guesses)


@kinds
@given(ids=ids_of_tiny)
def test_a_compiled_guess_is_that_of_plain_numpy(kind: str, ids: list[int]) -> None:
    told = []
    for backend in BACKENDS:
        target, drafter = pair(kind, backend)
        forced = Forced([1, 2, 3])
        drafter.start(read(target, ids)).draft(ids, 3, forced, forced)
        told.append([row[np.isfinite(row)] for row in forced.logits])
    for one, other in zip(*told, strict=True):
        assert np.abs(one - other).max() < 1e-4 * max(1, np.abs(one).max())


@both
@kinds
@given(data=st.data())
def test_what_is_guessed_depends_on_the_text_alone(backend: str, kind: str, data: Any) -> None:
    """After any rounds: texts that grow, are cut, or change; guesses that were kept, or refused. And so do its rows."""
    target, drafter = pair(kind, backend)
    seen = target.new_cache()
    used = drafter.start(seen)
    text: list[int] = []
    for _ in range(data.draw(st.integers(1, 5))):
        kept = data.draw(st.integers(0, len(text)))
        text = [*text[:kept], *data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))]
        seen.truncate(min(seen.length, kept, len(text) - 1))
        if len(text) - 1 > seen.length:
            target.forward(text[seen.length : -1], seen, 0)
        n_draft = data.draw(st.integers(0, 4))
        fresh = drafter.start(read(target, text))
        one, other = (drafting.draft(text, n_draft, ANY, Dice(3)) for drafting in (used, fresh))
        assert list(one.tokens) == list(other.tokens)
        assert len(one.tokens) == (n_draft if len(text) > 1 else 0)
        for a, b in zip(one.probs, other.probs, strict=True):
            assert_same_bits(a, b)
        if kind != "mtp" and len(one.tokens):
            assert used.cache.length == fresh.cache.length
            for layer, same in zip(used.cache.layers, fresh.cache.layers, strict=True):
                for a, b in zip(*(used.block.ops.fetch(*x, used.cache.length) for x in (layer, same)), strict=True):
                    assert_same_bits(a, b)
        text += one.tokens[: data.draw(st.integers(0, len(one.tokens)))]


@both
@kinds
def test_any_number_of_threads_gives_the_same_bits(backend: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = pair(kind, backend)
    if backend == "numba":
        monkeypatch.setattr(target.ops, "WORTH_SHARING", 0)
    told = []
    for n in (1, 2):
        with threads(target, n):
            told.append(drafter.start(read(target, [5, 6, 7, 8])).draft([5, 6, 7, 8], 4, ANY, Dice(0)))
    assert told[0].tokens == told[1].tokens
    for a, b in zip(told[0].probs, told[1].probs, strict=True):
        assert_same_bits(a, b)


# --- where they end ----------------------------------------------------------------------------------


@kinds
def test_no_guesses_before_the_target_has_read_and_none_past_the_window(kind: str) -> None:
    target, drafter = pair(kind, "numba")
    ids = [1 + i % 90 for i in range(TINY.n_ctx)]
    seen = target.new_cache()
    drafting = drafter.start(seen)
    assert drafting.draft(ids[:5], 3, ANY, Dice(0)) == Draft([], [])  # the first round
    assert drafter.start(read(target, [3])).draft([3], 3, ANY, Dice(0)) == Draft([], [])  # no feature, no pair
    for n in (29, 30, 31, 32):
        whole = drafter.start(read(target, ids[:n])).draft(ids[:n], 3, ANY, Dice(0))
        assert len(whole.tokens) >= min(3, TINY.n_ctx - n)
        assert len(drafter.start(read(target, ids[:n])).draft(ids[:n], 0, ANY, Dice(0)).tokens) == 0
    for odd in ([], ids[:3], [7, 7, 7, 7, 7, 7, 7]):  # texts that its target has not read
        assert drafter.start(read(target, ids[:5])).draft(odd, 3, ANY, Dice(0)) == Draft([], [])


@kinds
def test_a_guess_stands_whatever_is_said_after_it(kind: str) -> None:
    target, drafter = pair(kind, "numba")
    asked: list[float] = []

    def go_on(surety: Any) -> bool:
        asked.append(surety())
        return len(asked) < 2

    draft = drafter.start(read(target, [5, 6, 7])).draft([5, 6, 7], 4, ANY, Dice(0), go_on)
    assert len(draft.tokens) == len(asked) == 2
    sure = [probs[token] for token, probs in zip(draft.tokens, draft.probs, strict=True)]
    assert np.allclose(asked, sure, rtol=1e-4)


@kinds
def test_broken_weights_end_a_draft(kind: str) -> None:
    target = tiny_model(TINY)
    tensors = drafter_tensors(kind, target)
    tensors["ln_f.bias"][3] = np.nan
    drafter = (MTPDrafter if kind == "mtp" else EagleDrafter)(target, tensors)
    tapped = target.tapped(drafter.taps)
    assert drafter.start(read(tapped, [5, 6, 7])).draft([5, 6, 7], 4, ANY, Dice(0)) == Draft([], [])


@kinds
def test_what_does_not_fit_is_refused_in_one_line(kind: str) -> None:
    target, drafter = pair(kind, "numba")
    with pytest.raises(ValueError, match=r"give it target\.tapped"):
        drafter.start(tiny_model(TINY).new_cache())
    with pytest.raises(ValueError, match=r"give it target\.tapped"):
        list(speculate(tiny_model(TINY), drafter, [1, 2], max_new_tokens=4, sampling=ANY))
    make = MTPDrafter if kind == "mtp" else EagleDrafter
    with pytest.raises(ValueError, match="they belong to another"):
        make(tiny_model(ODD), drafter_tensors(kind, target))
    tensors = drafter_tensors(kind, target)
    for name in ("tokens", "depths", "embed.weight", "h.0.mlp.c_fc.bias", "n_head", "h.0.attn.c_q.bias"):
        if name in tensors and (kind, name) != ("mtp", "n_head"):
            with pytest.raises(ValueError, match=r"misshapen|must be|belong to another"):
                make(target, tensors | {name: np.ones((), np.float32)})
    for name, wrong in (("tokens", -1e6), ("tokens", -1.0), ("tokens", 0.5), ("depths", -1.0)):
        with pytest.raises(ValueError, match=f"{name} are no whole numbers from 0 up"):
            make(target, tensors | {name: np.r_[np.float32(wrong), tensors[name][1:]]})
    if kind == "mtp":
        tensors = drafter_tensors(kind, target)
        tensors |= {f"h.{i}.attn.c_q.{part}": tensors[f"h.{i}.attn.c_q.{part}"][..., :20] for i in (0, 1)
                    for part in ("weight", "bias")}  # fmt: skip
        with pytest.raises(ValueError, match="queries of 20 numbers"):
            make(target, tensors)


# --- the law, and the text -----------------------------------------------------------------------------

FEW = GPT2Config(n_layer=2, n_head=2, n_embd=8, n_ctx=9, n_vocab=4, n_inner=16)


FILTERED = Sampling(0.7, top_k=3)


@kinds
@pytest.mark.parametrize(
    ("backend", "sampling"),
    [("numba", ANY), ("numba", FILTERED), ("numba", Sampling(1.3, top_p=0.8)), ("numpy", FILTERED)],
    ids=str,
)
def test_the_law_is_the_targets(backend: str, kind: str, sampling: Sampling) -> None:
    """Every outcome of the real loop, over rounds with none, some and all guesses kept."""
    target, drafter = pair(kind, backend, FEW)
    assert len(drafter.ways.tokens) == FEW.n_vocab
    check_law(target, drafter, sampling, 4)


@kinds
def test_the_law_where_some_tokens_are_never_guessed(kind: str) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, n_ctx=9, n_vocab=6, n_inner=16)
    target, drafter = pair(kind, "numba", config)
    assert len(drafter.ways.tokens) == 5
    check_law(target, drafter, ANY, 3, n_draft=1)


def check_law(target: GPT2, drafter: Any, sampling: Sampling, n: int, n_draft: int = 2) -> None:
    options: Any = {"max_new_tokens": n, "sampling": sampling, "stop": lambda new: list(new[-2:]) == [1, 2]}
    kept: set[Any] = set()

    def outcome(steps: Iterator[Step]) -> Any:
        told = list(steps)
        kept.update((len(step.drafted), step.n_accepted) for step in told)
        return ids_of(told), told[-1].finish

    def speculative(choices: Script) -> Any:
        return outcome(speculate(target, drafter, [0, 3], n_draft=n_draft, choices=choices, **options))

    got = law(speculative)
    assert {(n_draft, n) for n in range(n_draft + 1)} <= kept
    expected = law(lambda choices: outcome(generate(target, [0, 3], choices=choices, **options)))
    assert abs(sum(got.values()) - 1) < 1e-12
    assert got.keys() <= expected.keys()
    assert max(abs(got.get(text, 0) - chance) for text, chance in expected.items()) < 1e-12


class Checked:
    """A drafter whose every draft is compared with that of a fresh one on a cache of one pass."""

    def __init__(self, target: GPT2, drafter: Any) -> None:
        self.target, self.drafter, self.n_vocab = target, drafter, drafter.n_vocab

    def start(self, seen: Any) -> Drafting:
        drafting: Drafting = self.drafter.start(seen)
        honest = drafting.draft

        def draft(ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, go_on: Any = always) -> Draft:
            made = honest(ids, n_draft, sampling, choices, go_on)
            if len(made.tokens):
                fresh = self.drafter.start(read(self.target, ids)).draft(ids, n_draft, sampling, Forced(made.tokens))
                for one, other in zip(made.probs, fresh.probs, strict=True):
                    assert_same_bits(one, other)
            return made

        drafting.draft = draft  # type: ignore[method-assign]
        return drafting


@both
@kinds
@given(
    prompt=st.lists(st.integers(0, 70), min_size=1, max_size=12),
    odd=st.booleans(),
    n_draft=st.integers(1, 6),
    noise=st.none() | samplings,
    seed=st.integers(0, 99),
)
def test_text_is_that_of_plain_decoding(
    backend: str, kind: str, prompt: list[int], odd: bool, n_draft: int, noise: Sampling | None, seed: int
) -> None:
    """Greedy, and by noise; and every round is drafted as if it were the first."""
    target, drafter = pair(kind, backend, ODD if odd else TINY)
    sampling: Any = GREEDY if noise is None else Gumbel(noise, seed)
    n = 40 if backend == "numba" else 9
    options: Any = {"max_new_tokens": n, "sampling": sampling}
    steps = list(speculate(target, Checked(target, drafter), prompt, n_draft=n_draft, **options))
    assert ids_of(steps) == ids_of(generate(target, prompt, **options))
    if noise is None:
        assert ids_of(steps) == greedy_oracle(tiny_model(ODD if odd else TINY, 0, backend), prompt, n)


@kinds
@pytest.mark.parametrize("sampling", [ANY, GREEDY], ids=str)
def test_texts_written_together_are_those_written_alone(kind: str, sampling: Sampling) -> None:
    target, drafter = pair(kind, "numba")
    prompts = [[5], [6, 7, 8, 9], [80, 5, 80, 5, 80]]
    options: Any = {"max_new_tokens": 12, "n_draft": 3, "sampling": sampling}
    together: list[list[Step]] = [[], [], []]
    for row, step in speculate_batch(target, drafter, prompts, **options):
        together[row].append(step)
    for prompt, steps in zip(prompts, together, strict=True):
        alone = list(speculate(target, drafter, prompt, **options))
        assert [(step.drafted, step.committed) for step in steps] == [(step.drafted, step.committed) for step in alone]


def test_a_drafter_that_has_learnt_the_target_is_always_right() -> None:
    """A target whose next token is a function of the last one alone: EAGLE-1 with `out` set to say so keeps all."""
    config = GPT2Config(n_layer=1, n_head=2, n_embd=32, n_ctx=64, n_vocab=13, n_inner=4)
    tensors = tiny_tensors(config, 3)
    for name in tensors:
        if name.endswith(("c_proj.weight", "c_proj.bias")) or name == "wpe.weight":
            tensors[name] *= 0  # what goes in comes out
    target = GPT2(config, tensors)
    heads = drafter_tensors("eagle1", target, n_small=30)
    for name in heads:
        if name.endswith(("c_proj.weight", "c_proj.bias")) or name in ("wpe.weight", "fc.weight"):
            heads[name] *= 0
    heads["tokens"] = np.arange(13, dtype=np.float32)
    # z is a function of the last token: find the product that takes it to the target's own last hidden state.
    drafter = EagleDrafter(target, heads)
    z = norm_rows(drafter.ways.embed, heads["ln_f.weight"], heads["ln_f.bias"])
    hidden = norm_rows(tensors["wte.weight"], tensors["ln_f.weight"], tensors["ln_f.bias"])
    heads["out.weight"] = np.linalg.lstsq(z, hidden, rcond=None)[0].astype(np.float32)
    drafter = EagleDrafter(target, heads)
    steps = list(speculate(target.tapped((1,)), drafter, [3, 4], max_new_tokens=30, sampling=GREEDY, n_draft=4))
    assert [step.n_accepted for step in steps[1:-1]] == [4] * (len(steps) - 2)


def norm_rows(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias
