"""How fast this machine reads memory: the floor under any decoder, which must read every weight once per token."""

import time

import numpy as np
from numba.core import types

from bankml.cpu import pool
from bankml.cpu.compile import step
from bankml.cpu.floats import arguments, store_i64
from bankml.cpu.level import level
from bankml.cpu.simd import i64, vec, vector

LANES = {"avx512": 8, "avx2": 4, "generic": 2}[level()]
PIECE = 1 << 18  # bytes of a work item
STREAMS, AHEAD = 8, 8192


@vector(returns=types.int64)
def _read(b, address, rounds):
    """The exclusive or of STREAMS vectors a round, so that every byte is loaded and nothing else is done."""
    size = 8 * LANES

    def one(i, sums):
        place = b.pointer(address, b.mul(i, STREAMS * size))
        for line in range(max(1, STREAMS * size // 64)):
            b.prefetch(b.at(place, AHEAD + 64 * line))
        return [b.ir.xor(s, b.load(b.at(place, size * j), vec(i64, LANES))) for j, s in enumerate(sums)]

    total, *others = b.loop(rounds, [b.zero(i64, LANES)] * STREAMS, one)
    for each in others:
        total = b.ir.xor(total, each)
    return b.element(total, 0)


@step
def read_pieces(record, thread, threads):
    """Read `n` pieces from an address on; what comes out goes to a word of its own per thread."""
    n, _, _, _, address, sink = arguments(record, 6)
    item = pool.next_item(record)
    while item < n:
        store_i64(sink + 64 * thread, _read(address + item * PIECE, PIECE // (8 * LANES * STREAMS)))
        item = pool.next_item(record)


def read_floor(workers: pool.Pool, memory: np.ndarray, rounds: int = 7) -> float:
    """Bytes per second at which the pool's threads read `memory`, uint8, from end to end: the median of `rounds`."""
    if len(memory) < PIECE:  # a model for tests: its bytes several times over
        memory = np.resize(memory, PIECE)
    pieces, sink = len(memory) // PIECE, np.zeros(8 * pool.MAX_THREADS, np.int64)
    work = pool.program((read_pieces, True, [pieces, 0, 0, 0, memory.ctypes.data, sink.ctypes.data]))
    rates = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        workers.run(work)
        rates.append(pieces * PIECE / (time.perf_counter() - start))
    return float(np.median(rates[1:]))
