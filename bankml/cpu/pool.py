"""The thread pool: persistent threads that run a *program*, a list of steps with barriers, without the GIL.

A program is an int64 array (n_steps, RECORD); a record holds the step's entry point, whether a barrier follows,
a work counter in a cache line of its own, and the step's arguments. A run is one call from Python: it wakes the
threads, every one of them goes through all the steps, and the last barrier ends it. Between runs the threads sleep
in `sem_wait`. Waiting inside a run spins briefly and then yields, since a machine may have fewer cores than threads.
"""

import atexit
import ctypes
import os
import threading
import weakref
from functools import cache

import numpy as np
from numba.core import types

from bankml.cpu.compile import entry, inner
from bankml.cpu.floats import WORDS, fetch_add, load_i64, store_i64
from bankml.cpu.simd import i32, i64, vector, void
from bankml.errors import UsageError

RECORD = 64  # int64 words: entry point, barrier flag, .., counter (word 8), .., arguments from word 16
ENTRY, BARRIER, COUNTER, ARGUMENTS = 0, 1, 8, WORDS
MAX_THREADS = 64
SPINS = 2000

# The mailbox, int64 words: arrived (0), generation (8), program (16), steps (17), threads (18), stop (19);
# from word 32 on, one sem_t (32 bytes) per thread in a cache line of its own.
ARRIVED, GENERATION, PROGRAM, STEPS, THREADS, STOP, SEMAPHORES, LINE = 0, 64, 128, 136, 144, 152, 256, 64


@vector
def call_step(b, address, record, thread, threads):
    """Call the step at `address`."""
    from llvmlite import ir

    kind = ir.FunctionType(void, [i64, i64, i64])
    b.ir.call(b.ir.inttoptr(address, kind.as_pointer()), [record, thread, threads])


@vector
def barrier(b, mailbox, threads):
    """Wait until all threads are here: count up, the last one opens the next generation, the others watch it."""
    build = b.ir
    arrived, generation = b.pointer(mailbox, ARRIVED), b.pointer(mailbox, GENERATION)
    now = build.load_atomic(generation, "acquire", 8, typ=i64)
    order = build.atomic_rmw("add", arrived, b.int(1), "acq_rel")
    is_last = build.icmp_signed("==", order, build.sub(threads, b.int(1)))
    before = build.block
    last, spin, pause, give_way, done = (
        build.append_basic_block(name) for name in ("last", "spin", "pause", "give_way", "done")
    )
    build.cbranch(is_last, last, spin)
    build.position_at_end(last)
    build.atomic_rmw("xchg", arrived, b.int(0), "monotonic")
    build.atomic_rmw("add", generation, b.int(1), "release")
    build.branch(done)
    build.position_at_end(spin)
    spins = build.phi(i64)
    seen = build.load_atomic(generation, "acquire", 8, typ=i64)
    build.cbranch(build.icmp_signed("!=", seen, now), done, pause)
    build.position_at_end(pause)
    b.call("llvm.x86.sse2.pause", void, [])
    more = b.add(spins, 1)
    build.cbranch(build.icmp_signed(">", more, b.int(SPINS)), give_way, spin)
    build.position_at_end(give_way)
    b.call("sched_yield", i32, [])
    build.branch(spin)
    spins.add_incoming(b.int(0), before)
    spins.add_incoming(more, pause)
    spins.add_incoming(b.int(SPINS), give_way)
    build.position_at_end(done)


@inner
def next_item(record):
    """The next number of a step's work counter, starting at 0: work is handed out to whoever is free."""
    return fetch_add(record + 8 * COUNTER, 1)


@inner
def _execute(program, steps, thread, threads, mailbox):
    for i in range(steps):
        record = program + 8 * RECORD * i
        call_step(load_i64(record + 8 * ENTRY), record, thread, threads)
        if threads > 1 and load_i64(record + 8 * BARRIER) != 0:
            barrier(mailbox, threads)


sem_wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))


@entry(types.void, types.int64, types.int64)
def serve(mailbox, thread):
    """A pool thread's whole life: sleep, run the posted program, sleep again, until told to stop."""
    while True:
        while sem_wait(mailbox + SEMAPHORES + LINE * thread) != 0:
            pass
        if load_i64(mailbox + STOP) != 0:
            return
        threads = load_i64(mailbox + THREADS)
        _execute(load_i64(mailbox + PROGRAM), load_i64(mailbox + STEPS), thread, threads, mailbox)
        barrier(mailbox, threads)


@entry(types.void, types.int64, types.int64, types.int64, types.int64)
def run(mailbox, program, steps, threads):
    """Run a program on all threads, the caller being thread 0; returns when every thread is through."""
    for i in range(steps):
        store_i64(program + 8 * (RECORD * i + COUNTER), 0)
    store_i64(mailbox + PROGRAM, program)
    store_i64(mailbox + STEPS, steps)
    store_i64(mailbox + THREADS, threads)
    for thread in range(1, threads):
        sem_post(mailbox + SEMAPHORES + LINE * thread)
    _execute(program, steps, 0, threads, mailbox)
    if threads > 1:
        barrier(mailbox, threads)


def thread_count(asked=None) -> int:
    """Threads to use: `asked`, else `BANKML_THREADS`, else the cores this process may run on. 1-64, else UsageError."""
    name = "--threads" if asked is not None else "BANKML_THREADS"
    text = str(asked) if asked is not None else os.environ.get("BANKML_THREADS", "")
    if not text:
        return min(MAX_THREADS, len(os.sched_getaffinity(0)))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise UsageError(f"{name} is {text!r}; it takes a number from 1 to {MAX_THREADS}")
    return int(text)


class Pool:
    """`threads` threads, the caller among them. `run` is for one caller at a time; a second waits."""

    def __init__(self, threads=None):
        self.threads = thread_count(threads)
        self._lock = threading.Lock()
        self._run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(run.address)
        self._start()
        _pools.add(self)

    def _start(self):
        libc = ctypes.CDLL(None)
        self._memory = np.zeros(SEMAPHORES // 8 + (LINE // 8) * (self.threads + 2), np.int64)
        self._mailbox = (self._memory.ctypes.data + LINE - 1) // LINE * LINE
        self._workers = []
        serve_c = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(serve.address) if self.threads > 1 else None
        for number in range(1, self.threads):
            libc.sem_init(ctypes.c_void_p(self._mailbox + SEMAPHORES + LINE * number), 0, 0)
            worker = threading.Thread(
                target=serve_c, args=(self._mailbox, number), name=f"bankml-{number}", daemon=True
            )
            worker.start()
            self._workers.append(worker)

    def run(self, program: np.ndarray):
        """Run a program, an int64 array (n_steps, RECORD), to its end."""
        with self._lock:
            self._run(self._mailbox, program.ctypes.data, len(program), self.threads)

    def close(self):
        """End the threads; the pool cannot run any more."""
        with self._lock:
            workers, self._workers, self.threads = self._workers, [], 1
            if workers:
                ctypes.c_int64.from_address(self._mailbox + STOP).value = 1
                post = ctypes.CDLL(None).sem_post
                for number in range(1, len(workers) + 1):
                    post(ctypes.c_void_p(self._mailbox + SEMAPHORES + LINE * number))
                for worker in workers:
                    worker.join(timeout=5)

    def _after_fork(self):
        """A child process has none of our threads: start new ones."""
        self._lock = threading.Lock()
        self._start()


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
    """An int64 array (n_steps, RECORD) from (step, barrier, argument words) triples, aligned to a cache line."""
    memory = np.zeros(len(steps) * RECORD + LINE // 8, np.int64)
    start = -(memory.ctypes.data // 8) % (LINE // 8)
    records = memory[start : start + len(steps) * RECORD].reshape(len(steps), RECORD)
    for record, (code, wait, words) in zip(records, steps, strict=True):
        record[ENTRY], record[BARRIER] = code.address, wait
        record[ARGUMENTS : ARGUMENTS + len(words)] = words
    return records


@cache
def _one_thread() -> Pool:
    return Pool(1)


def run_alone(records: np.ndarray):
    """Run a program on the calling thread."""
    _one_thread().run(records)


def run_steps(*steps, pool: Pool | None = None):
    """Run (step, barrier, words) triples once, on a pool or on the calling thread."""
    (pool or _one_thread()).run(program(*steps))
