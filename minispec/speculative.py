"""Speculative decoding: a drafter guesses, the target checks all guesses in one pass, the law stays its own.

This file stands alone: it needs NumPy and nothing else, and knows no model. Anything with `n_ctx`,
`n_vocab`, `new_cache` and `forward` is a target; anything with `start` is a drafter.

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
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[Any]  # [n_vocab], sums to one: float64, or Fraction where a test wants exact sums
Stop = Callable[[Sequence[int]], bool]  # given the new tokens so far: does the text end after the last?
GoOn = Callable[[Callable[[], float]], bool]  # after a guess, given how sure the drafter was of it: another one?
Judge = Callable[..., Iterator[tuple[int, int]]]  # how guesses are judged: called and answering as `judge`
GROUP = 256  # tokens whose probabilities a draw sums at once
SLACK = 1e-5  # what a law may be short of one, or over it, by rounding: it may come in float32
VERIFICATIONS = ("token", "block")  # how guesses are judged: one by one, or as a block
NO_TREES = "the drafter guesses trees, and this target has no forward_tree: give a model such as GPT2, or guess chains"


# --- what the loop is given ----------------------------------------------------------------------


class Cache(Protocol):
    """The keys and values of `length` positions. Where drafts branch: `keep(path)`, as of `KVCache`."""

    length: int

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions."""


class Target(Protocol):
    """The model whose text is written. Where drafts branch: `forward_tree`, as of `GPT2`."""

    @property
    def n_ctx(self) -> int:
        """The most positions a cache holds."""

    @property
    def n_vocab(self) -> int:
        """The number of tokens."""

    def new_cache(self) -> Any:
        """An empty `Cache`."""

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> NDArray[Any]:
        """Append positions to the cache; logits [n_logits, n_vocab] of the last of them."""


class Sampler(Protocol):
    """How logits become the distribution that a token is drawn from."""

    def probs(self, logits: NDArray[Any], position: int) -> Probs:
        """Logits [n_vocab] to probabilities [n_vocab] of the token at this place of the text, counted from 0."""


class Choices(Protocol):
    """The loop's only two kinds of chance. A test may walk all outcomes instead of throwing dice."""

    def accept(self, target_prob: Any, draft_prob: Any) -> bool:
        """True with probability min(1, target_prob / draft_prob); never where target_prob is 0."""

    def draw(self, probs: Probs) -> int:
        """A token with these probabilities; never one whose probability is 0."""


@dataclass(frozen=True)
class Draft:
    """Guessed tokens and, for each, the distribution [n_vocab] it was really drawn from.

    Each guess follows the one before: a chain. Or, where there are parents, it follows guess parents[i] < i, and the
    text itself where that is -1: a tree. Children of one parent are in the order in which they were drawn, and probs[i]
    is the law of guess i given its elder siblings: for draws with replacement the same for all of them, without
    replacement the law less their tokens, rescaled. A guess made with certainty has a one-hot law.
    """

    tokens: Sequence[int]
    probs: Sequence[Probs]
    parents: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probs):
            raise ValueError(
                f"a draft of {len(self.tokens)} tokens and {len(self.probs)} distributions: each token needs its own"
            )

    def children(self, guess: int) -> Sequence[int]:
        """The guesses that follow this one, or with -1 the text, in order."""
        if self.parents is None:
            return range(guess + 1, min(guess + 2, len(self.tokens)))
        return [child for child, parent in enumerate(self.parents) if parent == guess]

    @property
    def depth(self) -> int:
        """How far into the text the guesses reach."""
        if self.parents is None:
            return len(self.tokens)
        return max(depths(self.parents), default=0)


def always(surety: Callable[[], float]) -> bool:
    """Guess on, however sure the drafter is."""
    return True


class Drafting(Protocol):
    """A drafter at work on one text."""

    def draft(
        self, ids: Sequence[int], n_draft: int, sampling: Sampler, choices: Choices, go_on: GoOn = always
    ) -> Draft:
        """Guess up to n_draft tokens that follow ids; fewer, or none, are fine. A tree is at most so deep.

        After each guess, or level of a tree, go_on must be asked whether to make another. The guess stands, whatever it
        says: to throw a guess away for what it is would change the law of what is written.
        """


class Drafter(Protocol):
    """A way of guessing."""

    @property
    def n_vocab(self) -> int:
        """The number of tokens it may guess from: the target's."""

    def start(self, cache: Any) -> Drafting:
        """Begin a text: all state of the run is in what is returned.

        cache: the target's `Cache` of this text, for those who guess from what the target has seen.
        """


class Guide(Protocol):
    """How far to guess in one text, by what became of its guesses so far."""

    def most(self) -> int:
        """The most guesses of the next round; with 0 it is a plain pass."""

    def go_on(self, surety: Callable[[], float]) -> bool:
        """Whether to guess on after a guess; `surety` tells the drafter's own probability of it."""

    def learn(self, n_guess: int, n_accepted: int, n_judged: int) -> None:
        """Of a round's n_guess guesses the first n_judged were judged, and of these the first n_accepted kept.

        Of a tree these are depths: how deep it was, how far guesses were kept, and whether others were refused there.
        """


class DraftLength(Protocol):
    """A way to choose how far to guess."""

    def start(self) -> Guide:
        """Begin a text: all that is learned of it is in what is returned."""


@dataclass(frozen=True)
class Fixed:
    """The same number of guesses in every round: a `DraftLength`, and its own `Guide`."""

    n_draft: int

    def start(self) -> Fixed:
        """Nothing is learned."""
        return self

    def most(self) -> int:
        """The number."""
        return self.n_draft

    go_on = staticmethod(always)

    def learn(self, n_guess: int, n_accepted: int, n_judged: int) -> None:
        """Nothing is learned."""


@dataclass(frozen=True)
class Step:
    """One pass of the target: what was guessed, how much was kept, what was written.

    n_accepted tokens of `drafted` open `committed`; a replacement or a bonus token closes it, unless the
    text stopped before. finish is None, or in the last step "stop", "length" or "context".
    draft_seconds and target_seconds are the time spent in the drafter and in the target's pass.
    parents is None for a chain, or as the draft's; path has the places in `drafted` of the n_accepted guesses.
    """

    drafted: tuple[int, ...]
    n_accepted: int
    committed: tuple[int, ...]
    finish: str | None
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    parents: tuple[int, ...] | None = None
    path: tuple[int, ...] = ()

    @property
    def at_end(self) -> bool:
        """Whether no guess was left to follow the last that was kept, so that the closing token is a bonus."""
        if self.parents is None:
            return self.n_accepted == len(self.drafted)
        return (self.path[-1] if self.path else -1) not in self.parents


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

    A guess that the target likes better than the draft did makes up for one before it that it liked less: weights[i]
    is the chance that of i guesses all are kept. It is the product of all ratios target / draft so far, held at 1 after
    each. From the longest beginning down, one is kept with the chance that is still missing to that: with `over` for
    the sum of max(weight * p - q, 0) at its end, longer ones are kept with chance weight - over, so it is kept with
    over / (1 - weight + over) where they are not, and over * that draw of the replacement is what p lacks.
    """
    n, weights = len(draft.tokens), [1]
    target_probs = [checked_law(sampling.probs(row, position + i)) for i, row in enumerate(logits)]
    for token, p, q in zip(draft.tokens, target_probs, draft.probs, strict=False):
        kept = weights[-1] * p[token]
        weights.append(1 if kept >= q[token] else kept / q[token])

    def chance(i: int) -> Any:
        if i == n:
            return weights[n]
        over = np.maximum(weights[i] * target_probs[i] - draft.probs[i], 0).sum()
        missing = 1 - weights[i] + over
        return over / missing if missing > 0 else 1  # no excess of a certain beginning: the two laws are equal

    n_kept = next((i for i in range(n, 0, -1) if choices.accept(chance(i), 1)), 0)
    yield from ((token, 1 + i) for i, token in enumerate(draft.tokens[:n_kept]))
    rest = target_probs[n_kept]
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
        verdicts = verification if callable(verification) else judge_block if verification == "block" else judge
        for token, guess in verdicts(draft, logits, first, sampling, choices):
            path += [guess - 1] if guess else []
            finish = text.commit(token)
            if finish:
                break
        # The pass read all guesses; those refused go, and the last token of the text has not been read yet.
        if draft.parents is not None:
            cache.keep(path)
        cache.truncate(len(text.ids) - 1)

        n_accepted, committed, seconds = len(path), tuple(text.ids[first:]), (guessed - began, verified - guessed)
        parents = None if draft.parents is None else tuple(draft.parents)
        step = Step(tuple(draft.tokens), n_accepted, committed, finish, *seconds, parents, tuple(path))
        n_refused = not guess and not step.at_end
        guide.learn(draft.depth, n_accepted, n_accepted + n_refused)
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


class Text:
    """The ids so far, and where they end: shared with plain decoding, so both end alike."""

    def __init__(self, target: Target, ids: Sequence[int], max_new_tokens: int, stop: Stop | None) -> None:
        """Raises ValueError for a prompt that is empty or does not fit, and for a negative max_new_tokens."""
        check_count("max_new_tokens", max_new_tokens)
        if isinstance(ids, str):
            raise ValueError(f"the prompt is the text {ids!r:.40}: give token ids, as tokenizer.encode(text) does")
        if not len(ids):
            raise ValueError("the prompt has no tokens: give at least one")
        if isinstance(ids[0], list | tuple | np.ndarray):
            raise ValueError("the prompt is a list of prompts: a batch goes to speculate_batch or generate_batch")
        if len(ids) > target.n_ctx:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and the context window holds {target.n_ctx}: shorten the prompt"
            )
        self.ids = [checked_id(token, target.n_vocab) for token in ids]
        self.n_prompt = len(ids)
        self.n_ctx = target.n_ctx
        self.limit = self.n_prompt + int(max_new_tokens)
        self.stop = stop

    @property
    def room(self) -> int:
        """How many more tokens may be written."""
        return min(self.limit, self.n_ctx) - len(self.ids)

    def commit(self, token: int) -> str | None:
        """Add a token; why the text ends with it, or None."""
        self.ids.append(token)
        return self.finish()

    def finish(self) -> str | None:
        """A stop comes before a limit that is reached with the same token."""
        n_new = len(self.ids) - self.n_prompt
        if self.stop is not None and n_new and self.stop(self.ids[self.n_prompt :]):
            return "stop"
        if len(self.ids) >= self.limit:
            return "length"
        return "context" if len(self.ids) >= self.n_ctx else None


def checked_id(token: Any, n_vocab: int) -> int:
    """A token id as an int. Raises ValueError for what is none, or lies outside the vocabulary."""
    if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token < n_vocab:
        raise ValueError(f"token id {token!r} is outside the vocabulary: ids are integers from 0 to {n_vocab - 1}")
    return int(token)


def check_parents(parents: Sequence[int], n_guess: int) -> None:
    """Raise ValueError unless these are the parents of n_guess guesses."""
    whole = len(parents) == n_guess and all(isinstance(parent, int | np.integer) for parent in parents)
    if not whole or not all(-1 <= parent < i for i, parent in enumerate(parents)):
        raise ValueError(
            f"the parents of {n_guess} guesses are {list(parents)!r:.80}: give for each the number of an earlier one, "
            "or -1 where it follows the text"
        )


def depths(parents: Sequence[int]) -> list[int]:
    """How far into the text each guess is: 1 for those that follow it."""
    deep: list[int] = []
    for parent in parents:
        deep.append(1 if parent < 0 else deep[parent] + 1)
    return deep


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


def check_count(name: str, value: object) -> None:
    """Raise ValueError unless value is an integer from 0 up."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} is {value!r}: give an integer, 0 or more")
