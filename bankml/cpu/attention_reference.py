"""The reference attention kernel: a row's cells one after the other, an online softmax, V summed in half precision.

The order of every head's float operations is the reference's, `flash_attn_ext_f16_one_chunk`:
score = dot(K, Q as halves) * scale; on a new maximum the sums are scaled by expf(old - new), else the cell's weight is
expf(score - maximum); the accumulator is rounded to a half at every step.

Scores of a block of cells come first, for all heads that share the cells, then the weights, then V for two heads at a
time: a cell's values are widened once for both. Cells with a new maximum cut the block: the sums are scaled there
before it goes on. KV heads that lie side by side are taken in turn, block by block, and all the while the next block is
asked for in the order of its addresses: memory must never rest, and is much slower where it is read here and there
(one thread took 15 ms for 235 MB in pieces of 256 bytes, 9 ms so).
"""

import numpy as np

from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments, f32_to_bits, load_f32, load_i64, store_f32, store_i64
from bankml.cpu.level import level
from bankml.cpu.online_softmax import RUN, STATE, first_set, start_state, weigh
from bankml.cpu.pool import next_item
from bankml.cpu.simd import CACHE_LINE, f32, i16, i32, i64, vec, vector

LANES = 16 if level() == "avx512" else 8
CELLS, HEADS = (4, 2) if level() == "avx512" else (2, 1)  # cells and heads whose scores are computed together
PAIR = 1 if level() == "generic" else 2  # heads whose values are added together
SLAB = {"avx512": 8, "avx2": 4, "generic": 8}[level()]  # vectors of a head that are summed in registers, for PAIR heads
BLOCK = 32  # cells whose scores are kept at a time, RUN at most: with the next ones they fit the first cache
AGAIN = 16  # cells ahead that are asked for once more: a processor with enough to fetch ignores what it is asked for
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


def _emit_eight_dots(b, sums):
    """`_emit_dot_sum` and `_emit_lane_sums` of eight dot products at once, of 16 lanes each; a vector of eight values.

    Lanes to be added are brought together from two vectors at a time, so that every addition has all lanes at work.
    """

    def folded(first, second, width):
        """Of every `width` lanes of both, the lower half added to the upper."""
        lanes = range(32)
        low, high = ([i for i in lanes if i % width // (width // 2) == side] for side in (0, 1))
        return b.ir.fadd(b.shuffle(first, second, low), b.shuffle(first, second, high))

    x = [b.ir.fadd(*sums[2 * dot : 2 * dot + 2]) for dot in range(8)]
    y = [folded(*x[i : i + 2], 16) for i in range(0, 8, 2)]
    z = [folded(*y[i : i + 2], 8) for i in range(0, 4, 2)]  # four lanes of four dot products
    even = [4 * dot + i + side for dot in range(4) for side in (0, 16) for i in (0, 2)]
    w = b.ir.fadd(b.shuffle(*z, even), b.shuffle(*z, [lane + 1 for lane in even]))
    w = b.ir.fadd(w, b.shuffle(w, None, [lane ^ 1 for lane in range(16)]))
    return b.shuffle(w, None, [0, 4, 8, 12, 2, 6, 10, 14])


def _emit_asked(b, ahead, number, count):
    """Pointers to `count` pieces, from that number on, of what is to be read next; `ahead` is where `_tell` told it."""
    build = b.ir
    first, pieces, stride, size = (b.load(b.pointer(ahead, 8 * i), i64, 8) for i in range(4))
    row = build.zext(build.udiv(build.trunc(number, i32), build.trunc(pieces, i32)), i64)
    within = build.sub(number, build.mul(row, pieces))
    address, places = b.add(b.add(first, b.mul(row, stride)), b.mul(within, size)), []
    for _ in range(count):
        places.append(b.pointer(address))
        within = b.add(within, 1)
        is_over = build.icmp_signed("==", within, pieces)
        address = b.add(address, build.select(is_over, build.sub(stride, build.mul(size, b.add(pieces, -1))), size))
        within = build.select(is_over, b.int(0), within)
    return places


def _make_scores(name, heads, whole, steps_known=None):
    """An intrinsic: the scaled scores of CELLS cells (the last one again where fewer remain) for `heads` heads.

    k: first cell; q: float32 (heads, 32 * steps), half-precision values; out: float32, RUN of them per head; ahead and
    number: see `_emit_asked`. whole: CELLS cells do remain.
    """
    parts = STEP // LANES

    def scores(b, k, stride, remaining, q, steps, out, scale, ahead, number):
        last, cells = b.ir.sub(remaining, b.int(1)), []
        for cell in range(CELLS):
            at = b.int(cell) if whole else b.ir.select(b.ir.icmp_signed("<", last, b.int(cell)), last, b.int(cell))
            cells.append(b.pointer(b.add(k, b.mul(stride, at))))
        asked = _emit_asked(b, ahead, number, CELLS)
        steps = steps if steps_known is None else b.int(steps_known)
        queries = [b.pointer(b.add(q, b.mul(steps, 4 * STEP * head))) for head in range(heads)]

        def one(i, sums):
            sums = list(sums)
            for cell in range(CELLS):
                b.prefetch(b.at(asked[cell], b.mul(i, 2 * STEP)))
                b.prefetch(b.at(cells[cell], b.add(b.mul(i, 2 * STEP), b.mul(stride, AGAIN))))
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

        sums = [b.zero(f32, LANES)] * (heads * CELLS * parts)
        if steps_known is None:
            sums = b.loop(steps, sums, one)
        else:
            for i in range(steps_known):
                sums = one(b.int(i), sums)
        if heads * CELLS == 8 and LANES == 16:
            eight = _emit_eight_dots(b, sums)
            dots = [b.low(eight), b.high(eight)]
        else:
            groups = [sums[at : at + CELLS * parts] for at in range(0, len(sums), CELLS * parts)]
            dots = [
                _emit_lane_sums(b, [_emit_dot_sum(b, group[at : at + parts]) for at in range(0, len(group), parts)])
                for group in groups
            ]
        factor = b.broadcast(b.cast(b.ir.trunc(scale, i32), f32), CELLS)
        for head, values in enumerate(dots):
            b.store(b.ir.fmul(values, factor), b.pointer(out, 4 * RUN * head))

    scores.__name__ = name
    return vector(scores)


_scores_of_one = _make_scores("scores_of_one", 1, False)
_scores_of_more = _make_scores("scores_of_more", HEADS, False)
_whole_scores_of_more = _make_scores("whole_scores_of_more", HEADS, True)
_whole_scores_of_128 = _make_scores("whole_scores_of_128", HEADS, True, 128 // STEP)


def _make_values(name, heads, width):
    """An intrinsic: totals = half(v * weight + totals), sums += weight over `count` cells, `width` vectors of `heads`.

    v: the first cell; weights: float32, RUN per head; totals: float32, heads `total_stride` apart; states: STATE bytes
    per head, the sum of weights read from its second place and written into its third; ahead and number: see
    `_emit_asked`.
    """

    def values(b, v, stride, weights, count, totals, total_stride, states, ahead, number, offset):
        at = [
            b.pointer(b.add(totals, b.mul(total_stride, head)), 4 * LANES * j)
            for head in range(heads)
            for j in range(width)
        ]

        def one(i, carried):
            cell, out = b.pointer(v, b.mul(i, stride)), []
            asked = b.at(_emit_asked(b, ahead, b.add(number, i), 1)[0], offset)
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
def _block_values(v, stride, count, weights, shrinks, events, totals, size, states, heads, ahead, number):
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


@inner
def _block_scores(k, stride, count, q, heads, size, scores, scale, ahead, number):
    """Scores of `count` cells for heads that share them, float32 (heads, RUN)."""
    for cell in range(0, count, CELLS):
        at, remaining, out, asked = k + stride * cell, count - cell, scores + 4 * cell, number + cell
        head = 0
        while heads - head >= HEADS:
            query, to = q + 4 * size * head, out + 4 * RUN * head
            if remaining < CELLS:
                _scores_of_more(at, stride, remaining, query, size // STEP, to, scale, ahead, asked)
            elif size == 128:
                _whole_scores_of_128(at, stride, remaining, query, size // STEP, to, scale, ahead, asked)
            else:
                _whole_scores_of_more(at, stride, remaining, query, size // STEP, to, scale, ahead, asked)
            head += HEADS
        if head < heads:
            query, to = q + 4 * size * head, out + 4 * RUN * head
            _scores_of_one(at, stride, remaining, query, size // STEP, to, scale, ahead, asked)


AHEAD = 32  # bytes of what is told about it


@inner
def _tell(ahead, first, pieces, stride, size):
    """What will be read next: the first piece of `size` halves, how many lie side by side, the stride of such rows."""
    store_i64(ahead, first)
    store_i64(ahead + 8, pieces)
    store_i64(ahead + 16, stride)
    store_i64(ahead + 24, 2 * size)


@inner
def attend_cells(q, heads, group, k, v, stride, first, last, size, scale, scratch, k_after, v_after):
    """Cells first to last of one row, for `heads` heads, of which each `group` share a KV head; leaves in `scratch`:

    float32 (heads, size) sums, then a STATE per head: maximum and sum of weights. Returns the address of the latter.
    q: float32 (heads, size); k, v: halves, the first KV head's part of cell 0, the others' beside it, cells `stride`
    bytes apart; scale: bits; k_after, v_after: what will be read next, of the same shape.
    """
    totals, states = scratch, scratch + 4 * heads * size
    scores = states + STATE * heads
    shrinks = scores + 4 * RUN * heads
    queries = shrinks + 4 * RUN * heads
    events = queries + 4 * heads * size
    k_ahead, v_ahead = events + 8 * heads, events + 8 * heads + AHEAD
    _clear(totals, heads * size // LANES)
    _round_query(q, queries, heads * size // LANES)
    for head in range(heads):
        start_state(states + STATE * head)
    pieces = heads // group
    for cell in range(first, last, BLOCK):
        count, here, side = min(BLOCK, last - cell), k + stride * cell, v + stride * cell
        is_last = cell + BLOCK >= last
        _tell(k_ahead, k_after if is_last else here + stride * BLOCK, pieces, stride, size)
        _tell(v_ahead, v_after if is_last else side + stride * BLOCK, pieces, stride, size)
        for piece in range(pieces + 1):  # the values of one come after the weights of the next, which take their time
            if piece < pieces:
                head, at, number = piece * group, 2 * size * piece, BLOCK * piece
                query, to = queries + 4 * size * head, scores + 4 * RUN * head
                _block_scores(here + at, stride, count, query, group, size, to, scale, k_ahead, number)
                for one in range(head, head + group):
                    weights, shrink = scores + 4 * RUN * one, shrinks + 4 * RUN * one
                    store_i64(events + 8 * one, weigh(weights, count, states + STATE * one, shrink))
            if piece > 0:
                head, at, number = (piece - 1) * group, 2 * size * (piece - 1), BLOCK * (piece - 1)
                for one in range(head, head + group, PAIR):
                    weights, shrink, mask = scores + 4 * RUN * one, shrinks + 4 * RUN * one, events + 8 * one
                    total, state, pair = totals + 4 * size * one, states + STATE * one, min(PAIR, head + group - one)
                    _block_values(
                        side + at, stride, count, weights, shrink, mask, total, size, state, pair, v_ahead, number
                    )
    return states


def cells_scratch_bytes(heads: int, size: int) -> int:
    """Bytes that `attend_cells` needs."""
    return heads * (8 * size + STATE + 8 * RUN + 8) + 2 * AHEAD


@inner
def heads_together(rows, n_head, n_head_kv, threads):
    """Heads per work item: a whole group that shares a KV head, or one where there would be too few items."""
    return n_head // n_head_kv if rows * n_head_kv >= 2 * threads else 1


@inner
def heads_of_item(rows, n_head, n_head_kv, threads):
    """Heads per work item: those of as many KV heads side by side as leave two items for each thread, or just one."""
    if rows * n_head_kv < 2 * threads:
        return 1
    count = n_head_kv
    while n_head_kv % count != 0 or rows * (n_head_kv // count) < 2 * threads:
        count -= 1
    return count * (n_head // n_head_kv)


@step
def attention_reference(record, thread, threads):
    """Rows q, float32 (n, n_head * size), attend to cells 0 to pos + row; out alike. An item is (row, heads)."""
    n, pos, k, v, q, q_stride, out, out_stride, n_head, n_head_kv, size, scale, scratch, scratch_bytes = arguments(
        record, 14
    )
    together, group, stride = heads_of_item(n, n_head, n_head_kv, threads), n_head // n_head_kv, 2 * n_head_kv * size
    per_row = n_head // together
    mine = scratch + scratch_bytes * thread
    item = next_item(record)
    while item < n * per_row:
        following = next_item(record)
        row, head = n - 1 - item // per_row, item % per_row * together
        at, to = q + q_stride * row + 4 * size * head, out + out_stride * row + 4 * size * head
        side, after = 2 * size * (head // group), 2 * size * (following % per_row * together // group)
        share, last = min(group, together), pos + row + 1
        states = attend_cells(
            at, together, share, k + side, v + side, stride, 0, last, size, scale, mine, k + after, v + after
        )
        for i in range(together):
            weight_sum = load_f32(states + STATE * i + 4)
            factor = np.float32(0) if weight_sum == np.float32(0) else np.float32(1) / weight_sum
            scale_to(mine + 4 * size * i, to + 4 * size * i, f32_to_bits(factor), size // LANES)
        item = following
