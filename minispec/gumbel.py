"""Same seed, same text: noise that belongs to a place in the text, not to a throw of the dice.

Add independent Gumbel noise to the logarithms of a distribution, and the argmax is a draw from it. Here the
noise of a place in the text is a function of the seed and of that place alone. Target and drafter meet the
same noise there, so they mostly pick the same token; and what the target picks does not depend on who
guessed, or how far. Sampled text is then token for token what plain decoding writes with that seed.

For the loop this is greedy decoding: every distribution has one token in it, and the one rule (accept
min(1, p / q), else draw from what p has over q) keeps a guess where it is the target's pick, and else
writes that pick. The price is that guesses are kept a little less often than by the optimal rule: with chance
sum over x of 1 / sum over y of max(p_y / p_x, q_y / q_x), x being the tokens that both may write. With d for what that
rule refuses, 1 - sum(min(p, q)), this is at least (1 - d) / (1 + d).

Source: Gumbel 1954; Maddison, Tarlow, Minka 2014 (arXiv 1411.0030); Daliri, Musco, Suresh 2024 (arXiv 2408.07978).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.protocols import Probs, Sampler
from minispec.speculative import checked_law
from minispec.text import check_count

KEPT = 64  # places whose noise is remembered: more than a round looks at
TINY = np.finfo(np.float64).tiny


class Gumbel:
    """A sampler that has thrown its dice beforehand: `sampling`'s law over seeds, certainty for each seed.

    Give it as `sampling` to `speculate` and to `generate`: both then write the same text.
    """

    def __init__(self, sampling: Sampler, seed: int = 0) -> None:
        """Raises ValueError for a sampling that is none, and a seed that is not an integer from 0 up."""
        if not hasattr(sampling, "probs"):
            raise ValueError(f"{sampling!r:.80} is no sampling: give one, as in Gumbel(Sampling(0.7), seed=3)")
        check_count("seed", seed)
        self.sampling = sampling
        self.seed = int(seed)
        self._noise: dict[tuple[int, int], NDArray[np.float64]] = {}

    def __repr__(self) -> str:
        return f"Gumbel({self.sampling!r}, seed={self.seed})"

    def probs(self, logits: NDArray[Any], position: int) -> Probs:
        """Logits [n_vocab] to the one-hot distribution [n_vocab] of the token picked for this place of the text."""
        probs = checked_law(self.sampling.probs(logits, position))
        picked = np.zeros(len(probs))
        picked[self.pick(probs, position)] = 1.0
        return picked

    def pick(self, probs: Probs, position: int) -> int:
        """The argmax of log(probs) + Gumbel noise; never a token without probability, if probs sum to one.

        Gumbel noise is -log of an exponential variable, so this is the argmax of probs over exponentials.
        """
        return int(np.argmax(probs / self.noise(position, len(probs))))

    def noise(self, position: int, n_vocab: int) -> NDArray[np.float64]:
        """Independent exponential variables [n_vocab], none of them 0: a function of (seed, position)."""
        key = position, n_vocab
        noise = self._noise.get(key)
        if noise is None:
            rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(position,)))
            noise = rng.standard_exponential(n_vocab)
            np.maximum(noise, TINY, out=noise)
            for oldest in list(self._noise)[: max(len(self._noise) - KEPT + 1, 0)]:  # another thread may, too
                self._noise.pop(oldest, None)
            self._noise[key] = noise
        return noise
