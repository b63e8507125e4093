"""`minispec verify`: it passes for what is right, and each check fails for a fault that it is there to find."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY, tiny_tensors, write_checkpoint
from toys import ODD, tiny_model

import minispec
import minispec.protocols as protocols
import minispec.speculative as speculative
import minispec.verify as verify
import minispec.verify_known as verify_known
from minispec.drafters import SmallModelDrafter
from minispec.kernels import fused
from minispec.model import GPT2
from minispec.parameters import GPT2Config
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.settings import Settings
from minispec.speculative import Dice
from minispec.verify import Check, Plan, run_check
from minispec.verify_bits import same_bits
from minispec.verify_cases import Mismatch
from minispec.verify_dice import FixedRow, fair_dice
from minispec.verify_known import Known, check_known, known_outputs
from minispec.verify_laws import joint_law, one_place_law, same_law
from minispec.verify_texts import same_text

SMALL = GPT2Config(n_layer=2, n_head=4, n_embd=32, n_ctx=32, n_vocab=260, n_inner=64)


class Letters:
    """A tokenizer for any vocabulary."""

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % self.n_vocab for letter in text]


def tiny_pair(config: GPT2Config = TINY, *, draft: bool = True, backend: str = "numba") -> Pair:
    drafter = SmallModelDrafter(tiny_model(config, 1, backend)) if draft else None
    return Pair(tiny_model(config, 0, backend), Letters(config.n_vocab), drafter)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """-m and -d for two tiny checkpoints whose tokens are the bytes and four pairs of letters."""
    options = []
    for seed, option in enumerate(("-m", "-d")):
        folder = tmp_path_factory.mktemp("tiny") / option[1:]
        write_checkpoint(folder, SMALL, tiny_tensors(SMALL, seed))
        letters = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
        ids = {token: i for i, token in enumerate([*letters, "th", "he", "in", "er"])}
        (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        (folder / "merges.txt").write_text("#version: 0.2\nt h\nh e\ni n\ne r\n", encoding="utf-8")
        options += [option, str(folder)]
    return options


@pytest.fixture
def run(run: Any) -> Any:
    """Run `minispec verify` in this process: (status, standard output, standard error)."""
    return partial(run, "verify")


@pytest.fixture
def few_dice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer throws where the dice are not what is tested."""
    monkeypatch.setattr(verify, "fair_dice", lambda pair, rng, n_texts: fair_dice(pair, rng, 200))


# --- what is right passes ----------------------------------------------------------------------------


def test_the_pair_in_the_box_passes(run: Any) -> None:
    status, out, err = run("--quick", "--json", "--seed", "3")
    assert status == 0
    result = json.loads(out)
    assert list(result) == [
        "passed", "checks", "left_out", "target", "draft", "weights", "backend", "seed", "logits_sha256", "seconds",
    ]  # fmt: skip
    assert result["passed"] is True
    names = [check["name"] for check in result["checks"]]
    assert [name for name in names if name != "golden"] == ["greedy", "gumbel", "bits", "law", "dice"]
    assert ("golden" in names) == fused()
    for check in result["checks"]:
        assert list(check) == ["name", "passed", "detail", "seconds", "seed"]
        assert check["passed"] is True
    assert (result["target"], result["draft"], result["seed"]) == ("story-target", "story-draft", 3)
    assert set(result["logits_sha256"]) == {"story-target", "story-draft"}
    assert "left out: known outputs" in err


def test_a_pair_of_8_bits_passes(run: Any) -> None:
    bits = "--quick", "--json", "--weights", "int8", "--draft-weights", "int8", "--only", "bits", "--only", "greedy"
    status, out, err = run(*bits, "--only", "law", "--only", "golden")
    assert status == 0
    result = json.loads(out)
    assert {check["name"] for check in result["checks"] if check["passed"]} == {"greedy", "bits", "law"}
    assert result["weights"] == "int8"
    assert "left out: golden (constants are known for f32 weights alone)" in err


@pytest.mark.usefixtures("few_dice")
def test_the_report_has_a_line_for_every_check(run: Any, folders: list[str]) -> None:
    status, out, err = run(*folders, "--quick")
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["greedy", "gumbel", "bits", "law", "dice"]
    for line in lines[:5]:
        assert " passed " in line
        assert line.endswith(" s)")
    assert [line.split()[0] for line in lines[5:-1]] == ["logits", "logits"]
    assert lines[-1].startswith("exact: all 5 checks passed on ")
    assert "left out: golden (constants are known for story-target and story-draft alone)" in err
    assert run(*folders, "--quick", "-q")[1:] == (lines[-1] + "\n", "")


@pytest.mark.usefixtures("few_dice")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["-d", "none"], ["greedy", "gumbel", "bits", "law", "dice"]),
        (["--backend", "numpy"], ["greedy", "gumbel", "bits", "law", "dice"]),
        (["--coupling", "optimal", "--threads", "1"], ["greedy", "bits", "law", "dice"]),
        (["--coupling", "gumbel"], ["greedy", "gumbel", "bits"]),
    ],
)
def test_options_choose_what_is_checked(run: Any, folders: list[str], options: list[str], names: list[str]) -> None:
    status, out, _ = run(*folders, *options, "--quick", "--json")
    assert status == 0
    result = json.loads(out)
    assert [check["name"] for check in result["checks"]] == names
    assert result["backend"] == ("numpy" if "numpy" in options else "numba")
    assert len(result["logits_sha256"]) == (1 if "none" in options else 2)


@pytest.mark.usefixtures("few_dice")
def test_thorough_goes_on_for_that_time(run: Any, folders: list[str]) -> None:
    status, out, _ = run(*folders, "--thorough", "0.02", "--json")
    assert status == 0
    result = json.loads(out)
    assert 1.2 <= result["seconds"] < 20
    sizes = {check["name"]: int(check["detail"].split()[0].replace(",", "")) for check in result["checks"]}
    assert sizes["dice"] > 200  # texts of one trial
    assert sizes["greedy"] >= 24  # never fewer than in an ordinary run
    assert run(*folders, "--thorough", "--quick")[0] == 2


@pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd"])
@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_trials_pass_for_small_windows_and_vocabularies(config: GPT2Config, draft: bool, backend: str) -> None:
    pair = tiny_pair(config, draft=draft, backend=backend)
    for seed in range(3):
        for trial in (same_text, lambda pair, rng: same_text(pair, rng, sampled=True), same_bits, same_law):
            assert all(trial(pair, np.random.default_rng(seed)).values())


@pytest.mark.parametrize("n_ctx", [1, 2])
def test_a_window_without_room_for_a_guess_is_no_pass(n_ctx: int) -> None:
    pair = tiny_pair(GPT2Config(n_layer=1, n_head=1, n_embd=8, n_ctx=n_ctx, n_vocab=9, n_inner=8))
    check = run_check(Plan("greedy", same_text, 2, ""), pair, 0, quiet=True)
    assert not check.passed
    assert "nothing to compare: no " in check.detail
    assert all(same_bits(pair, np.random.default_rng(0)).values())
    assert all(same_law(pair, np.random.default_rng(0)).values())


def test_trials_follow_from_the_seed_alone() -> None:
    def seen(seed: int, seconds: float | None = None) -> list[int]:
        numbers: list[int] = []

        def trial(_: Pair, rng: Any) -> dict[str, int]:
            numbers.append(int(rng.integers(1 << 40)))
            return {}

        run_check(Plan("greedy", trial, 3, ""), tiny_pair(), seed, seconds, quiet=True)
        return numbers

    first, second = seen(7), seen(8)
    assert first == seen(7)
    assert not set(first) & set(second)
    assert seen(7, 0.05)[:6] == first + second  # a long run goes through the seeds from 7 on


# --- what is wrong fails -------------------------------------------------------------------------------


def failing(out: str) -> set[str]:
    return {check["name"] for check in json.loads(out)["checks"] if not check["passed"]}


def rounded_by_company(forward: Any) -> Any:
    """A pass whose logits are one ulp off where it has more than two rows."""

    def wrong(self: GPT2, ids: Any, cache: Any, n_logits: int | None = None) -> Any:
        logits = forward(self, ids, cache, n_logits)
        if len(ids) > 2 and len(logits):
            logits[-1, 5] = np.nextafter(logits[-1, 5], np.float32(np.inf))
        return logits

    return wrong


@pytest.mark.usefixtures("few_dice")
def test_logits_that_depend_on_company(run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPT2, "forward", rounded_by_company(GPT2.forward))
    status, out, _ = run(*folders, "--quick", "--seed", "5", "--threads", "1")
    assert status == 1
    assert "bits           FAILED   trial 1 of seed 5: position " in out
    again = f"minispec verify --only bits --target {folders[1]} --draft {folders[3]} --seed 5 --threads 1 --quick"
    assert f"to see it again: {again}" in out
    assert out.splitlines()[-1].startswith("NOT EXACT: ")
    assert "bits" in out.splitlines()[-1]


def bits_of_many(pair: Pair) -> None:
    for seed in range(60):
        same_bits(pair, np.random.default_rng(seed))


def texts_of_many(pair: Pair) -> None:
    for seed in range(20):
        same_text(pair, np.random.default_rng(seed))


@pytest.mark.parametrize("side", [0, 1])
def test_a_cache_row_that_is_wrong_where_nothing_reads_it(monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    """The last row's keys or values are off after a pass, and right again before the next."""
    forward = GPT2.forward
    spoilt: list[Any] = []

    def wrong(self: GPT2, ids: Any, cache: Any, n_logits: int | None = None) -> Any:
        while spoilt:
            array, place, value = spoilt.pop()
            array[place] = value
        past = cache.length
        logits = forward(self, ids, cache, n_logits)
        if past:
            array, t = cache.layers[-1][side], cache.length - 1
            place = (0, t // 32, 0, t % 32) if side == 0 else (0, 0, t, 0)
            spoilt.append((array, place, array[place]))
            array[place] += np.float32(1e-3)
        return logits

    monkeypatch.setattr(GPT2, "forward", wrong)
    with pytest.raises(Mismatch, match=f"{('keys', 'values')[side]} of layer 1"):
        bits_of_many(tiny_pair())


FAR = GPT2Config(n_layer=1, n_head=2, n_embd=16, n_ctx=128, n_vocab=99, n_inner=16)


@pytest.mark.parametrize("trials", [bits_of_many, texts_of_many])
def test_a_fault_far_into_the_context_window(monkeypatch: pytest.MonkeyPatch, trials: Any) -> None:
    forward = GPT2.forward

    def wrong(self: GPT2, ids: Any, cache: Any, n_logits: int | None = None) -> Any:
        far = cache.length > 110 and len(ids) > 1
        logits = forward(self, ids, cache, n_logits)
        return -logits if far else logits

    monkeypatch.setattr(GPT2, "forward", wrong)
    with pytest.raises(Mismatch):
        trials(tiny_pair(FAR))


def test_noise_that_changes(run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from minispec.gumbel import Gumbel

    rng = np.random.default_rng(0)
    monkeypatch.setattr(Gumbel, "noise", lambda self, position, n_vocab: rng.standard_exponential(n_vocab))
    status, out, _ = run(*folders, "--quick", "--json", "--only", "greedy", "--only", "gumbel")
    assert status == 1
    assert failing(out) == {"gumbel"}


def test_a_text_that_ends_for_another_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from minispec import verify_texts

    def wrong(*arguments: Any, **options: Any) -> Any:
        for step in speculative.speculate(*arguments, **options):
            yield replace(step, finish="context") if step.finish == "length" else step

    monkeypatch.setattr(verify_texts, "speculate", wrong)
    with pytest.raises(Mismatch, match="the text ends by 'context', plain decoding ends by 'length'"):
        texts_of_many(tiny_pair(FAR))


def test_a_draft_model_that_fails(run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    forward = GPT2.forward

    def wrong(self: GPT2, ids: Any, cache: Any, n_logits: int | None = None) -> Any:
        if self.weights.wte[0, 0, 0] != target.weights.wte[0, 0, 0]:
            raise ZeroDivisionError("a fault in the draft model")
        return forward(self, ids, cache, n_logits)

    target = minispec.load_model(folders[1])
    monkeypatch.setattr("minispec.verify_known.logits_hashes", lambda *_: {})
    monkeypatch.setattr(GPT2, "forward", wrong)
    status, out, _ = run(*folders, "--quick", "--json", "--only", "greedy")
    assert status == 1
    assert failing(out) == {"greedy"}
    assert "ZeroDivisionError: a fault in the draft model" in out


def test_a_drafter_that_never_guesses(run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from minispec.drafters.small_model import SmallModelDrafting

    monkeypatch.setattr(SmallModelDrafting, "draft", lambda *_: protocols.Draft([], []))
    status, out, _ = run(*folders, "--quick", "--json", "--coupling", "gumbel")
    assert status == 1
    assert failing(out) == {"greedy", "gumbel"}
    assert "round 0 has 0 guesses with room for" in out


@pytest.mark.usefixtures("few_dice")
def test_a_drafter_that_misreads_the_text(run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The text stays right, since the target decides; but drafting for itself the target refuses its own guesses."""
    from minispec.drafters.small_model import SmallModelDrafting

    draft = SmallModelDrafting.draft
    monkeypatch.setattr(SmallModelDrafting, "draft", lambda self, ids, *rest: draft(self, [*ids, ids[0]][1:], *rest))
    status, out, _ = run(*folders, "--quick", "--json")
    assert status == 1
    assert failing(out) == {"greedy", "gumbel"}
    assert "refused its own guess" in out


@pytest.mark.usefixtures("few_dice")
@pytest.mark.parametrize("fault", ["accepts anything", "bonus shifted", "cache kept"])
def test_loops_that_write_other_text(run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    judge = speculative.judge

    def wrong(draft: Any, logits: Any, position: int, sampling: Any, choices: Any) -> Any:
        if fault == "accepts anything":
            yield from ((token, True) for token in draft.tokens)
            yield choices.draw(sampling.probs(logits[-1], position)), False
        elif fault == "bonus shifted":
            yield from judge(draft, np.roll(logits, 1, axis=0), position, sampling, choices)

    if fault == "cache kept":
        from minispec.kv_cache import KVCache

        monkeypatch.setattr(
            KVCache, "truncate", lambda self, length: setattr(self, "length", max(length, self.length - 1))
        )
    else:
        monkeypatch.setattr(speculative, "judge", wrong)
    status, out, _ = run(*folders, "--quick", "--json")
    assert status == 1
    assert {"greedy", "gumbel"} <= failing(out)


def no_residual(target_probs: Any, draft_probs: Any) -> Any:
    return target_probs


def draft_for_target(target_probs: Any, draft_probs: Any) -> Any:
    excess = np.maximum(draft_probs - target_probs, 0)
    return excess / excess.sum() if excess.sum() else draft_probs


@pytest.mark.parametrize("residual", [no_residual, draft_for_target])
def test_a_residual_that_is_dropped_or_turned_round(
    run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch, residual: Any
) -> None:
    monkeypatch.setattr(speculative, "residual", residual)
    monkeypatch.setattr(verify, "fair_dice", lambda pair, rng, n_texts: fair_dice(pair, rng, 8_000))
    status, out, _ = run(*folders, "--quick", "--json", "--coupling", "optimal")
    assert status == 1
    assert failing(out) >= {"law", "dice"}


def laws_of_many(trial: Any, pair: Pair) -> None:
    for seed in range(12):
        trial(pair, np.random.default_rng(seed))


@pytest.mark.parametrize("part", [joint_law, one_place_law])
def test_each_part_of_the_law_finds_a_dropped_residual(monkeypatch: pytest.MonkeyPatch, part: Any) -> None:
    monkeypatch.setattr(speculative, "residual", no_residual)
    with pytest.raises(Mismatch, match=r"has probability .* from the target alone .* prompt ids"):
        laws_of_many(part, tiny_pair(draft=False))


@pytest.mark.parametrize("fault", ["bonus by argmax", "accepts anything", "never accepts"])
def test_the_joint_law_of_loops_that_break_the_rule(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def wrong(draft: Any, logits: Any, position: int, sampling: Any, choices: Any) -> Any:
        bonus = sampling.probs(logits[-1], position + len(draft.tokens))
        for i, (token, draft_probs) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
            target_probs = sampling.probs(logits[i], position + i)
            kept = choices.accept(target_probs[token], draft_probs[token])
            if fault == "never accepts" or (not kept and fault == "bonus by argmax"):
                yield choices.draw(speculative.residual(target_probs, draft_probs)), False
                return
            yield token, True
        yield int(np.argmax(bonus)) if fault == "bonus by argmax" else choices.draw(bonus), False

    monkeypatch.setattr(speculative, "judge", wrong)
    with pytest.raises(Mismatch, match="from the target alone"):
        laws_of_many(joint_law, tiny_pair(draft=False))


def test_dice_that_use_a_uniform_twice(run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Dice.draw

    class Repeating:
        """The generator's numbers; the last once more where that is asked for."""

        def __init__(self, rng: Any) -> None:
            self.rng, self.last, self.again = rng, 0.0, False

        def random(self) -> float:
            if not self.again:
                self.last = float(self.rng.random())
            return self.last

    def accept(self: Any, target_prob: Any, draft_prob: Any) -> bool:
        return bool(target_prob > 0 and getattr(self.rng, "last", 0.5) * draft_prob < target_prob)

    def wrong_draw(self: Any, probs: Any) -> int:
        if not isinstance(self.rng, Repeating):
            self.rng = Repeating(self.rng)
        return draw(self, probs)

    monkeypatch.setattr(Dice, "accept", accept)
    monkeypatch.setattr(Dice, "draw", wrong_draw)
    status, out, _ = run(*folders, "--quick", "--json", "--coupling", "optimal")
    assert status == 1
    assert failing(out) == {"dice"}
    (detail,) = (check["detail"] for check in json.loads(out)["checks"] if not check["passed"])
    assert "expected within" in detail


def test_a_coin_that_is_a_little_too_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Dice, "accept", lambda self, target_prob, draft_prob: self.rng.random() * draft_prob < 1.04 * target_prob
    )
    with pytest.raises(Mismatch, match=r"a coin of 0\.3 for 0\.8"):
        fair_dice(tiny_pair(), np.random.default_rng(0), 30_000)


def test_a_law_that_is_a_little_off(monkeypatch: pytest.MonkeyPatch) -> None:
    residual = speculative.residual

    def wrong(target_probs: Any, draft_probs: Any) -> Any:
        probs = residual(target_probs, draft_probs)
        return probs + 1e-9 * (np.roll(probs, 1) - probs)

    monkeypatch.setattr(speculative, "residual", wrong)
    with pytest.raises(Mismatch, match="from the target alone"):
        laws_of_many(one_place_law, tiny_pair(draft=False))


@pytest.mark.skipif(not fused(), reason="the hashes are those of compiled fused multiply-add")
@pytest.mark.parametrize("name", ["story-target", "story-draft"])
def test_a_weight_that_is_another(run: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    load_model = minispec.load_model

    def changed(*arguments: Any) -> GPT2:
        model = load_model(*arguments)
        if arguments[0] == name:
            bias = model.weights.ln_f_bias
            bias[3] = np.nextafter(bias[3], np.float32(np.inf))
        return model

    monkeypatch.setattr("minispec.weights.load_model", changed)
    status, out, _ = run("--json", "--only", "golden")
    assert status == 1
    assert f"the logits of {name} have sha256" in json.loads(out)["checks"][0]["detail"]


def test_known_outputs_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = tiny_pair()

    def load(_: str) -> Any:
        return pair.target, pair.tokenizer

    known = Known("gpt2", (1, 2), 4, draft="gpt2", passes=1)
    check_known(known, load)
    with pytest.raises(Mismatch, match="1 passes, which should be 3"):
        check_known(Known("gpt2", (1, 2), 4, draft="gpt2", passes=3), load)
    with pytest.raises(Mismatch, match=r"continues \(1, 2\) by"):
        check_known(Known("gpt2", (1, 2), 2, (0, 0)), load)


def test_every_known_output_that_is_at_hand_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = tiny_pair()
    new = generate(pair.target, [1, 2], max_new_tokens=3, sampling=Sampling())
    right = Known("tiny", (1, 2), 3, tuple(token for step in new for token in step.committed))
    monkeypatch.setattr(verify_known, "absent", lambda known: known.target if known.target == "absent" else None)
    settings = Settings(target="tiny", draft="none")
    for wrong, text in (((), None), ((0, 0, 0), "continues")):
        known = (right, Known("tiny", (1, 2), 3, wrong)) if wrong else (right, Known("absent", (1, 2), 3, (0, 0, 0)))
        monkeypatch.setattr(verify_known, "KNOWN", known)
        if text is None:
            assert known_outputs(pair, np.random.default_rng(0), settings) == {"texts": 1}
        else:
            with pytest.raises(Mismatch, match=text):
                known_outputs(pair, np.random.default_rng(0), settings)


def test_an_error_in_a_trial_is_a_failed_check() -> None:
    def trial(*_: Any) -> dict[str, int]:
        raise ValueError("the logits hold nan")

    check = run_check(Plan("greedy", trial, 2, ""), tiny_pair(), 4, quiet=True)
    assert check == Check("greedy", False, "trial 1 of seed 4: the logits hold nan", check.seconds, 4)


def test_logits_that_are_not_numbers(run: Any, folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPT2, "forward", lambda self, ids, cache, n_logits=None: np.full((1, 260), np.nan, np.float32))
    status, out, _ = run(*folders, "--quick", "--coupling", "gumbel", "--json")
    assert status == 1
    assert failing(out) >= {"greedy", "gumbel"}


def test_threads_are_as_before_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    def wrong(*_: Any, **__: Any) -> Any:
        raise Mismatch("wrong")

    before = numba.get_num_threads()
    monkeypatch.setattr("minispec.verify_texts.run_all", wrong)
    with pytest.raises(Mismatch):
        same_text(tiny_pair(), np.random.default_rng(0))
    assert numba.get_num_threads() == before


def test_the_toy_has_the_probabilities_of_the_example() -> None:
    toy = FixedRow(np.array([0.15, 0.35, 0.10, 0.40]))
    cache = toy.new_cache()
    assert np.allclose(np.exp(toy.forward([0, 1], cache)), [[0.15, 0.35, 0.10, 0.40]] * 2)
    assert cache.length == 2


# --- wrong use -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Once upon a time"], "verify takes no prompt"),
        (["--thorough", "0"], "'0' cannot be used: give a number, 0.01 or more"),
        (["--only", "laws"], "'laws'"),
        (["--only", "law", "--coupling", "gumbel"], "nothing to check"),
        (["--quick", "--thorough", "2"], "give one"),
        (["--thorough", "x"], "'x' cannot be used: give a number"),
        (["--coupling", "best"], "best"),
        (["-m", "./nowhere", "-d", "none"], "nowhere"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(run: Any, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
