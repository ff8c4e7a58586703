"""F16 products with AVX-512. A zmm holds two rows of the tile, or two of the reference's four accumulators of a row."""

from bankml.cpu.compile import inner
from bankml.cpu.f16_eight import column_pointers, finish_dot, row_pointers
from bankml.cpu.lanes import duplicate
from bankml.cpu.simd import f32, i16, i64, vec, vector

DOT_ROWS = 4
GROUP = 8
TILE = 6


@vector
def dot_rows(b, w, stride, x, width, results):
    """Four rows times one column: accumulators 0|1 and 2|3 of a row in one zmm each."""
    rows, ahead = row_pointers(b, w, stride, DOT_ROWS)
    column = b.pointer(x)

    def block(i, acc):
        acc = list(acc)
        values = [b.load(b.at(column, b.add(b.mul(i, 128), 64 * half)), vec(f32, 16)) for half in range(2)]
        for r, row in enumerate(rows):
            b.prefetch(b.at(ahead, b.add(b.mul(i, 64 * DOT_ROWS), 64 * r)))
            for half in range(2):
                weights = b.half_to_f32(b.load(b.at(row, b.add(b.mul(i, 64), 32 * half)), vec(i16, 16)))
                acc[2 * r + half] = b.fma(weights, values[half], acc[2 * r + half])
        return acc

    acc = b.loop(b.ir.lshr(width, b.int(5)), [b.zero(f32, 16)] * (2 * DOT_ROWS), block)
    folded = [b.ir.fadd(acc[2 * r], acc[2 * r + 1]) for r in range(DOT_ROWS)]  # 0+2 | 1+3
    finish_dot(b, [b.ir.fadd(b.low(v), b.high(v)) for v in folded], rows, column, width, results)


def _sum_of_pairs(b, pairs):
    """Four vectors of two rows each -> eight sums in row order, each `((0+4)+(2+6)) + ((1+5)+(3+7))`."""
    build = b.ir
    low = [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27]
    fours = [
        build.fadd(b.shuffle(x, y, [e + 4 for e in low]), b.shuffle(x, y, low)) for x, y in (pairs[0:2], pairs[2:4])
    ]
    twos = [e for q in range(4) for e in (4 * q, 4 * q + 1, 16 + 4 * q, 17 + 4 * q)]
    pair = build.fadd(b.shuffle(*fours, twos), b.shuffle(*fours, [e + 2 for e in twos]))
    first = [0, 8, 4, 12, 2, 10, 6, 14]
    return build.fadd(b.shuffle(pair, None, first), b.shuffle(pair, None, [e + 1 for e in first]))


def _tile(count):
    """The kernel of eight rows and up to `count` columns; columns that are not there repeat the last one."""

    def tile(b, w, stride, x, columns, width, results):
        rows, ahead = row_pointers(b, w, stride, GROUP)
        places = column_pointers(b, x, columns, width, count)

        def step(i, acc):
            acc, weights = list(acc), []
            offset, at = b.mul(i, 16), b.mul(i, 32)
            for line in range(2):
                b.prefetch(b.at(ahead, b.add(b.mul(i, 128), 64 * line)))
            for pair in range(GROUP // 2):
                two = [b.load(b.at(rows[2 * pair + side], offset), vec(i64, 2)) for side in range(2)]
                weights.append(b.half_to_f32(b.cast(b.concat(*two), vec(i16, 16))))
            for c in range(count):
                values = duplicate(b, b.load(b.at(places[c], at), vec(f32, 8)))
                for pair in range(GROUP // 2):
                    acc[4 * c + pair] = b.fma(weights[pair], values, acc[4 * c + pair])
            return acc

        acc = b.loop(b.ir.lshr(width, b.int(3)), [b.zero(f32, 16)] * (4 * count), step)
        for c in range(count):
            b.store(_sum_of_pairs(b, acc[4 * c : 4 * c + 4]), b.pointer(results, 4 * GROUP * c))

    tile.__name__ = f"tile_{count}"
    return vector(tile)


_tile_2, _tile_4, _tile_6 = (_tile(count) for count in (2, 4, 6))


@inner
def tile_rows(w, stride, x, columns, width, results):
    """results[column][row] of eight rows and up to six columns; room for six is needed."""
    if columns > 4:
        _tile_6(w, stride, x, columns, width, results)
    elif columns > 2:
        _tile_4(w, stride, x, columns, width, results)
    else:
        _tile_2(w, stride, x, columns, width, results)
