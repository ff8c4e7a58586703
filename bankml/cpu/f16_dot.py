"""The end of an F16 dot product, the same at every level."""

from bankml.cpu.lanes import sum8_by_pairs
from bankml.cpu.simd import f32, f64, i16


def finish_dot(b, sums, rows, column, width, results):
    """From each row's eight lanes to its float32 result: the lanes' sum, then the width % 32 values left, in double."""
    build = b.ir
    whole, left = build.and_(width, b.int(~31)), build.and_(width, b.int(31))
    totals = [build.fpext(sum8_by_pairs(b, v), f64) for v in sums]

    def one(i, totals):
        at = b.add(whole, i)
        value, offset = b.load(b.at(column, b.mul(at, 4)), f32), b.mul(at, 2)
        products = [build.fmul(b.half_to_f32(b.load(b.at(row, offset), i16)), value) for row in rows]
        return [build.fadd(total, build.fpext(p, f64)) for total, p in zip(totals, products, strict=True)]

    for r, total in enumerate(b.loop(left, totals, one)):
        b.store(build.fptrunc(total, f32), b.pointer(results, 4 * r), 4)
