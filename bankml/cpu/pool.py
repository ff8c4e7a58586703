"""The thread pool: persistent threads that run a *program*, a list of steps with barriers, without the GIL.

A program is an int64 array (n_steps, RECORD); a record holds the step's entry point, whether a barrier follows,
where its work counter and its cycles are, and the step's arguments. Counters and cycles, which threads write, lie apart
from what they all read, and close together, so that clearing and keeping them touches few cache lines.

A run is one call from Python: it wakes the workers, every one of them goes through all the steps, and the last barrier
ends it. Waiting, inside a run and between runs, spins briefly and then sleeps, since another program may want the core.

Of `threads` asked for there are as many workers, but no more than cores; each step is cut into as many shares, which
decides no bit. Fewer workers take part, with all the shares, while other programs keep some from their cores: the
others would only wait for them.
"""

import atexit
import ctypes
import os
import threading
import time
import weakref
from functools import cache

import numpy as np
from numba.core import types

from bankml.cpu.compile import entry, inner
from bankml.cpu.floats import WORDS, fetch_add, load_i64, store_i64
from bankml.cpu.simd import i64, vector, void
from bankml.errors import UsageError

RECORD = 32  # int64 words: entry point, barrier flag, addresses of the cycles spent and of the work counter, arguments
ENTRY, BARRIER, CYCLES, COUNTER, ARGUMENTS = 0, 1, 2, 3, WORDS
MAX_THREADS = 64
SPIN_CYCLES = 50_000  # of the time stamp counter, some 20 us: then a waiting thread sleeps
IDLE_CYCLES = 250_000  # the same between two runs: waking a sleeping thread costs the caller 50 us
SYS_FUTEX, FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 202, 128, 129

# The mailbox, byte offsets, what threads change apart in cache lines of their own; from SEMAPHORES on, one sem_t per
# worker. TIMEOUT is a timespec of one second: no slip of ours may become a hang.
ARRIVED, GENERATION, SLEEPERS, LINE = 0, 64, 128, 64
PROGRAM, STEPS, SHARES, WORKERS, STOP, TIMEOUT, TAKEN = 192, 200, 208, 216, 224, 232, 320
MASK_BYTES = 128  # of a CPU mask of 1,024 bits; MASKS: two of them for each worker
MASKS, SEMAPHORES = 384, 384 + 2 * MASK_BYTES * MAX_THREADS
CPU, WAITED, LINES = 64, 72, 128  # a worker's lines: its semaphore, the core it was last seen on, its cycles of waiting

syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
sem_trywait = types.ExternalFunction("sem_trywait", types.int32(types.int64))
sem_wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))
sched_getcpu = types.ExternalFunction("sched_getcpu", types.int32())
sched_getaffinity = types.ExternalFunction("sched_getaffinity", types.int32(types.int32, types.int64, types.int64))
sched_setaffinity = types.ExternalFunction("sched_setaffinity", types.int32(types.int32, types.int64, types.int64))


@vector
def call_step(b, address, record, thread, threads):
    """Call the step at `address`."""
    from llvmlite import ir

    kind = ir.FunctionType(void, [i64, i64, i64])
    b.ir.call(b.ir.inttoptr(address, kind.as_pointer()), [record, thread, threads])


@vector(returns=types.int64)
def cycles(b):
    """The time stamp counter, which runs at a constant rate."""
    return b.call("llvm.readcyclecounter", i64, [])


@vector(returns=types.int64)
def look(b, address):
    """An int64 in memory that other threads change."""
    return b.ir.load_atomic(b.pointer(address), "seq_cst", 8, typ=i64)


@vector(returns=types.int64)
def raise_by(b, address, amount):
    """Add to an int64 that other threads watch, all that came before being visible to them; returns what was there."""
    return b.ir.atomic_rmw("add", b.pointer(address), amount, "seq_cst")


@vector
def rest(b):
    """A moment's pause inside a spin."""
    b.call("llvm.x86.sse2.pause", void, [])


@inner
def _spread(mailbox, worker, workers):
    """Say which core this worker is on, and leave it if another one is there too.

    Threads that wake each other are put on one core by the system as soon as the others have anything to do, however
    little; it takes its time to part them again. The cores this thread may use stay what they were.
    """
    mine = mailbox + SEMAPHORES + LINES * worker + CPU
    here, alone = np.int64(sched_getcpu()), True
    store_i64(mine, here)
    for other in range(workers):
        alone &= other == worker or load_i64(mailbox + SEMAPHORES + LINES * other + CPU) != here
    if alone:
        return
    allowed = mailbox + MASKS + 2 * MASK_BYTES * worker
    free = allowed + MASK_BYTES
    if sched_getaffinity(0, MASK_BYTES, allowed) < 0:
        return
    for word in range(0, MASK_BYTES, 8):
        store_i64(free + word, load_i64(allowed + word))
    for other in range(workers):
        taken = load_i64(mailbox + SEMAPHORES + LINES * other + CPU)
        if taken >= 0:
            place = free + (taken >> 6 << 3) % MASK_BYTES
            store_i64(place, load_i64(place) & ~(1 << (taken & 63)))
    if sched_setaffinity(0, MASK_BYTES, free) == 0:
        sched_setaffinity(0, MASK_BYTES, allowed)
        store_i64(mine, np.int64(sched_getcpu()))


@inner
def barrier(mailbox, worker, threads):
    """Wait until all threads are here: the last one opens the next generation, the others watch it, then sleep.

    Sleeping, not yielding: a core that falls idle takes over the thread that is waited for, if that one was put off its
    own core by another program.
    """
    generation, sleepers = mailbox + GENERATION, mailbox + SLEEPERS
    now = look(generation)
    if raise_by(mailbox + ARRIVED, 1) == threads - 1:
        store_i64(mailbox + ARRIVED, 0)
        raise_by(generation, 1)
        if look(sleepers) > 0:
            syscall(SYS_FUTEX, generation, FUTEX_WAKE_PRIVATE, MAX_THREADS, 0, 0, 0)
        return
    since = cycles()
    while look(generation) == now:
        rest()
        if cycles() - since > SPIN_CYCLES:
            raise_by(sleepers, 1)
            while look(generation) == now:
                syscall(SYS_FUTEX, generation, FUTEX_WAIT_PRIVATE, now & 0xFFFFFFFF, mailbox + TIMEOUT, 0, 0)
            raise_by(sleepers, -1)
            _spread(mailbox, worker, threads)
    waited = mailbox + SEMAPHORES + LINES * worker + WAITED
    store_i64(waited, load_i64(waited) + cycles() - since)


@inner
def next_item(record):
    """The next number of a step's work counter, starting at 0: work is handed out to whoever is free."""
    return fetch_add(load_i64(record + 8 * COUNTER), 1)


@inner
def _execute(mailbox, worker):
    """Go through the posted program as one of its workers: of every step the shares worker, worker + workers, ..."""
    program, steps = load_i64(mailbox + PROGRAM), load_i64(mailbox + STEPS)
    shares, workers = load_i64(mailbox + SHARES), load_i64(mailbox + WORKERS)
    if workers > 1:
        _spread(mailbox, worker, workers)
    before = cycles()
    for i in range(steps):
        record = program + 8 * RECORD * i
        for share in range(worker, shares, workers):
            call_step(load_i64(record + 8 * ENTRY), record, share, shares)
        if workers > 1 and (i == steps - 1 or load_i64(record + 8 * BARRIER) != 0):
            barrier(mailbox, worker, workers)
        if worker == 0:  # what a step takes, waiting for the others included
            now = cycles()
            spent = load_i64(record + 8 * CYCLES)
            store_i64(spent, load_i64(spent) + now - before)
            before = now


@entry(types.int64)
def stamp():
    """The time stamp counter now."""
    return cycles()


def read_stamp() -> int:
    """The time stamp counter."""
    return ctypes.CFUNCTYPE(ctypes.c_int64)(stamp.address)()


@entry(types.void, types.int64, types.int64)
def serve(mailbox, worker):
    """A worker's whole life: sleep, run the posted program, sleep again, until told to stop."""
    while True:
        posted, since = mailbox + SEMAPHORES + LINES * worker, cycles()
        while sem_trywait(posted) != 0:
            if cycles() - since > IDLE_CYCLES and sem_wait(posted) == 0:
                break
            rest()
        if load_i64(mailbox + STOP) != 0:
            return
        _execute(mailbox, worker)


@entry(types.void, types.int64, types.int64, types.int64)
def run(mailbox, program, steps):
    """Run a program on all workers, the caller being the first; returns when every one of them is through."""
    since = cycles()
    counters = load_i64(program + 8 * COUNTER)
    for i in range(steps):
        store_i64(counters + 8 * i, 0)
    store_i64(mailbox + PROGRAM, program)
    store_i64(mailbox + STEPS, steps)
    for worker in range(1, load_i64(mailbox + WORKERS)):
        sem_post(mailbox + SEMAPHORES + LINES * worker)
    _execute(mailbox, 0)
    store_i64(mailbox + TAKEN, cycles() - since)


def thread_count(asked=None) -> int:
    """Threads to use: `asked`, else `BANKML_THREADS`, else the cores this process may run on. 1-64, else UsageError."""
    name = "--threads" if asked is not None else "BANKML_THREADS"
    text = str(asked) if asked is not None else os.environ.get("BANKML_THREADS", "")
    if not text:
        return min(MAX_THREADS, len(os.sched_getaffinity(0)))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise UsageError(f"{name} is {text!r}; it takes a number from 1 to {MAX_THREADS}")
    return int(text)


class _Crew:
    """How many of a pool's workers take part: one less while they wait too much of their time for each other.

    On a quiet machine they wait for a tenth of it at most. Every now and then one more is tried.
    """

    LIMIT, WINDOW = 0.2, 80_000_000  # of the time; cycles of the time stamp counter over which it is taken, some 30 ms
    SHORT, LONG = 0.25, 4.0  # seconds until the next try, doubled with each that fails

    def __init__(self, waited):
        """waited: each worker's cycles of waiting so far, int64 (workers,), which the workers keep up to date."""
        self._waited, self._before = waited, waited.copy()
        self.active, self._taken = len(waited), 0
        self._pause, self._next_try = self.SHORT, 0.0

    def after(self, taken):
        """Take note of a run of so many cycles; True if `active` has changed."""
        self._taken, before = self._taken + taken, self.active
        if self._taken < self.WINDOW:
            return False
        share = (self._waited - self._before)[: self.active].mean() / self._taken
        self._before[:], self._taken, now = self._waited, 0, time.monotonic()
        if share > self.LIMIT and self.active > 1:
            self.active -= 1
            self._next_try, self._pause = now + self._pause, min(self.LONG, 2 * self._pause)
        elif self.active == len(self._waited):
            self._pause = self.SHORT
        elif now > self._next_try:
            self.active += 1
        return self.active != before


class Pool:
    """`threads` threads, the caller among them. `run` is for one caller at a time; a second waits."""

    def __init__(self, threads=None, *, shares=None):
        """shares: what each step is cut into, at most `threads`; as many as there are workers if None."""
        self.threads = thread_count(threads)
        self.workers = min(self.threads, len(os.sched_getaffinity(0)))
        self.shares = shares or self.workers
        self._lock, self._born = threading.Lock(), (read_stamp(), time.monotonic())
        self._run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(run.address)
        self._start()
        _pools.add(self)

    def _start(self):
        libc = ctypes.CDLL(None)
        self._memory = np.zeros(SEMAPHORES // 8 + (LINES // 8) * (self.workers + 1), np.int64)
        self._mailbox = (self._memory.ctypes.data + LINE - 1) // LINE * LINE
        for number in range(self.workers):
            self._word(SEMAPHORES + LINES * number + CPU).value = -1
        start = (self._mailbox - self._memory.ctypes.data + SEMAPHORES + WAITED) // 8
        self._crew = _Crew(self._memory[start :: LINES // 8][: self.workers])
        self._taken = self._word(TAKEN)
        for offset, value in ((SHARES, self.shares), (WORKERS, self.workers), (TIMEOUT, 1)):
            self._word(offset).value = value
        self._helpers = []
        for number in range(1, self.workers):
            libc.sem_init(ctypes.c_void_p(self._mailbox + SEMAPHORES + LINES * number), 0, 0)
            life = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(serve.address)
            name, given = f"bankml-{number}", (life, self._mailbox, number, self._memory)
            self._helpers.append(threading.Thread(target=_live, args=given, name=name, daemon=True))
            self._helpers[-1].start()
        self._dismiss = weakref.finalize(self, _dismiss, self._mailbox, len(self._helpers), self._memory)
        self._dismiss.atexit = False  # see _close_all, which waits for them

    def run(self, program: np.ndarray):
        """Run a program, an int64 array (n_steps, RECORD), to its end."""
        with self._lock:
            self._run(self._mailbox, program.__array_interface__["data"][0], len(program))
            if self.workers > 1 and self._crew.after(self._taken.value):
                self._word(WORKERS).value = self._crew.active

    def thread_ids(self) -> list[int]:
        """The system's numbers of the threads that work beside the caller."""
        return [helper.native_id for helper in self._helpers if helper.native_id is not None]

    def seconds(self, cycles: float) -> float:
        """How long so many cycles of the time stamp counter are, by its rate since the pool was made."""
        stamp, born = self._born
        return cycles * (time.monotonic() - born) / max(1, read_stamp() - stamp)

    def _word(self, offset):
        return ctypes.c_int64.from_address(self._mailbox + offset)

    def close(self):
        """End the threads; the pool cannot run any more. One that is let go of without it ends them, too."""
        with self._lock:
            helpers, self._helpers = self._helpers, []
            self._dismiss()
            for helper in helpers:
                helper.join(timeout=5)

    def _after_fork(self):
        """A child process has none of our threads: start new ones."""
        self._lock = threading.Lock()
        self._dismiss.detach()
        self._start()


def _live(life, mailbox, number, memory):
    """A helper's whole life, for which it keeps the mailbox's memory."""
    life(mailbox, number)


def _dismiss(mailbox, helpers, memory):
    """Tell the helpers of a pool to end."""
    for offset in (WORKERS, STOP):
        ctypes.c_int64.from_address(mailbox + offset).value = 1
    post = ctypes.CDLL(None).sem_post
    for number in range(1, helpers + 1):
        post(ctypes.c_void_p(mailbox + SEMAPHORES + LINES * number))


_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()


@atexit.register
def _close_all():
    for pool in list(_pools):
        pool.close()


def _restart_all():
    for pool in list(_pools):
        pool._after_fork()


os.register_at_fork(after_in_child=_restart_all)


def program(*steps) -> np.ndarray:
    """An int64 array (n_steps, RECORD) from (step, barrier, argument words) triples, aligned to a cache line.

    The counters and the cycles of the steps lie behind it in the same memory; a slice of it is a program, too.
    """
    count, line = len(steps), LINE // 8
    beside = -(-count // line) * line
    memory = np.zeros(count * RECORD + 2 * beside + line, np.int64)
    start = -(memory.ctypes.data // 8) % line
    records = memory[start : start + count * RECORD].reshape(count, RECORD)
    counters = records.ctypes.data + 8 * count * RECORD
    for number, (record, (code, wait, words)) in enumerate(zip(records, steps, strict=True)):
        assert len(words) <= RECORD - ARGUMENTS, (code, words)
        record[ENTRY], record[BARRIER] = code.address, wait
        record[COUNTER] = counters + 8 * number
        record[CYCLES] = counters + 8 * (beside + number)
        record[ARGUMENTS : ARGUMENTS + len(words)] = words
    return records


def cycles_of(records: np.ndarray) -> np.ndarray:
    """Cycles of the time stamp counter that each step of a program took since it was made, int64 (n_steps,)."""
    if not len(records):
        return np.zeros(0, np.int64)
    return np.array((ctypes.c_int64 * len(records)).from_address(int(records[0, CYCLES])))


@cache
def _one_thread() -> Pool:
    return Pool(1)


def run_alone(records: np.ndarray):
    """Run a program on the calling thread."""
    _one_thread().run(records)


def run_steps(*steps, pool: Pool | None = None):
    """Run (step, barrier, words) triples once, on a pool or on the calling thread."""
    (pool or _one_thread()).run(program(*steps))
