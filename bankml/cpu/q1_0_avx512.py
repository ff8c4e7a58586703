"""Q1_0 products with AVX-512: 32 rows in the lanes, sums of four activations looked up in tables of 16.

`d1*s` is exact in float32, so `fma(d1, s, ab) == ab + d1*s`: the 16 signed sums of four adjacent activations, times
their scale, are one zmm, and a row's four weight bits are the index (`vpermps`). Lane j of the reference's eight is
the j-th four of each 32.

Tables of a tile: float32 [128-block][lane][column][32-block][16], so a group of rows reads them from front to back.
"""

from bankml.cpu.compile import inner
from bankml.cpu.lanes import RowBlocks, prefetch_ahead, sum_of_lanes
from bankml.cpu.simd import f32, i8, i16, i32, vec, vector

GROUP = 32
TILE = 8
TABLE_BYTES = 16  # per activation
WORK_BYTES = TILE * 8 * GROUP * 4  # the tile's accumulators [column][lane][GROUP]


def work_bytes(width):
    """Bytes of scratch that a group's product needs."""
    return WORK_BYTES


def _choices(b, bit):
    """64 bytes, 16 entries of four: 1 where bit j of the entry equals `bit`."""
    return b.lanes(i8, [int((entry >> j & 1) == bit) for entry in range(16) for j in range(4)])


@vector
def _build_tables(b, q, d, table, lane_stride):
    """Tables of one column's 128-block, 8 lanes x 4, from 128 int8 and 4 scales."""
    build, quants, scales, out = b.ir, b.pointer(q), b.pointer(d), b.pointer(table)
    ones, zeros, nothing = _choices(b, 1), _choices(b, 0), b.zero(i32, 16)

    def lane(j, _):
        place, target = b.at(quants, b.mul(j, 4)), b.at(out, b.mul(j, lane_stride))
        for k in range(4):
            four = b.cast(b.broadcast(b.load(b.at(place, 32 * k), i32), 16), vec(i8, 64))
            negated = build.sub(b.zero(i8, 64), four)  # wraps -128, as the reference's int8 negation does
            sums = b.dot_u8_i8(b.dot_u8_i8(nothing, ones, four), zeros, negated)
            scale = b.broadcast(b.load(b.at(scales, 4 * k), f32, 4), 16)
            b.store(build.fmul(scale, b.to_f32(sums)), b.at(target, 64 * k), 64)
        return []

    b.loop(8, [], lane)


@inner
def build_tables(q, d, table, block, column, columns):
    """Tables of 128-block `block` of a column of a tile."""
    _build_tables(q, d, table + 2048 * columns * block + 256 * column, 256 * columns)


def _look_up(b, table, words):
    """Entries of a 16-entry table by the low four bits of each lane."""
    return b.call("llvm.x86.avx512.permvar.sf.512", vec(f32, 16), [table, words])


def _lane_sums(b, table, words):
    """ab of one lane for each half of the rows: four look-ups, added in order. words[half][32-block]."""
    sums = [None, None]
    for k in range(4):
        entries = b.load(b.at(table, 64 * k), vec(f32, 16), 64)
        for half in range(2):
            term = _look_up(b, entries, words[half][k])
            sums[half] = term if k == 0 else b.ir.fadd(sums[half], term)
    return sums


def _add_block(b, acc, table, index, d0):
    """acc[half][lane] after one 128-block; index(half, 32-block, lane) gives the vector of look-up bits."""
    for lane in range(8):
        words = [[index(half, k, lane) for k in range(4)] for half in range(2)]
        sums = _lane_sums(b, b.at(table, 256 * lane), words)
        for half in range(2):
            acc[half][lane] = b.fma(d0[half], sums[half], acc[half][lane])


def _shifted(b, word, bits):
    return b.ir.lshr(word, b.splat(i32, 16, bits)) if bits else word


@vector
def _one_column(b, w, stride, table, blocks, coming, results):
    """32 rows times one column, two blocks at a time, the accumulators in registers.

    What this thread reads next but one (`coming`) is asked into the second cache, the group after this into the first.
    """
    halves = [RowBlocks(b, b.add(w, b.mul(stride, 16 * half)), stride) for half in range(2)]
    tables, distance = b.pointer(table), b.mul(stride, GROUP)

    def pair(i, flat):
        acc, offset = [list(flat[:8]), list(flat[8:])], b.mul(i, 36)
        words = [rows.block_pair(offset) for rows in halves]
        prefetch_ahead(b, coming, b.int(0), b.mul(i, 36 * GROUP), 18, near=False)
        prefetch_ahead(b, w, distance, b.mul(i, 36 * GROUP), 18)
        here = b.at(tables, b.mul(i, 4096))

        def first(half, k, lane):  # the scale takes 16 bits, so the first block's dwords straddle
            straddling = lane >= 4
            return _shifted(b, words[half][k + straddling], 4 * lane - 16 if straddling else 4 * lane + 16)

        def scales(half, word, bits):
            return b.half_to_f32(b.ir.trunc(_shifted(b, words[half][word], bits), vec(i16, 16)))

        _add_block(b, acc, here, first, [scales(half, 0, 0) for half in range(2)])
        d0 = [scales(half, 4, 16) for half in range(2)]
        _add_block(b, acc, b.at(here, 2048), lambda half, k, lane: _shifted(b, words[half][5 + k], 4 * lane), d0)
        return [*acc[0], *acc[1]]

    def last(_, flat):
        acc, block = [list(flat[:8]), list(flat[8:])], b.ir.sub(blocks, b.int(1))
        words = [rows.quants(b.mul(block, 18)) for rows in halves]
        d0 = [rows.scales(b.mul(block, 18)) for rows in halves]
        here = b.at(tables, b.mul(block, 2048))
        _add_block(b, acc, here, lambda half, k, lane: _shifted(b, words[half][k], 4 * lane), d0)
        return [*acc[0], *acc[1]]

    acc = b.loop(b.ir.lshr(blocks, b.int(1)), [b.zero(f32, 16)] * 16, pair)
    acc = b.loop(b.ir.and_(blocks, b.int(1)), acc, last)
    for half in range(2):
        b.store(sum_of_lanes(b, acc[8 * half : 8 * half + 8]), b.pointer(results, 64 * half), 64)


@vector
def _tile(b, w, stride, table, blocks, columns, work, results):
    """32 rows times a tile of columns, the accumulators in memory."""
    halves = [RowBlocks(b, b.add(w, b.mul(stride, 16 * half)), stride) for half in range(2)]
    tables, totals, distance = b.pointer(table), b.pointer(work), b.mul(stride, GROUP)

    def clear(i, _):
        b.store(b.zero(f32, 16), b.at(totals, b.mul(i, 64)), 64)
        return []

    b.loop(b.mul(columns, 16), [], clear)

    def block(i, _):
        offset = b.mul(i, 18)
        words = [rows.quants(offset) for rows in halves]
        d0 = [rows.scales(offset) for rows in halves]
        prefetch_ahead(b, w, distance, b.mul(i, 18 * GROUP), 9)
        here = b.at(tables, b.mul(b.mul(i, columns), 2048))
        for lane in range(8):
            shift = b.splat(i32, 16, 4 * lane)
            indices = [[b.ir.lshr(word, shift) for word in half] for half in words] if lane else words
            _tile_lane(b, here, totals, lane, indices, d0, columns)
        return []

    b.loop(blocks, [], block)

    def finish(column, _):
        place = b.at(totals, b.mul(column, 1024))
        for half in range(2):
            lanes = [b.load(b.at(place, 128 * lane + 64 * half), vec(f32, 16), 64) for lane in range(8)]
            b.store(sum_of_lanes(b, lanes), b.pointer(results, b.add(b.mul(column, 128), 64 * half)), 64)
        return []

    b.loop(columns, [], finish)


def _tile_lane(b, here, totals, lane, indices, d0, columns):
    """One lane of one 128-block for all columns."""
    tables = b.at(here, b.mul(columns, 256 * lane))

    def column(c, _):
        sums = _lane_sums(b, b.at(tables, b.mul(c, 256)), indices)
        place = b.at(totals, b.add(b.mul(c, 1024), 128 * lane))
        for half in range(2):
            total = b.at(place, 64 * half)
            b.store(b.fma(d0[half], sums[half], b.load(total, vec(f32, 16), 64)), total, 64)
        return []

    b.loop(columns, [], column)


@inner
def group_product(w, stride, q, d, table, columns, width, work, coming, results):
    """results[column][row] of 32 rows and a tile's columns, from the tile's tables."""
    if columns == 1:
        _one_column(w, stride, table, width // 128, coming, results)
    else:
        _tile(w, stride, table, width // 128, columns, work, results)
