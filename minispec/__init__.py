"""minispec: GPT-2 from scratch and speculative decoding that writes exactly the big model's text.

    from minispec import load_model, load_tokenizer, Sampling, generate, speculate
    from minispec.drafters import SmallModelDrafter

Names are imported when they are first used: `import minispec` compiles nothing and loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from minispec.batch import generate_batch, speculate_batch
    from minispec.costs import Costs, measure_costs
    from minispec.draft_length import AutoLength
    from minispec.gumbel import Gumbel
    from minispec.model import GPT2
    from minispec.overlapped import speculate_overlapped
    from minispec.parameters import GPT2Config
    from minispec.plain import generate
    from minispec.protocols import Draft, Step
    from minispec.sampling import Sampling
    from minispec.speculative import Dice, speculate
    from minispec.tokenizer import load_tokenizer
    from minispec.weights import load_model

_HOMES = {
    "AutoLength": "draft_length",
    "Costs": "costs",
    "GPT2": "model",
    "GPT2Config": "parameters",
    "Gumbel": "gumbel",
    "Dice": "speculative",
    "Draft": "protocols",
    "Sampling": "sampling",
    "Step": "protocols",
    "generate": "plain",
    "generate_batch": "batch",
    "load_model": "weights",
    "load_tokenizer": "tokenizer",
    "measure_costs": "costs",
    "speculate": "speculative",
    "speculate_batch": "batch",
    "speculate_overlapped": "overlapped",
}
__all__ = [
    "GPT2",
    "AutoLength",
    "Costs",
    "Dice",
    "Draft",
    "GPT2Config",
    "Gumbel",
    "Sampling",
    "Step",
    "generate",
    "generate_batch",
    "load_model",
    "load_tokenizer",
    "measure_costs",
    "speculate",
    "speculate_batch",
    "speculate_overlapped",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'minispec' has no attribute {name!r}")
    return getattr(import_module(f"minispec.{_HOMES[name]}"), name)
