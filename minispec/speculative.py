"""Speculative decoding: a drafter guesses, the target checks all guesses in one pass, the law stays its own.

With `protocols.py`, which says what it is given, and `text.py`, where a text ends, this file stands alone: the three
need NumPy and nothing else, and know no model. Anything with `n_ctx`, `n_vocab`, `new_cache` and `forward` is a target;
anything with `n_vocab` and `start` is a drafter.

One round: **draft** up to n_draft tokens, each with the distribution it was drawn from; **verify** them
in one target pass, which gives the target's distribution at each guess and one place further; **accept**
guesses in order while a coin allows; **replace** the first refused one by a draw from what the target
has over the draft (or add a bonus token when none was refused); **roll back** the cache to what was kept.

One rule serves all: greedy decoding is a distribution with one token in it. And a draft may branch: a second guess
for the same place is judged where the first was refused, against what the target then has over the draft.

Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318). Trees: Miao et al. 2023
(arXiv 2305.09781), Chen et al. 2024 (arXiv 2402.12374). Blocks: Sun et al. 2024 (arXiv 2403.10444).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minispec.protocols import Choices, Draft, Drafter, DraftLength, Fixed, Probs, Sampler, Step, Target, check_parents
from minispec.text import Stop, Text, check_count, checked_id

Judge = Callable[..., Iterator[tuple[int, int]]]  # how guesses are judged: called and answering as `judge`
GROUP = 256  # tokens whose probabilities a draw sums at once
SLACK = 1e-5  # what a law may be short of one, or over it, by rounding: it may come in float32
VERIFICATIONS = ("token", "block")  # how guesses are judged: one by one, or as a block
NO_TREES = "the drafter guesses trees, and this target has no forward_tree: give a model such as GPT2, or guess chains"


# --- chance --------------------------------------------------------------------------------------


class Dice:
    """Choices by a seeded NumPy generator."""

    def __init__(self, seed: int) -> None:
        """Raises ValueError for a seed that is not an integer from 0 up."""
        check_count("seed", seed)
        self.rng = np.random.default_rng(int(seed))

    def accept(self, target_prob: Any, draft_prob: Any) -> bool:
        """u * q < p with a uniform u below 1: no division, and nothing passes where p is 0.

        The product of u and a denormal q may round up to q itself, which q <= p lets through.
        """
        kept = self.rng.random() * draft_prob < target_prob or draft_prob <= target_prob
        return bool(target_prob > 0 and kept)

    def draw(self, probs: Probs) -> int:
        """The first token whose cumulated probability exceeds a uniform number: first its group, then itself."""
        groups = np.add.reduceat(probs, np.arange(0, len(probs), GROUP)).cumsum()
        uniform = self.rng.random() * groups[-1]
        group = first_above(groups, uniform)
        within = probs[group * GROUP : (group + 1) * GROUP].cumsum()
        return group * GROUP + first_above(within, uniform - groups[group - 1] if group else uniform)


def first_above(cumulated: NDArray[Any], value: Any) -> int:
    """The first place of a growing sum where it exceeds value, which is short of its end but for rounding."""
    place = int(cumulated.searchsorted(value, side="right"))
    if place == len(cumulated):  # value was rounded up to the sum itself
        place = int(cumulated.searchsorted(cumulated[-1], side="left"))
    return place


# --- the rule ------------------------------------------------------------------------------------


def residual(target_probs: Probs, draft_probs: Probs) -> Probs:
    """What the target has over the draft, rescaled to sum to one: the law of a refused guess's replacement.

    Why this gives the target's law, with p and q for the two: a token is guessed and kept with chance
    q min(1, p / q) = min(p, q). A guess is refused with chance 1 - sum(min(p, q)), which is sum(max(p - q, 0)),
    and then the token is drawn with max(p - q, 0) over that same sum. Together: min(p, q) + max(p - q, 0) = p.
    """
    excess = np.maximum(target_probs - draft_probs, 0)
    total = excess.sum()
    return excess / total if total > 0 else target_probs  # no excess: the two are equal up to rounding


def judge(
    draft: Draft, logits: NDArray[Any], position: int, sampling: Sampler, choices: Choices
) -> Iterator[tuple[int, int]]:
    """The tokens a round writes, in order, each with the guess it is, counted from 1, or 0 for the target's own.

    logits [1 + len(draft.tokens), n_vocab] are the target's: row 0 is for the place after the text, `position`, and
    row 1 + i for the place after guess i.
    Where a guess is refused, what the target has over the draft takes the target's place: for its younger siblings,
    which were guessed for the same place, and at last for the replacement. Each step keeps the law, as `residual` says.
    """
    guess, depth = -1, 0
    while True:
        target_probs = checked_law(sampling.probs(logits[1 + guess], position + depth))
        for child in draft.children(guess):
            token, draft_probs = draft.tokens[child], draft.probs[child]
            if choices.accept(target_probs[token], draft_probs[token]):
                yield token, 1 + child
                guess, depth = child, depth + 1
                break
            target_probs = residual(target_probs, draft_probs)
        else:  # a replacement, or a bonus where no guess was left
            yield choices.draw(target_probs), 0
            return


def judge_block(
    draft: Draft, logits: NDArray[Any], position: int, sampling: Sampler, choices: Choices
) -> Iterator[tuple[int, int]]:
    """As `judge`, for a chain, but by one decision on how much of it to keep, which is a little more.

    A guess that the target likes better than the draft did makes up for one before it that it liked less: weights[i],
    the chance that the first i guesses are kept, is the product of all ratios target / draft so far, held at 1 after
    each. With p and q for the laws of the next place, more than i are kept with the sum of min(weight * p, q), which is
    weight - over, where `over` is the sum of max(weight * p - q, 0). So just i have to be kept with chance over, and a
    replacement that is drawn from that maximum fills the place up to weight * p. Lengths are tried from the longest
    down: i are kept with over / (1 - weight + over), the chance given that no more were.
    """
    n, weights = len(draft.tokens), [1]
    laws = [checked_law(sampling.probs(row, position + i)) for i, row in enumerate(logits)]
    for token, target_probs, draft_probs in zip(draft.tokens, laws, draft.probs, strict=False):
        kept = weights[-1] * target_probs[token]
        weights.append(1 if kept >= draft_probs[token] else kept / draft_probs[token])

    def chance(i: int) -> Any:
        """That just i guesses are kept, given that no more were."""
        if i == n:
            return weights[n]
        over = np.maximum(weights[i] * laws[i] - draft.probs[i], 0).sum()
        missing = 1 - weights[i] + over
        return over / missing if missing > 0 else 1  # no excess of a certain beginning: the two laws are equal

    n_kept = next((i for i in range(n, 0, -1) if choices.accept(chance(i), 1)), 0)
    yield from ((token, 1 + i) for i, token in enumerate(draft.tokens[:n_kept]))
    rest = laws[n_kept]
    yield choices.draw(residual(weights[n_kept] * rest, draft.probs[n_kept]) if n_kept < n else rest), 0


# --- the loop ------------------------------------------------------------------------------------


def speculate(
    target: Target,
    drafter: Drafter,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampler,
    n_draft: int | DraftLength = 4,
    seed: int = 0,
    stop: Stop | None = None,
    choices: Choices | None = None,
    verification: str | Judge = "token",
) -> Iterator[Step]:
    """Write up to max_new_tokens after ids, with the target's law, a `Step` for every pass of the target.

    The text ends where `stop` says so, at max_new_tokens, or when prompt and text fill the context
    window (n_ctx tokens in all): exactly where plain decoding ends. n_draft is the number of guesses a round, or a
    way to choose it, such as `AutoLength`. `choices` replaces the dice of `seed`. verification: "token" judges guesses
    one by one; "block" keeps a few more of a chain, with the same law; a function like `judge` is a rule of your own,
    and the law its own affair.
    Raises ValueError, at once, for an empty or too long prompt, ids outside the vocabulary, negative counts, and a
    drafter that is none or has another vocabulary; later, for a draft that breaks the protocol.
    """
    if not hasattr(n_draft, "start"):
        check_count("n_draft", n_draft)
        n_draft = Fixed(int(n_draft))
    if not hasattr(drafter, "start"):
        raise ValueError(f"{drafter!r:.80} is no drafter: wrap a model, as in SmallModelDrafter(model)")
    if drafter.n_vocab != target.n_vocab:
        raise ValueError(
            f"the draft has {drafter.n_vocab} tokens and the target {target.n_vocab}: they must share a vocabulary"
        )
    if not callable(verification) and verification not in VERIFICATIONS:
        raise ValueError(f"verification is {verification!r}: choose one of {', '.join(VERIFICATIONS)}")
    text = Text(target, ids, max_new_tokens, stop)
    choices = Dice(seed) if choices is None else choices
    return _rounds(target, drafter, text, sampling, n_draft, choices, verification)


def _rounds(
    target: Target, drafter: Drafter, text: Text, sampling: Sampler, length: DraftLength, choices: Choices,
    verification: str | Judge,
) -> Iterator[Step]:  # fmt: skip
    """Round after round: draft, verify, accept or replace, roll back."""
    verdicts = verification if callable(verification) else judge_block if verification == "block" else judge
    cache, guide = target.new_cache(), length.start()
    drafting = drafter.start(cache)
    finish = text.finish()
    if finish:
        yield Step((), 0, (), finish)
    while not finish:
        began = time.perf_counter()
        n_guess = min(guide.most(), text.room - 1)  # the pass adds one token of its own
        draft = drafting.draft(list(text.ids), n_guess, sampling, choices, guide.go_on)
        check_draft(draft, n_guess, target.n_vocab)
        if verification == "block" and draft.parents is not None:
            raise ValueError("verification 'block' judges chains, and the drafter guesses trees: choose 'token'")
        guessed = time.perf_counter()
        logits = look(target, text.ids[cache.length :], draft, cache)
        verified = time.perf_counter()

        first, guess, path = len(text.ids), 0, []
        for token, guess in verdicts(draft, logits, first, sampling, choices):
            path += [guess - 1] if guess else []
            finish = text.commit(token)
            if finish:
                break
        # The pass read all guesses; those refused go, and the last token of the text has not been read yet.
        if draft.parents is not None:
            cache.keep(path)
        cache.truncate(len(text.ids) - 1)

        step = Step(
            drafted=tuple(draft.tokens),
            n_accepted=len(path),
            committed=tuple(text.ids[first:]),
            finish=finish,
            draft_seconds=guessed - began,
            target_seconds=verified - guessed,
            parents=None if draft.parents is None else tuple(draft.parents),
            path=tuple(path),
        )
        n_refused = not guess and not step.at_end
        guide.learn(draft.depth, step.n_accepted, step.n_accepted + n_refused)
        yield step


def look(target: Any, new: Sequence[int], draft: Draft, cache: Any) -> NDArray[Any]:
    """The target's pass over what it has not read of the text, and over all guesses: logits as `judge` wants them."""
    logits: NDArray[Any]
    if draft.parents is None:
        logits = target.forward([*new, *draft.tokens], cache, n_logits=len(draft.tokens) + 1)
    elif hasattr(target, "forward_tree"):
        logits = target.forward_tree(new, draft.tokens, draft.parents, cache)
    else:
        raise ValueError(NO_TREES)
    return logits


def check_draft(draft: Draft, n_guess: int, n_vocab: int) -> None:
    """Raise ValueError for a draft that is too long, is no tree, or whose tokens or laws are of another vocabulary."""
    if draft.parents is not None:
        check_parents(draft.parents, len(draft.tokens))
    if draft.depth > n_guess:
        raise ValueError(f"the drafter guessed {draft.depth} tokens where {n_guess} were asked for")
    for token, probs in zip(draft.tokens, draft.probs, strict=True):
        checked_id(token, n_vocab)
        if np.shape(probs) != (n_vocab,):
            raise ValueError(f"the drafter's distribution has shape {np.shape(probs)}: it must be ({n_vocab},)")
        if not checked_law(probs, "the drafter")[token] > 0:
            raise ValueError(f"the drafter guessed token {token}, to which its own distribution gives no chance")


def checked_law(probs: Probs, whose: str = "the sampler") -> Probs:
    """Probabilities [n_vocab] as they are. Raises ValueError for those that are no law: NaN, below 0, not one in all.

    A draw from them would give some token and say nothing, and not the same token with a draft as without.
    """
    least, total = np.minimum.reduce(probs), np.add.reduce(probs)  # quicker than methods, for every row
    if not (least >= 0 and abs(total - 1) <= SLACK):
        raise ValueError(
            f"{whose} gave no law: the smallest probability is {float(least):g} and all together are {float(total):g}, "
            "but they must be from 0 up and sum to one"
        )
    return probs
