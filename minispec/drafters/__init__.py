"""Ways of guessing, one file each, behind one protocol: `minispec.protocols.Drafter`. By name: `minispec.methods`."""

from minispec.drafters.combined import CombinedDrafter
from minispec.drafters.eagle import EagleDrafter
from minispec.drafters.eagle_tree import EagleTreeDrafter
from minispec.drafters.early_exit import EarlyExitDrafter
from minispec.drafters.medusa import MedusaDrafter, TypicalMedusaDrafter
from minispec.drafters.mtp import MTPDrafter
from minispec.drafters.ngram import NgramDrafter
from minispec.drafters.parallel import ParallelDrafter
from minispec.drafters.prompt_lookup import PromptLookupDrafter
from minispec.drafters.small_model import SmallModelDrafter
from minispec.drafters.small_model_tree import SmallModelTreeDrafter
from minispec.drafters.suffix import SuffixDrafter

__all__ = [
    "CombinedDrafter", "EagleDrafter", "EagleTreeDrafter", "EarlyExitDrafter", "MTPDrafter", "MedusaDrafter",
    "NgramDrafter", "ParallelDrafter", "PromptLookupDrafter", "SmallModelDrafter", "SmallModelTreeDrafter",
    "SuffixDrafter", "TypicalMedusaDrafter",
]  # fmt: skip
