"""What guessing and checking cost, kept from run to run in the user's cache.

Prices are measured once for a machine and a pair of shapes. A draft length that follows from kept prices is the same
tomorrow, and so is sampled text.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from minispec import __version__
from minispec.costs import Costs, measure_beside, measure_costs
from minispec.drafters.models import describe, models_of
from minispec.user_cache import cache_folder
from minispec.whole_file import write_whole

if TYPE_CHECKING:
    from minispec.session import Pair

RECIPE = 3  # goes up when prices are measured in another way


def costs_of(pair: Pair) -> Costs:
    """The prices of this pair on this machine: those that were kept, or measured now and kept."""
    kept = read_costs(file_of(pair))
    return measured_costs(pair) if kept is None else kept


def measured_costs(pair: Pair) -> Costs:
    """The prices of this pair on this machine, measured now and kept."""
    costs = measure_costs(pair.target, pair.drafter)
    keep_costs(file_of(pair), costs)
    return costs


def tree_costs(pair: Pair, chain: Pair, anew: bool = False) -> Costs:
    """The prices of a drafter of wide trees: those of its chains, and of a guess beside another; kept alike.

    chain: the same pair with chains, which holds their prices from then on. anew: measured, whatever is kept, and not
    held. A guess beside another is no dearer than one of a further level.
    """
    costs, file = measured_costs(chain) if anew else chain.costs, file_of(pair)
    kept = None if anew else read_costs(file)
    if kept is None:
        assert chain.drafter is not None
        assert pair.drafter is not None
        kept = replace(costs, beside=measure_beside(pair.target, chain.drafter, pair.drafter))
        keep_costs(file, kept)
    return replace(costs, beside=min(kept.beside, costs.guess))


def file_of(pair: Pair) -> Path:
    """Where the prices of such a pair on such a machine are kept: its name tells all that they depend on."""
    from minispec.bench_machine import describe_machine

    machine = describe_machine(pair.target.backend)
    shapes = [[asdict(model.config), model.stored] for model in (pair.target, *models_of(pair.drafter))]
    drafter = describe(pair.drafter)
    depends = [
        RECIPE,
        __version__,
        machine.cpu,
        machine.threads,
        machine.instructions,
        machine.backend,
        shapes,
        drafter,
    ]
    digest = sha256(json.dumps(depends).encode()).hexdigest()[:16]
    return cache_folder("costs") / f"{digest}.json"


def read_costs(file: Path) -> Costs | None:
    """Prices from a file; None where there is none, or something else is in it."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        check = tuple(float(value) for value in found["check"])
        prices = {name: float(found[name]) for name in ("guess", "reread", "pass_seconds", "first")}
        return Costs(check=check, beside=float(found.get("beside", 0.0)), **prices)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def keep_costs(file: Path, costs: Costs) -> None:
    """Write prices, whole or not at all; a folder that cannot be written to is a warning."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps(asdict(costs)) + "\n").encode())
    except OSError as error:
        warnings.warn(
            f"{file.parent} cannot be written to ({error.strerror}): what guesses cost is measured anew each time, so "
            "with -k auto the same seed may draw another text: give -k a number",
            stacklevel=2,
        )
