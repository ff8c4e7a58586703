"""Q2_0 products for any x86-64: four rows in the lanes of the float chain, `pmaddwd` of codes and activation planes."""

from bankml.cpu.compile import inner
from bankml.cpu.lanes import scalar_at, scales_of_rows
from bankml.cpu.simd import f32, i8, i16, i32, vec, vector

GROUP = 4
TILE = 8


def _halves(b, v, extend):
    """16 bytes as two vectors of eight words: the first 32 activations' and the second's."""
    return [extend(half, vec(i16, 8)) for half in (b.low(v), b.high(v))]


def _sums_of_row(b, row, quants):
    """Dot products with the codes of one row's block, four partial sums for each half."""
    words, sums = b.load(row, vec(i16, 8)), [None, None]
    for plane in range(4):
        shifted = b.ir.lshr(words, b.splat(i16, 8, 2 * plane))
        codes = b.ir.and_(b.cast(shifted, vec(i8, 16)), b.splat(i8, 16, 3))
        for half, code in enumerate(_halves(b, codes, b.ir.zext)):
            part = b.call("llvm.x86.sse2.pmadd.wd", vec(i32, 4), [code, quants[plane][half]])
            sums[half] = part if plane == 0 else b.ir.add(sums[half], part)
    return sums


def _sum_each(b, x):
    """Four vectors of four int32 -> the sum of each."""
    add, pairs = b.ir.add, []
    for left, right in (x[0:2], x[2:4]):
        pairs.append(add(b.shuffle(left, right, [0, 1, 4, 5]), b.shuffle(left, right, [2, 3, 6, 7])))
    return add(b.shuffle(*pairs, [0, 2, 4, 6]), b.shuffle(*pairs, [1, 3, 5, 7]))


@vector
def _rows(b, w, stride, planes, minus_sums, d, blocks, results):
    """Four rows times one column."""
    rows = [b.pointer(b.add(w, b.mul(stride, r))) for r in range(GROUP)]
    column, minus, scales = b.pointer(planes), b.pointer(minus_sums), b.pointer(d)

    def block(i, acc):
        offset, at = b.mul(i, 18), b.at(column, b.mul(i, 64))
        quants = [_halves(b, b.load(b.at(at, 16 * plane), vec(i8, 16)), b.ir.sext) for plane in range(4)]
        sums = [_sums_of_row(b, b.at(row, b.add(offset, 2)), quants) for row in rows]
        sumi = None
        for half in range(2):
            place = b.add(b.mul(i, 8), 4 * half)
            exact = b.ir.add(_sum_each(b, [s[half] for s in sums]), scalar_at(b, b.at(minus, place), i32, 4))
            scale, exact = scalar_at(b, b.at(scales, place), f32, 4), b.to_f32(exact)
            sumi = b.ir.fmul(scale, exact) if half == 0 else b.fma_exact_product(scale, exact, sumi)
        return [b.fma(scales_of_rows(b, [b.at(row, offset) for row in rows]), sumi, acc[0])]

    (acc,) = b.loop(blocks, [b.zero(f32, 4)], block)
    b.store(acc, b.pointer(results), 16)


@inner
def group_product(w, stride, planes, minus_sums, d, columns, width, results):
    """results[column][row] of four rows and a tile's columns."""
    for c in range(columns):
        at = c * width // 8
        _rows(w, stride, planes + c * width, minus_sums + at, d + at, width // 64, results + 4 * GROUP * c)
