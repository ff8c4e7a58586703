"""The whole-layer driver: the graph as a program of steps over buffers that are allocated once.

A layer reads here as it does in the reference, an operation a line. `Program` lays the steps of all layers out once per
attention kernel; a run patches the row count, the position and the cache addresses, and goes through as many layers as
asked in one call without the GIL.
"""

from itertools import pairwise

import numpy as np

from bankml.blocks import TYPES
from bankml.cpu import pool
from bankml.cpu.attention import PADDED_WORD, Kernel, attention_steps, scratch_bytes
from bankml.cpu.embed import embed_step, last_rows_step
from bankml.cpu.norm import rms_norm_step
from bankml.cpu.products import Activation, product
from bankml.cpu.rope import Rope, heads_step, rope_table_step, store_step
from bankml.cpu.store_q8_0 import store_step_q8_0
from bankml.cpu.swiglu import swiglu_step

# What a group of steps counts as in a time budget, where its own name would not do.
KINDS = {
    "inp_embd": "embed",
    "out_rows": "embed",
    "rope_table": "rope",
    "heads": "rope",
    "attn_norm": "norm",
    "ffn_norm": "norm",
    "result_norm": "norm",
    "attn_norm_q8": "quantize",
    "attention_q8": "quantize",
    "ffn_norm_q8": "quantize",
    "swiglu_q8": "quantize",
}
STORES = {"f16": store_step, "q8_0": store_step_q8_0}  # a cache's type -> the way into it
# The groups of products over one activation: for each matrix, the buffer that its results go to, or are added to (x).
PRODUCTS = {
    "qkv": {"attn_q": "q", "attn_k": "k", "attn_v": "v"},
    "attn_out": {"attn_output": "x"},
    "ffn_gate_up": {"ffn_gate": "gate", "ffn_up": "up"},
    "ffn_down": {"ffn_down": "x"},
}
ROWS, POSITION, K_BASE, V_BASE = (pool.ARGUMENTS + word for word in range(4))
FILLED, OUT = pool.ARGUMENTS + 2, pool.ARGUMENTS + 6  # where a filling step reads, and a product writes


class Buffers:
    """Activations of one micro-batch of up to `rows` rows: float32 (rows, width) each, pages touched only as used."""

    def __init__(self, shape, wtype, rows, threads):
        heads, heads_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
        self.rows = rows
        self.ids = np.zeros(rows, np.int64)
        self.x = np.empty((rows, shape.n_embd), np.float32)  # the residual stream
        self.normed = np.empty((rows, shape.n_embd), np.float32)
        self.q = np.empty((rows, heads), np.float32)
        self.k = np.empty((rows, heads_kv), np.float32)
        self.v = np.empty((rows, heads_kv), np.float32)
        self.attended = np.empty((rows, heads), np.float32)
        self.gate = np.empty((rows, shape.n_ff), np.float32)
        self.up = np.empty((rows, shape.n_ff), np.float32)
        self.result = np.empty((rows, shape.n_embd), np.float32)
        self.rope = np.empty((rows, shape.head_dim), np.float32)
        self.activation = Activation(wtype, rows, max(shape.n_embd, heads, shape.n_ff), threads)
        self.scratch_bytes = scratch_bytes(shape.n_head, shape.n_head_kv, shape.head_dim, rows)
        self.scratch = np.empty(threads * self.scratch_bytes + 64, np.uint8)


class Layers:
    """Programs over one model's weights. wmap: the memory map; threads: the pool's."""

    def __init__(self, plan, wmap, rows, threads):
        self.shape, self.wtype, self.map = plan.shape, plan.wtype, wmap
        self.buffers = Buffers(plan.shape, plan.wtype, rows, threads)
        self.rope, self._block = Rope.of(plan.shape), TYPES[plan.wtype]
        self._programs, self._taken = {}, {}
        self._beside, self._watched = {"logits": 0}, []  # cycles, and records with such, outside of the programs
        self._following = self._reading_order(plan.output)
        self._single = {}  # matrix -> the program of its product with one row

    def _reading_order(self, output):
        """Matrix -> the one read after it, in a circle: what comes next can be asked for early."""
        parts = [part for group in PRODUCTS.values() for part in group]
        order = [f"blk.{il}.{part}.weight" for il in range(self.shape.n_layer) for part in parts] + [output]
        return dict(zip(order, [*order[1:], order[0]], strict=True))

    def program(self, kernel: Kernel, cache: str = "f16") -> "Program":
        """The program with that attention kernel over caches of that type, built on first use.

        One serves a split of any length. Raises UsageError for a kernel that the type does not have.
        """
        key = (kernel.name, kernel.nth, cache)
        if key not in self._programs:
            groups = list(self._groups(kernel, cache))
            self._programs[key] = Program(groups, self.shape.n_layer, self.buffers.activation)
        if kernel.padded:
            self._programs[key].set_padded(kernel.padded)
        return self._programs[key]

    def logits(self, workers, rows, out, output):
        """The product of the matrix `output` with rows, float32 (n, n_embd), into out, float32 (n, n_vocab)."""
        if len(rows) > 1:
            records = self.logits_records(rows, out, output)
            workers.run(records)
            self.count("logits", records)
            return
        if output not in self._single:
            self._single[output] = self.logits_records(rows, out, output)
            self.watch("logits", self._single[output])
        records = self._single[output]
        records[0, FILLED], records[-1, OUT] = (x.__array_interface__["data"][0] for x in (rows, out))
        workers.run(records)

    def logits_records(self, rows, out, output):
        """The program for that: the steps that fill the activation, then the product."""
        waits = self.buffers.activation.waits(len(rows))
        fill = [(step, waits, [len(rows), *words[1:]]) for step, _, words in self._fill(rows)]
        code, words = self.rows_step(output, out, following=self.span(self._following[output]))
        return pool.program(*fill, (code, True, [len(rows), *words[1:]]))

    def rows_step(self, name, out, first=0, last=None, *, at=None, residual=None, following=(0, 0)):
        """(step, words) of rows first..last of a matrix, into the columns of out from `at` (or first) on.

        residual: what they are added to, of the shape of out. following: see `products.product`.
        """
        address, row_bytes = self._matrix(name)
        rows, width = len(self.map.tensor(name)), self.width(name)
        last, at = rows if last is None else last, first if at is None else at
        into = [part for x in (out, residual) if x is not None for part in (x.ctypes.data + 4 * at, x.strides[0])]
        return product(
            self.wtype, address + first * row_bytes, row_bytes, last - first, width, self.buffers.activation, *into,
            matrix_rows=rows, following=following,
        )  # fmt: skip

    def span(self, name) -> tuple[int, int]:
        """Address and bytes of a matrix."""
        return self.map.address(name), self.map.tensor(name).nbytes

    def width(self, name) -> int:
        """Values in a row of a matrix."""
        return self._matrix(name)[1] // self._block.block_bytes * self._block.block_size

    def count(self, kind, records):
        """Add what the steps of records outside of the programs took, which ran once, to `cycles`."""
        self._beside[kind] = self._beside.get(kind, 0) + int(pool.cycles_of(records).sum())

    def watch(self, kind, records):
        """Let `cycles` tell of records outside of the programs, too, however often they run."""
        self._watched.append((kind, records))

    def take_cycles(self) -> dict[str, int]:
        """Cycles of the time stamp counter that each kind of work took since the last call (or the start)."""
        now, before = self.cycles(), self._taken
        self._taken = now
        return {kind: count - before.get(kind, 0) for kind, count in now.items()}

    def cycles(self) -> dict[str, int]:
        """The same since the start. It may be read while a program runs: nothing is written."""
        taken = dict(self._beside)
        for kind, records in self._watched:
            taken[kind] = taken.get(kind, 0) + int(pool.cycles_of(records).sum())
        for program in list(self._programs.values()):
            for kind, count in program.cycles().items():
                taken[kind] = taken.get(kind, 0) + count
        return taken

    def _groups(self, kernel, cache):
        """(layer, name, steps) of the whole model; layer -1 comes before the first, n_layer after the last."""
        b, shape = self.buffers, self.shape
        yield -1, "inp_embd", [embed_step(self.wtype, *self._matrix("token_embd.weight"), b.ids, b.x)]
        yield -1, "rope_table", [rope_table_step(self.rope, b.rope)]
        for il in range(shape.n_layer):
            yield from ((il, name, steps) for name, steps in self._layer(il, kernel, cache))
        yield shape.n_layer, "result_norm", [self._norm(b.x, "output_norm.weight", b.result)]

    def _layer(self, il, kernel, cache):
        b, shape, name = self.buffers, self.shape, f"blk.{il}.{{}}.weight".format
        q_norm, k_norm = (self._f32(name(n)) if shape.qk_norm else 0 for n in ("attn_q_norm", "attn_k_norm"))
        yield "attn_norm", [self._norm(b.x, name("attn_norm"), b.normed)]
        yield "attn_norm_q8", self._fill(b.normed)
        yield "qkv", self._products((name("attn_q"), b.q), (name("attn_k"), b.k), (name("attn_v"), b.v))
        yield "heads", [heads_step(shape, b.q, b.rope, q_norm), *STORES[cache](shape, b.k, b.v, b.rope, k_norm)]
        yield "attention", attention_steps(kernel, shape, b.q, b.attended, b.scratch, b.scratch_bytes, cache)
        yield "attention_q8", self._fill(b.attended)
        yield "attn_out", self._products((name("attn_output"), b.x), residual=b.x)
        if il == shape.n_layer - 1:
            yield "out_rows", [last_rows_step(b.x)]
        yield "ffn_norm", [self._norm(b.x, name("ffn_norm"), b.normed)]
        yield "ffn_norm_q8", self._fill(b.normed)
        yield "ffn_gate_up", self._products((name("ffn_gate"), b.gate), (name("ffn_up"), b.up))
        yield "swiglu", [swiglu_step(b.gate, b.up, b.gate)]
        yield "swiglu_q8", self._fill(b.gate)
        yield "ffn_down", self._products((name("ffn_down"), b.x), residual=b.x)

    def _f32(self, name):
        return self.map.address(name)

    def _matrix(self, name):
        rows = self.map.tensor(name)  # (rows, row_bytes)
        return self.map.address(name), rows.shape[1]

    def _norm(self, x, name, out):
        return rms_norm_step(x, self._f32(name), out, self.shape.rms_eps)

    def _fill(self, x):
        return self.buffers.activation.fill(x.ctypes.data, x.shape[1], x.strides[0])

    def _products(self, *outputs, residual=None):
        """One product per (matrix, output); no barrier between them, for they read the same activation."""
        steps = []
        for name, out in outputs:
            following = self.span(self._following[name])
            code, words = self.rows_step(name, out, residual=residual, following=following)
            steps.append((code, len(steps) == len(outputs) - 1, words))
        return steps


class Program:
    """The steps of the whole model in order, for one attention kernel and cache type; `set` patches what changes."""

    def __init__(self, groups, n_layer, activation):
        steps, spans, self._activation, self._rows = [], {}, activation, None
        for il, name, part in groups:
            spans[il, name] = (len(steps), len(steps) + len(part))
            steps += part
        self.all = pool.program(*steps)
        self.n_layer, self._spans = n_layer, spans
        layer_of = np.empty(len(steps), np.int64)
        self._kinds = list(dict.fromkeys(KINDS.get(name, name) for _, name in spans))
        self._kind_of = np.empty(len(steps), np.int64)
        for (il, name), (first, last) in spans.items():
            layer_of[first:last] = il
            self._kind_of[first:last] = self._kinds.index(KINDS.get(name, name))
        bounds = np.searchsorted(layer_of, np.arange(-1, n_layer + 2))
        self.layers = [self.all[a:z] for a, z in pairwise(bounds)]
        self._after_rows = spans[n_layer - 1, "out_rows"][1]
        self._out_rows = self._after_rows - 1
        self._fills, self._waits = np.flatnonzero([step[0] is activation.kind.fill for step in steps]), None
        touching = [np.arange(*spans[il, name]) for name in ("heads", "attention") for il in range(n_layer)]
        self._cache_records = np.concatenate(touching)
        self._cache_layers, self._addresses = layer_of[self._cache_records], None

    def group(self, il, name) -> np.ndarray:
        """The records of one group of one layer."""
        first, last = self._spans[il, name]
        return self.all[first:last]

    def stretches(self, alone):
        """The whole in order, in as few parts as can be: (layer, name, records) of each group that alone(layer, name)
        asks for, and (layer, None, records) of those between, the layer being the last one in them.
        """
        start, layer = 0, -1
        for (il, name), (first, last) in self._spans.items():
            if alone(il, name):
                if start < first:
                    yield layer, None, self.all[start:first]
                yield il, name, self.all[first:last]
                start = last
            layer = il
        if start < len(self.all):
            yield layer, None, self.all[start:]

    def by_group(self):
        """(layer, name, records) in order."""
        for (il, name), (first, last) in self._spans.items():
            yield il, name, self.all[first:last]

    def cycles(self) -> dict[str, int]:
        """Cycles that each kind of work took over all layers since the start."""
        sums = np.bincount(self._kind_of, pool.cycles_of(self.all), len(self._kinds))
        return {kind: int(count) for kind, count in zip(self._kinds, sums, strict=True)}

    def set_padded(self, cells):
        """Make the split kernel, which this program must have, one over so many padded cells."""
        firsts = [self._spans[il, "attention"][0] for il in range(self.n_layer)]
        self.all[firsts, pool.ARGUMENTS + PADDED_WORD] = cells

    def set(self, n, position, n_out, caches):
        """Make the next run one of `n` rows at `position`, with `n_out` output rows, over these caches (or None)."""
        records = self.all
        if (n, n_out) != self._rows:
            self._rows = n, n_out
            records[: self._after_rows, ROWS] = n
            records[self._after_rows :, ROWS] = n_out
        records[:, POSITION] = position
        records[self._out_rows, POSITION] = n_out
        waits = tuple(self._activation.waits(rows) for rows in (n, n_out))
        if waits != self._waits:
            self._waits = waits
            records[self._fills, pool.BARRIER] = np.where(self._fills < self._after_rows, *waits)
        addresses = [(cache.k_address, cache.v_address) for cache in caches or ()]
        if addresses and addresses != self._addresses:
            self._addresses = addresses
            keys, values = np.array(addresses, np.int64)[self._cache_layers].T
            records[self._cache_records, K_BASE], records[self._cache_records, V_BASE] = keys, values
