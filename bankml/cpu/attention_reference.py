"""The reference attention kernel: a row's cells one after the other, an online softmax, V summed in half precision.

The order of every head's float operations is the reference's, `flash_attn_ext_f16_one_chunk`:
score = dot(K, Q as halves) * scale; on a new maximum the sums are scaled by expf(old - new), else the cell's weight is
expf(score - maximum); the accumulator is rounded to a half at every step.

Scores of a block of cells come first, for all heads that share the cells, then the weights, then V. KV heads that lie
side by side are taken in turn, block by block, and all the while the next block is asked for (`attention_ahead.py`):
one thread took 15 ms for 235 MB when it went through one KV head's pieces of 256 bytes at a time, 9 ms so.
"""

import numpy as np

from bankml.cpu.attention_ahead import AHEAD, tell
from bankml.cpu.attention_scores import LANES, block_scores
from bankml.cpu.attention_values import PAIR, block_values, emit_round_half, emit_scalar
from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments, f32_to_bits, load_f32, store_i64
from bankml.cpu.online_softmax import RUN, STATE, start_state, weigh
from bankml.cpu.pool import next_item
from bankml.cpu.simd import f32, vec, vector

BLOCK = 32  # cells whose scores are kept at a time, RUN at most


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
        value = b.ir.fmul(b.load(b.pointer(x, offset), vec(f32, LANES)), emit_scalar(b, factor))
        b.store(value, b.pointer(out, offset))
        return carried

    b.loop(units, [], one)


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
        tell(k_ahead, k_after if is_last else here + stride * BLOCK, pieces, stride, size)
        tell(v_ahead, v_after if is_last else side + stride * BLOCK, pieces, stride, size)
        for piece in range(pieces + 1):  # the values of one come after the weights of the next, which take their time
            if piece < pieces:
                head, at, number = piece * group, 2 * size * piece, BLOCK * piece
                query, to = queries + 4 * size * head, scores + 4 * RUN * head
                block_scores(here + at, stride, count, query, group, size, to, scale, k_ahead, number)
                for one in range(head, head + group):
                    weights, shrink = scores + 4 * RUN * one, shrinks + 4 * RUN * one
                    store_i64(events + 8 * one, weigh(weights, count, states + STATE * one, shrink))
            if piece > 0:
                head, at, number = (piece - 1) * group, 2 * size * (piece - 1), BLOCK * (piece - 1)
                for one in range(head, head + group, PAIR):
                    weights, shrink, mask = scores + 4 * RUN * one, shrinks + 4 * RUN * one, events + 8 * one
                    total, state, pair = totals + 4 * size * one, states + STATE * one, min(PAIR, head + group - one)
                    block_values(
                        side + at, stride, count, weights, shrink, mask, total, size, state, pair, v_ahead, number
                    )
    return states


def cells_scratch_bytes(heads: int, size: int) -> int:
    """Bytes that `attend_cells` needs."""
    return heads * (8 * size + STATE + 8 * RUN + 8) + 2 * AHEAD


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
