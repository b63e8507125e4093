"""--tree auto: the choice from counts and prices, what is kept of them, and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY
from heads_files import medusa_tensors, write_heads
from hypothesis import given
from hypothesis import strategies as st
from test_cli import PROMPT, run_json
from test_tree_shape import every_tree, steps, tables
from test_verify import Letters
from toys import ids_of, tiny_model

from minispec import kept_costs, tree_auto, tree_counts
from minispec.costs import Costs, measure_beside
from minispec.decoding import decode
from minispec.drafters import CombinedDrafter, MedusaDrafter, SmallModelDrafter, SmallModelTreeDrafter, SuffixDrafter
from minispec.drafters.models import branches, with_tree
from minispec.heads import read_heads
from minispec.kept_costs import file_of, tree_costs
from minispec.protocols import depths
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.settings import Settings
from minispec.speculative import speculate
from minispec.tree_auto import chains, choose, with_best_tree
from minispec.tree_counts import (
    counts_file,
    counts_of,
    depends,
    keep_counts,
    measure_counts,
    prompts_in_turn,
    read_counts,
    wide_tree,
)
from minispec.tree_shape import RankCounts, expected_tokens

AUTO = Settings(tree="auto", draft="story-draft")
CHEAP = Costs(0.05, (0.0, 1.0, *(1 + 0.02 * n for n in range(1, 30))), 0.0, 1.0, beside=0.01)
DEAR = Costs(0.3, (0.0, 1.0, *(1 + 0.4 * n for n in range(1, 30))), 0.0, 1.0, beside=0.1)
EVEN = RankCounts((((100, 50), (50, 25), (25, 5)), ((50, 25), (25, 12)), ((10, 5),)))  # chances .5, .25, .05 and so on
SURE = RankCounts((((100, 95), (5, 1)), ((90, 85), (5, 1)), ((80, 76),)))  # nearly always the first
NEVER = RankCounts((((100, 1),),))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts and prices as they are set, in place of measured ones."""
    known = {"counts": EVEN, "costs": CHEAP}
    monkeypatch.setattr(tree_auto, "counts_of", lambda *_: known["counts"])
    monkeypatch.setattr(tree_auto, "tree_costs", lambda *_: known["costs"])
    return known


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what is kept, and few texts to count in."""
    for module in (kept_costs, tree_counts):
        monkeypatch.setattr(module, "cache_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(tree_counts, "N_TEXT", 2)
    return tmp_path


class Unending(Letters):
    """Texts that end at the limit."""

    end_of_text = -1

    def token_bytes(self, token: int) -> bytes:
        return b"a"


def toy_pair(drafter: Any = None) -> Pair:
    """A tiny model drafts for another, with the wide tree."""
    target = tiny_model(TINY)
    drafter = SmallModelTreeDrafter(tiny_model(TINY, 1), wide_tree()) if drafter is None else drafter
    return Pair(target, Unending(TINY.n_vocab), drafter)  # type: ignore[arg-type]


def noted(calls: list[int], value: Any) -> Any:
    """A function that always returns this, and notes that it was called."""

    def call(*_: Any) -> Any:
        calls.append(1)
        return value

    return call


# --- the choice ------------------------------------------------------------------------------------


@given(tables(), steps, st.sampled_from([(0.0, 0.0), (0.1, 0.05), (0.4, 0.1)]), st.sampled_from([None, 1, 2]))
def test_no_small_tree_pays_better(
    accept: list[list[float]], steps: list[float], guesses: tuple[float, float], deepest: int | None
) -> None:
    """Nor any chain than the one that it is compared with."""
    check = [0.0, 1.0]
    for step in steps[:4]:
        check.append(check[-1] + step)
    check.append(check[-1] + 20)  # so that no larger tree pays
    costs = Costs(guesses[0], tuple(check), 0.0, 1.0, beside=guesses[1])
    choice = choose(accept, costs, deepest)
    assert choice.depth <= (deepest or 3)
    for parents, ranks in every_tree(accept[:deepest], 4):
        deep = max(depths(parents), default=0)
        price = deep * guesses[0] + (len(parents) - deep) * guesses[1] + costs.curve(len(parents) + 1)
        pays = expected_tokens(parents, ranks, accept) / price - 1e-12
        assert choice.best.speedup >= pays
        assert choice.chain.speedup >= pays or parents != tuple(range(-1, len(parents) - 1))


def test_what_comes_of_a_choice(scripted: Any) -> None:
    """A tree as deep as it is, a chain of the length that -k says, or no guesses at all."""
    pair = toy_pair()
    settings, chosen, choice = with_best_tree(AUTO, pair)
    assert choice is not None
    assert settings == replace(AUTO, tree=choice.tree, num_draft_tokens=3)
    assert choice.tree == chosen.drafter.tree == choice.best.parents  # type: ignore[union-attr]
    assert choice.line().startswith("tree: by depth 2, 4, 3 guesses (2.")
    for length, expected in (("auto", "auto"), (2, 2), (9, 3)):
        scripted["counts"] = SURE
        asked = replace(AUTO, num_draft_tokens=length)
        scripted["costs"] = replace(CHEAP, check=DEAR.check)
        settings, chosen, choice = with_best_tree(asked, pair)
        assert settings == replace(asked, tree=(), num_draft_tokens=expected)
        assert type(chosen.drafter) is SmallModelDrafter
        assert choice is not None
        assert choice.line().startswith(f"tree: none pays more than a chain of {choice.depth} (")
    scripted["counts"], scripted["costs"] = NEVER, DEAR
    settings, chosen, choice = with_best_tree(AUTO, pair)
    assert settings == replace(AUTO, tree=(), num_draft_tokens=0)
    assert choice is not None
    assert choice.line() == "tree: none, and no chain either: no guess pays here, so decoding is plain"


def test_k_is_a_limit_of_depth(scripted: Any) -> None:
    settings, chosen, choice = with_best_tree(replace(AUTO, num_draft_tokens=1), toy_pair())
    assert settings.tree == (-1, -1, -1)
    assert settings.num_draft_tokens == 1
    settings, chosen, choice = with_best_tree(replace(AUTO, num_draft_tokens=0), toy_pair())
    assert (settings.tree, settings.num_draft_tokens, choice) == ((), 0, None)
    assert type(chosen.drafter) is SmallModelDrafter


def test_where_there_is_nothing_to_choose_all_stays(scripted: Any) -> None:
    pair = toy_pair()
    for settings in (replace(AUTO, tree=()), replace(AUTO, tree=(2, 1))):
        assert with_best_tree(settings, pair) == (settings, pair, None)
    settings, none, choice = with_best_tree(replace(AUTO, draft="none"), replace(pair, drafter=None))
    assert (settings.tree, none.drafter, choice) == ((), None, None)


def test_texts_that_share_passes_have_chains(scripted: Any) -> None:
    """Passes over trees are each text's own, so none may be priced as a share of one."""
    settings, chosen, _ = with_best_tree(AUTO, toy_pair(), 2)
    assert (settings.tree, settings.num_draft_tokens, chosen.has_trees) == ((), "auto", False)


def test_texts_that_share_passes_have_prices_of_their_own(scripted: Any) -> None:
    """Rows that are nearly free for one text are not for eight."""
    scripted["costs"] = Costs(0.05, (0.0, 1.0, *(1 + 0.002 * n * n for n in range(1, 40))), 0.0, 1.0)
    one, eight = (with_best_tree(AUTO, toy_pair(), n_text)[2] for n_text in (1, 8))
    assert one is not None
    assert eight is not None
    assert len(one.chain.parents) > len(eight.chain.parents) > 0


def test_greedy_text_is_the_targets_with_the_tree_that_is_chosen(scripted: Any) -> None:
    pair = toy_pair()
    for counts in (EVEN, SURE, NEVER, RankCounts((((9, 5), (4, 1)), ((5, 3), (2, 2)), ((3, 1), (2, 1)), ((9, 8),)))):
        scripted["counts"] = counts
        settings, chosen, _ = with_best_tree(replace(AUTO, max_new_tokens=30), pair)
        plain = ids_of(decode(settings, chosen, [3, 1], plain=True))
        assert ids_of(decode(settings, chosen, [3, 1])) == plain


def test_trees_of_another_shape(tmp_path: Path) -> None:
    """Whatever can branch does; heads and models are the same ones."""
    target = tiny_model(TINY).tapped((TINY.n_layer,))
    heads = read_heads(write_heads(tmp_path / "x", "medusa", target, medusa_tensors(TINY)), "medusa", target)
    medusa, small = MedusaDrafter(target, heads, (-1, -1)), SmallModelTreeDrafter(tiny_model(TINY, 1), (2,))
    uneven = (-1, 0, -1)
    twin = with_tree(medusa, uneven)
    assert (twin.tree, medusa.tree, twin.blocks is medusa.blocks) == ((-1, -1, 0), (-1, -1), True)
    assert not with_tree(medusa, ()).branches
    both = with_tree(CombinedDrafter([SuffixDrafter(TINY.n_vocab), small]), uneven)
    assert type(both.drafters[0]) is SuffixDrafter
    assert (both.drafters[1].tree, both.drafters[1].model) == (uneven, small.model)
    options: Any = {"max_new_tokens": 20, "sampling": Sampling(), "n_draft": 3}
    expected = ids_of(speculate(target, with_tree(medusa, ()), [1, 2], **options))
    for drafter in (twin, both, with_tree(small, ())):
        assert ids_of(speculate(target, drafter, [1, 2], **options)) == expected
    array: Any = np.array
    wrong: Any = ((-1, 1), (-1, 0.5), [[-1], [0]], [[1, 1], [1, 1]], np.zeros((2, 2, 2)))
    for one in (medusa, small):
        assert with_tree(one, array(uneven)).tree == with_tree(one, uneven).tree
        assert not branches(with_tree(one, array([])))
        for nonsense in wrong:
            for tree in (nonsense, array(nonsense)):
                with pytest.raises(ValueError, match=r"^the (parents|widths) of .*: give .*$"):
                    with_tree(one, tree)


@pytest.mark.parametrize(("length", "beside"), [("auto", 8), (2, 2), (9, 9)])
def test_other_drafters_guess_on_whatever_is_counted_of_trees(scripted: Any, length: Any, beside: int) -> None:
    """Counts are of trees alone: they must not silence a drafter of chains, nor hold it to the depth of the tree."""
    small = SmallModelTreeDrafter(tiny_model(TINY, 1), wide_tree())
    pair = toy_pair(CombinedDrafter([SuffixDrafter(TINY.n_vocab), small]))
    asked = replace(AUTO, num_draft_tokens=length)
    settings, _, choice = with_best_tree(asked, pair)
    assert choice is not None
    assert 0 < choice.depth <= 3
    assert settings == replace(asked, tree=choice.tree, num_draft_tokens=beside)
    for counts in (NEVER, RankCounts(())):  # nothing is counted of one that never came to guess
        scripted["counts"] = counts
        settings, chosen, choice = with_best_tree(asked, pair)
        assert (settings, chosen.has_trees) == (replace(asked, tree=()), False)
        assert choice is not None
        assert choice.line() == "tree: none is seen to pay, so there are chains, as long as -k says"


def test_chains_keep_the_prices_that_they_were_chosen_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder takes no file, measuring again would take seconds and may find others."""
    (tmp_path / "file").write_text("")
    measured: list[int] = []
    monkeypatch.setattr(kept_costs, "cache_folder", lambda name: tmp_path / "file" / name)
    monkeypatch.setattr(kept_costs, "measure_costs", noted(measured, CHEAP))
    monkeypatch.setattr(kept_costs, "measure_beside", lambda *_: 0.01)
    monkeypatch.setattr(tree_auto, "counts_of", lambda *_: RankCounts((((100, 95),), ((90, 85),))))
    with pytest.warns(UserWarning, match="cannot be written to"):
        settings, pair, _ = with_best_tree(AUTO, toy_pair())
    assert (settings.tree, pair.costs, len(measured)) == ((), CHEAP, 1)


# --- counts ----------------------------------------------------------------------------------------


def test_the_wide_tree_has_four_ranks_and_fewer_below() -> None:
    deep = depths(wide_tree())
    assert [deep.count(depth) for depth in range(1, 9)] == [4, 5, 6, 5, 1, 1, 1, 1]
    assert len({prompt for prompt, _ in zip(prompts_in_turn(), range(12), strict=False)}) == 12


def test_counts_are_those_of_the_pair() -> None:
    """A model that drafts for itself is always right, greedily; and few rounds are written when there is no time."""
    target = tiny_model(TINY)
    pair = Pair(target, Unending(TINY.n_vocab), SmallModelTreeDrafter(target, wide_tree()))  # type: ignore[arg-type]
    first, *others = measure_counts(AUTO, pair).chances()
    assert first == [1.0]
    assert len(others) == len(tree_counts.WIDE) - 1
    assert all(row == [1.0] for row in others)
    few = measure_counts(AUTO, pair, seconds=0.0).by_depth[0]
    assert sum(judged for judged, _ in few) == tree_counts.FEWEST  # of which one alone says all or nothing


def test_counts_are_kept_and_read_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged, or was asked for anew, is counted again."""
    measured: list[int] = []
    monkeypatch.setattr(tree_counts, "measure_counts", noted(measured, EVEN))
    pair = toy_pair()
    assert counts_of(AUTO, pair) == counts_of(AUTO, pair) == EVEN
    assert len(measured) == 1
    file = counts_file(AUTO, pair)
    keep_counts(file, SURE)
    assert counts_of(AUTO, pair) == SURE == read_counts(file)
    huge = f'{{"by_depth": [[[{10**400}, 1]]]}}'
    damaged = (
        '{"by_depth": [[[1, 2]]]}',
        '{"by_depth": [[["1", 1]]]}',
        '{"by_depth": ""}',
        '{"by_depth": {}}',
        huge,
        '{"by_depth": [""]}',
        '{"by_depth": [{}]}',
        '{"by_depth": [[]]}',
        '{"by_depth": [[[true, true]]]}',
    )
    for content in ("", "{", "[]", "{}", "[" * 100_000, *damaged):
        file.write_text(content)
        assert read_counts(file) is None
        assert counts_of(AUTO, pair) == EVEN
        assert read_counts(file) == EVEN
    assert counts_of(AUTO, pair, anew=True) == EVEN
    assert len(measured) == 16


def test_counts_are_of_target_drafter_and_way_to_sample(folder: Path) -> None:
    """And of no machine; the file of heads is looked at, and not its name alone."""
    target, pair = tiny_model(TINY), toy_pair()
    others = [
        (AUTO, replace(pair, target=tiny_model(TINY, 5))),
        (AUTO, replace(pair, target=tiny_model(TINY, stored="int8"))),
        (AUTO, replace(pair, drafter=SmallModelTreeDrafter(tiny_model(TINY, 2), wide_tree()))),
        (replace(AUTO, temperature=1.0), pair),
        (replace(AUTO, temperature=0.5), pair),
        (replace(AUTO, temperature=1.0, top_k=3), pair),
        (replace(AUTO, temperature=1.0, coupling="gumbel"), pair),
    ]
    assert len({counts_file(AUTO, pair), *(counts_file(*other) for other in others)}) == 8
    assert depends(replace(AUTO, top_k=3, seed=9, max_new_tokens=3), pair) == depends(AUTO, pair)
    files = set()
    for seed in (0, 1):
        path = write_heads(folder / "heads", "medusa", target, medusa_tensors(TINY, seed=seed))
        files.add(counts_file(replace(AUTO, draft=f"medusa:{path}"), pair))
    assert len(files) == 2


def test_a_folder_that_takes_no_counts_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be written to .*: what --tree auto goes by is measured anew"):
        keep_counts(tmp_path / "file" / "counts.json", EVEN)


def test_the_price_of_a_guess_beside_another_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no dearer than a guess of a further level; the other prices are those of chains."""
    measured: list[int] = []
    monkeypatch.setattr(kept_costs, "measure_costs", lambda *_: CHEAP)
    monkeypatch.setattr(kept_costs, "measure_beside", noted(measured, 0.03))
    pair = toy_pair()
    assert tree_costs(pair, chains(pair)) == replace(CHEAP, beside=0.03)
    monkeypatch.setattr(kept_costs, "measure_beside", noted(measured, 0.3))
    assert tree_costs(pair, chains(pair)) == replace(CHEAP, beside=0.03)
    assert tree_costs(pair, chains(pair), anew=True) == replace(CHEAP, beside=0.05)
    assert len(measured) == 2
    assert file_of(pair).is_file()
    file_of(pair).write_text("")
    assert tree_costs(pair, chains(pair)) == replace(CHEAP, beside=0.05)
    assert len(measured) == 3


def test_a_guess_beside_another_has_a_price() -> None:
    pair = toy_pair()
    wide: Any = pair.drafter
    assert measure_beside(pair.target, with_tree(wide, ()), wide, turns=1) >= 0
    assert measure_beside(pair.target, wide, wide, turns=1) == 0.0


# --- the command line ------------------------------------------------------------------------------


@pytest.fixture
def quick(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few texts, and a price that does not depend on how busy the machine is."""
    monkeypatch.setattr(kept_costs, "measure_beside", lambda *_: 0.01)


def test_the_tree_that_pays_is_taken_and_said(run: Any, quick: None, scripted: Any) -> None:
    plain = run_json(run, "generate", PROMPT, "-n", "30", "-d", "none")
    told = run_json(run, "generate", PROMPT, "-n", "30", "--tree", "auto")
    assert told["ids"] == plain["ids"]
    assert told["passes"] < plain["passes"]
    assert told["tree"][0] == -1
    assert told["num_draft_tokens"] == max(depths(told["tree"])) == 3
    status, _, err = run("generate", PROMPT, "-n", "9", "--tree", "auto", "-v")
    assert status == 0
    (line,) = [line for line in err.splitlines() if line.startswith("tree: ")]
    assert "by depth 2, 4, 3 guesses (2." in line
    assert "tree: " not in run("generate", PROMPT, "-n", "9", "--tree", "auto")[2]
    status, out, err = run("compare", PROMPT, "-n", "9", "--tree", "auto", "--repetitions", "1", "-v", "-k", "1")
    assert status == 0
    assert "tree: by depth 3 guesses" in err
    assert "same text, token for token" in out
    scripted["counts"], scripted["costs"] = NEVER, DEAR
    none = run_json(run, "generate", PROMPT, "-n", "30", "--tree", "auto")
    assert (none["ids"], none["num_draft_tokens"], none["drafted"]) == (plain["ids"], 0, 0)


@pytest.mark.parametrize("draft", ["story-draft", "medusa"])
def test_counts_are_made_once_and_kept(run: Any, quick: None, folder: Path, draft: str) -> None:
    first = run_json(run, "generate", PROMPT, "-n", "20", "-d", draft, "--tree", "auto")
    (file,) = (folder / "tree-counts").iterdir()
    before = file.stat()
    assert read_counts(file)
    again = run_json(run, "generate", PROMPT, "-n", "20", "-d", draft, "--tree", "auto")
    assert (again["ids"], again["passes"], again.get("tree")) == (first["ids"], first["passes"], first.get("tree"))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert first["ids"] == run_json(run, "generate", PROMPT, "-n", "20", "-d", "none")["ids"]


def test_a_batch_and_a_trace_with_the_tree_that_pays(run: Any, quick: None, scripted: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\nThe dog\n")
    status, out, _ = run("generate", "--prompts", str(tmp_path / "prompts.txt"), "-n", "9", "--tree", "auto", "--json")
    assert status == 0
    for line, prompt in zip(out.splitlines(), (PROMPT, "The dog"), strict=True):
        assert json.loads(line)["ids"] == run_json(run, "generate", prompt, "-n", "9", "-d", "none")["ids"]
    told = run_json(run, "trace", PROMPT, "-n", "9", "--tree", "auto")
    assert told["settings"]["tree"][0] == -1
    assert told["settings"]["num_draft_tokens"] == 3


def test_verify_with_the_tree_that_pays(run: Any, quick: None, scripted: Any) -> None:
    status, out, _ = run("verify", "--quick", "--only", "greedy", "--tree", "auto", "--json")
    assert status == 0
    assert json.loads(out)["passed"] is True


def test_bench_with_the_tree_that_pays(run: Any, quick: None, scripted: Any) -> None:
    told = run_json(run, "bench", "--only", "end-to-end", "--tree", "auto", "-n", "6", "--repetitions", "1", "-q")
    assert told["tree"][0] == -1
    assert [row["num_draft_tokens"] for row in told["draft_lengths"]] == [1, 2, 3]
    assert all(row["same_text"] for row in told["end_to_end"])


def test_bench_of_costs_counts_anew(run: Any, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    monkeypatch.setattr(tree_counts, "measure_counts", noted(measured, EVEN))
    for _ in range(2):
        status, _, err = run("bench", "--only", "costs", "--tree", "auto")
        assert status == 0
        assert "tree: " in err
    assert len(measured) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-d", "eagle"],
            "--tree is for a model that guesses, or medusa, and eagle does not branch by it: leave",
        ),
        (["-d", "suffix"], "suffix does not branch by it"),
        (["-d", "eagle-tree+story-draft"], "eagle-tree+story-draft guesses another as well: give widths, as in"),
        (["--verification", "block"], "--verification block judges chains: leave out --tree"),
        (["--schedule", "overlapped"], "--schedule overlapped judges chains, guess by guess: leave out --tree"),
        (["-k", "some"], "'some' cannot be used: give an integer, 0 or more, or auto"),
        (["--tree", "automatic"], "'automatic' cannot be used: give an integer, 1 or more"),
    ],
)
def test_wrong_use_is_one_line(run: Any, arguments: list[str], message: str) -> None:
    status, out, err = run("generate", PROMPT, "--tree", "auto", *arguments)
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert message in line


@pytest.mark.parametrize("command", [["generate", "-f"], ["compare", "-f"], ["generate", "--prompts"]])
def test_a_prompt_without_room_is_refused_before_anything_is_measured(
    run: Any, quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    measured: list[int] = []
    monkeypatch.setattr(tree_counts, "measure_counts", noted(measured, EVEN))
    monkeypatch.setattr(kept_costs, "measure_costs", noted(measured, CHEAP))
    (tmp_path / "long").write_text("word " * 600)
    status, out, err = run(*command, str(tmp_path / "long"), "--tree", "auto")
    assert (status, out, measured) == (2, "", [])
    assert "a context window of 512" in err


def test_that_decoding_turns_plain_is_said(run: Any, quick: None, scripted: Any) -> None:
    scripted["counts"], scripted["costs"] = NEVER, DEAR
    line = "no guess pays here, so decoding is plain"
    assert line in run("generate", PROMPT, "-n", "9", "--tree", "auto")[2]
    assert line not in run("generate", PROMPT, "-n", "9", "--tree", "auto", "-q")[2]


def test_auto_without_a_draft_says_so(run: Any) -> None:
    status, _, err = run("generate", PROMPT, "-n", "3", "-d", "none", "--tree", "auto", "-v")
    assert status == 0
    assert "--tree has no effect without a draft" in err
