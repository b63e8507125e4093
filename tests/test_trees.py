"""Guesses that branch, and chains that are judged as a block: law, text, caches. (The pass: test_tree_pass.py.)

The law      every outcome is walked: trees of certain guesses, draws with and without replacement, and mixtures; blocks
The text     greedy, or with noise that is tied to places, it is that of plain decoding; caches after every round
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import toys
from checkpoints import TINY
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, cases, mixed, row_pairs, samplings, stop_at
from test_exactness import differences, targets_law

from minispec.batch import speculate_batch
from minispec.drafters import SmallModelDrafter, SmallModelTreeDrafter
from minispec.enumeration import Script, law
from minispec.gumbel import Gumbel
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.protocols import Draft, Step, depths
from minispec.sampling import Sampling
from minispec.speculative import Dice, judge_block, speculate
from minispec.trace import Run, run_all, token_kinds
from minispec.trees import depth_of, path_to, tree_parents
from minispec.verify_cases import threads
from minispec.verify_stand_ins import AsTheyAre
from minispec.viz_rounds import rounds

BACKENDS = ["numba", "numpy"]
GREEDY, ANY = Sampling(), Sampling(1.0)


UNEVEN = (-1, 0, -1)  # parents: one guess has another to follow, its sibling has none


# --- the law -----------------------------------------------------------------------------------------

KINDS = ["certain", "with", "without", "mixed"]
SIZES = [(2, 2, 3), (3, 3, 2), (3, 2, 3), (2, 2, 4), (4, 3, 2)]  # n_vocab, possible at a place, new tokens


@st.composite
def tree_cases(draw: Any, tiny: bool = False) -> Case:
    """As `cases`, but small: a tree has more outcomes than a chain."""
    n_vocab, support, n = draw(st.sampled_from(SIZES))
    pairs = draw(st.lists(row_pairs(n_vocab, support, tiny), min_size=1, max_size=3))
    end = draw(st.sampled_from([None, None, (0,), (1,), (0, 1)]))
    salt = draw(st.integers(0, 99))
    prompt = tuple(draw(st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=2)))
    n_draft = draw(st.sampled_from([3, 2, 1, toys.Wary(3)]))
    stop = None if end is None else stop_at(end)
    target, guesses = (mixed(side, salt) for side in zip(*pairs, strict=True))
    n_ctx = len(prompt) + draw(st.sampled_from([50, 50, 2]))
    return Case(target, guesses, n_vocab, prompt, n, n_draft, n_ctx, "", stop)


def law_of(case: Case, drafter: Any, kind: type[toys.Table], sampling: Any, **options: Any) -> dict[Any, Any]:
    """The law of what `speculate` writes, by walking every outcome of the real loop."""
    target = kind(case.target, case.n_vocab, case.n_ctx)
    options |= {"max_new_tokens": case.max_new_tokens, "n_draft": case.n_draft, "stop": case.stop}

    def outcome(choices: Script) -> tuple[tuple[int, ...], str | None]:
        steps = list(speculate(target, drafter, case.prompt, sampling=sampling, choices=choices, **options))
        return toys.ids_of(steps), steps[-1].finish

    return law(outcome)


@pytest.mark.parametrize("kind", KINDS)
@given(case=tree_cases())
def test_the_law_of_trees_is_the_targets_to_the_last_fraction(kind: str, case: Case) -> None:
    drafter = toys.Trees(toys.Exact(case.draft, case.n_vocab, case.n_ctx), kind)
    assert law_of(case, drafter, toys.Exact, AsTheyAre()) == targets_law(case, case.target)


@given(
    case=tree_cases(tiny=True), sampling=samplings, widths=st.sampled_from([(2,), (3,), (2, 1), (1, 2), (2, 2), UNEVEN])
)
def test_the_law_where_a_small_model_branches(case: Case, sampling: Sampling, widths: tuple[int, ...]) -> None:
    drafter = SmallModelTreeDrafter(toys.Table(case.draft, case.n_vocab, case.n_ctx), widths)
    model = toys.Table(case.target, case.n_vocab)
    expected = targets_law(case, lambda text: sampling.probs(model.logits(text)))
    assert not differences(law_of(case, drafter, toys.Table, sampling), expected)


@pytest.mark.parametrize("kind", ["without", "mixed"])
@pytest.mark.parametrize("seed", range(4))
def test_the_law_of_trees_where_all_is_possible(kind: str, seed: int) -> None:
    one, other = toys.table(3, seed), toys.table(3, seed + 10)
    case = Case(one.rule, other.rule, 3, (seed % 3,), 3, 2, 64, "", None)
    drafter = toys.Trees(toys.Exact(other.rule, 3), kind)
    assert not differences(law_of(case, drafter, toys.Exact, AsTheyAre()), targets_law(case, one.rule))


@pytest.mark.parametrize("widths", [(2,), (3,), (4,), (2, 1), (1, 2), UNEVEN, (-1, 0, 0, -1)])
@pytest.mark.parametrize("seed", range(3))
def test_the_law_where_a_small_model_branches_and_all_is_possible(seed: int, widths: tuple[int, ...]) -> None:
    one, other = toys.table(3, seed), toys.table(3, seed + 10)
    case = Case(one.rule, other.rule, 3, (seed,), depth_of(widths) + 1, 2, 64, "", None)
    got = law_of(case, SmallModelTreeDrafter(other, widths), toys.Table, ANY)
    assert not differences(got, targets_law(case, one.rule))


def kept_at_once(pair: Any, kind: str, n: int) -> Any:
    """The chance that one of n guesses for one place is kept."""
    rows: Any = [np.array(row, dtype=object) for row in pair]
    p, q = rows

    class Siblings(toys.Guesses):
        def draft(self, ids: Sequence[int], n_draft: int, sampling: Any, choices: Any, *_: Any) -> Draft:
            tokens: list[int] = []
            probs: list[Any] = []
            rest: Any = q
            for _sibling in range(n):
                if not rest.sum():
                    break
                tokens.append(choices.draw(rest / rest.sum()))
                probs.append(rest / rest.sum())
                if kind == "without":
                    rest = rest.copy()
                    rest[tokens[-1]] = 0
            return Draft(tokens, probs, [-1] * len(tokens))

    target, drafter = toys.Exact(lambda _: p, len(p)), Siblings(len(p), lambda ids, n: [])
    options: Any = {"max_new_tokens": 2, "n_draft": 1, "sampling": AsTheyAre()}
    steps = law(lambda choices: next(speculate(target, drafter, [0], choices=choices, **options)).n_accepted)
    return steps.get(1, 0)


@given(row_pairs(3, 3))
def test_more_guesses_for_a_place_are_kept_more_often(pair: Any) -> None:
    """The first with chance sum(min(p, q)); each further one adds to it, and more so without replacement."""
    with_, without = ([kept_at_once(pair, kind, n) for n in (1, 2, 3)] for kind in ("with", "without"))
    assert with_[0] == without[0] == sum(min(p, q) for p, q in zip(*pair, strict=True))
    assert with_ == sorted(with_)
    assert without == sorted(without)
    support = [token for token, chance in enumerate(pair[1]) if chance]
    covered = all(token in support for token, chance in enumerate(pair[0]) if chance)
    assert without[2] == 1 if covered else without[2] < 1  # all that the draft can guess has been guessed


@given(row_pairs(4, 4), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_certain_guesses_are_kept_with_the_targets_own_chance_of_them(pair: Any, tokens: list[int]) -> None:
    target, one_hot = toys.Exact(lambda _: np.array(pair[0], dtype=object), 4), np.eye(4, dtype=object)

    class Sure(toys.Guesses):
        def draft(self, *_: Any) -> Draft:
            return Draft(tokens, [one_hot[token] for token in tokens], [-1] * len(tokens))

    options: Any = {"max_new_tokens": 2, "n_draft": 1, "sampling": AsTheyAre()}
    drafter = Sure(4, lambda ids, n: [])
    kept = law(lambda choices: next(speculate(target, drafter, [0], choices=choices, **options)).n_accepted)
    assert kept.get(1, 0) == sum(pair[0][token] for token in set(tokens))


# --- blocks ------------------------------------------------------------------------------------------


@given(cases())
def test_the_law_of_blocks_is_the_targets_to_the_last_fraction(case: Case) -> None:
    drafter = case.make_drafter(toys.Exact)
    got = law_of(case, drafter, toys.Exact, AsTheyAre(), verification="block")
    assert got == targets_law(case, case.target)


@given(cases(tiny=True), samplings)
def test_the_law_of_blocks_with_temperature_top_k_and_top_p(case: Case, sampling: Sampling) -> None:
    model = toys.Table(case.target, case.n_vocab)
    expected = targets_law(case, lambda text: sampling.probs(model.logits(text)))
    got = law_of(case, case.make_drafter(toys.Table), toys.Table, sampling, verification="block")
    assert not differences(got, expected)


@pytest.mark.parametrize("seed", range(3))
def test_the_law_of_blocks_where_all_is_possible(seed: int) -> None:
    one, other = toys.table(3, seed), toys.table(3, seed + 10)
    case = Case(one.rule, other.rule, 3, (0,), 4, 3, 64, "", None)
    got = law_of(case, SmallModelDrafter(toys.Exact(other.rule, 3)), toys.Exact, AsTheyAre(), verification="block")
    assert not differences(got, targets_law(case, one.rule))


def mean_kept(pairs: Any, salt: int, n_draft: int, verification: str) -> Any:
    """How many guesses of the first round are kept on average."""
    n_vocab = len(pairs[0][0])
    target, draft = (toys.Exact(mixed(side, salt), n_vocab) for side in zip(*pairs, strict=True))
    options: Any = {"max_new_tokens": n_draft + 1, "n_draft": n_draft, "sampling": AsTheyAre()}
    options["verification"] = verification

    def kept(choices: Script) -> int:
        return next(speculate(target, SmallModelDrafter(draft), [0], choices=choices, **options)).n_accepted

    return sum(n * chance for n, chance in law(kept).items())


@given(st.lists(row_pairs(3, 3), min_size=1, max_size=2), st.integers(0, 9), st.integers(1, 3))
def test_a_block_keeps_no_fewer_guesses_and_as_many_as_its_weights_say(pairs: Any, salt: int, n_draft: int) -> None:
    """On average: the sum over beginnings of q times the weight, which is min(q, weight before * p)."""
    block = mean_kept(pairs, salt, n_draft, "block")
    assert block >= mean_kept(pairs, salt, n_draft, "token")
    target, draft = (mixed(side, salt) for side in zip(*pairs, strict=True))
    expected = Fraction(0)
    reached: dict[tuple[int, ...], Any] = {(0,): (Fraction(1), Fraction(1))}  # texts: chance of the guesses, weight
    for _ in range(n_draft):
        longer = {}
        for text, (chance, weight) in reached.items():
            for token, (p, q) in enumerate(zip(target(text), draft(text), strict=True)):
                if q:
                    longer[(*text, token)] = chance * q, min(Fraction(1), weight * p / q)
        reached = longer
        expected += sum(chance * weight for chance, weight in reached.values())
    assert block == expected


def test_a_block_worked_by_hand() -> None:
    """Two tokens, p = 1/3 2/3 and q = 2/3 1/3 at both places: 2/3 + 5/9 guesses kept of two, one by one 2/3 + 4/9."""
    pair = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
    assert mean_kept([pair], 0, 2, "token") == Fraction(2, 3) + Fraction(4, 9)
    # Beginnings 0 (chance 2/3, weight 1/2) and 1 (1/3, 1): 2/3 are kept at least one long. Of two guesses: 00 4/9 at
    # 1/4, 01 2/9 at 1, 10 2/9 at 1/2, 11 1/9 at 1: 1/9 + 2/9 + 1/9 + 1/9 = 5/9.
    assert mean_kept([pair], 0, 2, "block") == Fraction(2, 3) + Fraction(5, 9)


def test_a_block_is_a_chain() -> None:
    target = toys.table(3, 0)
    options: Any = {"max_new_tokens": 4, "sampling": ANY}
    with pytest.raises(ValueError, match="verification is 'all': choose one of token, block"):
        speculate(target, SmallModelDrafter(target), [0], verification="all", **options)
    steps = speculate(target, SmallModelTreeDrafter(target, (2,)), [0], verification="block", **options)
    with pytest.raises(ValueError, match="verification 'block' judges chains, and the drafter guesses trees"):
        list(steps)


def test_a_block_of_one_guess_is_judged_as_ever() -> None:
    draft = Draft([1], [np.array([0.25, 0.75])])
    probs = np.array([[0.5, 0.5], [1.0, 0.0]])
    outcomes = law(lambda choices: tuple(judge_block(draft, probs, 5, AsTheyAre(), choices)))
    assert outcomes == {((1, 1), (0, 0)): pytest.approx(2 / 3), ((0, 0),): pytest.approx(1 / 3)}


# --- texts and caches ----------------------------------------------------------------------------------

WIDTHS = [(3, 2, 1), (-1, 0, -1, 1, 2, -1, 3), (1, 1, 1, 1), (4,), (1, 3, 2), (2, 2, 2, 2)]  # or parents


def tree_drafter(target: Any, temper: str, widths: Sequence[int], backend: str) -> Any:
    other = toys.tiny_model(target.config, 1, backend)
    models = {"itself": target, "another": other, "contrary": toys.Contrary(target)}
    return SmallModelTreeDrafter(models[temper], widths)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    config=st.sampled_from([TINY, toys.ODD]),
    temper=st.sampled_from(["itself", "another", "contrary"]),
    widths=st.sampled_from(WIDTHS),
    sampling=samplings,
    prompt=st.lists(st.integers(0, 70), min_size=1, max_size=9),
    n_draft=st.integers(1, 5),
    order=st.permutations([1, 2]),
    seed=st.integers(0, 99),
)
def test_text_is_that_of_plain_decoding(
    backend: str, config: GPT2Config, temper: str, widths: tuple[int, ...], sampling: Sampling, prompt: list[int],
    n_draft: int, order: list[int], seed: int,
) -> None:  # fmt: skip
    """Greedy, and with noise that is tied to places, up to the end of the window; and the first guesses are kept."""
    target = toys.tiny_model(config, 0, backend)
    drafter = tree_drafter(target, temper, widths, backend)
    options: Any = {"max_new_tokens": 25, "sampling": Gumbel(sampling, seed)}
    with toys.all_work_shared(target):
        with threads(target, order[0]):
            plain = list(generate(target, prompt, **options))
        with threads(target, order[1]):
            steps = list(speculate(target, drafter, prompt, n_draft=n_draft, **options))
    assert toys.ids_of(steps) == toys.ids_of(plain)
    assert steps[-1].finish == plain[-1].finish
    for step in steps:
        assert step.parents is not None
        assert [step.drafted[guess] for guess in step.path] == list(step.committed[: step.n_accepted])
        if temper == "itself":
            assert step.n_accepted == max(depths(step.parents), default=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("widths", WIDTHS[:2])
@pytest.mark.parametrize("sampling", [GREEDY, ANY], ids=["greedy", "sampled"])
def test_both_caches_are_right_after_every_round(backend: str, widths: tuple[int, ...], sampling: Sampling) -> None:
    inner, other = (toys.tiny_model(TINY, seed, backend) for seed in (0, 1))
    target, draft = toys.Watched(inner), toys.Watched(other)
    near = toys.Watched(inner)
    for model, drafter in ((target, draft), (target, near)):
        del model.caches[:], drafter.caches[:]
        text = [4, 8, 15]
        steps = speculate(model, SmallModelTreeDrafter(drafter, widths), text, max_new_tokens=24, sampling=sampling,
                          n_draft=4, seed=3)  # fmt: skip
        for step in steps:
            text = [*text, *step.committed]
            (cache,), (own,) = model.caches, drafter.caches
            assert toys.bits(inner, cache) == toys.fresh_bits(inner, text[:-1])
            assert own.length <= len(text)
            assert toys.bits(drafter.model, own) == toys.fresh_bits(drafter.model, text[: own.length])


def test_a_batch_of_trees_writes_the_solo_texts() -> None:
    target = toys.tiny_model(TINY)
    drafter = tree_drafter(target, "another", (3, 2, 1), "numba")
    options: Any = {"max_new_tokens": 20, "sampling": Sampling(0.8), "n_draft": 3}
    prompts = [[1, 2, 3], [7], [9] * 12]
    together: list[list[Step]] = [[] for _ in prompts]
    for row, step in speculate_batch(target, drafter, prompts, seed=[1, 2, 3], **options):
        together[row].append(replace(step, draft_seconds=0, target_seconds=0))
    for row, prompt in enumerate(prompts):
        alone = speculate(target, drafter, prompt, seed=row + 1, **options)
        assert together[row] == [replace(step, draft_seconds=0, target_seconds=0) for step in alone]


def test_a_target_that_knows_no_trees_is_refused() -> None:
    class Chains:
        n_ctx, n_vocab = 64, 3

        def new_cache(self) -> Any:
            return toys.table(3, 0).new_cache()

        def forward(self, *chain: Any, **more: Any) -> Any:
            return toys.table(3, 0).forward(*chain, **more)

    drafter = SmallModelTreeDrafter(toys.table(3, 1), (2,))
    options: Any = {"max_new_tokens": 5, "sampling": ANY}
    for run in (
        lambda: list(speculate(Chains(), drafter, [0], **options)),
        lambda: list(speculate_batch(Chains(), drafter, [[0]], **options)),
    ):
        with pytest.raises(ValueError, match="guesses trees, and this target has no forward_tree"):
            run()


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft([0, 1], [np.eye(3)[0]] * 2, [-1]), "the parents of 2 guesses are"),
        (Draft([0, 1], [np.eye(3)[0]] * 2, [1, -1]), r"are \[1, -1\]: give for each the number of an earlier one"),
        (Draft([0] * 5, [np.eye(3)[0]] * 5, [-1, 0, 1, 2, 3]), "guessed 5 tokens where 4"),
        (Draft([0], [np.eye(3)[0]], ["x"]), r"are \['x'\]: give for each the number"),  # type: ignore[list-item]
        (Draft([0], [np.eye(3)[0]], [-1.0]), r"are \[-1.0\]: give for each the number"),  # type: ignore[list-item]
    ],
)
def test_a_draft_that_is_no_tree_is_refused(draft: Draft, message: str) -> None:
    class Faulty(toys.Guesses):
        def draft(self, *_: Any) -> Draft:
            return draft

    with pytest.raises(ValueError, match=message):
        list(speculate(toys.table(3, 0), Faulty(3, lambda ids, n: []), [0], max_new_tokens=9, sampling=ANY))


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ((), "give integers, 1 or more, as in 3,2,1"),
        ((2, 0), "give integers, 1 or more"),
        ((1.5,), "give integers, 1 or more"),
        ((4, 4, 4), "a tree of widths 4,4,4 has 84 guesses, and 64 are the most"),
        ((65,), "65 guesses, and 64"),
    ],
)
def test_widths_that_make_no_tree_are_refused(widths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SmallModelTreeDrafter(toys.table(3, 0), widths)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tree", [(-1, 0, -1, 1, 0, 2, -1, 3), (-1, -1, -1, 2, 3, 1), (3, 2, 1), (-1, 0, 1)])
def test_each_guess_of_any_tree_is_the_models_own_for_its_place(tree: tuple[int, ...], backend: str) -> None:
    """Greedily: of each rank the token that the model finds so likely after the guesses above it."""
    model, ids = toys.tiny_model(TINY, 1, backend), [1, 4, 2]
    drafting = SmallModelTreeDrafter(model, tree).start()
    for _ in range(2):  # again, with a cache
        draft = drafting.draft(ids, 9, GREEDY, Dice(0))
        assert draft.parents is not None
        assert sorted(depths(draft.parents)) == sorted(depths(tree_parents(tree)))
        for guess in range(len(draft.tokens)):
            above = path_to(draft.parents[guess], draft.parents)
            text = [*ids, *(draft.tokens[one] for one in above)]
            likeliest = (-model.forward(text, model.new_cache(), 1)[0]).argsort(kind="stable")
            rank = list(draft.children(draft.parents[guess])).index(guess)
            assert draft.tokens[guess] == likeliest[rank]


def test_a_tree_is_given_by_its_widths_or_its_parents() -> None:
    assert tree_parents((2, 1)) == (-1, -1, 0, 1)
    assert tree_parents(UNEVEN) == UNEVEN
    assert [depth_of(tree) for tree in ((2, 1, 1), UNEVEN, (), "auto")] == [3, 2, 0, 0]
    array: Any = np.array
    assert [depth_of(array(tree, int)) for tree in ((2, 1, 1), UNEVEN, ())] == [3, 2, 0]
    with pytest.raises(ValueError, match=r"the widths of the tree are \[\[-1, -1\], \[0, 0\]\]: give integers"):
        depth_of(array([[-1, -1], [0, 0]]))
    with pytest.raises(ValueError, match="the parents of 2 guesses are"):
        tree_parents((-1, 1))
    with pytest.raises(ValueError, match="a tree of 65 guesses, and 64 are the most"):
        tree_parents((-1,) * 65)


def test_a_round_of_a_tree_is_shown() -> None:
    class Letters:
        def token_bytes(self, token: int) -> bytes:
            return bytes([97 + token])

    tree: Any = {"parents": (-1, -1, 1, 1), "path": (1, 3)}
    whole = Step((0, 1, 2, 3), 2, (1, 3, 4), None, **tree)
    part = Step((0, 1, 2, 3), 1, (1, 9), None, parents=tree["parents"], path=(1,))
    assert token_kinds(whole) == [(1, "accepted"), (3, "accepted"), (4, "bonus")]
    assert token_kinds(part) == [(1, "accepted"), (9, "replaced")]
    assert list(rounds(Run([0], [whole, part]), Letters())) == [  # type: ignore[arg-type]
        "   1 2 of 4: tree ['a'|*'b'['c'|*'d']] bonus 'e'",
        "   2 1 of 4: tree ['a'|*'b'['c'|'d']] replaced 'j'",
    ]


def test_counts_of_trees() -> None:
    target = toys.tiny_model(TINY)
    run = run_all([1], speculate(target, SmallModelTreeDrafter(target, (2, 1)), [1], max_new_tokens=9, sampling=GREEDY))
    assert (run.passes, run.drafted, run.accepted) == (3, 12, 6)
