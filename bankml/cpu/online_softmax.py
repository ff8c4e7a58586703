"""The weights of a run of scores in an online softmax, cell after cell as the reference goes.

A cell with a new maximum is an event: its weight is 1, and all sums so far are to be scaled by expf(old - new). Any
other cell weighs expf(score - maximum).
"""

import numpy as np
from llvmlite import ir
from numba.core import types

from bankml.cpu.compile import inner
from bankml.cpu.exponential import LANES, emit_expf, expf
from bankml.cpu.floats import f32_to_bits, load_f32, store_f32
from bankml.cpu.simd import f32, i1, i32, i64, vec, vector

RUN = 64  # cells of a run at most: as many as a mask of events has bits
STATE = 16  # bytes of a head's state: float32 maximum, sum of weights, the sum that is being made


@vector(returns=types.int64)
def first_set(b, word):
    """The number of the lowest bit that is set."""
    return b.call("llvm.cttz.i64", i64, [word, b.int(0, i1)])


@vector(returns=types.int64)
def _any_above(b, scores, units, maximum):
    """Not 0 if any of `units` times LANES scores is greater than the maximum (bits)."""
    top = b.broadcast(b.cast(b.ir.trunc(maximum, i32), f32), LANES)

    def one(i, carried):
        score = b.load(b.pointer(scores, b.mul(i, 4 * LANES)), vec(f32, LANES))
        return [b.ir.or_(carried[0], b.ir.fcmp_ordered(">", score, top))]

    (above,) = b.loop(units, [b.zero(i1, LANES)], one)
    return b.ir.zext(b.cast(above, ir.IntType(LANES)), i64)


@vector
def _exponentials(b, scores, units, maximum):
    """score = expf(score - maximum), of `units` times LANES scores; maximum: bits."""
    top = b.broadcast(b.cast(b.ir.trunc(maximum, i32), f32), LANES)

    def one(i, carried):
        at = b.pointer(scores, b.mul(i, 4 * LANES))
        b.store(emit_expf(b, b.ir.fsub(b.load(at, vec(f32, LANES)), top)), at)
        return carried

    b.loop(units, [], one)


@inner
def start_state(state):
    """No cell yet."""
    store_f32(state, np.float32(-np.inf))
    store_f32(state + 4, np.float32(0))


@inner
def weigh(scores, count, state, shrinks):
    """Weights in place of `count` scores, of which there is room for RUN, and the state's new maximum.

    Returns the mask of the events; shrinks[cell] is what the sums so far are to be scaled by there.
    """
    units = (count + LANES - 1) // LANES
    for cell in range(count, units * LANES):
        store_f32(scores + 4 * cell, np.float32(-np.inf))
    maximum, events = load_f32(state), 0
    if _any_above(scores, units, f32_to_bits(maximum)) == 0:
        _exponentials(scores, units, f32_to_bits(maximum))
        return events
    for cell in range(count):
        score = load_f32(scores + 4 * cell)
        if score > maximum:
            store_f32(shrinks + 4 * cell, expf(maximum - score))
            store_f32(scores + 4 * cell, np.float32(0))
            maximum, events = score, events | 1 << cell
        else:
            store_f32(scores + 4 * cell, score - maximum)
    _exponentials(scores, units, f32_to_bits(np.float32(0)))
    store_f32(state, maximum)
    return events
