"""Split-KV attention of one row: a chunk of cells per thread of the reference, then the partial sums in chunk order.

Each chunk runs the reference kernel by itself; the bits depend on how many chunks there are, not on who runs them.
"""

import numpy as np

from bankml.cpu.attention_reference import LANES, attend_cells, heads_of_item, scale_to
from bankml.cpu.compile import inner, step
from bankml.cpu.exponential import expf
from bankml.cpu.floats import arguments, f32_to_bits, fma, load_f32, store_f32
from bankml.cpu.online_softmax import STATE
from bankml.cpu.pool import next_item
from bankml.cpu.simd import f32, i32, vec, vector

PARTIAL = 2  # a partial result is float32: maximum, sum of weights, then the head's values


@vector
def _combine(b, total, part, old, new, units):
    """total = total * old + part * new, the first product fused; `units` times LANES values."""
    before, after = (b.broadcast(b.cast(b.ir.trunc(bits, i32), f32), LANES) for bits in (old, new))

    def one(i, carried):
        offset = b.mul(i, 4 * LANES)
        at = b.pointer(total, offset)
        added = b.ir.fmul(b.load(b.pointer(part, offset), vec(f32, LANES)), after)
        b.store(b.fma(b.load(at, vec(f32, LANES)), before, added), at)
        return carried

    b.loop(units, [], one)


@step
def attention_chunks(record, thread, threads):
    """The row's partial results, float32 (n_head, chunks, 2 + size), into `partials`. An item is (heads, chunk)."""
    n, pos, k, v, q, n_head, n_head_kv, size, scale, scratch, scratch_bytes, partials, padded, chunks = arguments(
        record, 14
    )
    together, group = heads_of_item(n * chunks, n_head, n_head_kv, threads), n_head // n_head_kv
    stride = 2 * n_head_kv * size
    length = (padded + chunks - 1) // chunks
    per_chunk = n_head // together
    mine = scratch + scratch_bytes * thread
    item = next_item(record)
    while item < chunks * per_chunk:
        # The next is taken early, so that its first cells can be asked for; two in a row are the same heads' chunks,
        # since the last chunk is the shorter one, and a thread must not be left with both long ones.
        following = next_item(record)
        chunk, head = item % chunks, item // chunks * together
        side, first = 2 * size * (head // group), chunk * length
        last = min(first + length, pos + 1)
        then = min(following % chunks * length, pos)  # where there are no cells, no page may lie
        after = 2 * size * (following // chunks % per_chunk * together // group) + stride * then
        at, share = q + 4 * size * head, min(group, together)
        states = attend_cells(
            at, together, share, k + side, v + side, stride, first, last, size, scale, mine, k + after, v + after
        )
        for i in range(together):
            part = partials + 4 * (PARTIAL + size) * ((head + i) * chunks + chunk)
            store_f32(part, load_f32(states + STATE * i))
            store_f32(part + 4, load_f32(states + STATE * i + 4))
            scale_to(mine + 4 * size * i, part + 4 * PARTIAL, f32_to_bits(np.float32(1)), size // LANES)
        item = following


@inner
def _join(partials, chunks, size, out):
    """One head: partials in chunk order, those without a cell left out, then the division by the sum of weights."""
    for i in range(size):
        store_f32(out + 4 * i, np.float32(0))
    maximum, weight_sum = np.float32(-np.inf), np.float32(0)
    for chunk in range(chunks):
        part = partials + 4 * (PARTIAL + size) * chunk
        part_sum = load_f32(part + 4)
        if part_sum != np.float32(0):
            part_maximum = load_f32(part)
            new = max(maximum, part_maximum)
            old_scale, new_scale = expf(maximum - new), expf(part_maximum - new)
            _combine(out, part + 4 * PARTIAL, f32_to_bits(old_scale), f32_to_bits(new_scale), size // LANES)
            weight_sum = fma(weight_sum, old_scale, part_sum * new_scale)  # the reference fuses here
            maximum = new
    if weight_sum != np.float32(0):
        scale_to(out, out, f32_to_bits(np.float32(1) / weight_sum), size // LANES)


@step
def attention_join(record, thread, threads):
    """out, float32 (1, n_head * size), from the partial results."""
    n, _, _, _, partials, out, n_head, size, chunks = arguments(record, 9)
    for head in range(thread, n * n_head, threads):
        _join(partials + 4 * (PARTIAL + size) * chunks * head, chunks, size, out + 4 * size * head)
