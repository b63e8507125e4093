"""How threads share a pass: they go through it together, and each takes the next piece of work until none is left.

The idea: start the threads once a pass, and not once an operation. A parallel region costs 1.2 us where Numba has
OpenMP and 80 us where it has only its own `workqueue` (as on macOS), and a pass of GPT-2 medium has 170 operations.
Here a pass is one region. In it every thread runs the same function from top to bottom, and `take` deals out the
pieces of each operation, or stage, and holds everybody back until all of them are done.

It counts finished pieces, not arrived threads: one that comes late, or never, costs speed and not the pass.
Every thread has a run of neighbouring pieces to begin with (memory likes to be read in order), and helps with the
others' when its own are done.

The counters are the only memory that threads write at the same time; they are read and written by atomic
instructions, which also order all other writes: what was written before a piece was reported is seen after the wait.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from minispec.kernels.compilation import JIT, Ints, jit

APART = 16  # int64 in two cache lines, or in one of Apple's: two counters never share one
NONE: Any = np.int64(-1)  # no piece (of one type with all pieces, so that nothing is compiled twice)
POLLS = 10_000  # how often a waiting thread looks before it offers the core to others: some microseconds


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _code_of_add(typing_context: Any, counters: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.atomic_rmw("add", address, ir.Constant(ir.IntType(64), 1), "acq_rel")

    return types.int64(counters, types.intp), code


def _code_of_look(typing_context: Any, counters: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(address, "acquire", 8)

    return types.int64(counters, types.intp), code


def _plain_add(counters: Ints, index: int) -> int:
    counters[index] += 1
    return int(counters[index]) - 1


def _plain_look(counters: Ints, index: int) -> int:
    return int(counters[index])


# counters[index] += 1 in one step that nobody can come between, for what it was; and counters[index] as it is in
# memory now, where all that is read later is at least as new. Plain Python has one thread: the first does everything.
add: Any = intrinsic(_code_of_add) if JIT else _plain_add
look: Any = intrinsic(_code_of_look) if JIT else _plain_look
give_way: Any = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


class Crew(NamedTuple):
    """A thread's view of the crew: the counters that all share, its own number, and how many there are."""

    board: Ints
    me: int
    n_crew: int


@jit()
def new_board(n_stage: int, n_crew: int) -> Ints:
    """Counters for n_stage operations by n_crew threads: for each, pieces dealt of every run, and done in all."""
    return np.zeros(n_stage * (n_crew + 1) * APART, np.int64)


@jit()
def take(crew: Crew, stage: int, n: int, done: int) -> int:
    """This thread has done a piece of the stage, or NONE yet: the next of its n pieces, or NONE when all are done."""
    board, me, n_crew = crew.board, crew.me, crew.n_crew
    dealt = stage * (n_crew + 1) * APART
    finished = dealt + n_crew * APART
    if done != NONE:
        add(board, finished)
    for turn in range(n_crew):  # its own run first, then the others'
        run = (me + turn) % n_crew
        first, end = run * n // n_crew, (run + 1) * n // n_crew
        counter = dealt + run * APART
        if first + look(board, counter) < end:
            piece = first + add(board, counter)
            if piece < end:
                return piece
    polls = 0
    while look(board, finished) < n:
        polls += 1
        if polls > POLLS:
            give_way()
    return NONE
