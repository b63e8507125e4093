"""GPT-2 as the loop and its users see it: weights that never change, and passes over them.

A pass takes the ids of n_new positions, appends their keys and values to a cache, and gives logits for the last rows
that are asked for. It may do so for several texts at once, each with a cache of its own, and for a tree of guesses.
What a pass computes is in `wiring.py`, by the operations of `reference` or `kernels`; how rows are run, in `passes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from minispec.backends import MODULES, OnePass, one_pass, operations
from minispec.cores import count_cores
from minispec.kv_cache import NO_FEATURES, KVCache
from minispec.packing import read_weights
from minispec.parameters import GPT2Config, first_layers
from minispec.passes import Request, cut, run_requests, run_tree
from minispec.protocols import check_parents, depths
from minispec.text import check_count
from minispec.trees import MOST_NODES, lay_out_tree
from minispec.wiring import Wiring

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Ids = Sequence[int] | Ints
MOST_ROWS = 256  # of a pass: a longer text is read in several, so that Ctrl-C does not wait for all of it
STORED: dict[str, type[np.generic]] = {"f32": np.float32, "int8": np.int8}  # how the weights of products are kept


class GPT2:
    """GPT-2's weights and its forward pass. Weights never change; all that does is in the cache."""

    taps: tuple[int, ...] = ()  # the depths whose features its caches keep: see `tapped`

    def __init__(
        self, config: GPT2Config, tensors: Mapping[str, Floats], backend: str = "numba", stored: str = "f32"
    ) -> None:
        """Take float32 tensors by their checkpoint names, each once, packed for the backend.

        stored: "f32", or "int8" for weights of 8 bits with a scale an output; norms, biases and positions stay f32.
        Raises KeyError for a missing name, ValueError for an unknown backend or kind.
        """
        if stored not in STORED:
            raise ValueError(f"weights is {stored!r}: choose one of {', '.join(STORED)}")
        self.config = config
        self.ops = operations(backend)
        self.stored = stored
        self.n_crew: int | None = None  # threads of a pass, None for as many as Numba is set to
        self.weights = read_weights(config, tensors, self.ops, STORED[stored])

    def __repr__(self) -> str:
        c = self.config
        return (
            f"<GPT2 {c.n_layer} layers, {c.n_head} heads, width {c.n_embd}, {c.n_vocab} tokens, "
            f"{self.stored}, {self.backend}>"
        )

    @property
    def backend(self) -> str:
        """The backend that the passes run on: "numba" or "numpy"."""
        return next(name for name, module in MODULES.items() if module == self.ops.__name__)

    @property
    def wiring(self) -> Wiring:
        """The pass of this model, operation by operation."""
        return Wiring(self.config, self.weights, self.ops)

    @property
    def n_ctx(self) -> int:
        """Positions in the context window."""
        return self.config.n_ctx

    @property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return self.config.n_vocab

    @property
    def threads(self) -> int:
        """The most threads that a pass uses; with the NumPy backend the cores, which NumPy uses as it likes."""
        return self.n_crew or (self.ops.threads() if hasattr(self.ops, "threads") else count_cores())

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a pass reads: all but embeddings, of which it reads a row a token."""
        w = self.weights
        return sum(array.nbytes for array in w) - w.wte.nbytes - w.wte_scale.nbytes - w.wpe.nbytes

    def cache_bytes(self, n_positions: int) -> int:
        """Bytes of keys and values of so many positions, and of features."""
        return 4 * (2 * self.config.n_layer + len(self.taps)) * self.config.n_embd * n_positions

    def with_crew(self, n_crew: int) -> GPT2:
        """The same weights, passes of at most n_crew threads, and caches of its own; the bits are the same.

        Passes of one thread run beside another model's pass; others wait for each other.
        Raises ValueError for less than one thread. The NumPy backend's threads are NumPy's own.
        """
        check_count("n_crew", n_crew)
        if not n_crew:
            raise ValueError("n_crew is 0: give 1 or more")
        other = copy(self)
        other.n_crew = int(n_crew)
        return other

    def new_cache(self) -> KVCache:
        """An empty cache for one text."""
        return self.new_caches(1)[0]

    def new_caches(self, n: int) -> list[KVCache]:
        """Empty caches for n texts, in one block: `forward_batch` serves those of one block in one pass."""
        c = self.config
        keys, values = self.ops.empty_caches(n, c.n_layer, c.n_head, c.n_ctx + MOST_NODES, c.n_embd // c.n_head)
        shape = n, len(self.taps), c.n_ctx + MOST_NODES, c.n_embd
        features = np.zeros(shape, np.float32) if self.taps else NO_FEATURES
        kept = {"copy_rows": self.ops.copy_rows, "taps": self.taps, "block_features": features}
        return [KVCache(keys, values, c.n_ctx, self, slot, **kept) for slot in range(n)]

    def tapped(self, depths: Iterable[int]) -> GPT2:
        """The same model, whose caches also keep the residual stream of each position after so many layers.

        depths: 0 (the embeddings) to n_layer (before the last norm). `cache.features_at(depth)` has the rows. The
        weights are shared; caches are of one of the two models alone. Raises ValueError for other depths.
        """
        wanted = list(depths)
        for depth in wanted:
            if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= self.config.n_layer:
                raise ValueError(f"depth {depth!r} cannot be tapped: this model has depths 0 to {self.config.n_layer}")
        twin = copy(self)
        twin.taps = tuple(sorted(set(wanted)))
        return twin

    def first_layers(self, n: int) -> GPT2:
        """The first n layers with the last norm and the output layer: a model on the same weights.

        Raises ValueError unless n is 1 to n_layer.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= self.config.n_layer:
            raise ValueError(
                f"{n!r} layers cannot be taken: this model has {self.config.n_layer}, give 1 or more of them"
            )
        twin = copy(self)
        twin.config, twin.weights, twin.taps = replace(self.config, n_layer=n), first_layers(self.weights, n), ()
        return twin

    def _begins(self, other: GPT2) -> bool:
        """Whether this is the other model, or its first layers."""
        return self.weights.wte is other.weights.wte and self.config.n_layer <= other.config.n_layer

    def borrow(self, cache: KVCache) -> KVCache:
        """A cache of this model over the rows of another, whose first layers this model is: `first_layers`.

        What it has stored is there for both; each counts for itself how many rows are filled, here none yet.
        Raises ValueError for the cache of a model that has other weights.
        """
        if not (isinstance(cache, KVCache) and isinstance(cache.owner, GPT2) and self._begins(cache.owner)):
            raise ValueError("this cache belongs to another model: give one of the model whose first layers this is")
        return KVCache(cache.block_keys, cache.block_values, cache.n_ctx, self, cache.slot, copy_rows=cache.copy_rows)

    def warm_up(self) -> None:
        """Compile what a pass needs, or load it from the cache on disk."""
        with one_pass(self.ops):
            self.ops.warm_up(self.weights.wte.dtype)

    def forward(self, ids: Ids, cache: KVCache, n_logits: int | None = None) -> Floats:
        """Append len(ids) positions to the cache; logits [n_logits, n_vocab] of the last rows, all by default.

        A row's logits are the same bits however the text before it was cut into passes.
        Raises ValueError for ids outside the vocabulary, too many positions, or no ids at all.
        """
        request = self._checked(ids, cache, n_logits)
        if len(request.ids) > MOST_ROWS:
            return self.forward_batch([request])[0]
        logits = np.empty((request.n_logits, self.n_vocab), np.float32)
        self._pass([request], logits)
        return logits

    def forward_batch(self, requests: Sequence[tuple[Ids, KVCache, int | None]]) -> list[Floats]:
        """What `forward` does for each request (ids, cache, n_logits), with the weights read once for all of them.

        Caches of one block (`new_caches`) go into the same pass, as long as it has room for their rows.
        A row's logits are the same bits as alone. Raises ValueError as `forward`, and for a cache that comes twice;
        after any error all caches are as they were.
        """
        checked = [self._checked(*request) for request in requests]
        if len({id(cache) for _, cache, _ in checked}) < len(checked):
            raise ValueError("a cache is in the batch twice: a pass takes one request for each cache")
        lengths = [cache.length for _, cache, _ in checked]
        try:
            return self._forward_blocks(checked)
        except BaseException:
            for (_, cache, _), length in zip(checked, lengths, strict=True):
                cache.truncate(length)
            raise

    def _forward_blocks(self, requests: list[Request]) -> list[Floats]:
        """Block by block, but the logits in the order of the requests."""
        blocks: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            blocks.setdefault(id(request.cache.block_keys), []).append(i)
        logits: dict[int, Floats] = {}
        for places in blocks.values():
            logits |= zip(places, self._forward_block([requests[i] for i in places]), strict=True)
        return [logits[i] for i in range(len(requests))]

    def _forward_block(self, requests: list[Request]) -> list[Floats]:
        """Requests on caches of one block, in as many passes as it takes."""
        ends = [0, *accumulate(n_logits for _, _, n_logits in requests)]
        logits = np.empty((ends[-1], self.n_vocab), np.float32)
        done = 0
        for together in cut(requests, MOST_ROWS):
            n_logits = sum([piece.n_logits for piece in together])
            self._pass(together, logits[done : done + n_logits])
            done += n_logits
        return [logits[first:end] for first, end in pairwise(ends)]

    def _pass(self, requests: list[Request], logits: Floats) -> None:
        """One pass over rows of one block: fills logits [n_logits, n_vocab], and counts the rows as cached."""
        with self._turn():
            run_requests(self, requests, logits)
        for ids, cache, _ in requests:
            cache.append(len(ids))

    def _turn(self) -> OnePass | nullcontext[None]:
        """What a pass waits for: a pass of one thread for nothing."""
        return nullcontext() if self.n_crew == 1 else one_pass(self.ops)

    def forward_tree(self, ids: Ids, guesses: Ids, parents: Sequence[int], cache: KVCache) -> Floats:
        """Append ids to the cache, with a tree of guesses on trial: logits [1 + len(guesses), n_vocab].

        Guess i follows guess parents[i] < i, or ids where that is -1. Row 0 is that of the last of ids, row 1 + i
        that of guess i: the same bits as `forward` gives for guess i after ids and its ancestors. The cache counts ids
        alone; `cache.keep(path)` adds the guesses of one path, as long as nothing else is done to it.
        Raises ValueError as `forward`; for parents that are none; and for more than MOST_NODES guesses.
        """
        check_parents(parents, len(guesses))
        if not len(guesses):
            return self.forward(ids, cache, 1)
        if len(guesses) > MOST_NODES:
            raise ValueError(f"the tree has {len(guesses)} guesses, and {MOST_NODES} are the most: make it smaller")
        text, tokens, n_past = self._checked_ids(ids), self._checked_ids(guesses), cache.length
        cache.check(self, len(text) + max(depths(parents)))
        try:
            if len(text) > 1 and len(text) + len(tokens) > MOST_ROWS:
                self.forward(text[:-1], cache, 0)
                text = text[-1:]
            runs = lay_out_tree(text, tokens, parents, cache.length)
            rows = np.empty((1 + len(tokens), self.n_vocab), np.float32)
            with self._turn():
                run_tree(self, runs, cache, rows)
        except BaseException:
            cache.truncate(n_past)
            raise
        cache.append(len(text))
        cache.on_trial = tuple(parents)
        logits = np.empty_like(rows)
        logits[0], logits[1 + np.concatenate([run.guesses for run in runs])] = rows[0], rows[1:]
        return logits

    def _checked(self, ids: Ids, cache: KVCache, n_logits: int | None) -> Request:
        """What `forward` is asked for; raises ValueError as it says."""
        array = self._checked_ids(ids)
        n_new = len(array)
        n_logits = n_new if n_logits is None else n_logits
        if not 0 <= n_logits <= n_new:
            raise ValueError(f"n_logits is {n_logits}: a pass over {n_new} rows has logits for 0 to {n_new}")
        cache.check(self, n_new)
        return Request(array, cache, n_logits)

    def _checked_ids(self, ids: Ids) -> Ints:
        """Ids as an array of int64, each one in the vocabulary: compiled code does not look."""
        array = np.asarray(ids)
        if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
            raise ValueError(f"ids are {ids!r:.80}: a pass takes a non-empty list of token ids")
        n_vocab = self.n_vocab
        outside = [token for token in array.tolist() if not 0 <= token < n_vocab]  # few as they are, no work for NumPy
        if outside:
            raise ValueError(f"token id {outside[0]} is outside the vocabulary of {n_vocab}")
        return array.astype(np.int64)
