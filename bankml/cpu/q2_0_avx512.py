"""Q2_0 products with AVX-512: 16 rows in the lanes, `vpdpbusd` of two-bit codes and broadcast activations.

The reference's (code - 1) * q summed over 32 is the dot product of the codes, started at minus the sum of q. Plane j
of a row's 16 bytes holds the codes of activations 4i+j; the activations lie in the same planes.
"""

from bankml.cpu.compile import inner
from bankml.cpu.lanes import RowBlocks, prefetch_ahead, scalar_at
from bankml.cpu.level import has
from bankml.cpu.simd import f32, i8, i32, i64, vec, vector

GROUP = 16
TILE = 16
WORK_BYTES = TILE * GROUP * 4  # the tile's accumulators


def _extract(plane):
    """The GFNI matrix that moves bits 2*plane and 2*plane+1 of a byte to the bottom and clears the rest."""
    return 1 << (2 * plane + 56) | 1 << (2 * plane + 1 + 48)


def _codes(b, words):
    """A vector of 16 dwords -> four vectors of bytes, the codes of each plane."""
    planes = [b.ir.and_(words, b.splat(i32, 16, 0x03030303))]
    for plane in range(1, 4):
        if has("gfni"):
            matrix = b.cast(b.splat(i64, 8, _extract(plane)), vec(i8, 64))
            arguments = [b.cast(words, vec(i8, 64)), matrix, b.int(0, i8)]
            planes.append(b.call("llvm.x86.vgf2p8affineqb.512", vec(i8, 64), arguments))
        else:
            shifted = b.ir.lshr(words, b.splat(i32, 16, 2 * plane))
            planes.append(b.ir.and_(shifted, b.splat(i32, 16, 0x03030303)))
    return planes


def _block(b, planes, d0, quants, minus_sums, d, acc):
    """acc of 16 rows after one 64-block of one column."""
    sums = []
    for half in range(2):
        total = scalar_at(b, b.at(minus_sums, 4 * half), i32, 16)
        for quad in (2 * half, 2 * half + 1):
            for plane in range(4):
                four = scalar_at(b, b.at(quants, 16 * plane + 4 * quad), i32, 16)
                total = b.dot_u8_i8(total, planes[quad][plane], four)
        sums.append(b.to_f32(total))
    first, second = (scalar_at(b, b.at(d, 4 * half), f32, 16) for half in range(2))
    sumi = b.fma(second, sums[1], b.ir.fmul(first, sums[0]))
    return b.fma(d0, sumi, acc)


def _weights(b, rows, w, distance, i):
    """The codes [quad][plane] and scales of block i of 16 rows; asks for the same block of the next group."""
    offset = b.mul(i, 18)
    words, d0 = rows.quants(offset), rows.scales(offset)
    prefetch_ahead(b, w, distance, b.mul(i, 18 * GROUP), 5)
    return [_codes(b, quad) for quad in words], d0


@vector
def _one_column(b, w, stride, planes, minus_sums, d, blocks, results):
    """16 rows times one column, the accumulator in a register."""
    rows, distance = RowBlocks(b, w, stride), b.mul(stride, GROUP)
    quants, minus, scales = b.pointer(planes), b.pointer(minus_sums), b.pointer(d)

    def block(i, acc):
        codes, d0 = _weights(b, rows, w, distance, i)
        at, at_scale = b.mul(i, 64), b.mul(i, 8)
        return [_block(b, codes, d0, b.at(quants, at), b.at(minus, at_scale), b.at(scales, at_scale), acc[0])]

    (acc,) = b.loop(blocks, [b.zero(f32, 16)], block)
    b.store(acc, b.pointer(results), 64)


@vector
def _tile(b, w, stride, planes, minus_sums, d, blocks, columns, results):
    """16 rows times a tile of columns, accumulated in `results`."""
    rows, distance, totals = RowBlocks(b, w, stride), b.mul(stride, GROUP), b.pointer(results)
    quants, minus, scales = b.pointer(planes), b.pointer(minus_sums), b.pointer(d)
    row_of_quants, row_of_scales = b.mul(blocks, 64), b.mul(blocks, 8)

    def clear(i, _):
        b.store(b.zero(f32, 16), b.at(totals, b.mul(i, 64)), 64)
        return []

    b.loop(columns, [], clear)

    def block(i, _):
        codes, d0 = _weights(b, rows, w, distance, i)

        def column(c, _):
            at = b.add(b.mul(i, 64), b.mul(c, row_of_quants))
            at_scale = b.add(b.mul(i, 8), b.mul(c, row_of_scales))
            total = b.at(totals, b.mul(c, 64))
            acc = b.load(total, vec(f32, 16), 64)
            b.store(
                _block(b, codes, d0, b.at(quants, at), b.at(minus, at_scale), b.at(scales, at_scale), acc), total, 64
            )
            return []

        b.loop(columns, [], column)
        return []

    b.loop(blocks, [], block)


@inner
def group_product(w, stride, planes, minus_sums, d, columns, width, results):
    """results[column][row] of 16 rows and a tile's columns."""
    if columns == 1:
        _one_column(w, stride, planes, minus_sums, d, width // 64, results)
    else:
        _tile(w, stride, planes, minus_sums, d, width // 64, columns, results)
