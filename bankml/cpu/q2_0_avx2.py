"""Q2_0 products with AVX2: eight rows, two in a vector, `vpmaddubsw` of two-bit codes and the activations' planes, or
`vpdpbusd` where AVX-VNNI is there.

The reference's (code - 1) * q summed over 32 is the dot product of the codes minus the sum of q. Plane j of a row's
16 bytes holds the codes of activations 4i+j; the activations lie in the same planes.
"""

from bankml.cpu.compile import inner
from bankml.cpu.lanes import duplicate, scalar_at, scales_of_rows
from bankml.cpu.level import has
from bankml.cpu.simd import f32, i8, i16, i32, i64, vec, vector

GROUP = 8
TILE = 8


def _codes(b, rows, offset):
    """Codes of rows (q, q+4), two-bit values in bytes: [q][plane]."""
    pairs = [b.concat(*(b.load(b.at(rows[q + side], offset), vec(i32, 4)) for side in (0, 4))) for q in range(4)]
    mask = b.splat(i32, 8, 0x03030303)
    return [[b.ir.and_(b.ir.lshr(v, b.splat(i32, 8, 2 * plane)), mask) for plane in range(4)] for v in pairs]


def _sums_of_four(b, planes, signed):
    """Sums of the products of four adjacent codes and quants, over the four planes."""
    if has("avx_vnni"):
        total = b.zero(i32, 8)
        for unsigned, quants in zip(planes, signed, strict=True):
            total = b.dot_u8_i8(total, unsigned, quants)
        return total
    total = None
    for unsigned, quants in zip(planes, signed, strict=True):  # |sum| <= 4 * 2 * 3 * 128 fits 16 bits
        part = b.call("llvm.x86.avx2.pmadd.ub.sw", vec(i16, 16), [b.cast(unsigned, vec(i8, 32)), quants])
        total = part if total is None else b.ir.add(total, part)
    return b.call("llvm.x86.avx2.pmadd.wd", vec(i32, 8), [total, b.splat(i16, 16, 1)])


def _sums(b, codes, quants):
    """Dot products of each half: two vectors of eight rows, in order."""
    planes = [duplicate(b, b.load(b.at(quants, 16 * plane), vec(i64, 2))) for plane in range(4)]
    signed = [b.cast(plane, vec(i8, 32)) for plane in planes]
    fours = [_sums_of_four(b, row, signed) for row in codes]
    even, odd = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
    left, right = (
        b.ir.add(b.shuffle(x, y, even), b.shuffle(x, y, odd)) for x, y in (fours[0:2], fours[2:4])
    )  # of each row: the first half, the second half
    return b.shuffle(left, right, even), b.shuffle(left, right, odd)


def _block(b, codes, d0, quants, minus_sums, d, acc):
    """acc of eight rows after one 64-block of one column."""
    exact = []
    for half, sums in enumerate(_sums(b, codes, quants)):
        exact.append(b.to_f32(b.ir.add(sums, scalar_at(b, b.at(minus_sums, 4 * half), i32, 8))))
    first, second = (scalar_at(b, b.at(d, 4 * half), f32, 8) for half in range(2))
    return b.fma(d0, b.fma(second, exact[1], b.ir.fmul(first, exact[0])), acc)


@vector
def _tile(b, w, stride, planes, minus_sums, d, blocks, columns, results):
    """Eight rows times a tile of columns, accumulated in `results`."""
    rows = [b.pointer(b.add(w, b.mul(stride, r))) for r in range(GROUP)]
    ahead, totals = b.pointer(b.add(w, b.mul(stride, GROUP))), b.pointer(results)
    quants, minus, scales = b.pointer(planes), b.pointer(minus_sums), b.pointer(d)

    def clear(i, _):
        b.store(b.zero(f32, 8), b.at(totals, b.mul(i, 32)), 32)
        return []

    b.loop(columns, [], clear)

    def block(i, _):
        offset = b.mul(i, 18)
        for line in range(3):
            b.prefetch(b.at(ahead, b.add(b.mul(i, 18 * GROUP), 64 * line)))
        codes, d0 = _codes(b, rows, b.add(offset, 2)), scales_of_rows(b, [b.at(row, offset) for row in rows])

        def column(c, _):
            at = b.add(i, b.mul(c, blocks))
            of_column = [b.at(quants, b.mul(at, 64)), b.at(minus, b.mul(at, 8)), b.at(scales, b.mul(at, 8))]
            total = b.at(totals, b.mul(c, 32))
            b.store(_block(b, codes, d0, *of_column, b.load(total, vec(f32, 8), 32)), total, 32)
            return []

        b.loop(columns, [], column)
        return []

    b.loop(blocks, [], block)


@inner
def group_product(w, stride, planes, minus_sums, d, columns, width, results):
    """results[column][row] of eight rows and a tile's columns."""
    _tile(w, stride, planes, minus_sums, d, width // 64, columns, results)
