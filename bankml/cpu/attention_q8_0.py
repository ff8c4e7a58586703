"""Attention over a q8_0 cache: the reference kernel, for any number of rows and cells.

Q is rotated as K was and quantized; a score is a q8_0 dot product times the scale. The online softmax is that of the
f16 cache, but V's cells are widened to float32 and added to float32 sums: `total = fma(quant * d, weight, total)`. It
equals `flash_attn_ext_f16_one_chunk` over quantized K and V. The sums, divided by the weights' sum, are rotated back.

Scores of a block of cells come first, for all heads that share the cells, then the weights, then V for two heads at a
time. Cells with a new maximum cut the block: the sums are scaled there before it goes on.
"""

import numpy as np

from bankml.cpu.attention_reference import heads_of_item, scale_to
from bankml.cpu.compile import inner, step
from bankml.cpu.dot_q8_0 import emit_sums_of_four
from bankml.cpu.floats import arguments, f32_to_bits, load_f32, store_f32
from bankml.cpu.fwht import rotate
from bankml.cpu.level import level
from bankml.cpu.online_softmax import RUN, STATE, first_set, start_state, weigh
from bankml.cpu.pool import next_item
from bankml.cpu.quantize import BLOCK, STORED, quantize_blocks
from bankml.cpu.simd import f32, i8, i16, i32, vec, vector

LANES = 16 if level() == "avx512" else 8
CELLS = 4  # whose scores are computed together
TOGETHER = LANES // 8  # of them in one vector
HEADS = 1 if level() == "generic" else 2
SLAB = 4 if level() == "avx512" else 1  # blocks of V that are summed in registers, for HEADS heads
SPAN = 32  # cells that are gone through at a time, RUN at most; meanwhile the next ones are asked for


def _emit_scales(b, pointers):
    """float32 of the halves at the pointers, each in eight lanes."""
    if level() == "generic":
        return b.broadcast(b.half_to_f32(b.load(pointers[0], i16)), 8)
    eights = [b.broadcast(b.load(pointer, i16), 8) for pointer in pointers]
    return b.half_to_f32(b.concat(*eights) if len(eights) == 2 else eights[0])


def _emit_joined(b, pointers, kind):
    """What lies at one or two pointers, in one vector."""
    parts = [b.load(pointer, kind) for pointer in pointers]
    return b.concat(*parts) if len(parts) == 2 else parts[0]


def _emit_cell_sums(b, vectors):
    """Of each cell's eight lanes `((0+4)+(2+6)) + ((1+5)+(3+7))`; a vector of all cells."""

    def halves_added(v, width):
        lanes = range(v.type.count)
        first, second = ([i for i in lanes if i % width // (width // 2) == side] for side in (0, 1))
        return b.ir.fadd(b.shuffle(v, None, first), b.shuffle(v, None, second))

    joined = [halves_added(v, 8) for v in vectors]
    while len(joined) > 1:
        joined = [b.concat(*joined[i : i + 2]) for i in range(0, len(joined), 2)]
    return halves_added(halves_added(joined[0], 4), 2)


def _make_scores(name, heads):
    """An intrinsic: the scaled scores of CELLS cells (the last one again where fewer remain) for `heads` heads.

    k: first cell; q: int8 (heads, 32 * blocks); d: float32 (heads, blocks); out: float32, RUN of them per head.
    """

    def scores(b, k, stride, remaining, q, d, blocks, out, scale):
        last, cells = b.ir.sub(remaining, b.int(1)), []
        for cell in range(CELLS):
            within = b.ir.icmp_signed("<", last, b.int(cell))
            cells.append(b.pointer(b.add(k, b.mul(stride, b.ir.select(within, last, b.int(cell))))))
        coming = [b.pointer(b.add(k, b.mul(stride, SPAN + cell))) for cell in range(CELLS)]
        queries = [b.pointer(b.add(q, b.mul(blocks, BLOCK * head))) for head in range(heads)]
        query_scales = [b.pointer(b.add(d, b.mul(blocks, 4 * head))) for head in range(heads)]

        def one(i, sums):
            offset, out = b.mul(i, STORED), []
            for cell in coming:
                b.prefetch(b.at(cell, offset), near=False)
            ys = [_emit_joined(b, [b.at(query, b.mul(i, BLOCK))] * TOGETHER, vec(i8, BLOCK)) for query in queries]
            dys = [b.broadcast(b.load(b.at(query, b.mul(i, 4)), f32), LANES) for query in query_scales]
            for at in range(0, CELLS, TOGETHER):
                here = [b.at(cell, offset) for cell in cells[at : at + TOGETHER]]
                x = _emit_joined(b, [b.at(pointer, 2) for pointer in here], vec(i8, BLOCK))
                dx = _emit_scales(b, here)
                for y, dy in zip(ys, dys, strict=True):
                    out.append(b.fma(b.ir.fmul(dx, dy), emit_sums_of_four(b, x, y), sums[len(out)]))
            return out

        sums = b.loop(blocks, [b.zero(f32, LANES)] * (heads * CELLS // TOGETHER), one)
        factor = b.broadcast(b.cast(b.ir.trunc(scale, i32), f32), CELLS)
        for head in range(heads):
            dots = _emit_cell_sums(b, sums[head::heads])
            b.store(b.ir.fmul(dots, factor), b.pointer(out, 4 * RUN * head))

    scores.__name__ = name
    return vector(scores)


_scores_of_one = _make_scores("scores_q8_0_of_one", 1)
_scores_of_more = _make_scores("scores_q8_0_of_more", HEADS)


def _make_values(name, heads, blocks):
    """An intrinsic: totals += v * weight, sums += weight over `count` cells, for `blocks` blocks of `heads` heads.

    v: the first block of the first cell; weights: float32, RUN per head; totals: float32, heads `total_stride` apart;
    states: STATE bytes per head, the sum of weights read from its second place and written into its third.
    """
    parts = BLOCK // LANES

    def values(b, v, stride, weights, count, totals, total_stride, states):
        at = [
            b.pointer(b.add(totals, b.mul(total_stride, head)), 4 * LANES * part)
            for head in range(heads)
            for part in range(blocks * parts)
        ]

        def one(i, carried):
            cell, out = b.pointer(v, b.mul(i, stride)), []
            scalars = [b.load(b.pointer(weights, b.add(b.mul(i, 4), 4 * RUN * head)), f32) for head in range(heads)]
            lanes = [b.broadcast(scalar, LANES) for scalar in scalars]
            widened = []
            for block in range(blocks):
                here = b.at(cell, STORED * block)
                b.prefetch(b.at(here, b.mul(stride, SPAN)), near=False)
                d = _emit_scales(b, [here] * (LANES // 8))
                for part in range(parts):
                    quants = b.load(b.at(here, 2 + LANES * part), vec(i8, LANES))
                    widened.append(b.ir.fmul(b.to_f32(b.ir.sext(quants, vec(i32, LANES))), d))
            for head in range(heads):
                out += [b.fma(value, lanes[head], carried[len(out) + j]) for j, value in enumerate(widened)]
            return out + [b.ir.fadd(carried[len(out) + h], scalars[h]) for h in range(heads)]

        starts = [b.load(pointer, vec(f32, LANES)) for pointer in at]
        starts += [b.load(b.pointer(states, STATE * head + 4), f32) for head in range(heads)]
        ends = b.loop(count, starts, one)
        for pointer, value in zip(at, ends, strict=False):
            b.store(value, pointer)
        for head in range(heads):
            b.store(ends[len(at) + head], b.pointer(states, STATE * head + 8))

    values.__name__ = name
    return vector(values)


_values_of_more = _make_values("values_q8_0_of_more", HEADS, 1)
_values_of_one = _make_values("values_q8_0_of_one", 1, 1)
_slab_of_more = _make_values("slab_q8_0_of_more", HEADS, SLAB)
_slab_of_one = _make_values("slab_q8_0_of_one", 1, SLAB)


@vector
def _scale(b, total, factor, units):
    """total = total * factor (bits), `units` times LANES values."""
    lanes = b.broadcast(b.cast(b.ir.trunc(factor, i32), f32), LANES)

    def one(i, carried):
        at = b.pointer(total, b.mul(i, 4 * LANES))
        b.store(b.ir.fmul(b.load(at, vec(f32, LANES)), lanes), at)
        return carried

    b.loop(units, [], one)


@inner
def _run_scores(k, stride, count, quants, scales, heads, blocks, scores, scale):
    """Scores of `count` cells for all heads, float32 (heads, RUN)."""
    for cell in range(0, count, CELLS):
        at, remaining, out = k + stride * cell, count - cell, scores + 4 * cell
        head = 0
        while heads - head >= HEADS:
            q, d, to = quants + BLOCK * blocks * head, scales + 4 * blocks * head, out + 4 * RUN * head
            _scores_of_more(at, stride, remaining, q, d, blocks, to, scale)
            head += HEADS
        if head < heads:
            q, d, to = quants + BLOCK * blocks * head, scales + 4 * blocks * head, out + 4 * RUN * head
            _scores_of_one(at, stride, remaining, q, d, blocks, to, scale)


@inner
def _add_values(v, stride, weights, count, totals, size, states, heads):
    """V of `count` cells, and their weights, to the sums of HEADS heads or of one."""
    if count == 0:
        return
    block, blocks = 0, size // BLOCK
    while blocks - block >= SLAB:
        at, to = v + STORED * block, totals + 4 * BLOCK * block
        if heads == HEADS:
            _slab_of_more(at, stride, weights, count, to, 4 * size, states)
        else:
            _slab_of_one(at, stride, weights, count, to, 4 * size, states)
        block += SLAB
    while block < blocks:
        at, to = v + STORED * block, totals + 4 * BLOCK * block
        if heads == HEADS:
            _values_of_more(at, stride, weights, count, to, 4 * size, states)
        else:
            _values_of_one(at, stride, weights, count, to, 4 * size, states)
        block += 1
    for head in range(heads):
        state = states + STATE * head
        store_f32(state + 4, load_f32(state + 8))


@inner
def _shrink(totals, size, state, factor):
    """A head's sums before a new maximum; the reference does not fuse here."""
    _scale(totals, f32_to_bits(factor), size // LANES)
    store_f32(state + 4, load_f32(state + 4) * factor)


@inner
def _run_values(v, stride, count, scores, shrinks, totals, size, states, heads):
    """The weights of a run in place of the scores, and V, for HEADS heads (at most two) or for one."""
    first, second = weigh(scores, count, states, shrinks), 0
    if heads == 2:
        second = weigh(scores + 4 * RUN, count, states + STATE, shrinks + 4 * RUN)
    start, events = 0, first | second
    while events != 0:
        cell = first_set(events)
        _add_values(v + stride * start, stride, scores + 4 * start, cell - start, totals, size, states, heads)
        if first >> cell & 1:
            _shrink(totals, size, states, load_f32(shrinks + 4 * cell))
        if second >> cell & 1:
            _shrink(totals + 4 * size, size, states + STATE, load_f32(shrinks + 4 * (RUN + cell)))
        start, events = cell, events & events - 1
    _add_values(v + stride * start, stride, scores + 4 * start, count - start, totals, size, states, heads)


@inner
def _attend(q, heads, group, k, v, stride, cells, size, rot, scale, scratch):
    """The first `cells` cells of one row, for `heads` heads, of which each `group` share a KV head.

    Leaves float32 (heads, size) sums in `scratch`; returns the address of the states.
    """
    blocks = size // BLOCK
    totals, states = scratch, scratch + 4 * heads * size
    scales = states + STATE * heads
    scores = scales + 4 * heads * blocks
    shrinks = scores + 4 * RUN * heads
    quants = shrinks + 4 * RUN * heads
    for head in range(heads):
        source = q + 4 * size * head
        if rot != 0:
            rotate(source, totals, rot, size)
            source = totals
        quantize_blocks(source, quants + size * head, scales + 4 * blocks * head, blocks)
        start_state(states + STATE * head)
    for i in range(heads * size):
        store_f32(totals + 4 * i, np.float32(0))
    for cell in range(0, cells, SPAN):
        count, here, side = min(SPAN, cells - cell), k + stride * cell, v + stride * cell
        for head in range(0, heads, group):
            at, y, d, to = (
                STORED * blocks * (head // group),
                quants + size * head,
                scales + 4 * blocks * head,
                4 * RUN * head,
            )
            _run_scores(here + at, stride, count, y, d, group, blocks, scores + to, scale)
            for one in range(head, head + group, HEADS):
                weights, pair = 4 * RUN * one, min(HEADS, head + group - one)
                total, state = totals + 4 * size * one, states + STATE * one
                _run_values(side + at, stride, count, scores + weights, shrinks + weights, total, size, state, pair)
    return states


def q8_0_scratch_bytes(heads: int, size: int) -> int:
    """Bytes that `_attend` needs."""
    return heads * (4 * size + STATE + size // 8 + 8 * RUN + size) + 64


@inner
def _heads_of_item(rows, n_head, n_head_kv, threads):
    """Heads per work item. Where single heads would be taken, a whole group is, if it pays: it is read once for all,
    for two thirds of the time, but the threads' shares may be less even."""
    together, group = heads_of_item(rows, n_head, n_head_kv, threads), n_head // n_head_kv
    singles = (rows * n_head + threads - 1) // threads
    groups = (rows * n_head_kv + threads - 1) // threads
    return group if together == 1 and 2 * groups * group <= 3 * singles else together


@step
def attention_q8_0(record, thread, threads):
    """Rows q, float32 (n, n_head * size), attend to cells 0 to pos + row; out alike. An item is (row, heads).

    rot_k, rot_v: the blocks of the rotations of Q and of the output, 0 for none.
    """
    n, pos, k, v, q, q_stride, out, out_stride, n_head, n_head_kv, size, scale, scratch, scratch_bytes, rot_k, rot_v = (
        arguments(record, 16)
    )
    together, group = _heads_of_item(n, n_head, n_head_kv, threads), n_head // n_head_kv
    head_bytes = size // BLOCK * STORED
    per_row, mine = n_head // together, scratch + scratch_bytes * thread
    item = next_item(record)
    while item < n * per_row:
        row, head = n - 1 - item // per_row, item % per_row * together
        at, to = q + q_stride * row + 4 * size * head, out + out_stride * row + 4 * size * head
        side = head_bytes * (head // group)
        share, stride, last = min(group, together), head_bytes * n_head_kv, pos + row + 1
        states = _attend(at, together, share, k + side, v + side, stride, last, size, rot_k, scale, mine)
        for i in range(together):
            weight_sum = load_f32(states + STATE * i + 4)
            factor = np.float32(0) if weight_sum == np.float32(0) else np.float32(1) / weight_sum
            scale_to(mine + 4 * size * i, to + 4 * size * i, f32_to_bits(factor), size // LANES)
            if rot_v != 0:
                rotate(to + 4 * size * i, to + 4 * size * i, rot_v, size)
        item = next_item(record)
