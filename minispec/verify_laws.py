"""Trials of probabilities for `minispec verify`: the exact law of what the loop writes is the target's.

As in verify_texts, a trial raises `Mismatch` at the first difference and counts what it compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.drafters import SmallModelDrafter, SmallModelTreeDrafter
from minispec.drafters.models import models_of, sees_target, with_models
from minispec.enumeration import Script, law
from minispec.protocols import Draft, Drafter, Drafting, Probs, Sampler, Target
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.speculative import Judge, judge, speculate
from minispec.trace import run_all
from minispec.trees import check_path, path_to
from minispec.verify_texts import Counts, Mismatch, Rng, models_alike, random_prompt

TOLERANCE = 1e-12  # of probabilities that are computed in two ways


@dataclass(frozen=True)
class Blurred:
    """The model with fixed noise on its logits: a draft model for a pair that has none."""

    model: Target

    @property
    def n_ctx(self) -> int:
        """The model's context window."""
        return self.model.n_ctx

    @property
    def n_vocab(self) -> int:
        """The model's vocabulary."""
        return self.model.n_vocab

    def new_cache(self) -> Any:
        """The model's empty cache."""
        return self.model.new_cache()

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> NDArray[Any]:
        """The model's logits, and the same noise on every row."""
        return self.model.forward(ids, cache, n_logits) + self.noise

    def forward_tree(
        self, ids: Sequence[int], guesses: Sequence[int], parents: Sequence[int], cache: Any
    ) -> NDArray[Any]:
        """The same of a tree."""
        model: Any = self.model
        logits: NDArray[Any] = model.forward_tree(ids, guesses, parents, cache) + self.noise
        return logits

    @property
    def noise(self) -> NDArray[np.float64]:
        """The noise [n_vocab]."""
        return 2 * np.random.default_rng(0).standard_normal(self.n_vocab)


def draft_model(pair: Pair) -> Target:
    """The model that drafts, or one to stand in for it."""
    return next(iter(models_alike(pair)), Blurred(pair.target))


@dataclass
class ReadTexts:
    """A cache that holds the ids themselves."""

    ids: list[int] = field(default_factory=list)
    on_trial: tuple[Sequence[int], Sequence[int]] = (), ()  # tokens and parents of a tree, if it was read last

    @property
    def length(self) -> int:
        """How many they are."""
        return len(self.ids)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length`, of which there must be so many."""
        assert 0 <= length <= self.length
        del self.ids[length:]
        self.on_trial = (), ()

    def keep(self, path: Sequence[int]) -> None:
        """Take over these guesses of the tree that was read last."""
        tokens, parents = self.on_trial
        check_path(path, parents)
        self.ids += [tokens[guess] for guess in path]
        self.on_trial = (), ()

    def texts(self, tokens: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
        """Put a tree on trial: the text, and the text as far as each guess."""
        self.on_trial = tokens, parents
        paths = [path_to(guess, parents) for guess in range(-1, len(tokens))]
        return [[*self.ids, *(tokens[guess] for guess in path)] for path in paths]


class Remembered:
    """A model whose logits are its probabilities, of passes from scratch, each text read once.

    A walk over all outcomes comes back to few texts many times. That a pass of any other kind has the same bits
    is for `verify_texts.same_bits` to say.
    """

    def __init__(self, model: Target, sampling: Sampler) -> None:
        self.model, self.sampling, self.n_ctx, self.n_vocab = model, sampling, model.n_ctx, model.n_vocab
        self.rows: dict[tuple[int, ...], Probs] = {}

    def new_cache(self) -> ReadTexts:
        """An empty cache."""
        return ReadTexts()

    def forward(self, ids: Sequence[int], cache: ReadTexts, n_logits: int | None = None) -> NDArray[Any]:
        """Append ids; the probabilities [n_logits, n_vocab] of what follows the last of them."""
        cache.ids += ids
        return np.stack([self.probs(cache.ids[: cache.length - back]) for back in reversed(range(n_logits or 1))])

    def forward_tree(
        self, ids: Sequence[int], guesses: Sequence[int], parents: Sequence[int], cache: ReadTexts
    ) -> NDArray[Any]:
        """Append ids; the probabilities [1 + len(guesses), n_vocab] of what follows them, and of what each guess."""
        cache.ids += ids
        return np.stack([self.probs(text) for text in cache.texts(guesses, parents)])

    def probs(self, text: Sequence[int]) -> Probs:
        """The probabilities [n_vocab] of what follows a text."""
        key = tuple(text)
        if key not in self.rows:
            logits = self.model.forward(key, self.model.new_cache(), n_logits=1)[-1]
            self.rows[key] = self.sampling.probs(logits, len(key))
        return self.rows[key]


class AsTheyAre:
    """A sampler for logits that are probabilities already, but for those that a drafter has cut off or ruled out."""

    def probs(self, logits: NDArray[Any], position: int) -> Probs:
        """The logits. A part of a law is rescaled; where nothing is left, the first token that may be is certain."""
        if abs(logits.sum() - 1) < TOLERANCE:
            return logits
        left: Probs = np.maximum(logits, 0)
        if not left.any():
            left[(logits > -np.inf).argmax()] = 1
        law: Probs = left / left.sum()
        return law


def same_law(pair: Pair, rng: Rng, top_k: int = 0) -> Counts:
    """The exact law of the loop is the target's: of a few tokens, then of one over the vocabulary.

    top_k bounds the tokens of the second part, 0 for all of them.
    """
    n = joint_law(pair, rng) + one_place_law(pair, rng, top_k)
    return {"probabilities": n + law_of_blocks_and_trees(pair, rng)}


class OneBlock:
    """A drafter that guesses once in a text, after its prompt: to walk through many long blocks would take too long."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.n_vocab = drafter, drafter.n_vocab

    def start(self, cache: Any = None) -> OneBlockDrafting:
        """Begin a text with its one block."""
        return OneBlockDrafting(self.drafter.start(cache))


class OneBlockDrafting:
    """The first block that has guesses is the drafter's, all later ones are empty."""

    def __init__(self, drafting: Drafting) -> None:
        self.drafting: Drafting | None = drafting

    def draft(self, *case: Any) -> Draft:
        """The block, if none was before."""
        draft = Draft([], []) if self.drafting is None else self.drafting.draft(*case)
        if draft.tokens:
            self.drafting = None
        return draft


def joint_law(pair: Pair, rng: Rng) -> int:
    """What `speculate` writes along every path of choices, against products of the target's own probabilities."""
    n_draft = int(rng.integers(1, 3 if pair.has_trees else 5))
    n_new = 3 if n_draft < 3 else n_draft + 1
    drafter = SmallModelDrafter(Blurred(pair.target)) if pair.drafter is None else pair.drafter
    seen = takes_real_passes(drafter)  # all paths do then, and there should be few
    sampling = Sampling(round(float(rng.uniform(0.5, 1.5)), 3), top_k=3 if n_new == 3 and not seen else 2)
    prompt = random_prompt(pair, rng, longest=12)
    if not models_of(drafter):
        prompt += prompt[: len(prompt) // 2]  # such as those who copy find something in
    one_block = seen or n_draft > 2 or pair.has_trees
    return walk(pair, prompt, sampling, drafter, n_draft, n_new, getattr(drafter, "judge", "token"), one_block)


def takes_real_passes(drafter: Drafter) -> bool:
    """Whether it needs the target's real cache, or a model whose outputs are not the laws of its guesses."""
    return sees_target(drafter) or any(model.n_vocab != drafter.n_vocab for model in models_of(drafter))


def law_of_blocks_and_trees(pair: Pair, rng: Rng) -> int:
    """The same with a model that guesses, judged as a block or as a tree, half of the time each."""
    temperature, prompt = round(float(rng.uniform(0.5, 1.5)), 3), random_prompt(pair, rng, longest=12)
    model = draft_model(pair)
    if rng.random() < 0.5:
        n_draft, sampling = int(rng.integers(2, 4)), Sampling(temperature, top_k=2)
        return walk(pair, prompt, sampling, SmallModelDrafter(model), n_draft, n_draft + 1, "block", one_block=True)
    widths = ((2,), (3,), (2, 1), (1, 2))[rng.integers(4)]
    sampling = Sampling(temperature, top_k=3 if len(widths) == 1 else 2)
    return walk(pair, prompt, sampling, SmallModelTreeDrafter(model, widths), len(widths), len(widths) + 1)


def walk(
    pair: Pair, prompt: list[int], sampling: Sampling, drafter: Drafter, n_draft: int, n_new: int,
    verification: str | Judge = "token", one_block: bool = False,
) -> int:  # fmt: skip
    """All outcomes of the loop with this drafter; returns how many there are."""
    options: Any = {"n_draft": n_draft, "sampling": AsTheyAre(), "verification": verification}
    remembered = target = Remembered(pair.target, sampling)
    if takes_real_passes(drafter):
        target, options["sampling"] = pair.target, sampling  # type: ignore[assignment]
        n_new += 1  # before the first it has seen nothing, and may guess nothing
    else:
        drafter = with_models(drafter, lambda model: Remembered(model, sampling))
    if one_block:
        drafter = OneBlock(drafter)

    def written(choices: Script) -> tuple[int, ...]:
        steps = speculate(target, drafter, prompt, max_new_tokens=n_new, choices=choices, **options)
        return tuple(run_all(prompt, steps).ids)

    judged = getattr(verification, "__name__", verification)
    case = f"{n_new} new tokens, {n_draft} guesses a round by {drafter!r:.60}, judged by {judged}, {sampling!r}, "
    return compare_laws(law(written), own_law(remembered, prompt, n_new), f"{case}prompt ids {prompt}")


def own_law(target: Remembered, prompt: Sequence[int], n_new: int) -> dict[tuple[int, ...], float]:
    """The target's probability of every text of n_new tokens: a product along the text."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(min(n_new, target.n_ctx - len(prompt))):
        longer: dict[tuple[int, ...], float] = {}
        for new, chance in chances.items():
            probs = target.probs([*prompt, *new])
            longer |= {(*new, int(token)): chance * float(probs[token]) for token in np.flatnonzero(probs)}
        chances = longer
    return chances


def compare_laws(got: Mapping[Any, float], expected: Mapping[Any, float], case: str) -> int:
    """Raise Mismatch where two laws differ by more than TOLERANCE; returns the number of outcomes."""
    for outcome in {**expected, **got}:
        one, other = float(got.get(outcome, 0)), float(expected.get(outcome, 0))
        if not abs(one - other) <= TOLERANCE:
            raise Mismatch(f"{outcome} has probability {one!r}, from the target alone {other!r} ({case})")
    return len(expected)


@dataclass
class Verdict:
    """Choices that accept or refuse as they are told, and keep the chance of it and what was drawn from."""

    accepted: bool
    chance: float = math.nan
    drawn_from: Probs | None = None

    def accept(self, target_prob: float, draft_prob: float) -> bool:
        """As told; notes the probability of accepting."""
        self.chance = 1.0 if target_prob >= draft_prob > 0 else target_prob / draft_prob
        return self.accepted

    def draw(self, probs: Probs) -> int:
        """Any token; notes the distribution."""
        self.drawn_from = probs
        return 0


def one_place_law(pair: Pair, rng: Rng, top_k: int = 0) -> int:
    """Every guess with a chance of being made goes through `judge`: what is written has the target's law."""
    model, sampling = draft_model(pair), Sampling(1.0, top_k)
    prompt = random_prompt(pair, rng, min(40, model.n_ctx))
    case = f"one token, {sampling!r}, prompt ids {prompt}"
    row = pair.target.forward(prompt, pair.target.new_cache(), n_logits=1)[-1]
    target_probs = sampling.probs(row, len(prompt))
    rows = np.stack([target_probs, target_probs[::-1]])  # the bonus token's row is never looked at
    draft_probs = sampling.probs(model.forward(prompt, model.new_cache(), n_logits=1)[-1], len(prompt))
    got, kept = np.zeros(pair.target.n_vocab), 0.0
    for token in np.flatnonzero(draft_probs).tolist():
        draft = Draft([token], [draft_probs])
        for verdict in (Verdict(True), Verdict(False)):
            written, _ = next(judge(draft, rows, len(prompt), AsTheyAre(), verdict))
            chance = draft_probs[token] * (verdict.chance if verdict.accepted else 1 - verdict.chance)
            if verdict.accepted:
                got[written] += chance
                kept += chance
            elif chance > 0:
                got += chance * (verdict.drawn_from if verdict.drawn_from is not None else math.nan)
    overlap = float(np.minimum(target_probs, draft_probs).sum())
    compare_laws({"kept": kept}, {"kept": overlap}, case)
    return compare_laws(dict(enumerate(got.tolist())), dict(enumerate(target_probs.tolist())), case)
