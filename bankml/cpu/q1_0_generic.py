"""Q1_0 products for any x86-64: one row and one column at a time, the signs by a byte mask, no table."""

from bankml.cpu.compile import inner
from bankml.cpu.lanes import scalar_at, sum8
from bankml.cpu.simd import f32, i8, i16, i32, vec, vector

GROUP = 1
TILE = 8
TABLE_BYTES = 0


def work_bytes(width):
    """Bytes of scratch that a group's product needs."""
    return 0


@inner
def build_tables(q, d, table, block, column, columns):
    """No tables at this level."""


def _signed(b, bits, quants):
    """16 int8 with the sign changed where the bit is clear; int8 wraps -128. `bits` holds two bytes, 8 lanes each."""
    single = b.lanes(i8, [1, 2, 4, 8, 16, 32, 64, -128] * 2)
    clear = b.ir.icmp_unsigned("==", b.ir.and_(bits, single), b.zero(i8, 16))
    mask = b.ir.sext(clear, vec(i8, 16))
    return b.ir.sub(b.ir.xor(quants, mask), mask)


def _sums_of_four(b, v):
    """16 int8 -> four int32, each the sum of four adjacent ones."""
    words, eight = b.cast(v, vec(i16, 8)), b.splat(i16, 8, 8)
    pairs = b.ir.add(b.ir.ashr(b.ir.shl(words, eight), eight), b.ir.ashr(words, eight))
    return b.call("llvm.x86.sse2.pmadd.wd", vec(i32, 4), [pairs, b.splat(i16, 8, 1)])


@vector
def _dot(b, w, q, d, blocks, result):
    """One row times one column."""
    row, quants, scales = b.pointer(w), b.pointer(q), b.pointer(d)

    def block(i, acc):
        here, ab = b.at(row, b.mul(i, 18)), None
        for k in range(4):
            four = b.load(b.at(here, 2 + 4 * k), vec(i8, 4))
            sums = []
            for half in range(2):
                bits = b.shuffle(four, None, [2 * half] * 8 + [2 * half + 1] * 8)
                at = b.add(b.mul(i, 128), 32 * k + 16 * half)
                sums.append(_sums_of_four(b, _signed(b, bits, b.load(b.at(quants, at), vec(i8, 16)))))
            exact, scale = b.to_f32(b.concat(*sums)), scalar_at(b, b.at(scales, b.add(b.mul(i, 16), 4 * k)), f32, 8)
            ab = b.ir.fmul(scale, exact) if k == 0 else b.fma_exact_product(scale, exact, ab)
        d0 = b.broadcast(b.half_to_f32(b.load(here, i16)), 8)
        return [b.fma(d0, ab, acc[0])]

    (acc,) = b.loop(blocks, [b.zero(f32, 8)], block)
    b.store(sum8(b, acc), b.pointer(result), 4)


@inner
def group_product(w, stride, q, d, table, columns, width, work, coming, results):
    """results[column] of one row and a tile's columns."""
    for c in range(columns):
        _dot(w, q + c * width, d + c * width // 8, width // 128, results + 4 * c)
