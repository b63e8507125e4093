"""Notes of a run: nothing is changed by taking them, and each says what a pass from scratch says as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY
from toys import tiny_model

from minispec.drafters import SmallModelDrafter, SmallModelTreeDrafter
from minispec.gumbel import Gumbel
from minispec.plain import generate
from minispec.protocols import Step
from minispec.sampling import Sampling
from minispec.settings import Settings
from minispec.speculative import judge, judge_block, residual, speculate
from minispec.trace import run_all
from minispec.trace_data import acceptance, round_data, significant
from minispec.trace_notes import Notes
from minispec.trace_reasons import Guess, Law, Round, top_of
from minispec.trace_whys import chance, why_guess
from minispec.trace_words import in_text
from minispec.typical import judge_typical

PROMPT = [1, 2, 3]
SAMPLED, GREEDY = Sampling(1.0), Sampling(0.0)
TARGET, DRAFT = tiny_model(TINY, 0), tiny_model(TINY, 1)
CHAIN, TREE = SmallModelDrafter(DRAFT), SmallModelTreeDrafter(DRAFT, (3, 2, 1))
CASES = [
    (CHAIN, SAMPLED, judge), (CHAIN, GREEDY, judge), (CHAIN, Gumbel(SAMPLED, 5), judge),
    (CHAIN, Sampling(0.7, 8, 0.9), judge), (CHAIN, SAMPLED, judge_block), (CHAIN, GREEDY, judge_block),
    (TREE, SAMPLED, judge), (TREE, GREEDY, judge), (SmallModelDrafter(TARGET), SAMPLED, judge),
    (CHAIN, SAMPLED, judge_typical),
]  # fmt: skip
MORE: dict[str, Any] = {"max_new_tokens": 24, "seed": 7}


def noted(drafter: Any, sampling: Any, rule: Any, **more: Any) -> list[Round]:
    notes = Notes(sampling, 7, rule)
    way: dict[str, Any] = {"sampling": notes.sampling, "choices": notes.choices, "verification": notes.judge}
    return [notes.round_of(step) for step in speculate(TARGET, drafter, PROMPT, **MORE | way | more)]


def law_after(model: Any, ids: Sequence[int], sampling: Any) -> Any:
    return sampling.probs(model.forward(ids, model.new_cache(), n_logits=1)[-1], len(ids))


def said(step: Step) -> tuple[Any, ...]:
    return step.drafted, step.n_accepted, step.committed, step.finish, step.parents, step.path


@pytest.mark.parametrize(("drafter", "sampling", "rule"), CASES)
def test_a_run_with_notes_is_the_run_without(drafter: Any, sampling: Any, rule: Any) -> None:
    without = speculate(TARGET, drafter, PROMPT, sampling=sampling, verification=rule, **MORE)
    assert [said(one.step) for one in noted(drafter, sampling, rule)] == [said(step) for step in without]


@pytest.mark.parametrize(("drafter", "sampling", "rule"), CASES)
def test_what_is_noted_is_what_passes_from_scratch_say(drafter: Any, sampling: Any, rule: Any) -> None:
    text, judged = list(PROMPT), 0
    for one in noted(drafter, sampling, rule):
        for i, guess in enumerate(one.guesses):
            above: list[int] = []
            parent = guess.parent
            while parent >= 0:
                above.insert(0, one.guesses[parent].token)
                parent = one.guesses[parent].parent
            assert guess.depth == len(above) + 1
            assert (guess.fate == "kept") == (i in one.step.path)
            assert (guess.fate == "lost") == (guess.target_prob is None)
            elder = [other for other in one.guesses[:i] if other.parent == guess.parent]
            if not elder:
                draft_law = law_after(drafter.model, text + above, sampling)
                assert guess.draft_prob == draft_law[guess.token]
                assert guess.draft.top == top_of(draft_law)
                if guess.target is not None:
                    target_law = law_after(TARGET, text + above, sampling)
                    assert guess.target_prob == target_law[guess.token]
                    assert guess.target.top == top_of(target_law)
                    if rule is judge:
                        assert guess.overlap == np.minimum(target_law, draft_law).sum()
                        above_draft = (target_law > draft_law).any()
                        assert guess.residual is not None
                        assert guess.residual.top == (top_of(residual(target_law, draft_law)) if above_draft else ())
            judged += guess.fate != "lost"
        if one.own is not None:
            kept = [one.guesses[place].token for place in one.step.path]
            target_law = law_after(TARGET, text + kept, sampling)
            assert one.own.token == one.step.committed[-1]
            assert 0 < one.own.prob <= 1
            if one.own.kind != "replaced" or rule is judge_typical:
                assert one.own.prob == target_law[one.own.token]
                assert one.own.law.top == top_of(target_law)
            elif one.step.parents is None:
                refused = one.guesses[len(kept)]
                if rule is judge:
                    assert refused.residual is not None
                    assert one.own.law.top == refused.residual.top
                assert one.own.token != refused.token or rule is judge_block
        text += one.step.committed
    assert judged > 5


@pytest.mark.parametrize(("drafter", "sampling", "rule"), [case for case in CASES if case[2] is judge])
def test_each_coin_explains_its_verdict(drafter: Any, sampling: Any, rule: Any) -> None:
    coins = []
    for one in noted(drafter, sampling, rule):
        for guess in one.guesses:
            if guess.target_prob is None:
                assert guess.chance is guess.coin is None
                continue
            assert guess.coin is not None
            assert guess.chance is not None
            coins.append(guess.coin)
            assert guess.chance == (min(1, guess.target_prob / guess.draft_prob) if guess.target_prob else 0)
            assert (guess.coin < guess.chance) == (guess.fate == "kept")
    assert len(set(coins)) == len(coins)  # a coin is not shown for another's


def test_a_block_is_kept_up_to_the_last_coin_that_fell_below() -> None:
    n_longer = 0
    for one in noted(CHAIN, SAMPLED, judge_block):
        thrown = [guess for guess in reversed(one.guesses) if guess.coin is not None]
        below = [guess.depth for guess in thrown if guess.coin < guess.chance]  # type: ignore[operator]
        assert one.step.n_accepted == (below[0] if below else 0)
        assert len(below) <= 1
        n_longer += one.step.n_accepted > 1
    assert n_longer


def test_a_younger_sibling_is_judged_by_what_is_left() -> None:
    n_younger = 0
    text = list(PROMPT)
    for one in noted(TREE, SAMPLED, judge):
        law = law_after(TARGET, text, SAMPLED)
        for guess, draft_law in zip(one.guesses[:3], siblings_laws(text), strict=False):
            if guess.fate == "lost" or guess.parent >= 0:
                break
            assert guess.target is not None
            assert guess.target.top == top_of(law)
            law = residual(law, draft_law(one))
            n_younger += guess.fate == "refused"
        text += one.step.committed
    assert n_younger > 1


def siblings_laws(text: list[int]) -> list[Any]:
    """Of three guesses for the place after a text, each law: the model's, less the tokens of the elder ones."""

    def law(n_elder: int) -> Any:
        def given(one: Round) -> Any:
            probs = law_after(DRAFT, text, SAMPLED)
            for elder in one.guesses[:n_elder]:  # one by one, as they were drawn
                probs = probs.copy()
                probs[elder.token] = 0
                probs = probs / probs.sum()
            return probs

        return given

    return [law(n) for n in range(3)]


def test_models_are_shown_behind_a_law_with_one_token() -> None:
    for sampling in (GREEDY, Gumbel(SAMPLED, 5)):
        text = list(PROMPT)
        for one in noted(CHAIN, sampling, judge):
            above: list[int] = []
            for guess in one.guesses:
                assert guess.draft.model == top_of(law_after(DRAFT, text + above, SAMPLED))
                if guess.target is not None:
                    assert guess.target.model == top_of(law_after(TARGET, text + above, SAMPLED))
                above.append(guess.token)
            text += one.step.committed
    assert all(guess.draft.model is None for one in noted(CHAIN, SAMPLED, judge) for guess in one.guesses)


def test_where_a_text_ends_among_guesses_those_after_are_lost() -> None:
    helpful = SmallModelDrafter(TARGET)
    (one,) = noted(helpful, SAMPLED, judge, stop=lambda new: len(new) == 2, n_draft=5)
    assert [guess.fate for guess in one.guesses] == ["kept", "kept", "lost", "lost", "lost"]
    assert one.own is None
    assert in_text(one) == [[0, "kept"], [1, "kept"], [2, "lost"], [3, "lost"], [4, "lost"]]
    assert "the text had ended" in round_data(one, Settings(temperature=1.0))["guesses"][4]["why"]
    (block,) = noted(helpful, SAMPLED, judge_block, stop=lambda new: len(new) == 2, n_draft=5)
    assert block.own is None
    assert block.step.n_accepted == 2
    assert [guess.fate for guess in block.guesses] == ["kept", "kept", "lost", "lost", "lost"]
    assert acceptance([block])["running"] == [[2, 2, None]]


def test_a_guess_that_the_block_refused_is_not_lost_where_the_text_ends_before_it() -> None:
    n_both = 0
    for seed in range(40):
        notes = Notes(SAMPLED, seed, judge_block)
        way: dict[str, Any] = {"sampling": notes.sampling, "choices": notes.choices, "verification": notes.judge}
        (step, *_) = speculate(
            TARGET, CHAIN, PROMPT, max_new_tokens=9, n_draft=5, seed=seed, stop=lambda new: len(new) == 1, **way
        )
        one = notes.round_of(step)
        fates = [guess.fate for guess in one.guesses]
        kept = next((5 - i for i, accept in enumerate(one_by_one(one)) if accept), 0)
        assert fates == ["kept"] * min(kept, 1) + ["lost"] * (kept - 1) + ["refused"] * (5 - kept)
        n_both += 1 < kept < 5
    assert n_both


def test_what_follows_the_end_is_lost_by_a_rule_of_ones_own_too() -> None:
    helpful = SmallModelDrafter(TARGET)
    (one,) = noted(helpful, GREEDY, judge_typical, stop=lambda new: len(new) == 2, n_draft=5)
    assert [guess.fate for guess in one.guesses] == ["kept", "kept", "lost", "lost", "lost"]
    assert one.own is None


def test_a_probability_below_one_is_shown_below_one() -> None:
    for value in (1 - 2**-53, 0.9999996, 1 - 1e-7, 0.99999):
        assert significant(value) < 1
        assert chance(value) not in ("1", "1.0000000")
    assert (chance(1 - 3e-9), chance(1.0), significant(1.0), significant(0.25)) == ("1 - 3e-9", "1", 1.0, 0.25)


def one_by_one(block: Round) -> list[bool]:
    """Whether each beginning of a block was kept when its coin fell, from the longest down; a lost one was."""
    told = reversed(block.guesses)
    return [guess.fate == "lost" or (guess.coin is not None and guess.coin < (guess.chance or 0)) for guess in told]


def test_why_a_guess_of_a_tree_was_never_judged() -> None:
    ended: dict[str, Any] = {"stop": lambda new: len(new) == 1}
    helpful = SmallModelTreeDrafter(TARGET, (2, 2, 1))
    (one,) = noted(helpful, GREEDY, judge, n_draft=3, **ended)
    whys = [guess["why"] for guess in round_data(one, Settings())["guesses"]]
    for guess, why in zip(one.guesses, whys, strict=True):
        if guess.fate == "kept":
            continue
        if guess.depth == 1:
            assert "Never judged: another guess was kept in its place." in why
        elif one.guesses[guess.parent].fate == "kept":
            assert "Never judged: the text had ended." in why
    assert sum("another guess was kept in the place of one before it" in why for why in whys) == 4
    assert sum("the text had ended" in why for why in whys) == 4
    (chain,) = noted(CHAIN, SAMPLED, judge, n_draft=5, **ended, max_new_tokens=1)[:1]
    whys = [guess["why"] for guess in round_data(chain, Settings(temperature=1.0))["guesses"]]
    assert all("the text had ended" in why for why in whys[1:])


def test_a_coin_that_fell_close_by_is_told_apart() -> None:
    guess = Guess(1, -1, 1, "refused", 0.5, Law(()), 0.266, Law(()), Law(()), 0.9, chance=0.5321, coin=0.53214)
    assert "= 0.5321; the coin fell at 0.53214, not below it: refused." in why_guess(guess)
    assert "= 0.532; the coin fell at 0.700, not" in why_guess(replace(guess, coin=0.7))


def test_plain_decoding_is_noted() -> None:
    for sampling in (SAMPLED, GREEDY):
        notes, text = Notes(sampling, 7), list(PROMPT)
        steps = generate(TARGET, PROMPT, sampling=notes.sampling, choices=notes.choices, max_new_tokens=9)
        for step in steps:
            one = notes.round_of(step)
            assert one.own is not None
            assert (one.guesses, one.own.kind, one.own.token) == ((), "plain", step.committed[0])
            assert one.own.law.top == top_of(law_after(TARGET, text, sampling))
            assert one.own.law.model == (None if sampling is SAMPLED else top_of(law_after(TARGET, text, SAMPLED)))
            text += step.committed
        same = run_all(PROMPT, generate(TARGET, PROMPT, sampling=sampling, seed=7, max_new_tokens=9))
        assert same.ids == text[len(PROMPT) :]


def test_how_often_guesses_were_kept_and_should_have_been() -> None:
    rounds = noted(CHAIN, SAMPLED, judge, max_new_tokens=28)
    told = acceptance(rounds)
    judged = [guess for one in rounds for guess in one.guesses if guess.target_prob is not None]
    assert sum(place["judged"] for place in told["accept_by_place"]) == len(judged)
    assert sum(place["kept"] for place in told["accept_by_place"]) == sum(one.step.n_accepted for one in rounds)
    assert told["running"][-1][:2] == [len(judged), sum(one.step.n_accepted for one in rounds)]
    first = [one.guesses[0] for one in rounds if one.guesses]
    assert told["accept_by_place"][0]["judged"] == len(first)
    mean = sum(guess.overlap or 0 for guess in first) / len(first)
    assert told["accept_by_place"][0]["expected"] == pytest.approx(mean)
    assert told["theory"]["tokens_per_pass"] > 1
    block = acceptance(noted(CHAIN, SAMPLED, judge_block))
    assert block["accept_by_place"][0]["expected"] is block["theory"]["tokens_per_pass"] is None
    none = acceptance([])
    assert (none["accept_by_place"], none["running"], none["theory"]["judged_accept_rate"]) == ([], [], None)


def test_the_top_of_a_distribution() -> None:
    assert top_of(np.array([0.1, 0.2, 0.2, 0.5, 0, 0, 0])) == ((3, 0.5), (1, 0.2), (2, 0.2), (0, 0.1))
    assert top_of(np.full(8, 0.125)) == tuple((i, 0.125) for i in range(5))
    assert top_of(np.array([0.25, 0.75])) == ((1, 0.75), (0, 0.25))
    assert top_of(np.eye(9)[4]) == ((4, 1.0),)
