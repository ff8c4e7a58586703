"""One card at work: the thread that owns its queue, the rows that it holds, and what it has done.

The caller counts the bytes and decides the rows; the thread alone talks to OpenCL. A task is one group of products over
one activation: one submission, one wait. Whatever fails in it is kept in the task, and the caller drops the card.
"""

import os
import queue
import sys
import threading
import time
import weakref
from typing import NamedTuple

import numpy as np

from bankml.blocks import F16, TYPES
from bankml.gpu import opencl
from bankml.gpu.limiter import MemoryLimit, TimeLimit

PATIENCE_S = 30.0  # twice over: a process that was stopped meanwhile gets its second half
COLUMNS = 16  # room for the columns of a micro-batch is made for this many at least


class Piece(NamedTuple):
    """Rows first..last of the matrix at place `matrix` of a group."""

    matrix: int
    first: int
    last: int


class Room(NamedTuple):
    """What the buffers of activation and results hold: columns of so many values in, and of so many rows out."""

    columns: int = 0
    width: int = 0
    rows: int = 0

    def sizes(self, wtype) -> list[int]:
        """Bytes of each buffer: the activation's arrays, then the results."""
        values = self.columns * self.width
        activation = [4 * values] if wtype == F16 else [values, values // 8]
        return [*activation, 4 * self.columns * self.rows]


class Work(NamedTuple):
    """A card's part of a group of products, the same for every activation of up to `columns` columns.

    pieces: with rows in the results one after the other. holding: for each, the rows of its matrix to have on the card.
    """

    names: list[str]
    memories: list[np.ndarray]  # uint8 (rows, row_bytes) of each matrix, whole
    pieces: list[Piece]
    holding: list[tuple[int, int]]
    rows: int


class Task:
    """One `Work` over one activation; `wait` for it, then see `error`, `values` and `seconds`."""

    def __init__(self, work: Work, activation, room: Room):
        self.work, self.activation, self.room = work, activation, room
        self.values: np.ndarray | None = None  # float32 (columns, rows of all pieces)
        self.seconds, self.error, self.span = 0.0, None, (0.0, 0.0)
        self._running = threading.Lock()
        self._running.acquire()

    def end(self):
        """The thread is through with it."""
        self._running.release()

    def wait(self, patience=PATIENCE_S):
        """Wait for its end. Raises TimeoutError where the card does not answer."""
        if not (self._running.acquire(timeout=patience) or self._running.acquire(timeout=patience)):
            raise TimeoutError(f"no answer in {2 * patience:.0f} seconds")


class Card:
    """A device that has proved itself. name: for people. program: its kernels, see `gpu.program`.

    memory, time: the limits. rows: rows times columns computed so far. note: why it was dropped, or None. distrust:
    what to call when it is caught with wrong bits.
    """

    def __init__(
        self, name, context, program, wtype, *, memory: MemoryLimit, time_limit: TimeLimit, distrust=lambda: None
    ):
        self.name, self.wtype, self.memory, self.time, self.distrust = name, wtype, memory, time_limit, distrust
        self.rows, self.note = 0, None
        self._held: dict[str, tuple[int, int, int]] = {}  # first, last, bytes
        self.room = Room()
        self._inbox: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._inbox, context, program, wtype), name=f"bankml-card {name}", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._inbox.put, None).atexit = False  # also if nobody ends it
        _cards.add(self)

    @property
    def on(self) -> bool:
        """Whether it takes work."""
        return self.note is None

    def hold(self, name: str, row_bytes: int, first: int, last: int) -> tuple[int, int] | None:
        """Count rows first..last of a matrix as on the card; returns those to be there, or None if they do not fit."""
        low, high, size = self._held.get(name, (first, first, 0))
        if low <= first and last <= high:
            return low, high
        low, high = min(low, first), max(high, last)
        if not self.memory.take((high - low) * row_bytes, instead_of=size):
            return None
        self._held[name] = (low, high, (high - low) * row_bytes)
        return low, high

    def make_room(self, columns: int, width: int, rows: int) -> bool:
        """Count the buffers that such a group needs; False if they do not fit. What there is never shrinks."""
        columns = columns if columns == 1 else max(COLUMNS, 1 << (columns - 1).bit_length())
        wanted = Room(*map(max, self.room, (columns, width, rows)))
        if wanted == self.room:
            return True
        new, old = wanted.sizes(self.wtype), self.room.sizes(self.wtype)
        taken = []
        for size, instead in zip(new, old, strict=True):
            if not self.memory.take(size, instead_of=instead):
                for more, less in taken:
                    self.memory.take(less, instead_of=more)
                return False
            taken.append((size, instead))
        self.room = wanted
        return True

    def start(self, work: Work, activation) -> Task:
        """Begin; returns at once."""
        task = Task(work, activation, self.room)
        self._inbox.put(task)
        return task

    def forget(self, names):
        """Take these matrices off the card."""
        for name in names:
            self.memory.give_back(self._held.pop(name, (0, 0, 0))[2])
        self._inbox.put(list(names))

    def drop(self, why: str):
        """Say so on stderr, and leave the card alone for the rest of the session."""
        if self.on:
            print(f"bankml: {self.name} is dropped: {why}; going on without it", file=sys.stderr, flush=True)
            self.end(why)

    def end(self, why="closed", patience=0.0):
        """Let the thread end, which gives everything on the card back; wait for it no longer than that."""
        if self.on:
            self.note = why
            self.memory.give_back(self.memory.used)
            self._held.clear()
            self._inbox.put(None)
        if patience:
            self._thread.join(patience)

    def _after_fork(self):
        self.note = self.note or "left behind in another process"


_cards: "weakref.WeakSet[Card]" = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [card._after_fork() for card in list(_cards)])


def _serve(inbox, context, program, wtype):
    """The thread's life: tasks, lists of matrices to forget, until None."""
    device, broken = None, None
    while (task := inbox.get()) is not None:
        try:
            begun = time.monotonic()
            device = device or _Device(context, program, wtype)
            if isinstance(task, list):
                device.forget(task)
                continue
            if broken:
                raise broken
            device.run(task)
            task.span = (begun, time.monotonic())
        except Exception as error:  # of a driver anything may come: the caller drops the card
            broken = error
        if not isinstance(task, list):
            task.error = broken
            task.end()


class _Device:
    """OpenCL's side of a card. Only the card's thread comes here."""

    def __init__(self, context, program, wtype):
        cl = self._cl = opencl.load()
        self._context, self._program, self._wtype = context, program, wtype
        self._queue = cl.CommandQueue(context, program.device, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self._matrices: dict[str, tuple[int, int, object]] = {}  # rows first..last in a buffer
        self._room, self._buffers = Room(), []
        self._products: dict[int, tuple] = {}

    def run(self, task: Task):
        """Compute a task's values."""
        columns, copy = len(task.activation[0]), self._cl.enqueue_copy
        products = self._ready(task.work, task.room)
        begun = time.monotonic()
        for buffer, array in zip(self._buffers, task.activation, strict=False):
            copy(self._queue, buffer, array, is_blocking=False)
        events = [product.enqueue(self._queue, columns) for product in products]
        values = np.empty((columns, task.work.rows), np.float32)
        copy(self._queue, values, self._buffers[-1], is_blocking=True)
        measured = sum(event.profile.end - event.profile.start for event in events) * 1e-9
        task.seconds = measured or time.monotonic() - begun  # Mesa 22.3 says 0 of every dispatch
        task.values = values

    def forget(self, names):
        """Take these matrices off the card, and what was made for them."""
        self._products.clear()
        for name in names:
            if name in self._matrices:
                self._matrices.pop(name)[2].release()

    def _ready(self, work, room):
        """The products of a work, with their rows uploaded and room for their columns."""
        if room != self._room:
            self._make_room(room)
        found = self._products.get(id(work))
        if found is None or found[0] is not work:
            buffers = [self._upload(work, at) for at in range(len(work.pieces))]
            found = self._products[id(work)] = (work, self._make(work, buffers))
        return found[1]

    def _make_room(self, room):
        self._products.clear()
        for buffer in self._buffers:
            buffer.release()
        flags = self._cl.mem_flags.READ_WRITE
        self._buffers = []
        for size in room.sizes(self._wtype):
            self._buffers.append(self._cl.Buffer(self._context, flags, size))
            self._cl.enqueue_copy(self._queue, self._buffers[-1], np.zeros(1, np.uint8))  # a lack of memory shows now
        self._room = room

    def _upload(self, work, at):
        """The buffer with a piece's rows, and the first row in it."""
        (matrix, first, last), name = work.pieces[at], work.names[work.pieces[at].matrix]
        low, high, buffer = self._matrices.get(name, (first, first, None))
        if buffer is not None and low <= first and last <= high:
            return low, buffer
        if buffer is not None:
            self._products.clear()
            self._matrices.pop(name)[2].release()
        low, high = work.holding[at]
        rows = work.memories[matrix][low:high]
        buffer = self._cl.Buffer(self._context, self._cl.mem_flags.READ_ONLY, rows.nbytes)
        self._matrices[name] = (low, high, buffer)
        self._cl.enqueue_copy(self._queue, buffer, rows)
        return low, buffer

    def _make(self, work, buffers):
        """A product per piece, their results side by side in a row for each column."""
        products, at = [], 0
        *activation, out = self._buffers
        for (matrix, first, last), (low, buffer) in zip(work.pieces, buffers, strict=True):
            whole = work.memories[matrix]
            products.append(
                self._program.product(
                    self._wtype, buffer, last - first, width_of(self._wtype, whole), tuple(activation), out,
                    start=(first - low) * whole.shape[1], out_start=at, out_stride=work.rows, matrix_rows=len(whole),
                )
            )  # fmt: skip
            at += last - first
        return products


def width_of(wtype, memory) -> int:
    """Values in a row of a matrix, uint8 (rows, row_bytes)."""
    block = TYPES[wtype]
    return memory.shape[1] // block.block_bytes * block.block_size
