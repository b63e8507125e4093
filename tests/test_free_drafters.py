"""Drafters that need no training: what they guess by a naive twin, the law, greedy text, caches, batches, files."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from checkpoints import TINY, safetensors_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

import minispec.drafters.suffix as suffix
from minispec import generate, load_model, load_tokenizer, speculate, speculate_batch
from minispec.draft_length import AutoLength
from minispec.drafters import CombinedDrafter, NgramDrafter, PromptLookupDrafter, SmallModelDrafter, SuffixDrafter
from minispec.drafters.ngram import FILE, open_ngram, table_of
from minispec.enumeration import Script, law
from minispec.gumbel import Gumbel
from minispec.hub import find_model
from minispec.ngram_table import NgramTable, count_table, load_table, save_table
from minispec.protocols import Draft, always
from minispec.sampling import Sampling
from minispec.speculative import Dice
from minispec.tokenizer import Tokenizer

GREEDY, ANY, DICE = Sampling(), Sampling(1.0), Dice(0)

few_ids = st.lists(st.integers(0, 2), max_size=9)  # few tokens, so that everything comes again
# A text in rounds: how much of the last one is kept (mostly all of it), what is added, how many guesses are asked for.
rounds = st.lists(st.tuples(st.sampled_from([99, 99, 99, 3, 0]), few_ids, st.integers(0, 7)), min_size=1, max_size=5)


def texts_of(story: Sequence[tuple[int, list[int], int]]) -> Iterator[tuple[list[int], int]]:
    """The text at each round, never empty, and the guesses asked for."""
    text: list[int] = []
    for kept, added, n_draft in story:
        text = [*text[:kept], *added] or [1]
        yield text, n_draft


def tokens(drafter: Any, ids: Sequence[int], n_draft: int) -> list[int]:
    return list(drafter.start().draft(ids, n_draft, GREEDY, DICE).tokens)


def surenesses(drafting: Any, ids: Sequence[int], n_draft: int) -> tuple[list[int], list[float]]:
    """The tokens of a draft, and how sure the drafter was of each."""
    told: list[float] = []

    def go_on(surety: Callable[[], float]) -> bool:
        told.append(surety())
        return True

    draft = drafting.draft(ids, n_draft, GREEDY, DICE, go_on)
    for token, probs in zip(draft.tokens, draft.probs, strict=True):
        assert (probs[token], probs.sum()) == (1, 1)
    return list(draft.tokens), told


# --- prompt lookup -----------------------------------------------------------------------------------


def naive_lookup(ids: list[int], n_draft: int, longest: int, which: str) -> list[int]:
    """The rule by its definition: all places of the text are looked at."""
    for n in range(min(longest, len(ids)), 0, -1):
        places = [end for end in range(n, len(ids)) if ids[end - n : end] == ids[-n:]]
        if places:
            place, copied = max(places) if which == "recent" else min(places), list(ids)
            for i in range(n_draft):
                copied.append(copied[place + i])
            return copied[len(ids) :]
    return []


@given(rounds, st.integers(1, 4), st.sampled_from(["recent", "first"]))
def test_prompt_lookup_is_its_naive_twin(story: Any, longest: int, which: str) -> None:
    drafter = PromptLookupDrafter(3, longest, which)
    drafting = drafter.start()
    for ids, n_draft in texts_of(story):
        found, sure = surenesses(drafting, ids, n_draft)
        assert found == naive_lookup(ids, n_draft, longest, which)
        assert all(0.5 <= one < other < 1 for one, other in pairwise(sure))


def test_prompt_lookup_worked_by_hand() -> None:
    recent, first = PromptLookupDrafter(10), PromptLookupDrafter(10, which="first")
    assert tokens(recent, [1, 2, 3, 9, 1, 2, 3], 4) == [9, 1, 2, 3]
    assert tokens(recent, [1, 2, 3, 9, 1, 2, 3], 6) == [9, 1, 2, 3, 9, 1]  # the copy goes on with itself
    assert tokens(recent, [5, 5, 5], 4) == [5, 5, 5, 5]
    assert tokens(recent, [1, 2], 4) == tokens(recent, [1], 4) == tokens(recent, [7, 7], 0) == []
    text = [1, 2, 3, 4, 2, 3, 5, 2, 3]
    assert (tokens(recent, text, 1), tokens(first, text, 1)) == ([5], [4])
    assert tokens(PromptLookupDrafter(10, longest=1), [1, 2, 3, 4, 3], 1) == [4]


def test_prompt_lookup_reads_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from minispec.drafters.prompt_lookup import PromptLookupDrafting

    read: list[int] = []
    real = PromptLookupDrafting.read

    def noted(self: Any, token: int) -> None:
        read.append(token)
        real(self, token)

    monkeypatch.setattr(PromptLookupDrafting, "read", noted)
    drafting = PromptLookupDrafter(9).start()
    for ids in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 8]):
        drafting.draft(ids, 2, GREEDY, DICE)
    assert read == [1, 2, 3, 4, 5, 1, 2, 8]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"longest": 0}, "longest is 0"), ({"longest": True}, "longest is True"), ({"which": "last"}, "recent or first")],
)
def test_prompt_lookup_refuses(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PromptLookupDrafter(9, **options)


# --- suffix ------------------------------------------------------------------------------------------


def naive_suffix(ids: list[int], n_draft: int, depth: int) -> list[tuple[int, float]]:
    """The rule by its definition: every run is counted anew, all over the text."""

    def ends(run: list[int]) -> list[int]:
        return [end for end in range(len(run), len(ids) + 1) if ids[end - len(run) : end] == run]

    best: list[tuple[int, float]] = []
    best_score = 0.0
    for m in range(1, min(len(ids), depth) + 1):
        run, walk, chance, score = ids[len(ids) - m :], list[tuple[int, float]](), 1.0, 0.0
        while len(walk) < min(m, n_draft) and len(run) < depth:
            counts = {token: ends([*run, token]) for token in range(3)}
            token = max(counts, key=lambda token: (len(counts[token]), max(counts[token], default=0)))
            count, total = len(counts[token]), sum(map(len, counts.values()))
            if not total or chance * (count / total) < 0.1:
                break
            chance *= count / total
            score += chance
            walk.append((token, count / (total + 1)))
            run = [*run, token]
        if walk and score >= best_score:
            best, best_score = walk, score
    return best


@pytest.mark.parametrize("depth", [32, 4])
@given(rounds)
def test_suffix_is_its_naive_twin(depth: int, story: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "DEPTH", depth)
        drafting = SuffixDrafter(3).start()
        for ids, n_draft in texts_of(story):
            assert list(zip(*surenesses(drafting, ids, n_draft), strict=True)) == naive_suffix(ids, n_draft, depth)


def test_suffix_worked_by_hand() -> None:
    drafter = SuffixDrafter(10)
    assert tokens(drafter, [1, 2, 3, 4, 5, 1, 2, 3], 6) == [4, 5, 1]  # three tokens match: three guesses
    assert tokens(drafter, [1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]
    assert tokens(drafter, [1, 7, 1, 7, 1, 8, 1], 3) == [7]  # after 1 came 7 twice, and 8 once
    assert tokens(drafter, [1, 8, 1, 9, 1], 3) == [9]  # as often: the one seen last
    assert tokens(drafter, [1, 2, 3], 3) == tokens(drafter, [4], 3) == []
    many = [token for other in range(2, 13) for token in (1, other)]
    assert tokens(SuffixDrafter(20), [*many, 1], 3) == []  # eleven tokens followed, none with a tenth


# --- the table ---------------------------------------------------------------------------------------


def naive_guess(texts: list[list[int]], ids: list[int], longest: int, least: int) -> tuple[int, float]:
    """Back-off by its definition: from short to long, whatever has something of its own to say has the last word."""
    said = (-1, 0.0)
    for n in range(min(longest, len(ids)) + 1):
        end = ids[len(ids) - n :]
        counts = Counter(text[i + n] for text in texts for i in range(len(text) - n) if text[i : i + n] == end)
        if counts:
            token = min(counts, key=lambda token: (-counts[token], token))
            if counts[token] >= (least if n > 1 else 1) and token != said[0]:
                said = token, float(np.float16(counts[token] / counts.total()))
    return said


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=5).filter(any),
    st.lists(few_ids, min_size=1, max_size=4),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_a_table_is_its_naive_twin(texts: list[list[int]], asked: list[list[int]], longest: int, least: int) -> None:
    table = count_table(texts, 4, longest, least)
    for ids in asked:
        assert table.guess(ids) == naive_guess(texts, ids, longest, least)


def test_a_table_worked_by_hand() -> None:
    table = count_table([[1, 2, 3, 1, 2, 3, 1, 2, 0], [0, 3], [2, 1]], 4)
    assert table.guess([]) == (1, float(np.float16(4 / 13)))  # 1 and 2 came four times: the lower id
    assert table.guess([2]) == (3, 0.5)
    assert table.guess([3, 1]) == (2, 1)  # what 1 alone says as well
    assert table.guess([0]) == (3, 1)  # the texts are apart: 0 is followed by 3 alone
    assert tokens(NgramDrafter(table), [3, 1], 5) == [2, 3, 1, 2, 3]


@pytest.mark.parametrize(("n_vocab", "most"), [(4096, 4), (50257, 3), (2, 63)])
def test_what_does_not_fit_into_an_integer_is_refused(n_vocab: int, most: int) -> None:
    top = n_vocab - 1
    table = count_table([[top] * 9, [top] * 9], n_vocab, most)
    assert table.guess([top] * 70) == (top, 1)
    assert count_table([[top] * 9, [top] * 9], n_vocab).longest == min(most, 4)
    with pytest.raises(ValueError, match=f"do not fit into 64 bits with a vocabulary of {n_vocab} .* give 0 to {most}"):
        count_table([[1]], n_vocab, most + 1)
    with pytest.raises(ValueError, match="not one token"):
        count_table([[]], n_vocab)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=30), few_ids, st.floats(0, 1))
def test_a_draft_ends_where_the_product_of_shares_falls_below_the_stop(
    text: list[int], ids: list[int], stop: float
) -> None:
    table = count_table([text], 4)
    every, shares = surenesses(NgramDrafter(table).start(), ids, 6)
    assert len(every) == 6
    found, _ = surenesses(NgramDrafter(table, stop).start(), ids, 6)
    n = next((i for i, product in enumerate(np.cumprod(shares)) if product < stop), 6)
    assert found == every[:n]
    with pytest.raises(ValueError, match=r"stop is 1\.5"):
        NgramDrafter(table, 1.5)


# --- files of tables ---------------------------------------------------------------------------------


def letters(n: int = 4) -> Tokenizer:
    return Tokenizer({bytes([i]): i for i in range(n - 1)}, {"<|endoftext|>": n - 1})


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    for _ in range(3):
        before = (tmp_path / FILE).read_bytes() if (tmp_path / FILE).exists() else None
        save_table(tmp_path / FILE, count_table([[0, 1, 2, 3, 0, 1, 2, 3]], 4), letters(), {"texts": 1, "tokens": 8})
        assert before in (None, (tmp_path / FILE).read_bytes())
    return tmp_path / FILE


def test_a_table_comes_back_from_its_file(table_file: Path) -> None:
    one, other = count_table([[0, 1, 2, 3, 0, 1, 2, 3]], 4), load_table(table_file, letters())
    assert one.n_vocab == other.n_vocab
    for a, b in zip(one.levels, other.levels, strict=True):
        for name in ("keys", "tokens", "shares"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype
    assert open_ngram(table_file, letters()).n_vocab == 4


def test_a_table_of_another_vocabulary_is_refused(table_file: Path) -> None:
    others = [letters(5), Tokenizer({b"b": 0, b"a": 1, b"c": 2}, {"<|endoftext|>": 3})]
    for tokenizer in others:
        with pytest.raises(ValueError, match=r"ngram\.safetensors is the n-gram table of another vocabulary"):
            load_table(table_file, tokenizer)
    assert len({tokenizer.fingerprint for tokenizer in (letters(), letters(), *others)}) == 3


def test_damaged_tables_are_refused_in_one_line(table_file: Path) -> None:
    from safetensors.numpy import load, save

    data = table_file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors = load(data)
    keys = tensors["keys.1"]
    parts = ("keys", "tokens", "shares")
    broken: dict[str, bytes] = {
        "not a complete safetensors file": data[:-3],
        "no n-gram table of this version": save(tensors),
        "lacks 'shares.0'": save({k: v for k, v in tensors.items() if k != "shares.0"}, header),
        "damaged at the contexts of 1 ": save(tensors | {"keys.1": keys[::-1].copy()}, header),
        "damaged at the contexts of 0 ": save(tensors | {"tokens.0": np.array([4], np.uint16)}, header),
        "'shares.0' holds nan": save(tensors | {"shares.0": np.array([np.nan], np.float16)}, header),
        "lacks the empty context, or": save(tensors | {"keys.0": np.array([1])}, header),
        "recursion": save(tensors, {"about": "[" * 100_000}),
        "F8_E5M2": safetensors_bytes({f"{part}.0": ("F8_E5M2", (1,), b"\0") for part in parts}, header),
        "lacks the empty context": save({}, header),
    }
    for said, bad in broken.items():
        table_file.write_bytes(bad)
        with pytest.raises(ValueError, match=said) as told:
            load_table(table_file, letters())
        assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match=r"is not a file.* or make it anew with"):
        load_table(table_file / "nowhere", letters())
    with pytest.raises(ValueError, match=r"is missing, so ngram has nothing to look up: make it anew with python"):
        table_of(table_file.parent / "nowhere")


def test_the_table_in_the_box_is_the_pairs_and_small() -> None:
    file = table_of(find_model("story-target"))
    assert file.stat().st_size <= 4 << 20
    tokenizer = load_tokenizer("story-target")
    assert open_ngram(file, tokenizer).table.longest == 4
    once = tokenizer.encode("Once upon a")
    assert tokenizer.decode(tokens(open_ngram(file, tokenizer), once, 3)) == " time, there"


def test_the_recipe_counts_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "weights"))
    monkeypatch.delitem(sys.modules, "ngram", raising=False)
    import ngram

    stories = [
        f"Once upon a time, {who} had a {what}." for who in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for what in ("dog", "cat")
    ]
    (tmp_path / "stories.txt").write_text("\n<|endoftext|>\n".join(stories), encoding="utf-8")
    ngram.main([str(tmp_path), "--out", str(tmp_path / FILE), "--longest", "2"])
    told = json.loads(capsys.readouterr().out)
    assert (told["texts"] + told["held_out_texts"], len(told["contexts"])) == (len(stories), 3)
    assert told["bytes"] == (tmp_path / FILE).stat().st_size
    tokenizer = load_tokenizer("story-target")
    drafter = open_ngram(tmp_path / FILE, tokenizer)
    assert tokenizer.decode(tokens(drafter, tokenizer.encode("Once"), 3)) == " upon a time"
    table = count_table([[1, 2, 3, 1, 2, 3]], 4)
    assert ngram.tokens_a_pass(table, [[1, 2, 3, 1, 2]], 4) == 4  # one pass wrote all four
    assert ngram.tokens_a_pass(table, [[1, 2, 3, 1, 2]], 1) == 2
    assert ngram.tokens_a_pass(table, [[1, 3, 2, 1, 3]], 4) == 1


# --- all of them in the loop -------------------------------------------------------------------------


def some_table(n_vocab: int) -> NgramTable:
    rng = np.random.default_rng(0)
    return count_table([rng.integers(n_vocab, size=40).tolist() for _ in range(3)], n_vocab, 2, 1)


FREE: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda model: PromptLookupDrafter(model.n_vocab),
    "first": lambda model: PromptLookupDrafter(model.n_vocab, 2, "first"),
    "suffix": lambda model: SuffixDrafter(model.n_vocab),
    "ngram": lambda model: NgramDrafter(some_table(model.n_vocab)),
    "stopped": lambda model: NgramDrafter(some_table(model.n_vocab), 0.1),
    "lookup+ngram": lambda model: CombinedDrafter([FREE["lookup"](model), FREE["ngram"](model)]),
    "suffix+model": lambda model: CombinedDrafter([FREE["suffix"](model), SmallModelDrafter(model)]),
}
free = pytest.mark.parametrize("name", FREE)


@free
@pytest.mark.parametrize("length", [1, 3, toys.Wary(3), AutoLength(toys.CHEAP, 3)], ids=["1", "3", "wary", "auto"])
@pytest.mark.parametrize("sampling", [ANY, Sampling(0.7, top_k=2)], ids=["all", "two"])
def test_the_law_is_the_targets(name: str, length: Any, sampling: Sampling) -> None:
    """Every outcome of the real loop, after a prompt in which there is something to find."""
    target, other = toys.table(3, 1, zeros=0.2), toys.table(3, 2)
    drafter, guessed = FREE[name](other), Counter[int]()
    options: Any = {"max_new_tokens": 4, "sampling": sampling, "stop": lambda new: tuple(new[-2:]) == (2, 2)}

    def outcome(steps: Any) -> tuple[Any, ...]:
        told = list(steps)
        guessed.update(len(step.drafted) for step in told)
        return toys.ids_of(told), told[-1].finish

    def speculative(choices: Script) -> Any:
        return outcome(speculate(target, drafter, (0, 1, 2, 0, 1, 1, 0), n_draft=length, choices=choices, **options))

    got = law(speculative)
    assert guessed.total() > guessed[0]
    expected = law(lambda choices: outcome(generate(target, (0, 1, 2, 0, 1, 1, 0), choices=choices, **options)))
    assert got.keys() == expected.keys()
    assert all(abs(got[key] - expected[key]) < 1e-12 for key in expected)


@free
@pytest.mark.parametrize("prompt", [(0, 1, 9, 2, 0, 1), (4, 0, 9, 2, 4, 0), (9, 9, 0, 9, 9, 0)], ids=str)
@pytest.mark.parametrize("sampling", [ANY, Sampling(0)], ids=["all", "greedy"])
def test_an_end_in_the_prompt_is_guessed_across_and_never_written_past(
    name: str, prompt: tuple[int, ...], sampling: Sampling
) -> None:
    """9 ends a text. The target likes to write what stood in the prompt, the end and what came after it."""
    likes = dict(pairwise(prompt))
    target = toys.Table(lambda text: np.eye(10)[likes.get(text[-1], 9)] * 0.9 + 0.01, 10)
    drafter, guessed = FREE[name](target), []
    options: Any = {"max_new_tokens": 5, "sampling": sampling, "stop": lambda new: new[-1] == 9}
    for seed in range(20):
        told = list(speculate(target, drafter, prompt, n_draft=4, seed=seed, **options))
        guessed += [tuple(step.drafted) for step in told]
        ids = toys.ids_of(told)
        assert 9 not in ids[:-1]
        assert (ids[-1] == 9) == (told[-1].finish == "stop")
        if sampling.temperature == 0:
            assert ids == toys.ids_of(generate(target, prompt, seed=seed, **options))
    if name in ("lookup", "first", "suffix"):
        assert any(9 in guess[:-1] for guess in guessed)  # so that there was something to go wrong


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "numba") for name in FREE), ("lookup+ngram", "numpy"), ("suffix+model", "numpy")]
)
@settings(max_examples=20)
@given(prompt=st.lists(st.integers(0, 6), min_size=1, max_size=29), n_draft=st.integers(1, 8))
def test_greedy_text_and_the_cache_are_right_after_every_round(
    name: str, backend: str, prompt: list[int], n_draft: int
) -> None:
    """Up to the end of the context window."""
    model = toys.tiny_model(TINY, 0, backend)
    target, text = toys.Watched(model), list(prompt)
    drafter = FREE[name](toys.tiny_model(TINY, 1, backend))
    for step in speculate(target, drafter, prompt, max_new_tokens=40, sampling=GREEDY, n_draft=n_draft):
        text += step.committed
        assert toys.bits(model, target.caches[0]) == toys.fresh_bits(model, text[:-1])
    assert tuple(text[len(prompt) :]) == toys.greedy_oracle(model, prompt, 40)
    assert step.finish == "context"


@free
def test_each_text_of_a_batch_is_its_solo_text(name: str) -> None:
    model, prompts = toys.tiny_model(TINY), [[1, 2, 1, 2], [3], [4, 4, 4], [1, 2, 3]]
    drafter = FREE[name](toys.tiny_model(TINY, 1))
    options: Any = {"max_new_tokens": 24, "n_draft": 3}
    for sampling in (GREEDY, Gumbel(ANY, 3)):
        ids: list[list[int]] = [[] for _ in prompts]
        for row, step in speculate_batch(model, drafter, prompts, sampling=sampling, **options):
            ids[row] += step.committed
        for prompt, own in zip(prompts, ids, strict=True):
            assert tuple(own) == toys.ids_of(speculate(model, drafter, prompt, sampling=sampling, **options))


@free
def test_odd_texts_and_full_windows_raise_nothing(name: str) -> None:
    model = toys.tiny_model(TINY)
    drafting = FREE[name](model).start(model.new_cache())
    for ids in ([0], [5] * 32, np.array([1, 2, 1, 2]), (1, 2, 1), [96] * 40, [0]):
        for n_draft in (0, 1, 5):
            draft = drafting.draft(ids, n_draft, ANY, Dice(0))
            assert len(draft.tokens) == len(draft.probs) <= n_draft
            assert all(isinstance(token, int) for token in draft.tokens)


@free
def test_a_draft_ends_where_it_is_told_to(name: str) -> None:
    model, asked = toys.tiny_model(TINY), [0]
    drafting = FREE[name](model).start(model.new_cache())

    def twice(surety: Callable[[], float]) -> bool:
        asked[0] += 1
        assert 0 < surety() <= 1
        return asked[0] < 2

    draft = drafting.draft([1, 2, 3, 4, 5] * 3, 5, ANY, Dice(0), twice)
    assert len(draft.tokens) == asked[0] <= 2


# --- combinations ------------------------------------------------------------------------------------


class Noted:
    """A drafter that guesses one token at some lengths of the text, and notes when it is asked."""

    def __init__(self, name: int, log: list[tuple[int, int]], when: Callable[[int], bool], n_vocab: int = 9) -> None:
        self.name, self.log, self.when, self.n_vocab = name, log, when, n_vocab

    def start(self, cache: Any = None) -> Noted:
        return self

    def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, go_on: Any = always) -> Any:
        self.log.append((self.name, len(ids)))
        return toys.Guesses(9, lambda ids, n: [self.name] * self.when(len(ids))).draft(ids, n_draft, sampling, choices)


def test_the_first_that_proposes_anything_drafts_the_round() -> None:
    log: list[tuple[int, int]] = []
    both = [Noted(1, log, lambda n: n % 2 == 0), Noted(2, log, lambda n: n < 4)]
    drafting = CombinedDrafter(both).start()
    drafts = [list(drafting.draft([0] * n, 3, GREEDY, DICE).tokens) for n in (2, 3, 4, 5)]
    assert drafts == [[1], [2], [1], []]
    assert log == [(1, 2), (1, 3), (2, 3), (1, 4), (1, 5), (2, 5)]
    for bad in ([], [Noted(1, log, bool), Noted(2, log, bool, 8)]):
        with pytest.raises(ValueError, match="give drafters of one"):
            CombinedDrafter(bad)


def test_two_models_of_a_batch_share_their_own_passes() -> None:
    """Each waits for its own model, and has caches of its own block."""
    model, others = toys.tiny_model(TINY), [toys.tiny_model(TINY, seed) for seed in (1, 2)]

    class Sometimes(SmallModelDrafter):
        def start(self, cache: Any = None) -> Any:
            inner = super().start(cache)
            draft = inner.draft
            inner.draft = lambda ids, *rest: draft(ids, *rest) if len(ids) % 2 else Draft([], [])  # type: ignore[method-assign]
            return inner

    drafter = CombinedDrafter([Sometimes(others[0]), SmallModelDrafter(others[1])])
    prompts = [[1], [2, 3], [4, 5, 6], [7, 8]]
    options: Any = {"max_new_tokens": 20, "n_draft": 2, "sampling": GREEDY}
    steps: list[list[Any]] = [[] for _ in prompts]
    for row, step in speculate_batch(model, drafter, prompts, **options):
        steps[row].append((step.drafted, step.committed))
    for prompt, own in zip(prompts, steps, strict=True):
        assert own == [(step.drafted, step.committed) for step in speculate(model, drafter, prompt, **options)]


def test_the_pair_in_the_box_writes_the_same_stories() -> None:
    """And each drafter has some of its guesses kept."""
    target, tokenizer = load_model("story-target"), load_tokenizer("story-target")
    prompt = tokenizer.encode("Once upon a time there was a cat. The cat was big. One day the cat")
    plain = toys.ids_of(generate(target, prompt, max_new_tokens=50, sampling=GREEDY))
    drafters = [
        PromptLookupDrafter(4096), SuffixDrafter(4096), open_ngram(table_of(find_model("story-target")), tokenizer),
        SmallModelDrafter(load_model("story-target", "int8")),
    ]  # fmt: skip
    drafter: Any
    for drafter in drafters:
        steps = list(speculate(target, drafter, prompt, max_new_tokens=50, sampling=GREEDY, n_draft=4))
        assert toys.ids_of(steps) == plain
        assert sum(step.n_accepted for step in steps) > 0
