"""How the loops of a batch take turns: each in a thread of its own, one at a time, and their passes together.

A text's thread says one of three things and waits for the answer: a pass that it needs, a `Step` that it has made,
its end. The conductor, in the caller's thread, hears all texts before it does anything: it hands their steps on, and
where all wait for a pass, it serves those that wait for the draft model by one pass, and only when there is none,
those that wait for the target. So the drafts of all texts advance together, and so do their checks.

The threads are there for their stacks and not for speed. They run one after the other: each wakes the next, and the
last the conductor. So nothing depends on how they are scheduled, and what texts share (a sampler, a drafter) needs
no locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from numpy.typing import NDArray

from minispec.protocols import Step
from minispec.speculative import NO_TREES

TARGET, DRAFT = "target", "draft"  # what a pass is for

Turn = SimpleQueue[Any]
Request = tuple[Sequence[int], Any, int | None]  # the arguments of `forward`: ids, cache, n_logits


@dataclass(frozen=True)
class Pass:
    """A text waits for logits: the stand-in of its model, and the request."""

    model: StandIn
    request: Request
    tree: tuple[Sequence[int], Sequence[int]] | None = None  # guesses and their parents, for `forward_tree`


@dataclass(frozen=True)
class End:
    """A text has ended, or failed."""

    error: BaseException | None = None


class Ended(BaseException):
    """Raised in a text's thread where the batch has ended before it: no `except Exception` may keep it alive."""


class Worker(threading.Thread):
    """The thread of one text."""

    def __init__(self, row: int, steps: Iterator[Step]) -> None:
        super().__init__(name=f"minispec text {row}", daemon=True)
        self.row = row
        self.steps = steps
        self.context = copy_context()  # np.errstate and the like, as the caller has them
        self.turn: Turn = SimpleQueue()  # the answer to what it has said, which lets it run on
        self.message: Step | Pass | End | None = None  # what it has said last
        self.wake_next: Callable[[], None]

    def run(self) -> None:
        """The text, step by step."""
        self.context.run(self._run)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._listen()
            for step in self.steps:
                self.say(step)
        except Ended:
            return
        except BaseException as raised:  # it is raised again in the caller's thread
            error = raised
        self.message = End(error)
        self.wake_next()

    def say(self, message: Step | Pass) -> Any:
        """Say it, let the next one run, and return the answer. Raises Ended where there will be none."""
        self.message = message
        self.wake_next()
        return self._listen()

    def _listen(self) -> Any:
        answer = self.turn.get()
        if answer is Ended:
            self.turn.put(Ended)  # for whoever asks again
            raise Ended
        return answer


def resume(chosen: Sequence[tuple[Worker, Any]]) -> None:
    """Give each of these its answer, one after the other, when the one before has said something; return at the end."""
    done: Turn = SimpleQueue()
    wake: Callable[[], None] = partial(done.put, None)
    for worker, answer in reversed(chosen):
        worker.wake_next = wake
        wake = partial(worker.turn.put, answer)
    wake()
    done.get()


class StandIn:
    """What a text takes for its model: `forward` hands the pass over to the conductor."""

    def __init__(self, model: Any, kind: str, new_cache: Callable[[], Any]) -> None:
        self.model, self.kind, self.new_cache = model, kind, new_cache
        self.n_ctx: int = model.n_ctx
        self.n_vocab: int = model.n_vocab

    def forward(self, ids: Sequence[int], cache: Any, n_logits: int | None = None) -> NDArray[Any]:
        """The model's own logits, once the others are ready, too."""
        return self._ask(Pass(self, (ids, cache, n_logits)))

    def forward_tree(
        self, ids: Sequence[int], guesses: Sequence[int], parents: Sequence[int], cache: Any
    ) -> NDArray[Any]:
        """The model's own logits, from a pass of this text alone."""
        if not hasattr(self.model, "forward_tree"):
            raise ValueError(NO_TREES)
        return self._ask(Pass(self, (ids, cache, None), (guesses, parents)))

    @staticmethod
    def _ask(asked: Pass) -> NDArray[Any]:
        worker = threading.current_thread()
        if not isinstance(worker, Worker):
            raise ValueError("this model belongs to a text of a batch: outside it, use the model itself")
        logits: NDArray[Any] = worker.say(asked)
        return logits


def run_loops(loops: Sequence[Iterator[Step]]) -> Iterator[tuple[int, Step]]:
    """(number of the loop, step) as they come. Raises the first error of any; however it ends, no thread is left."""
    workers: list[Worker] = []
    try:
        for row, steps in enumerate(loops):
            worker = Worker(row, steps)
            worker.start()
            workers.append(worker)
        yield from conduct(workers)
    finally:
        for worker in workers:
            worker.turn.put(Ended)
        for worker in workers:
            worker.join()


def conduct(workers: Sequence[Worker]) -> Iterator[tuple[int, Step]]:
    """Answer all texts until each has ended."""
    resume([(worker, None) for worker in workers])
    while workers:
        raise_first(workers)
        workers = [worker for worker in workers if not isinstance(worker.message, End)]
        written = [(worker, worker.message) for worker in workers if isinstance(worker.message, Step)]
        for worker, step in written:
            yield worker.row, step
        if written:
            resume([(worker, None) for worker, _ in written])
        else:
            serve([(worker, worker.message) for worker in workers if isinstance(worker.message, Pass)])


def raise_first(workers: Sequence[Worker]) -> None:
    """Raise the error of the first text that has failed, if one has."""
    for worker in workers:
        if isinstance(worker.message, End) and worker.message.error is not None:
            worker.message.error.add_note(f"(in text {worker.row} of a batch)")
            raise worker.message.error


def serve(waiting: Sequence[tuple[Worker, Pass]]) -> None:
    """Passes for all that wait for a draft model, or, if there are none, for all that wait for the target.

    Where there are several draft models, the first that is waited for.
    """
    drafting = [(worker, asked) for worker, asked in waiting if asked.model.kind == DRAFT]
    chosen = drafting or waiting
    if chosen:
        model = chosen[0][1].model.model
        chosen = [(worker, asked) for worker, asked in chosen if asked.model.model is model]
        logits = answers([asked for _, asked in chosen])
        resume([(worker, rows) for (worker, _), rows in zip(chosen, logits, strict=True)])


def answers(asked: Sequence[Pass]) -> list[NDArray[Any]]:
    """The logits of passes of one model: chains together, trees one after the other."""
    model = asked[0].model.model
    together = iter(forward_all(model, [one.request for one in asked if one.tree is None]))
    return [
        next(together) if one.tree is None else model.forward_tree(one.request[0], *one.tree, one.request[1])
        for one in asked
    ]


def forward_all(model: Any, requests: Sequence[Request]) -> list[NDArray[Any]]:
    """A pass for all requests; for a model that knows no batches, one after the other."""
    if hasattr(model, "forward_batch") and requests:
        together: list[NDArray[Any]] = model.forward_batch(requests)
        return together
    return [model.forward(*request) for request in requests]
