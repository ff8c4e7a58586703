"""The sums of the reference attention kernel: V times the weights, rounded to half precision at every cell.

A cell's values are widened once for two heads. Cells with a new maximum cut the block: the sums are scaled there before
it goes on.
"""

from bankml.cpu.attention_ahead import AGAIN, emit_asked
from bankml.cpu.attention_scores import LANES, STEP
from bankml.cpu.compile import inner
from bankml.cpu.floats import f32_to_bits, load_f32, load_i64, store_f32
from bankml.cpu.level import level
from bankml.cpu.online_softmax import RUN, STATE, first_set
from bankml.cpu.simd import CACHE_LINE, f32, i16, i32, vec, vector

PAIR = 1 if level() == "generic" else 2  # heads whose values are added together
SLAB = {"avx512": 8, "avx2": 4, "generic": 8}[level()]  # vectors of a head that are summed in registers, for PAIR heads


def emit_scalar(b, bits):
    """A float32 in every lane, from its bits in an int64."""
    return b.broadcast(b.cast(b.ir.trunc(bits, i32), f32), LANES)


def emit_round_half(b, v):
    """float32 lanes rounded to half precision."""
    return b.half_to_f32(b.f32_to_half(v))


def _make_values(name, heads, width):
    """An intrinsic: totals = half(v * weight + totals), sums += weight over `count` cells, `width` vectors of `heads`.

    v: the first cell; weights: float32, RUN per head; totals: float32, heads `total_stride` apart; states: STATE bytes
    per head, the sum of weights read from its second place and written into its third; ahead and number: see
    `emit_asked`.
    """

    def values(b, v, stride, weights, count, totals, total_stride, states, ahead, number, offset):
        at = [
            b.pointer(b.add(totals, b.mul(total_stride, head)), 4 * LANES * j)
            for head in range(heads)
            for j in range(width)
        ]

        def one(i, carried):
            cell, out = b.pointer(v, b.mul(i, stride)), []
            asked = b.at(emit_asked(b, ahead, b.add(number, i), 1)[0], offset)
            for line in range(0, 2 * LANES * width, CACHE_LINE):
                b.prefetch(b.at(asked, line))
                b.prefetch(b.at(cell, b.add(b.mul(stride, AGAIN), line)))
            scalars = [b.load(b.pointer(weights, b.add(b.mul(i, 4), 4 * RUN * head)), f32) for head in range(heads)]
            lanes = [b.broadcast(scalar, LANES) for scalar in scalars]
            widened = [b.half_to_f32(b.load(b.at(cell, 2 * LANES * j), vec(i16, LANES))) for j in range(width)]
            for head in range(heads):
                out += [
                    emit_round_half(b, b.fma(value, lanes[head], carried[head * width + j]))
                    for j, value in enumerate(widened)
                ]
            return out + [b.ir.fadd(carried[len(at) + head], scalars[head]) for head in range(heads)]

        starts = [b.load(pointer, vec(f32, LANES)) for pointer in at]
        starts += [b.load(b.pointer(states, STATE * head + 4), f32) for head in range(heads)]
        ends = b.loop(count, starts, one)
        for pointer, value in zip(at, ends, strict=False):
            b.store(value, pointer)
        for head in range(heads):
            b.store(ends[len(at) + head], b.pointer(states, STATE * head + 8))

    values.__name__ = name
    return vector(values)


_slab_of_pair = _make_values("slab_of_pair", PAIR, SLAB)
_slab_of_one = _make_values("slab_of_one", 1, SLAB)
_part_of_pair = _make_values("part_of_pair", PAIR, STEP // LANES)
_part_of_one = _make_values("part_of_one", 1, STEP // LANES)


@vector
def _scale_halves(b, total, factor, units):
    """total = half(total * factor), `units` times LANES values."""

    def one(i, carried):
        at = b.pointer(total, b.mul(i, 4 * LANES))
        b.store(emit_round_half(b, b.ir.fmul(b.load(at, vec(f32, LANES)), emit_scalar(b, factor))), at)
        return carried

    b.loop(units, [], one)


@inner
def _add_values(v, stride, weights, count, totals, size, states, heads, ahead, number):
    """V of `count` cells, and their weights, to the sums of PAIR heads or of one."""
    if count == 0:
        return
    at = 0
    while size - at >= SLAB * LANES:
        here, to = v + 2 * at, totals + 4 * at
        if heads == PAIR:
            _slab_of_pair(here, stride, weights, count, to, 4 * size, states, ahead, number, 2 * at)
        else:
            _slab_of_one(here, stride, weights, count, to, 4 * size, states, ahead, number, 2 * at)
        at += SLAB * LANES
    while at < size:
        here, to = v + 2 * at, totals + 4 * at
        if heads == PAIR:
            _part_of_pair(here, stride, weights, count, to, 4 * size, states, ahead, number, 2 * at)
        else:
            _part_of_one(here, stride, weights, count, to, 4 * size, states, ahead, number, 2 * at)
        at += STEP
    for head in range(heads):
        state = states + STATE * head
        store_f32(state + 4, load_f32(state + 8))


@inner
def _shrink(totals, size, state, factor):
    """A head's sums before a new maximum; the reference does not fuse here."""
    _scale_halves(totals, f32_to_bits(factor), size // LANES)
    store_f32(state + 4, load_f32(state + 4) * factor)


@inner
def block_values(v, stride, count, weights, shrinks, events, totals, size, states, heads, ahead, number):
    """V of a block for PAIR heads (at most two) or for one; events: their masks, int64, of cells with a new maximum."""
    first, second = load_i64(events), load_i64(events + 8) if heads == 2 else 0
    start, either = 0, first | second
    while either != 0:
        cell = first_set(either)
        here, at, amount = v + stride * start, weights + 4 * start, cell - start
        _add_values(here, stride, at, amount, totals, size, states, heads, ahead, number + start)
        if first >> cell & 1:
            _shrink(totals, size, states, load_f32(shrinks + 4 * cell))
        if second >> cell & 1:
            _shrink(totals + 4 * size, size, states + STATE, load_f32(shrinks + 4 * (RUN + cell)))
        start, either = cell, either & either - 1
    here, at, amount = v + stride * start, weights + 4 * start, count - start
    _add_values(here, stride, at, amount, totals, size, states, heads, ahead, number + start)
