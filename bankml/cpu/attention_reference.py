"""The reference attention kernel: a row's cells one after the other, an online softmax, V summed in half precision.

Scores of a block of cells come first, for all heads that share the cells; then each head's weights, in order; then V.
The order of every head's float operations is the reference's, `flash_attn_ext_f16_one_chunk`:
score = dot(K, Q as halves) * scale; on a new maximum the sums are scaled by expf(old - new), else the cell's weight is
expf(score - maximum); the accumulator is rounded to a half at every step.
"""

import numpy as np

from bankml.cpu.compile import inner, step
from bankml.cpu.exponential import expf
from bankml.cpu.floats import arguments, f32_to_bits, load_f32, store_f32
from bankml.cpu.level import level
from bankml.cpu.pool import next_item
from bankml.cpu.simd import f32, i16, i32, vec, vector

LANES = 16 if level() == "avx512" else 8
CELLS, HEADS = (4, 2) if level() == "avx512" else (2, 1)  # cells and heads whose scores are computed together
BLOCK = 64  # cells whose scores are kept at a time
AHEAD = 16  # keys are asked for so many cells before they are needed, values when their keys are read
STEP = 32  # values of a head in one step of the dot product


def _scalar(b, bits):
    """A float32 in every lane, from its bits in an int64."""
    return b.broadcast(b.cast(b.ir.trunc(bits, i32), f32), LANES)


def emit_round_half(b, v):
    """float32 lanes rounded to half precision."""
    return b.half_to_f32(b.f32_to_half(v))


def _emit_dot_sum(b, sums):
    """Eight lanes of one dot product: accumulators a0..a3 as (a0+a2) + (a1+a3)."""
    if LANES == 16:  # [a0|a1], [a2|a3]
        both = b.ir.fadd(*sums)
        return b.ir.fadd(b.low(both), b.high(both))
    return b.ir.fadd(b.ir.fadd(sums[0], sums[2]), b.ir.fadd(sums[1], sums[3]))


def _emit_lane_sums(b, vectors):
    """Of each 8-lane vector ((0+4)+(1+5)) + ((2+6)+(3+7)); a vector of as many values."""

    def add_pairs(v):
        count = v.type.count
        return b.ir.fadd(b.shuffle(v, None, range(0, count, 2)), b.shuffle(v, None, range(1, count, 2)))

    joined = [b.ir.fadd(b.low(v), b.high(v)) for v in vectors]
    while len(joined) > 1:
        joined = [b.concat(*joined[i : i + 2]) for i in range(0, len(joined), 2)]
    return add_pairs(add_pairs(joined[0]))


def _make_scores(name, heads):
    """An intrinsic: the scaled scores of CELLS cells (the last one again where fewer remain) for `heads` heads.

    k: first cell; q: float32 (heads, 32 * steps), half-precision values; out: float32, a head every `out_stride` bytes.
    """
    parts = STEP // LANES

    def scores(b, k, stride, remaining, q, steps, out, out_stride, scale, from_k_to_v):
        last = b.ir.sub(remaining, b.int(1))
        cells = []
        for cell in range(CELLS):
            within = b.ir.icmp_signed("<", last, b.int(cell))
            cells.append(b.pointer(b.add(k, b.mul(stride, b.ir.select(within, last, b.int(cell))))))
        coming = [b.pointer(b.add(k, b.mul(stride, AHEAD + cell))) for cell in range(CELLS)]
        queries = [b.pointer(b.add(q, b.mul(steps, 4 * STEP * head))) for head in range(heads)]

        def one(i, sums):
            sums = list(sums)
            for cell in range(CELLS):
                b.prefetch(b.at(coming[cell], b.mul(i, 2 * STEP)))
                b.prefetch(b.at(cells[cell], b.add(b.mul(i, 2 * STEP), from_k_to_v)))
            for part in range(parts):
                q_at = b.add(b.mul(i, 4 * STEP), 4 * LANES * part)
                k_at = b.add(b.mul(i, 2 * STEP), 2 * LANES * part)
                query = [b.load(b.at(pointer, q_at), vec(f32, LANES)) for pointer in queries]
                for cell, pointer in enumerate(cells):
                    key = b.half_to_f32(b.load(b.at(pointer, k_at), vec(i16, LANES)))
                    for head in range(heads):
                        at = (head * CELLS + cell) * parts + part
                        sums[at] = b.fma_exact_product(key, query[head], sums[at])
            return sums

        sums = b.loop(steps, [b.zero(f32, LANES)] * (heads * CELLS * parts), one)
        for head in range(heads):
            starts = [(head * CELLS + cell) * parts for cell in range(CELLS)]
            dots = _emit_lane_sums(b, [_emit_dot_sum(b, sums[at : at + parts]) for at in starts])
            factor = b.broadcast(b.cast(b.ir.trunc(scale, i32), f32), CELLS)
            b.store(b.ir.fmul(dots, factor), b.pointer(out, b.mul(out_stride, head)))

    scores.__name__ = name
    return vector(scores)


_scores_of_one = _make_scores("scores_of_one", 1)
_scores_of_more = _make_scores("scores_of_more", HEADS)


def _make_values(name, width):
    """An intrinsic: total = half(v * weight + total) over `count` cells, for `width` vectors of a head."""

    def values(b, v, stride, weights, count, total):
        at = [b.pointer(total, 4 * LANES * j) for j in range(width)]

        def one(i, sums):
            weight = b.broadcast(b.load(b.pointer(weights, b.mul(i, 4)), f32), LANES)
            cell = b.pointer(v, b.mul(i, stride))
            out = []
            for j, so_far in enumerate(sums):
                value = b.half_to_f32(b.load(b.at(cell, 2 * LANES * j), vec(i16, LANES)))
                out.append(emit_round_half(b, b.fma(value, weight, so_far)))
            return out

        sums = b.loop(count, [b.load(pointer, vec(f32, LANES)) for pointer in at], one)
        for pointer, value in zip(at, sums, strict=True):
            b.store(value, pointer)

    values.__name__ = name
    return vector(values)


_values_of_8 = _make_values("values_of_8", 8)
_values_of_4 = _make_values("values_of_4", 4)
_values_of_2 = _make_values("values_of_2", 2)


@vector
def _scale_halves(b, total, factor, units):
    """total = half(total * factor), `units` times LANES values."""

    def one(i, carried):
        at = b.pointer(total, b.mul(i, 4 * LANES))
        b.store(emit_round_half(b, b.ir.fmul(b.load(at, vec(f32, LANES)), _scalar(b, factor))), at)
        return carried

    b.loop(units, [], one)


@vector
def _clear(b, total, units):
    """Zeros, `units` times LANES values."""

    def one(i, carried):
        b.store(b.zero(f32, LANES), b.pointer(total, b.mul(i, 4 * LANES)))
        return carried

    b.loop(units, [], one)


@vector
def _round_query(b, x, out, units):
    """out = x rounded to halves, kept as float32."""

    def one(i, carried):
        offset = b.mul(i, 4 * LANES)
        b.store(emit_round_half(b, b.load(b.pointer(x, offset), vec(f32, LANES))), b.pointer(out, offset))
        return carried

    b.loop(units, [], one)


@vector
def scale_to(b, x, out, factor, units):
    """out = x * factor, `units` times LANES values."""

    def one(i, carried):
        offset = b.mul(i, 4 * LANES)
        value = b.ir.fmul(b.load(b.pointer(x, offset), vec(f32, LANES)), _scalar(b, factor))
        b.store(value, b.pointer(out, offset))
        return carried

    b.loop(units, [], one)


@inner
def _values(v, stride, weights, count, total, size):
    """All of a head's `size` values, in as wide slabs as fit."""
    if count == 0:
        return
    at = 0
    while size - at >= 8 * LANES:
        _values_of_8(v + 2 * at, stride, weights, count, total + 4 * at)
        at += 8 * LANES
    while size - at >= 4 * LANES:
        _values_of_4(v + 2 * at, stride, weights, count, total + 4 * at)
        at += 4 * LANES
    while size - at >= 2 * LANES:
        _values_of_2(v + 2 * at, stride, weights, count, total + 4 * at)
        at += 2 * LANES


@inner
def _block_scores(k, v, stride, count, q, heads, size, scores, scale):
    for cell in range(0, count, CELLS):
        at, remaining, out = k + stride * cell, count - cell, scores + 4 * cell
        head = 0
        while heads - head >= HEADS:
            _scores_of_more(
                at,
                stride,
                remaining,
                q + 4 * size * head,
                size // STEP,
                out + 4 * BLOCK * head,
                4 * BLOCK,
                scale,
                v - k,
            )
            head += HEADS
        if head < heads:
            _scores_of_one(
                at,
                stride,
                remaining,
                q + 4 * size * head,
                size // STEP,
                out + 4 * BLOCK * head,
                4 * BLOCK,
                scale,
                v - k,
            )


@inner
def _block_head(v, stride, count, scores, total, size, state):
    """The softmax's weights in place of the scores, and V. state: float32 maximum and sum."""
    maximum, weight_sum = load_f32(state), load_f32(state + 4)
    start = 0
    for cell in range(count):
        score = load_f32(scores + 4 * cell)
        if score > maximum:
            _values(v + stride * start, stride, scores + 4 * start, cell - start, total, size)
            start = cell
            shrink = expf(maximum - score)
            maximum = score
            _scale_halves(total, f32_to_bits(shrink), size // LANES)
            weight_sum = weight_sum * shrink + np.float32(1)  # the reference does not fuse here
            store_f32(scores + 4 * cell, np.float32(1))
        else:
            weight = expf(score - maximum)
            weight_sum = weight_sum + weight
            store_f32(scores + 4 * cell, weight)
    _values(v + stride * start, stride, scores + 4 * start, count - start, total, size)
    store_f32(state, maximum)
    store_f32(state + 4, weight_sum)


@inner
def attend_cells(q, heads, k, v, stride, first, last, size, scale, scratch):
    """Cells first to last of one row, for `heads` heads that share a KV head; leaves in `scratch`:

    float32 (heads, size) sums, then (heads, 2): maximum and sum of weights. Returns the address of the latter.
    q: float32 (heads, size); k, v: halves, the KV head's part of cell 0, cells `stride` bytes apart; scale: bits.
    """
    totals, states = scratch, scratch + 4 * heads * size
    queries = states + 8 * heads
    scores = queries + 4 * heads * size
    _clear(totals, heads * size // LANES)
    _round_query(q, queries, heads * size // LANES)
    for head in range(heads):
        store_f32(states + 8 * head, np.float32(-np.inf))
        store_f32(states + 8 * head + 4, np.float32(0))
    for cell in range(first, last, BLOCK):
        count = min(BLOCK, last - cell)
        _block_scores(k + stride * cell, v + stride * cell, stride, count, queries, heads, size, scores, scale)
        for head in range(heads):
            at = scores + 4 * BLOCK * head
            _block_head(v + stride * cell, stride, count, at, totals + 4 * size * head, size, states + 8 * head)
    return states


def cells_scratch_bytes(heads: int, size: int) -> int:
    """Bytes that `attend_cells` needs; the scores have room for a few more cells than a block."""
    return heads * (8 * size + 8 + 4 * BLOCK) + 64


@inner
def heads_together(rows, n_head, n_head_kv, threads):
    """Heads per work item: a whole group that shares a KV head, or one where there would be too few items."""
    return n_head // n_head_kv if rows * n_head_kv >= 2 * threads else 1


@step
def attention_reference(record, thread, threads):
    """Rows q, float32 (n, n_head * size), attend to cells 0 to pos + row; out alike. An item is (row, heads)."""
    n, pos, k, v, q, q_stride, out, out_stride, n_head, n_head_kv, size, scale, scratch, scratch_bytes = arguments(
        record, 14
    )
    together, group, stride = heads_together(n, n_head, n_head_kv, threads), n_head // n_head_kv, 2 * n_head_kv * size
    per_row = n_head // together
    mine = scratch + scratch_bytes * thread
    item = next_item(record)
    while item < n * per_row:
        row, head = n - 1 - item // per_row, item % per_row * together
        at, to = q + q_stride * row + 4 * size * head, out + out_stride * row + 4 * size * head
        side = 2 * size * (head // group)
        states = attend_cells(at, together, k + side, v + side, stride, 0, pos + row + 1, size, scale, mine)
        for i in range(together):
            weight_sum = load_f32(states + 8 * i + 4)
            factor = np.float32(0) if weight_sum == np.float32(0) else np.float32(1) / weight_sum
            scale_to(mine + 4 * size * i, to + 4 * size * i, f32_to_bits(factor), size // LANES)
        item = next_item(record)
