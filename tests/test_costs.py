"""What guesses and checks cost: kept from run to run, measured where nothing sane is kept."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import toys
from checkpoints import TINY

from minispec import kept_costs
from minispec.costs import Costs, between, measure_costs
from minispec.drafters import SmallModelDrafter
from minispec.drafters.small_model import SmallModelDrafting
from minispec.kept_costs import costs_of, file_of, keep_costs, read_costs
from minispec.session import Pair, open_pair
from minispec.settings import Settings

KEPT = Costs(0.1, (0.0, 1.0, 1.0, 1.25), 0.01, 0.002, 0.05)


def test_prices_come_back_as_they_were_kept(tmp_path: Path) -> None:
    file = tmp_path / "new" / "prices.json"
    keep_costs(file, KEPT)
    assert read_costs(file) == KEPT
    assert [path.name for path in file.parent.iterdir()] == ["prices.json"]


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "{}",
        json.dumps(asdict(KEPT) | {"guess": "cheap"}),
        json.dumps(asdict(KEPT) | {"guess": -1}),
        json.dumps(asdict(KEPT) | {"guess": float("nan")}),
        json.dumps(asdict(KEPT) | {"check": [0.0]}),
        json.dumps(asdict(KEPT) | {"check": [0.0, 1.0, 3.0, 2.0]}),
        json.dumps(asdict(KEPT) | {"check": [0.0, 2.0, 3.0, 4.0]}),
        json.dumps(asdict(KEPT) | {"check": [-1e9, 1.0, 3.0, 4.0]}),
        json.dumps(asdict(KEPT) | {"check": [0.5, 1.0, 3.0, 4.0]}),
        json.dumps(asdict(KEPT) | {"guess": 10**400}),
        json.dumps(asdict(KEPT) | {"pass_seconds": float("nan")}),
        json.dumps(asdict(KEPT) | {"pass_seconds": 0.0}),
        "[" * 100_000,
    ],
)  # fmt: skip
def test_what_cannot_be_prices_is_no_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text(content)
    assert read_costs(tmp_path / "prices.json") is None


def test_a_place_that_cannot_be_written_to_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be written to .*: what guesses cost is measured anew each time"):
        keep_costs(tmp_path / "file" / "prices.json", KEPT)
    assert read_costs(tmp_path / "file" / "prices.json") is None


def test_prices_are_measured_once_for_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_costs, "cache_folder", lambda name: tmp_path / name)
    measured: list[Any] = []

    def measure(*pair: Any) -> Costs:
        measured.append(pair)
        return KEPT

    monkeypatch.setattr(kept_costs, "measure_costs", measure)
    pair = open_pair(Settings())
    assert costs_of(pair) == KEPT
    assert costs_of(open_pair(Settings())) == KEPT
    assert len(measured) == 1
    others = [
        Settings(draft_weights="int8"),
        Settings(weights="int8"),
        Settings(backend="numpy"),
        Settings(draft="none"),
    ]
    files = {file_of(open_pair(settings)) for settings in [Settings(), *others]}
    assert len(files) == 5


def test_what_is_measured_can_be_prices() -> None:
    target, draft = toys.tiny_model(), toys.tiny_model(seed=1)
    found = measure_costs(target, SmallModelDrafter(draft), turns=1, rows=(2, 5))
    assert len(found.check) == 6
    assert found.pass_seconds > 0
    assert measure_costs(target, None, turns=1, rows=(2,)).guess == 0


@pytest.mark.parametrize("n_ctx", [2, 3, 8])
def test_a_draft_of_a_short_window_is_priced_where_it_can_guess(n_ctx: int, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: list[int] = []
    real = SmallModelDrafting.draft

    def draft(self: Any, ids: Any, n_draft: int, *others: Any) -> Any:
        guessed = real(self, ids, n_draft, *others)
        missing.append(n_draft - len(guessed.tokens))
        return guessed

    monkeypatch.setattr(SmallModelDrafting, "draft", draft)
    short = toys.tiny_model(replace(TINY, n_ctx=n_ctx))
    measure_costs(toys.tiny_model(), SmallModelDrafter(short), turns=1, rows=(2,))
    assert set(missing) == {0}


def test_a_window_of_one_token_has_a_price() -> None:
    short = toys.tiny_model(replace(TINY, n_ctx=1))
    assert measure_costs(short, SmallModelDrafter(short), turns=1).guess == 0
    assert measure_costs(toys.tiny_model(), SmallModelDrafter(short), turns=1, rows=(2,)).guess == 0


def test_beyond_what_was_measured_the_last_slope_goes_on() -> None:
    assert [KEPT.curve(rows) for rows in (1, 2, 3, 4, 7)] == [1, 1, 1.25, 1.5, 2.25]


def test_between_two_prices_lies_a_straight_line_that_never_falls() -> None:
    assert between({0: 0.0, 1: 1.0, 2: 1.9, 3: 1.1, 5: 1.4}) == pytest.approx([0.0, 1.0, 1.1, 1.1, 1.25, 1.4])
    assert between({0: 0.0, 1: 1.0, 2: 0.9, 3: 1.1})[:3] == [0.0, 1.0, 1.0]


def test_a_pair_looks_once() -> None:
    pair = replace(Pair(toys.tiny_model(), None))  # type: ignore[arg-type]
    pair.__dict__["costs"] = KEPT
    assert pair.costs is KEPT


def test_prices_that_cannot_be_are_refused() -> None:
    for change, said in [
        ({"guess": -1.0}, "guess is -1.0"),
        ({"pass_seconds": float("nan")}, "pass_seconds is nan"),
        ({"check": (0.0,)}, "check is "),
        ({"check": (0.0, 1.0, 0.5)}, "check is "),
        ({"first": -1.0}, "first is -1.0"),
    ]:
        with pytest.raises(ValueError, match=said):
            replace(KEPT, **change)  # type: ignore[arg-type]


def test_prices_of_a_batch_are_those_of_its_rows() -> None:
    """In passes of the batch: 3 texts with 2 guesses check 9 rows, and write plainly with 3."""
    costs = Costs(0.1, (0.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8), 0.02, 0.002)
    three = costs.of_batch(3)
    assert three.curve(1) == 1
    assert three.curve(3) == pytest.approx(1.8 / 1.2)
    assert three.guess == pytest.approx((0.1 + 2 * 0.02) / 1.2)
    assert replace(costs, first=0.6).of_batch(3).first == pytest.approx(0.5)
    assert costs.of_batch(1) == costs


def test_a_user_without_a_home_has_prices_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    pair = open_pair(Settings())
    monkeypatch.setattr(kept_costs, "measure_costs", lambda *pair: KEPT)
    with pytest.warns(UserWarning, match="cannot be written to"):
        assert costs_of(pair) == KEPT
