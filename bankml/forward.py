"""Token ids in, logits out: the graph llama.cpp b11192 builds for Qwen3 and Llama, in the same float order.

`Weights` holds a model's memory map and the pool; caches belong to the caller. One caller at a time per `Weights`: a
second waits. A call that fails or is interrupted leaves every cache at its former length. What is handed to a kernel is
checked first: the kernels themselves know only addresses.
"""

import os
import threading
import time
from contextlib import contextmanager
from enum import Enum

import numpy as np

from bankml.cpu.attention import Kernel, kernel_for
from bankml.cpu.layer import Layers
from bankml.cpu.pool import MAX_THREADS, Pool
from bankml.errors import UsageError
from bankml.exact import path_of
from bankml.gguf import Map
from bankml.guard import guard
from bankml.kept_rows import KeptRows
from bankml.kv_cache import KvCache, KvType
from bankml.pieces import Pieces, rows_of

N_UBATCH = 512
MAX_UBATCH = 4096
LLAMA_THREADS = 3


class Outputs(Enum):
    """Which rows of a prompt leave the last layer: none, the last token's, or every token's."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


def llama_threads() -> int:
    """`BANKML_LLAMA_THREADS`: the thread count of the llama.cpp to match; it decides the split-KV chunks. Default 3."""
    text = os.environ.get("BANKML_LLAMA_THREADS", "") or str(LLAMA_THREADS)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise UsageError(f"BANKML_LLAMA_THREADS is {text!r}; it takes a number from 1 to {MAX_THREADS}")
    return int(text)


class Weights(Pieces):
    """An opened model. Attributes: `plan`, `shape`, `llama_threads`, `threads`, `devices`.

    `reached`: how many cells the caches of the call under way, or the last one, have got; of an unfinished micro-batch
    as many as its layers so far make up. It and `seconds()` may be read from any thread at any time.
    `between_layers`: None, or what to call after each layer of a micro-batch of several rows; it may raise to end that.
    """

    def __init__(self, header, plan, *, threads=None):
        self.llama_threads = llama_threads()
        self.plan, self.shape, self.header = plan, plan.shape, header
        self.pool = Pool(threads)
        self.threads, self.devices = self.pool.threads, ["cpu"]
        self.map = Map(header)
        self._layers, self._kept_rows = {}, KeptRows(plan.shape.n_vocab)
        self.reached, self.between_layers = 0.0, None
        self.split, self.card_notes = None, []  # the driver for cards, and a line on each device that was asked
        self._lock = threading.RLock()
        self._busy = self._closed = False

    @classmethod
    def open(cls, path, *, gpu=None, threads=None) -> "Weights":
        """Guard the file, plan it, map it. Raises UsageError, Refused or NeedMore with the reason.

        gpu: None is `BANKML_GPU` (default auto), False is off, else "auto" or devices by index or name, of which
        `card_notes` tells. threads: 1-64, default `BANKML_THREADS`, else all cores; bits do not depend on it.
        """
        verdict = guard(path, template=False).check()
        weights = cls(verdict.header, verdict.plan, threads=threads)
        try:
            weights._join(gpu)
        except BaseException:
            weights.close()
            raise
        return weights

    def _join(self, gpu):
        """Let the cards join that are asked for; how much they take of a token is measured now."""
        if gpu is False:
            return
        from bankml import cards

        self.split, self.card_notes = cards.join(gpu, self.pool, self.plan.wtype, self.map, self.plan.output)
        if self.split is not None:
            self.devices += [card.name for card in self.split.worker.cards]
            with self._alone():
                self.split.prepare(self._layers_of(N_UBATCH), 1)

    def close(self):
        """End the threads and unmap the file; the object cannot be used any more. A second time changes nothing."""
        with self._lock:
            if self._closed:
                return
            with self._alone():
                self._closed = True
                if self.split is not None:
                    self.split.close()
                self.pool.close()
                self._layers = {}
                self.map.close()

    @contextmanager
    def _alone(self):
        """Wait for other callers. Raises UsageError where this one cannot go on: after `close`, or from an `each`."""
        with self._lock:
            self._enter()
            try:
                yield
            finally:
                self._busy = False

    def _enter(self):
        """The lock is ours: see that a call can begin."""
        if self._closed:
            raise UsageError("these weights are closed; open the model again")
        if self._busy:
            raise UsageError("these weights are in the midst of a call; its `each` cannot call them")
        self._busy = True

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def caches(self, kind: KvType = KvType.F16, n_ctx: int | None = None) -> list[KvCache]:
        """One empty cache per layer, for up to `n_ctx` cells (the trained context if None)."""
        n_ctx = self.shape.n_ctx_train if n_ctx is None else n_ctx
        return [KvCache(self.shape.n_head_kv * self.shape.head_dim, n_ctx, kind) for _ in range(self.shape.n_layer)]

    def prefill(self, caches, tokens, each=None, n_ubatch=N_UBATCH) -> np.ndarray:
        """Run a prompt after what the caches hold; returns the last token's result_norm, float32 (n_embd,)."""
        return self.prefill_with(caches, tokens, Outputs.LAST, each, n_ubatch)[-1]

    def prefill_with(self, caches, tokens, outputs, each=None, n_ubatch=N_UBATCH) -> np.ndarray:
        """Run a prompt in micro-batches of `n_ubatch`; returns result_norm of the output rows, float32 (n_out, n_embd).

        each(layer, first_row, l_out) is given every layer's rows, float32 (rows, n_embd), of each micro-batch; the last
        layer has output rows only. Raises UsageError for tokens outside the vocabulary or more than the caches hold.
        """
        tokens, outputs = self._ids(tokens), Outputs(outputs)
        _check_ubatch(n_ubatch)
        results = [np.empty((0, self.shape.n_embd), np.float32)]
        with self._alone(), self._growing(caches, len(tokens)) as start:
            layers = self._layers_of(n_ubatch)
            for first in range(0, len(tokens), n_ubatch):
                batch = tokens[first : first + n_ubatch]
                n_out = {Outputs.NONE: 0, Outputs.ALL: len(batch)}.get(outputs, int(first + n_ubatch >= len(tokens)))
                kernel = kernel_for(len(batch), start + first + len(batch), self.llama_threads, caches[0].kind.value)
                results.append(self._micro_batch(layers, caches, batch, start + first, n_out, kernel, each, first))
        return np.concatenate(results)

    def path(self, rows: int, cells: int, kind: KvType) -> int:
        """How a micro-batch of `rows` whose own cells are the last of `cells` is computed: a number of exact.py."""
        kernel = kernel_for(rows, cells, self.llama_threads) if kind is KvType.F16 else Kernel.reference()
        return path_of(kernel.name, rows, self.plan.wtype)

    def logits(self, result_norm) -> np.ndarray:
        """The output matrix times one row of result_norm, float32 (n_embd,): float32 (n_vocab,)."""
        return self.logits_rows(np.asarray(result_norm).reshape(1, -1))[0]

    def logits_rows(self, rows, n_ubatch=N_UBATCH) -> np.ndarray:
        """The output matrix times rows of result_norm, float32 (n, n_embd): float32 (n, n_vocab).

        One product per `n_ubatch` rows, counted from row 0, as in the call that made them with `Outputs.ALL`: for F16
        one row and more rows take different product paths.
        """
        rows = rows_of(rows, self.shape.n_embd)
        _check_ubatch(n_ubatch)
        with self._alone():
            out = self._kept_rows.take() if len(rows) == 1 else np.empty((len(rows), self.shape.n_vocab), np.float32)
            layers = self._layers_of(n_ubatch)
            for first in range(0, len(rows), n_ubatch):
                part = rows[first : first + n_ubatch]
                if self.split is not None:
                    self.split.logits(layers, part, out[first : first + n_ubatch])
                else:
                    layers.logits(self.pool, part, out[first : first + n_ubatch], self.plan.output)
        return out

    def card_report(self) -> dict | None:
        """What the cards have done, see `gpu.worker.Worker.report`; None where none has joined."""
        return None if self.split is None else self.split.worker.report()

    def take_cycles(self) -> dict[str, int]:
        """Cycles of the time stamp counter that each kind of work took since the last call, or the opening."""
        with self._lock:
            return self._layers["driver"].take_cycles() if self._layers else {}

    def seconds(self) -> dict[str, float]:
        """The time that each kind of work took since the opening, as far as it is done."""
        driver = self._layers.get("driver")
        return {kind: self.pool.seconds(n) for kind, n in driver.cycles().items()} if driver else {}

    def decode(self, caches, token: int) -> np.ndarray:
        """Run one token at the next position; returns its result_norm, float32 (n_embd,)."""
        return self.step_with(caches, token, None)

    def step(self, caches, token: int) -> np.ndarray:
        """`decode`, but always with the reference attention kernel."""
        return self.step_with(caches, token, Kernel.reference())

    def step_with(self, caches, token: int, kernel: Kernel | None) -> np.ndarray:
        """One token at the next position with a given attention kernel (None: the one that the reference would take);
        returns result_norm, float32 (n_embd,).
        """
        tokens = self._ids((token,))
        with self._lock:  # `_alone` and `_growing` in line: after each token all of this code is cold
            self._enter()
            try:
                start = after = self._room(caches, 1)
                try:
                    kernel = kernel or kernel_for(1, start + 1, self.llama_threads, caches[0].kind.value)
                    row = self._micro_batch(self._layers_of(N_UBATCH), caches, tokens, start, 1, kernel, None, 0)[0]
                    after = start + 1
                    return row
                finally:
                    for cache in caches:
                        cache.length = after
            finally:
                self._busy = False

    def _micro_batch(self, layers, caches, tokens, position, n_out, kernel, each, first):
        """One micro-batch through the model: whole, layer by layer (so that Ctrl-C is heard), or group by group."""
        n, last = len(tokens), self.shape.n_layer - 1
        with_cards = self.split is not None and self.split.turn(layers, n, n_out)
        program, started = layers.program(kernel, caches[0].kind.value), time.perf_counter()
        layers.buffers.ids[:n] = tokens
        program.set(n, position, n_out, caches)
        if with_cards:
            for il in self.split.run(layers, program, n, n_out, every_layer=n > 1 or each is not None):
                self._passed(position + n * min((il + 1) / self.shape.n_layer, 1))
                if each is not None:
                    each(il, first, layers.buffers.x[: n_out if il == last else n].copy())
        elif n == 1 and each is None:
            self.pool.run(program.all)
        elif each is None:
            for il, part in enumerate(program.layers):
                self.pool.run(part)
                self._passed(position + n * min(il / self.shape.n_layer, 1))
        else:
            for il, name, records in program.by_group():
                self.pool.run(records)
                if name == "ffn_down":
                    each(il, first, layers.buffers.x[: n_out if il == last else n].copy())
        if self.split is not None and each is None:
            self.split.took(with_cards, time.perf_counter() - started)
        self.reached = float(position + n)
        return layers.buffers.result[:n_out].copy()

    def _passed(self, reached: float):
        """One layer more of a micro-batch is done; with it, the caches have got to so many cells."""
        self.reached = reached
        if self.between_layers is not None:
            self.between_layers()

    def _layers_of(self, n_ubatch) -> Layers:
        """The driver with room for `n_ubatch` rows; one is kept, and made anew for a larger micro-batch."""
        rows = max(N_UBATCH, n_ubatch)
        if self._layers.get("rows", 0) < rows:
            self._layers = {"rows": rows, "driver": Layers(self.plan, self.map, rows, self.threads)}
        return self._layers["driver"]

    @contextmanager
    def _growing(self, caches, count):
        """Check that the caches take `count` more cells; yields how many they hold, and in the end they hold more."""
        start = self._room(caches, count)
        try:
            yield start
            for cache in caches:
                cache.length = start + count
        except BaseException:
            for cache in caches:
                cache.length = start
            raise

    def _room(self, caches, count) -> int:
        """How many cells these caches hold. Raises UsageError unless they are this model's, with room for `count`."""
        width, n_layer = self.shape.n_head_kv * self.shape.head_dim, self.shape.n_layer
        strange = any(type(cache) is not KvCache or cache.width != width for cache in caches)
        unequal = len(caches) != n_layer or len(set(map(id, caches))) != n_layer
        if not (strange or unequal):
            start, kind = caches[0].length, caches[0].kind
            unequal = any(cache.length != start or cache.kind is not kind for cache in caches)
        if unequal:
            raise UsageError(
                f"{len(caches)} caches of unequal type, length or number; this model has {n_layer} layers, one each"
            )
        if strange:
            raise UsageError(f"not this model's caches, with {width} values in a row; make them with caches()")
        capacity = min(cache.capacity for cache in caches)
        if not 0 <= start <= capacity - count:
            raise UsageError(f"{count} tokens after {start} do not fit a context of {capacity} tokens")
        if count == 1 and caches[0].needs_memory():
            for cache in caches:
                cache.prepare()
        return start


def _check_ubatch(n_ubatch):
    if not isinstance(n_ubatch, int | np.integer) or not 1 <= n_ubatch <= MAX_UBATCH:
        raise UsageError(f"a micro-batch of {n_ubatch} tokens; it takes 1 to {MAX_UBATCH}")
