"""Ways of guessing, one file each, behind one protocol: `minispec.speculative.Drafter`."""

from minispec.drafters.eagle import EagleDrafter
from minispec.drafters.early_exit import EarlyExitDrafter
from minispec.drafters.medusa import MedusaDrafter
from minispec.drafters.mtp import MTPDrafter
from minispec.drafters.parallel import ParallelDrafter
from minispec.drafters.small_model import SmallModelDrafter

__all__ = [
    "EagleDrafter", "EarlyExitDrafter", "MTPDrafter", "MedusaDrafter", "ParallelDrafter", "SmallModelDrafter",
]  # fmt: skip
