"""Who does the jobs of a sweep: this process, some processes, or a Dask cluster, all as `concurrent.futures` executors.

One path for all: groups of jobs are submitted, and results come as they are done. Workers may die. What they had not
finished is submitted again, to executors started anew; a group's results come with its one future that finished, so
none is lost and none counted twice.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any

from minispec.options import limit_threads
from minispec.sweep import Job, Result, check_here, do_jobs

Group = tuple[Job, ...]
MOST_DEATHS = 3  # in a row, without a result between them: then the jobs are to blame, or memory
CONNECT_WITHIN = 5.0  # seconds for a scheduler's first answer


@dataclass(frozen=True)
class Workers:
    """A way to have jobs done.

    start gives a fresh executor; `work` is what it calls; in_flight how many groups are submitted at a time; `lost`
    the errors of a future whose worker is gone; remedy what to do where workers keep dying.
    """

    start: Callable[[], AbstractContextManager[Executor]]
    work: Callable[[Group], list[Result]] = do_jobs
    in_flight: int | None = 1
    lost: tuple[type[BaseException], ...] = ()
    remedy: str = ""


def do_groups(groups: Sequence[Group], workers: Workers) -> Iterator[tuple[Group, list[Result]]]:
    """The results of all groups, as they are done. Raises ValueError where workers die again and again."""
    waiting, deaths = list(groups), 0
    while waiting:
        n_before = len(waiting)
        with workers.start() as executor:
            for group, results in finished(executor, list(waiting), workers):
                waiting.remove(group)
                yield group, results
        deaths = deaths + 1 if len(waiting) == n_before else 0
        if deaths == MOST_DEATHS:
            raise ValueError(f"the workers died {deaths} times, with {len(waiting)} texts to go: {workers.remedy}")


def finished(executor: Executor, groups: list[Group], workers: Workers) -> Iterator[tuple[Group, list[Result]]]:
    """What one executor gets done: everything, unless workers die."""
    running: dict[Future[list[Result]], Group] = {}
    rest = iter(groups)

    def submit(most: int | None) -> None:
        for group in islice(rest, most):
            try:
                running[executor.submit(workers.work, group)] = group
            except workers.lost:  # what is done is still to be had
                return

    submit(workers.in_flight)
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            group = running.pop(future)
            try:
                results = future.result()
            except workers.lost:
                continue
            yield group, results
            submit(1)


# --- this process ----------------------------------------------------------------------------------


class InProcess(Executor):
    """Does what is submitted at once, here."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done. Ctrl-C ends the caller, and not the future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def in_process() -> Workers:
    """This process alone."""
    return Workers(InProcess)


# --- some processes --------------------------------------------------------------------------------


def processes(n: int, threads: int, backend: str) -> Workers:
    """n processes on this machine, each with so many threads."""

    @contextmanager
    def start() -> Iterator[Executor]:
        context = multiprocessing.get_context("spawn")  # compiled threads do not survive a fork
        pool = ProcessPoolExecutor(n, context, begin_worker, (threads, backend))
        others = set(multiprocessing.active_children())
        with not_interrupted():
            for _ in range(n):  # one process each: they would begin with the first jobs
                pool.submit(os.getpid)
        try:
            yield pool
        except BaseException:  # nobody waits for what is running
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise
        finally:
            pool.shutdown()

    remedy = "give fewer --workers, as each holds the models in memory"
    return Workers(start, in_flight=2 * n, lost=(BrokenExecutor,), remedy=remedy)


@contextmanager
def not_interrupted() -> Iterator[None]:
    """Processes that begin here are not reached by Ctrl-C, from their first moment on; this one hears it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(threads: int, backend: str) -> None:
    """Set up a process before NumPy is imported in it: its threads, and when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal; the parent ends them
    limit_threads(threads, backend)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


# --- a cluster -------------------------------------------------------------------------------------


def cluster(address: str) -> Workers:
    """The workers of the Dask scheduler at this address. Raises ValueError where `distributed` is not installed."""
    if not find_spec("distributed"):
        raise ValueError("--dask needs the library distributed: pip install 'minispec[distributed]'")
    from distributed import Client
    from distributed.comm.addressing import get_address_host
    from distributed.scheduler import KilledWorker

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("distributed"):  # what is wrong is said once, in one line
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    @contextmanager
    def start() -> Iterator[Executor]:
        try:
            get_address_host(address)  # a client that fails at this complains once more when it is collected
            client = Client(address, timeout=CONNECT_WITHIN, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"--dask {address}: no scheduler answers there ({error}): start one with dask scheduler, and its "
                "workers with dask worker ADDRESS"
            ) from None
        if not client.scheduler_info()["workers"]:
            warnings.warn(f"{address} has no workers yet: waiting for a dask worker {address}", stacklevel=1)
        executor = client.get_executor(pure=False)
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)
            client.close()

    remedy = "see the workers' logs; each holds the models in memory"
    return Workers(start, do_on_cluster, in_flight=None, lost=(CancelledError, KilledWorker), remedy=remedy)


def do_on_cluster(group: Group) -> list[Result]:
    """`do_jobs` with as many threads as Dask says this worker has, and if it has what the client has."""
    from distributed import get_worker

    check_here(group[0])
    if group[0].settings.backend == "numba" and find_spec("numba"):
        import numba

        threads = min(get_worker().state.nthreads, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        numba.set_num_threads(threads)
    return do_jobs(group)
