"""Ways of guessing, one file each, behind one protocol: `minispec.speculative.Drafter`."""

from minispec.drafters.small_model import SmallModelDrafter

__all__ = ["SmallModelDrafter"]
