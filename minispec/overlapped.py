"""Drafting while checking: a second model guesses the next block while the target checks what was guessed before.

The loop of `speculative.py` with another order of work; as that file, this one needs NumPy alone and knows no model.
A round has one target pass, and beside it, in a thread of its own, one draft. Of the block before, the guesses that
nobody has judged yet are **waiting**. The target reads the last token of the text and the waiting guesses; the drafter
guesses a fresh block after them, as if all of them would be kept. When both are done, the waiting guesses are judged,
and then the first of the fresh block, for which the last row of logits is. Where all are kept, the rest of the fresh
block waits for the next round: there is no bonus token, as its place is taken by a guess that was kept. Where one is
refused, it is replaced, and all that was guessed after it is thrown away.

So there are two modes, named as in PEARL: with nothing waiting the target's pass is for the first fresh guess alone
(**pre-verify**), else it checks the block that waits (**post-verify**). PEARL judges the first fresh guess in
pre-verify alone; here it is judged in every round, which costs nothing and never writes less.

Why the law stays the target's: a guess is judged by the same coin as ever, given the text before it. What is thrown
away is thrown away for the verdict on a guess *before* it. That verdict was reached without a look at it, so it says
nothing about its value: the tokens written instead are drawn from what the target has at their places, as if nothing
had been guessed there. To throw a guess away for what it is would change the law. Greedy text is plain decoding's, bit
for bit, for the reason it is in the sequential loop: each of its tokens is the argmax of a row of the target's.

Same seed, same text, however the threads are scheduled: drafter and judge have a generator each, both from one seed,
and how much is drawn from either depends on tokens alone, never on who was ready first.

Cost: a round takes as long as the longer of draft and check, plus what the two take from each other; a refusal wastes
more guesses than in the sequential loop. `event_simulation.py` says where that pays. The drafter has to work on ids
alone: the target's cache is being written to while it drafts.

Source: Liu et al. 2024, PEARL (arXiv 2408.11850).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from minispec.protocols import Choices, Draft, Drafter, Drafting, Sampler, Step, Target
from minispec.speculative import Dice, check_draft, judge
from minispec.text import Stop, Text, check_count

NOTHING = Draft((), ())


@dataclass(frozen=True)
class OverlappedStep(Step):
    """A `Step` whose guesses were made before its pass, but for the last of them, which was made beside it.

    After a block that was kept whole nothing closes `committed`. n_waiting of `drafted` were waiting: none is
    pre-verify, else it is post-verify. n_lost fresh guesses were thrown away that no target ever judged.
    draft_seconds and target_seconds are of the same time: their sum is longer than the round.
    """

    n_waiting: int = 0
    n_lost: int = 0


def speculate_overlapped(
    target: Target,
    drafter: Drafter,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampler,
    n_draft: int = 4,
    seed: int = 0,
    stop: Stop | None = None,
    choices: tuple[Choices, Choices] | None = None,
    executor: Executor | None = None,
) -> Iterator[OverlappedStep]:
    """As `speculate`, but the drafter works while the target does.

    The text ends where plain decoding ends, and has the target's law. n_draft: guesses a round; best about as many as
    fit beside a target pass. `choices`, the drafter's and the judge's, replace the dice of `seed`. `executor` runs the
    drafts, one at a time; by default a thread that ends with the text. target, drafter and sampling are used by two
    threads at once, so they may share nothing that changes unguarded.
    Raises ValueError as `speculate`; for a drafter that looks at the target's cache; and, in the round that they come
    in, for trees, and whatever the drafter raises.
    """
    check_count("n_draft", n_draft)
    if not hasattr(drafter, "start"):
        raise ValueError(f"{drafter!r:.80} is no drafter: wrap a model, as in SmallModelDrafter(model)")
    if drafter.n_vocab != target.n_vocab:
        raise ValueError(
            f"the draft has {drafter.n_vocab} tokens and the target {target.n_vocab}: they must share a vocabulary"
        )
    text = Text(target, ids, max_new_tokens, stop)
    return _rounds(target, drafter, text, sampling, int(n_draft), choices or two_dice(seed), executor)


def two_dice(seed: int) -> tuple[Dice, Dice]:
    """The drafter's dice and the judge's, independent of each other. Raises ValueError as Dice."""
    drafters, judges = Dice(seed), Dice(seed)
    drafters.rng = np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=(0,)))
    return drafters, judges


class InUse:
    """What a drafter gets for the target's cache."""

    def __getattr__(self, name: str) -> NoReturn:
        """Raises ValueError: there is nothing to look at."""
        raise ValueError("this drafter looks at the target's cache, which is being written to: draft sequentially")


def _rounds(
    target: Target,
    drafter: Drafter,
    text: Text,
    sampling: Sampler,
    n_draft: int,
    choices: tuple[Choices, Choices],
    executor: Executor | None,
) -> Iterator[OverlappedStep]:
    """Round after round: a draft and a pass side by side, then the verdicts on what waited."""
    draft_choices, judge_choices = choices
    cache, drafting, waiting = target.new_cache(), drafter.start(InUse()), NOTHING
    finish = text.finish()
    if finish:
        yield OverlappedStep((), 0, (), finish)
        return
    with draft_beside(drafting, sampling, draft_choices, executor) as begin_draft:
        while not finish:
            n_waiting = len(waiting.tokens)
            n_guess = min(n_draft, text.room - n_waiting)
            fresh_draft = begin_draft([*text.ids, *waiting.tokens], n_guess)
            began = time.perf_counter()
            pending = [*text.ids[cache.length :], *waiting.tokens]
            logits = target.forward(pending, cache, n_logits=n_waiting + 1)
            verified = time.perf_counter()
            fresh, draft_seconds = fresh_draft.result()
            check_draft(fresh, n_guess, target.n_vocab)
            if fresh.parents is not None:
                raise ValueError("the drafter guesses trees, and a block that waits is a chain: draft sequentially")

            block = Draft([*waiting.tokens, *fresh.tokens[:1]], [*waiting.probs, *fresh.probs[:1]])
            first, n_accepted = len(text.ids), 0
            # As many tokens as there are rows: a bonus token only where there is no fresh guess to take its place.
            for token, guess in islice(judge(block, logits, first, sampling, judge_choices), len(logits)):
                n_accepted += guess > 0
                finish = text.commit(token)
                if finish:
                    break
            unjudged = Draft(fresh.tokens[1:], fresh.probs[1:])
            waiting = unjudged if n_accepted == len(block.tokens) and not finish else NOTHING
            cache.truncate(len(text.ids) - 1)  # as in the sequential loop

            yield OverlappedStep(
                drafted=tuple(block.tokens),
                n_accepted=n_accepted,
                committed=tuple(text.ids[first:]),
                finish=finish,
                draft_seconds=draft_seconds,
                target_seconds=verified - began,
                path=tuple(range(n_accepted)),
                n_waiting=n_waiting,
                n_lost=len(unjudged.tokens) - len(waiting.tokens),
            )


class InTurn(Executor):
    """Runs what it is given at once, in the caller's thread: for one core, and for a walk through all outcomes."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """The result, or the error, in a `Future` that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


@contextmanager
def draft_beside(
    drafting: Drafting, sampling: Sampler, choices: Choices, executor: Executor | None
) -> Iterator[Callable[[Sequence[int], int], Future[tuple[Draft, float]]]]:
    """A function that begins a draft and returns at once, with what will be the draft and the seconds it took.

    However the block ends, by an error, an interrupt or a text that is given up, no draft is at work after it: one
    that is under way stops after its next guess. It is thrown away whole, whatever is in it.
    """
    pool = ThreadPoolExecutor(1, "minispec draft") if executor is None else executor
    ended, under_way = threading.Event(), list[Future[Any]]()

    def draft(ids: Sequence[int], n_guess: int) -> tuple[Draft, float]:
        began = time.perf_counter()
        made = drafting.draft(ids, n_guess, sampling, choices, lambda surety: not ended.is_set())
        return made, time.perf_counter() - began

    def begin(ids: Sequence[int], n_guess: int) -> Future[tuple[Draft, float]]:
        future = pool.submit(copy_context().run, draft, ids, n_guess)  # np.errstate and the like, as the caller has
        under_way[:] = [future]
        return future

    try:
        yield begin
    finally:
        ended.set()
        for future in under_way:
            if not future.cancel():
                future.exception()  # wait for it; its error was raised before, or is another's consequence
        if executor is None:
            pool.shutdown()
