"""Products on the CPU's pool and on cards at once: the driver for models of which cards have a share.

A group of products is begun on the cards, the pool computes the rows that are left and a few of the cards' again, then
the results are joined. What lies between such groups runs as it is. The kernels are those of the whole-model driver,
and so are the bits.
"""

import itertools
import time
from typing import NamedTuple

import numpy as np

from bankml.blocks import F16
from bankml.cpu import pool
from bankml.cpu.attention import Kernel
from bankml.cpu.layer import PRODUCTS, ROWS
from bankml.gpu.calibrate import Trial, columns_class
from bankml.gpu.worker import Worker

MATRIX = pool.ARGUMENTS + 2  # the word of a product's step that says where its first row is
FILLS = {"qkv": "attn_norm_q8", "attn_out": "attention_q8", "ffn_gate_up": "ffn_norm_q8", "ffn_down": "swiglu_q8"}
SAMPLED_LAYERS = 4  # over which a share is measured
SAMPLED_COLUMNS = {1: 1, 2: 16, 32: 128}  # at most, of each class of micro-batches
LOGITS = "logits"


class Group(NamedTuple):
    """Products over one activation: (name, bytes) of each matrix, where results go, whether they are added there."""

    name: str
    kind: str
    matrices: list[tuple[str, np.ndarray]]
    outs: list[np.ndarray]
    adds: bool
    width: int


class Part(NamedTuple):
    """The CPU's part of a group: steps for the rows left, then for the rows to check, into `checked`."""

    records: np.ndarray
    first_check: int
    checked: list[np.ndarray]  # float32 (most columns, rows)


class Split:
    """Runs micro-batches on `workers`, the CPU's pool, and a Worker's cards. One caller at a time.

    trace: called with what was done in each group, for tests.
    """

    def __init__(self, workers: pool.Pool, worker: Worker, wmap, output: str):
        self.pool, self.worker, self._map, self._output = workers, worker, wmap, output
        self._output_matrix = [(output, wmap.tensor(output))]
        self.trial = Trial() if worker.shares.fixed is None else None
        self.trace, self._tried, self._layer_rows = None, False, ()
        self._layers, self._groups, self._parts, self._slots, self._stretches = None, {}, {}, [], {}
        self._measured, self._shared = set(), {}

    def turn(self, layers, columns: int, n_out: int) -> bool:
        """Whether the cards take part in the next micro-batch; measures first what is not known yet."""
        self._tried = False
        self.prepare(layers, columns)
        if n_out not in (0, columns):
            self.prepare(layers, n_out)
        self.worker.total_rows += self._rows(layers, columns, n_out)
        if not self.worker.on:
            return False
        if not any(self._takes(layers, columns) + self._takes(layers, n_out)):
            return False
        if columns > 1 or self.trial is None or self.trial.over:
            return True
        if self.worker.resting:
            return False  # from the measuring, say: such a token would tell nothing of the cards
        self._tried = True
        return self.trial.cards_next

    def took(self, cards: bool, seconds: float):
        """The micro-batch took so long, with the cards or without: the trial of single tokens goes on."""
        if not self._tried:
            return
        self.trial.took(cards, seconds)
        if self.trial.over and not self.trial.cards_won:
            self.worker.none_for_tokens(LOGITS)

    def run(self, layers, program, columns: int, n_out: int, every_layer: bool):
        """Run a program that is set; yields each layer's number once it is through, where every layer is asked for."""
        key = (program, self._takes(layers, columns), self._takes(layers, n_out), every_layer)
        if key not in self._stretches:
            self._stretches[key] = list(self._cut(layers, *key))
        for il, name, records, shared in self._stretches[key]:
            columns = int(records[0, ROWS])
            if not shared:
                self.pool.run(records)
            elif columns:
                self._product(layers, self._group(layers, il, name), columns)
            if name == "ffn_down" and every_layer:
                yield il

    def logits(self, layers, rows, out):
        """The output matrix times rows, float32 (n, n_embd), into out, float32 (n, n_vocab)."""
        self.prepare(layers, len(rows), logits=True)
        self.worker.total_rows += out.size
        if not self.worker.takes(LOGITS, self._output_matrix, len(rows)):
            layers.logits(self.pool, rows, out, self._output)
            return
        records = layers.logits_records(rows, out, self._output)[:-1]
        self.pool.run(records)
        part = self._product(layers, self._logits_group(layers, out), len(rows))
        layers.count(LOGITS, records)
        layers.count(LOGITS, part)

    def prepare(self, layers, columns: int, logits=False):
        """Measure the shares for micro-batches of about so many columns, unless they are known."""
        self._use(layers)
        kind = (columns_class(columns), logits)
        if kind in self._measured or not self.worker.on:
            return
        self._measured.add(kind)
        if self.worker.shares.fixed is not None and len(self.worker.cards) == 1:
            return
        with self.worker.measuring():
            self._measure(layers, min(columns, SAMPLED_COLUMNS[kind[0]]), logits)

    def close(self):
        """End the cards' threads, and let go of the model's bytes."""
        self.worker.close()
        self._use(None)
        self._output_matrix = []

    def _use(self, layers):
        if layers is not self._layers:
            self._layers, self._groups, self._parts, self._slots, self._stretches = layers, {}, {}, [], {}

    def _group(self, layers, il, kind) -> Group:
        group = self._groups.get((il, kind))
        if group is None:
            names = [f"blk.{il}.{part}.weight" for part in PRODUCTS[kind]]
            outs = [getattr(layers.buffers, into) for into in PRODUCTS[kind].values()]
            matrices = [(name, self._map.tensor(name)) for name in names]
            width = layers.width(names[0])
            group = Group(f"blk.{il}.{kind}", kind, matrices, outs, outs[0] is layers.buffers.x, width)
            self._groups[il, kind] = group
        return group

    def _logits_group(self, layers, out):
        return Group(LOGITS, LOGITS, self._output_matrix, [out], False, layers.width(self._output))

    def _takes(self, layers, columns) -> tuple[bool, ...]:
        """For each kind of group, whether a card has a share of it; none for no columns."""
        if not columns:
            return ()
        key = (columns_class(columns), self.worker.version)
        if key not in self._shared:
            groups = [self._group(layers, 0, kind) for kind in PRODUCTS]
            self._shared[key] = tuple(self.worker.takes(group.name, group.matrices, columns) for group in groups)
        return self._shared[key]

    def _cut(self, layers, program, takes, takes_last, every_layer):
        """(layer, name, records, shared) in order."""
        shared = dict(zip(PRODUCTS, takes, strict=True))
        shared_last = shared | dict(zip(PRODUCTS, takes_last, strict=False))

        def shares(il, name):
            last = il == layers.shape.n_layer - 1 and name.startswith("ffn")
            return (shared_last if last else shared).get(name, False)

        alone = lambda il, name: shares(il, name) or (every_layer and name == "ffn_down")  # noqa: E731
        for il, name, records in program.stretches(alone):
            yield il, name, records, name is not None and shares(il, name)

    def _product(self, layers, group: Group, columns: int, shares=None) -> np.ndarray:
        """One group of products, of which the activation is filled. Returns the records of the CPU's part."""
        begun = time.monotonic()
        started = self.worker.begin(group.name, group.matrices, self._activation(layers, columns, group.width), shares)
        part = self._part(layers, group, started)
        records = part.records
        records[:, ROWS] = columns
        for record, (_, _, piece) in zip(records[part.first_check :], started.checks, strict=True):
            memory = group.matrices[piece.matrix][1]
            record[MATRIX] = self._map.address(group.matrices[piece.matrix][0]) + piece.first * memory.shape[1]
        before = time.monotonic()
        if len(records):
            self.pool.run(records)
        after = time.monotonic()
        joined, lost = self.worker.finish(started, [checked[:columns] for checked in part.checked])
        for piece, values in joined:
            target = group.outs[piece.matrix][:columns, piece.first : piece.last]
            if group.adds:
                target += values
            else:
                target[...] = values
        if lost:
            self._compute(layers, group, lost, columns)
        if self.trace is not None:
            spans = [task.span for _, task in started.tasks]
            self.trace(group.name, columns, joined, [*started.left, *lost], (begun, before, after), spans)
        return records

    def _activation(self, layers, columns, width):
        activation = layers.buffers.activation
        return (activation.f32(columns, width),) if layers.wtype == F16 else activation.q8(columns, width)

    def _part(self, layers, group, started) -> Part:
        """The CPU's part; made once for each way of dividing a group."""
        key = (group.name, started.key)
        if key in self._parts:
            return self._parts[key]
        steps, checked = self._steps(layers, group, started.left), []
        first_check = len(steps)
        for at, (_, _, piece) in enumerate(started.checks):
            out = self._slot(layers, at)[:, : piece.last - piece.first]
            name = group.matrices[piece.matrix][0]
            steps.append(layers.rows_step(name, out, piece.first, piece.last, at=0))
            checked.append(out)
        part = Part(self._records(steps), first_check, checked)
        if group.kind != LOGITS:  # whose results go to another place each time
            self._parts[key] = part
            layers.watch(group.kind, part.records)
        return part

    def _steps(self, layers, group, pieces):
        """(step, words) for pieces of a group's matrices, each asking ahead for the next one's first rows."""
        steps = []
        for piece, after in itertools.zip_longest(pieces, pieces[1:]):
            (name, _), out = group.matrices[piece.matrix], group.outs[piece.matrix]
            following = (0, 0)
            if after:
                next_name, memory = group.matrices[after.matrix]
                row_bytes = memory.shape[1]
                first = self._map.address(next_name) + after.first * row_bytes
                following = first, (after.last - after.first) * row_bytes
            residual = out if group.adds else None
            steps.append(layers.rows_step(name, out, piece.first, piece.last, residual=residual, following=following))
        return steps

    def _records(self, steps):
        """A program of steps that need no barrier between them."""
        return pool.program(*((code, at == len(steps) - 1, words) for at, (code, words) in enumerate(steps)))

    def _slot(self, layers, at):
        """Room for the values of the at'th rows to check."""
        while len(self._slots) <= at:
            self._slots.append(np.empty((layers.buffers.rows, self.worker.checked), np.float32))
        return self._slots[at]

    def _compute(self, layers, group, pieces, columns):
        """Compute pieces on the CPU alone."""
        records = self._records(self._steps(layers, group, pieces))
        records[:, ROWS] = columns
        self.pool.run(records)
        layers.count(group.kind, records)

    def _rows(self, layers, columns, n_out) -> int:
        """Rows times columns of a whole micro-batch, without the logits."""
        if not self._layer_rows:
            rows = {kind: sum(len(m) for _, m in self._group(layers, 0, kind).matrices) for kind in PRODUCTS}
            self._layer_rows = sum(rows.values()), rows["ffn_gate_up"] + rows["ffn_down"]
        whole, after = self._layer_rows
        return columns * (layers.shape.n_layer * whole - after) + n_out * after

    # -- measuring ----------------------------------------------------------------------------------------------------

    def _measure(self, layers, columns, logits):
        """The shares of every kind of group (or of the logits) for so many columns, over matrices of a few layers."""
        program, buffers, n_layer = layers.program(Kernel.reference()), layers.buffers, layers.shape.n_layer
        program.set(columns, 0, columns, None)
        for x in (buffers.x, buffers.normed, buffers.attended, buffers.gate):
            x[:columns] = np.random.default_rng(1).standard_normal(x[:columns].shape, np.float32)
        cut = self._cost_of_a_run(program, columns, n_layer)
        sampled = sorted({i * n_layer // SAMPLED_LAYERS for i in range(SAMPLED_LAYERS)})
        if logits:
            out = np.empty((columns, layers.shape.n_vocab), np.float32)
            records = layers.logits_records(buffers.normed[:columns], out, self._output)
            self.pool.run(records)
            self._measure_groups(layers, [self._logits_group(layers, out)], [records[-1:]], columns, cut)
            return
        for kind, fill in FILLS.items():
            groups = [self._group(layers, il, kind) for il in sampled]
            self.pool.run(program.group(sampled[0], fill))
            self._measure_groups(layers, groups, [program.group(il, kind) for il in sampled], columns, cut)

    def _measure_groups(self, layers, groups, alone, columns, cut):
        """The shares of groups of one shape. alone: the records of each on the CPU. cut: what two more runs cost."""

        def sample(shares):
            begun = time.perf_counter()
            for group, records in zip(groups, alone, strict=True):
                if any(shares):
                    self._product(layers, group, columns, shares)
                else:
                    self.pool.run(records)
            return max(1e-9, time.perf_counter() - begun + (cut if any(shares) else -cut) * len(groups))

        self.worker.measure(groups[0].name, groups[0].matrices, columns, sample)
        self.worker.forget([name for group in groups for name, _ in group.matrices])

    def _cost_of_a_run(self, program, columns, n_layer):
        """Seconds that waking the pool takes: a group that stands alone costs one run more before it, and one after."""
        records, taken = program.group(n_layer, "result_norm"), []
        before = int(records[0, ROWS])
        records[:, ROWS] = 1
        for _ in range(9):
            begun = time.perf_counter()
            self.pool.run(records)
            taken.append(time.perf_counter() - begun)
        records[:, ROWS] = before
        return sorted(taken)[4]
