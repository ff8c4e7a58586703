"""The tiled attention kernel, for micro-batches of 64 rows or more: tiles of 64 cells, everything in float32.

The reference multiplies Q rows with a tile's keys (one FMA chain per score), takes the tile's maximum and its own expf,
adds the weights 8 by 8 and those sums in double, and adds weights times values (one FMA chain per element and tile).
Here the *rows* lie in the lanes: Q and the sums are kept transposed, in panels of PANEL rows of one head, and keys and
values are broadcast. So nothing is added across lanes, and a tile of keys and values is widened once for all panels.
Cells that no row of a panel sees are left out: their weights are 0.
"""

import numpy as np

from bankml.cpu.attention_reference import LANES as SCALE_LANES
from bankml.cpu.attention_reference import scale_to
from bankml.cpu.compile import inner, step
from bankml.cpu.exponential import expf
from bankml.cpu.floats import arguments, f32_to_bits, load_f32, store_f32
from bankml.cpu.level import level
from bankml.cpu.pool import next_item
from bankml.cpu.simd import f32, f64, i16, i32, vec, vector
from bankml.cpu.swiglu import emit_expf

LANES = {"avx512": 16, "avx2": 8, "generic": 4}[level()]
PANEL = 2 * LANES
GROUP = 8 if level() == "avx512" else 4  # cells, or values of a head, that a register block takes together
TILE = 64
EIGHT = 8  # the reference's vector, over which it adds weights
MINUS_INFINITY = float("-inf")


def _emit_transpose(b, rows):
    """As many vectors as lanes, transposed: halves of the lanes change places, then quarters, and so on."""
    rows, count = list(rows), len(rows)
    distance = count // 2
    while distance:
        for i in range(count):
            if not i & distance:
                first, second = rows[i], rows[i + distance]
                low = [j if not j & distance else count + j - distance for j in range(count)]
                high = [j + distance if not j & distance else count + j for j in range(count)]
                rows[i], rows[i + distance] = b.shuffle(first, second, low), b.shuffle(first, second, high)
        distance //= 2
    return rows


@vector
def _transpose(b, x, x_stride, remaining, out, out_stride):
    """out = the transpose of LANES rows of LANES float32 (the last one again where fewer remain); strides in bytes."""
    last, rows = b.ir.sub(remaining, b.int(1)), []
    for i in range(LANES):
        index = b.ir.select(b.ir.icmp_signed("<", last, b.int(i)), last, b.int(i))
        rows.append(b.load(b.pointer(b.add(x, b.mul(x_stride, index))), vec(f32, LANES)))
    for i, row in enumerate(_emit_transpose(b, rows)):
        b.store(row, b.pointer(out, b.mul(out_stride, i)))


@vector
def _widen(b, x, out, units):
    """Halves to float32, `units` times LANES values."""

    def one(i, carried):
        value = b.half_to_f32(b.load(b.pointer(x, b.mul(i, 2 * LANES)), vec(i16, LANES)))
        b.store(value, b.pointer(out, b.mul(i, 4 * LANES)))
        return carried

    b.loop(units, [], one)


@vector
def _fill(b, out, units, bits):
    """A float32, given as bits, `units` times LANES times."""
    value = b.broadcast(b.cast(b.ir.trunc(bits, i32), f32), LANES)

    def one(i, carried):
        b.store(value, b.pointer(out, b.mul(i, 4 * LANES)))
        return carried

    b.loop(units, [], one)


def _emit_block(b, steps, left, left_stride, right, sums):
    """sums[i][half] += left[i] * right[half], one FMA a step: left GROUP scalars, right PANEL lanes further at each."""

    def one(i, carried):
        panel = b.pointer(right, b.mul(i, 4 * PANEL))
        halves = [b.load(b.at(panel, 4 * LANES * side), vec(f32, LANES)) for side in range(2)]
        out = []
        for row in range(GROUP):
            scalar = b.load(b.at(left[row], b.mul(i, left_stride)), f32)
            lanes = b.broadcast(scalar, LANES)
            out += [b.fma(lanes, half, carried[2 * row + side]) for side, half in enumerate(halves)]
        return out

    return b.loop(steps, sums, one)


@vector
def _scores(b, keys, size, queries, scale, hidden, out):
    """Scaled scores of GROUP cells for a panel: keys (GROUP, size), queries (size, PANEL), out (GROUP, PANEL).

    Lane r of cell i is minus infinity where r < hidden + i: the row's own cell comes before.
    """
    left = [b.pointer(b.add(keys, b.mul(b.mul(size, 4), i))) for i in range(GROUP)]
    sums = _emit_block(b, size, left, 4, queries, [b.zero(f32, LANES)] * (2 * GROUP))
    factor = b.broadcast(b.cast(b.ir.trunc(scale, i32), f32), LANES)
    first = b.broadcast(b.ir.trunc(hidden, i32), LANES)
    for i in range(GROUP):
        for side in range(2):
            row = b.lanes(i32, range(LANES * side - i, LANES * (side + 1) - i))
            seen = b.ir.icmp_signed(">=", row, first)
            score = b.ir.fmul(sums[2 * i + side], factor)
            score = b.ir.select(seen, score, b.splat(f32, LANES, MINUS_INFINITY))
            b.store(score, b.pointer(out, 4 * (PANEL * i + LANES * side)))


@vector
def _values(b, values, size, weights, cells, factors, totals):
    """totals (GROUP, PANEL) = totals * factors (PANEL) + values (cells, GROUP of size) * weights (cells, PANEL)."""
    shrink = [b.load(b.pointer(factors, 4 * LANES * side), vec(f32, LANES)) for side in range(2)]
    at = [b.pointer(totals, 4 * LANES * i) for i in range(2 * GROUP)]
    sums = [b.ir.fmul(b.load(pointer, vec(f32, LANES)), shrink[i % 2]) for i, pointer in enumerate(at)]
    left = [b.pointer(values, 4 * i) for i in range(GROUP)]
    sums = _emit_block(b, cells, left, b.mul(size, 4), weights, sums)
    for pointer, value in zip(at, sums, strict=True):
        b.store(value, pointer)


@vector
def _maxima(b, scores, cells, maxima, new, change):
    """new = the greater of maxima and the scores (cells, PANEL) of a panel; change = maxima - new."""
    for side in range(2):
        offset = 4 * LANES * side

        def one(i, carried, offset=offset):
            score = b.load(b.pointer(scores, b.add(b.mul(i, 4 * PANEL), offset)), vec(f32, LANES))
            return [b.ir.select(b.ir.fcmp_ordered(">", carried[0], score), carried[0], score)]

        before = b.load(b.pointer(maxima, offset), vec(f32, LANES))
        (greatest,) = b.loop(cells, [before], one)
        b.store(greatest, b.pointer(new, offset))
        b.store(b.ir.fsub(before, greatest), b.pointer(change, offset))


@vector
def _exponentials(b, scores, cells, maxima):
    """Scores (cells, PANEL) become weights: expf(score - the row's maximum)."""
    wide = vec(f32, LANES)
    sides = [4 * LANES * side for side in range(2)]
    greatest = [b.load(b.pointer(maxima, offset), wide) for offset in sides]

    def one(i, carried):
        for offset, maximum in zip(sides, greatest, strict=True):
            at = b.pointer(scores, b.add(b.mul(i, 4 * PANEL), offset))
            b.store(emit_expf(b, b.ir.fsub(b.load(at, wide), maximum)), at)
        return carried

    b.loop(cells, [], one)


@vector
def _add_weights(b, weights, eights, factors, weight_sums):
    """weight_sums = weight_sums * factors, plus weights (8 * eights, PANEL): 8 by 8, and those sums in double."""
    wide = vec(f32, LANES)
    for side in range(2):
        offset = 4 * LANES * side

        def one(i, carried, offset=offset):
            first = b.pointer(weights, b.add(b.mul(i, 4 * PANEL * EIGHT), offset))
            e = [b.load(b.at(first, 4 * PANEL * cell), wide) for cell in range(EIGHT)]
            while len(e) > 1:  # ((0+4)+(2+6)) + ((1+5)+(3+7))
                e = [b.ir.fadd(x, y) for x, y in zip(e[: len(e) // 2], e[len(e) // 2 :], strict=True)]
            halves = [b.ir.fpext(half, vec(f64, LANES // 2)) for half in (b.low(e[0]), b.high(e[0]))]
            return [b.ir.fadd(total, half) for total, half in zip(carried, halves, strict=True)]

        sums = b.loop(eights, [b.zero(f64, LANES // 2)] * 2, one)
        at = b.pointer(weight_sums, offset)
        before = b.ir.fmul(b.load(at, wide), b.load(b.pointer(factors, offset), wide))
        parts = []
        for half, total in zip((b.low(before), b.high(before)), sums, strict=True):
            parts.append(b.ir.fptrunc(b.ir.fadd(b.ir.fpext(half, total.type), total), vec(f32, LANES // 2)))
        b.store(b.concat(*parts), at)


@inner
def _widen_tile(x, stride, cells, size, out):
    """Halves of `cells` cells, `stride` bytes apart, as float32 (TILE, size); zeros where there is no cell."""
    for cell in range(cells):
        _widen(x + stride * cell, out + 4 * size * cell, size // LANES)
    _fill(out + 4 * size * cells, (TILE - cells) * size // LANES, 0)


@inner
def _start_panel(q, q_stride, rows, size, panel):
    """Q transposed (size, PANEL), sums (size, PANEL), then maxima and sums of weights (PANEL each)."""
    for side in range(0, PANEL, LANES):
        here, remaining = (q + q_stride * side, rows - side) if rows > side else (q, 1)
        for at in range(0, size, LANES):
            _transpose(here + 4 * at, q_stride, remaining, panel + 4 * (PANEL * at + side), 4 * PANEL)
    _fill(panel + 4 * PANEL * size, PANEL * size // LANES, 0)
    states = panel + 8 * PANEL * size
    _fill(states, PANEL // LANES, f32_to_bits(np.float32(-np.inf)))
    _fill(states + 4 * PANEL, PANEL // LANES, 0)


@inner
def _tile_panel(keys, values, first, own, rows, size, scale, panel, work):
    """One tile (cells from `first`) for one panel of `rows` rows, the first of which has its own cell at `own`.

    work: maxima (PANEL), factors (PANEL), scores (TILE, PANEL).
    """
    cells = min(TILE, own + rows - first)
    if cells <= 0:
        return
    eights = (cells + EIGHT - 1) // EIGHT
    states, totals = panel + 8 * PANEL * size, panel + 4 * PANEL * size
    new, factors, scores = work, work + 4 * PANEL, work + 8 * PANEL
    for cell in range(0, EIGHT * eights, GROUP):
        at, hidden = scores + 4 * PANEL * cell, first + cell - own
        _scores(keys + 4 * size * cell, size, panel, scale, hidden, at)
    _maxima(scores, EIGHT * eights, states, new, factors)
    for row in range(PANEL):
        change = load_f32(factors + 4 * row)
        store_f32(states + 4 * row, load_f32(new + 4 * row))
        store_f32(factors + 4 * row, expf(change) if change < np.float32(0) else np.float32(1))
    _exponentials(scores, EIGHT * eights, states)
    _add_weights(scores, eights, factors, states + 4 * PANEL)
    for at in range(0, size, GROUP):
        _values(values + 4 * at, size, scores, EIGHT * eights, factors, totals + 4 * PANEL * at)


@inner
def _end_panel(panel, rows, size, work, out, out_stride):
    """Rows of out: the sums over the sums of weights; work: float32 (PANEL, size)."""
    totals, sums = panel + 4 * PANEL * size, panel + 8 * PANEL * size + 4 * PANEL
    for side in range(0, PANEL, LANES):
        for at in range(0, size, LANES):
            _transpose(totals + 4 * (PANEL * at + side), 4 * PANEL, LANES, work + 4 * (size * side + at), 4 * size)
    for row in range(min(rows, PANEL)):
        weight_sum = load_f32(sums + 4 * row)
        factor = np.float32(0) if weight_sum == np.float32(0) else np.float32(1) / weight_sum
        scale_to(work + 4 * size * row, out + out_stride * row, f32_to_bits(factor), size // SCALE_LANES)


def _panel_bytes(size):
    return 4 * (2 * PANEL * size + 2 * PANEL)


_panel_size = inner(_panel_bytes)


def tiled_scratch_bytes(heads: int, size: int) -> int:
    """Bytes for one item: a tile of keys and one of values, a panel's work, and TILE rows of `heads` heads."""
    return 8 * TILE * size + 4 * PANEL * (TILE + 2) + heads * (TILE // PANEL) * _panel_bytes(size)


@inner
def _attend_block(q, q_stride, heads, k, v, stride, pos, rows, size, scale, scratch, out, out_stride):
    """`rows` rows (at most TILE, the first at position pos) of `heads` heads that share a KV head."""
    keys, values = scratch, scratch + 4 * TILE * size
    work = values + 4 * TILE * size
    panels = work + 4 * PANEL * (TILE + 2)
    per_head, panel_bytes = (rows + PANEL - 1) // PANEL, _panel_size(size)
    for i in range(heads * per_head):
        head, row = i // per_head, i % per_head * PANEL
        _start_panel(q + q_stride * row + 4 * size * head, q_stride, rows - row, size, panels + panel_bytes * i)
    for first in range(0, pos + rows, TILE):
        cells = min(TILE, pos + rows - first)
        _widen_tile(k + stride * first, stride, cells, size, keys)
        _widen_tile(v + stride * first, stride, cells, size, values)
        for i in range(heads * per_head):
            row = i % per_head * PANEL
            here = panels + panel_bytes * i
            _tile_panel(keys, values, first, pos + row, min(PANEL, rows - row), size, scale, here, work)
    for i in range(heads * per_head):
        head, row = i // per_head, i % per_head * PANEL
        to = out + out_stride * row + 4 * size * head
        _end_panel(panels + panel_bytes * i, rows - row, size, keys, to, out_stride)


@inner
def _item_shape(n, n_head, group, threads):
    """(rows, heads) of a work item: as many as share a tile, or fewer where there would be too few items."""
    rows, heads = TILE, group
    while (n + rows - 1) // rows * (n_head // heads) < 3 * threads:
        if rows > PANEL:
            rows //= 2
        elif heads > 1:
            heads = 1
        else:
            break
    return rows, heads


@step
def attention_tiled(record, thread, threads):
    """Rows q, float32 (n, n_head * size), attend to cells 0 to pos + row; out alike. An item is (rows, heads)."""
    n, pos, k, v, q, q_stride, out, out_stride, n_head, n_head_kv, size, scale, scratch, scratch_bytes = arguments(
        record, 14
    )
    group, stride = n_head // n_head_kv, 2 * n_head_kv * size
    block, heads = _item_shape(n, n_head, group, threads)
    per_block, blocks = n_head // heads, (n + block - 1) // block
    item = next_item(record)
    while item < blocks * per_block:
        row, head = (blocks - 1 - item // per_block) * block, item % per_block * heads
        side, at = 2 * size * (head // group), 4 * size * head
        _attend_block(
            q + q_stride * row + at,
            q_stride,
            heads,
            k + side,
            v + side,
            stride,
            pos + row,
            min(block, n - row),
            size,
            scale,
            scratch + scratch_bytes * thread,
            out + out_stride * row + at,
            out_stride,
        )
        item = next_item(record)
