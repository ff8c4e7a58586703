"""F16 products in vectors of eight lanes, as the reference has them: what the AVX2 and generic levels are made of."""

from bankml.cpu.lanes import sum8, sum8_by_pairs
from bankml.cpu.simd import f32, f64, i16, vec


def row_pointers(b, w, stride, count):
    """Pointers to `count` rows, and to the row after them."""
    rows = [b.pointer(b.add(w, b.mul(stride, r))) for r in range(count + 1)]
    return rows[:count], rows[count]


def column_pointers(b, x, columns, width, count):
    """Pointers to `count` columns of `width` float32; those that are not there repeat the last."""
    last, pointers = b.ir.sub(columns, b.int(1)), []
    for c in range(count):
        index = b.ir.select(b.ir.icmp_signed("<", b.int(c), last), b.int(c), last)
        pointers.append(b.pointer(b.add(x, b.mul(b.mul(index, width), 4))))
    return pointers


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


def dot_in_eights(b, count, w, stride, x, width, results):
    """`count` rows times one column, four accumulators of eight lanes a row."""
    rows, ahead = row_pointers(b, w, stride, count)
    column = b.pointer(x)

    def block(i, acc):
        acc = list(acc)
        values = [b.load(b.at(column, b.add(b.mul(i, 128), 32 * part)), vec(f32, 8)) for part in range(4)]
        for r, row in enumerate(rows):
            b.prefetch(b.at(ahead, b.add(b.mul(i, 64 * count), 64 * r)))
            for part in range(4):
                weights = b.half_to_f32(b.load(b.at(row, b.add(b.mul(i, 64), 16 * part)), vec(i16, 8)))
                acc[4 * r + part] = b.fma_exact_product(weights, values[part], acc[4 * r + part])
        return acc

    acc = b.loop(b.ir.lshr(width, b.int(5)), [b.zero(f32, 8)] * (4 * count), block)
    fours, add = [acc[4 * r : 4 * r + 4] for r in range(count)], b.ir.fadd
    finish_dot(b, [add(add(a[0], a[2]), add(a[1], a[3])) for a in fours], rows, column, width, results)


def tile_in_eights(b, height, count, w, stride, x, columns, width, results, pitch=None):
    """results[column][row] of `height` rows and up to `count` columns, one accumulator of eight lanes each.

    pitch: the rows that a column of `results` has room for, if not `height`. Weights stay in registers while the
    columns pass, which leaves 16 registers enough for twelve accumulators.
    """
    rows, _ = row_pointers(b, w, stride, height)
    places = column_pointers(b, x, columns, width, count)

    def step(i, acc):
        acc = list(acc)
        weights = [b.half_to_f32(b.load(b.at(row, b.mul(i, 16)), vec(i16, 8))) for row in rows]
        for c, place in enumerate(places):
            values = b.load(b.at(place, b.mul(i, 32)), vec(f32, 8))
            for r in range(height):
                acc[height * c + r] = b.fma_exact_product(weights[r], values, acc[height * c + r])
        return acc

    acc = b.loop(b.ir.lshr(width, b.int(3)), [b.zero(f32, 8)] * (height * count), step)
    for i, v in enumerate(acc):
        c, r = divmod(i, height)
        b.store(sum8(b, v), b.pointer(results, 4 * (c * (pitch or height) + r)), 4)
