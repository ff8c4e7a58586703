"""Q1_0 products with AVX2: 32 rows in the byte lanes, sums of four activations looked up by `vpshufb`.

The sum of four signed activations fits ten bits once 512 is added: two tables of 16 bytes, low and high. A group's
half bytes are transposed first, so that one vector holds the same one of 32 rows. Lane j of the reference's eight is
the j-th four of each 32; all its 128-blocks are done before the next lane, and the vectors of rows stay in registers.

Tables of a tile: [128-block][column][32-block][lane][low 16, high 16]. The work area: half bytes [block][32][32],
scales float32 [block][4][8], lanes float32 [8][4][8]; four vectors of rows, 4a..4a+3 and 16+4a..16+4a+3 in vector a.
"""

from bankml.cpu.compile import inner
from bankml.cpu.lanes import duplicate, scalar_at, scales_of_rows, sum_of_lanes
from bankml.cpu.simd import f32, i8, i16, i32, i64, vec, vector

GROUP = 32
TILE = 8
TABLE_BYTES = 8  # per activation
HALVES, SCALES, LANES = 1024, 128, 8 * 4 * 32  # bytes of a block, of a block, of all lanes
BIAS = 512
MAGIC = 0x4B00  # as the upper half of a float32 it makes 2^23 + the lower half


def work_bytes(width):
    """Bytes of scratch that a group's product needs."""
    return width // 128 * (HALVES + SCALES) + LANES


@vector
def _build_tables(b, q, d, table):
    """Tables of one column's 128-block from 128 int8."""
    build, quants, out = b.ir, b.pointer(q), b.pointer(table)
    bits = [entry >> j & 1 for entry in range(16) for j in range(4)]
    chosen = [b.lanes(i8, bits[32 * half : 32 * half + 32]) for half in range(2)]
    others = [b.lanes(i8, [1 - bit for bit in bits[32 * half : 32 * half + 32]]) for half in range(2)]

    def four(j, _):
        values = b.cast(scalar_at(b, b.at(quants, b.mul(j, 4)), i32, 8), vec(i8, 32))
        negated = build.sub(b.zero(i8, 32), values)  # wraps -128, as the reference's int8 negation does
        bias = b.splat(i32, 8, BIAS)
        sums = [b.dot_u8_i8(b.dot_u8_i8(bias, chosen[h], values), others[h], negated) for h in range(2)]
        sums = b.concat(*sums)
        target = b.at(out, b.mul(j, 32))
        b.store(build.trunc(sums, vec(i8, 16)), target, 16)
        b.store(build.trunc(build.lshr(sums, b.splat(i32, 16, 8)), vec(i8, 16)), b.at(target, 16), 16)
        return []

    b.loop(32, [], four)


@inner
def build_tables(q, d, table, block, column, columns):
    """Tables of 128-block `block` of a column of a tile."""
    _build_tables(q, d, table + 1024 * (block * columns + column))


def _unpack(b, x, y, high):
    """`vpunpckl` or `vpunpckh`: lanes of x and y in turn, within each 128 bits."""
    count = x.type.count
    lane = count // 2
    picked = [lane * part + (lane // 2 if high else 0) + e for part in range(2) for e in range(lane // 2)]
    return b.shuffle(x, y, [index for e in picked for index in (e, count + e)])


@vector
def _transpose(b, w, stride, blocks, turned, scales):
    """The half bytes of 32 rows' blocks, transposed, and their scales."""
    rows = [b.pointer(b.add(w, b.mul(stride, r))) for r in range(GROUP)]
    ahead = b.pointer(b.add(w, b.mul(stride, GROUP)))
    halves_out, scales_out = b.pointer(turned), b.pointer(scales)

    def block(i, _):
        offset = b.mul(i, 18)
        for line in range(9):
            b.prefetch(b.at(ahead, b.add(b.mul(i, 18 * GROUP), 64 * line)))
        places = [b.at(row, b.add(offset, 2)) for row in rows]
        pairs = [b.concat(*(b.load(places[r + side], vec(i64, 2)) for side in (0, 16))) for r in range(16)]
        x = [b.cast(pair, vec(i8, 32)) for pair in pairs]
        for _ in range(4):
            x = [_unpack(b, x[e // 2], x[e // 2 + 8], e % 2 == 1) for e in range(16)]
        for j, v in enumerate(x):
            upper = b.cast(b.ir.lshr(b.cast(v, vec(i16, 16)), b.splat(i16, 16, 4)), vec(i8, 32))
            for half, nibbles in enumerate((v, upper)):
                place = b.at(halves_out, b.add(b.mul(i, HALVES), 64 * j + 32 * half))
                b.store(b.ir.and_(nibbles, b.splat(i8, 32, 15)), place, 32)
        for a in range(4):
            members = [4 * a + e for e in range(4)] + [16 + 4 * a + e for e in range(4)]
            d0 = scales_of_rows(b, [b.at(rows[r], offset) for r in members])
            b.store(d0, b.at(scales_out, b.add(b.mul(i, SCALES), 32 * a)), 32)
        return []

    b.loop(blocks, [], block)


def _look_up(b, table, index):
    """16-bit sums (biased) of 32 rows, in two vectors of 16."""
    halves = []
    for part in range(2):
        entries = b.cast(duplicate(b, b.load(b.at(table, 16 * part), vec(i64, 2), 16)), vec(i8, 32))
        halves.append(b.call("llvm.x86.avx2.pshuf.b", vec(i8, 32), [entries, index]))
    return [b.cast(_unpack(b, *halves, high), vec(i16, 16)) for high in (False, True)]


@vector
def _column(b, turned, scales, table, table_stride, d, blocks, lanes, results):
    """32 rows times one column."""
    build = b.ir
    halves_in, scales_in, tables, d1, out = (b.pointer(p) for p in (turned, scales, table, d, lanes))
    upper, bias = b.splat(i16, 16, MAGIC), b.splat(f32, 8, float((1 << 23) + BIAS))

    def lane(j, _):
        def block(i, acc):
            here = b.at(halves_in, b.add(b.mul(i, HALVES), b.mul(j, 32)))
            entries = b.at(tables, b.add(b.mul(i, table_stride), b.mul(j, 32)))
            sums = [None] * 4
            for k in range(4):
                pair = _look_up(b, b.at(entries, 256 * k), b.load(b.at(here, 256 * k), vec(i8, 32), 32))
                scale = scalar_at(b, b.at(d1, b.add(b.mul(i, 16), 4 * k)), f32, 8)
                for a in range(4):
                    exact = build.fsub(b.cast(_unpack(b, pair[a // 2], upper, a % 2 == 1), vec(f32, 8)), bias)
                    sums[a] = build.fmul(scale, exact) if k == 0 else b.fma(scale, exact, sums[a])
            d0 = [b.load(b.at(scales_in, b.add(b.mul(i, SCALES), 32 * a)), vec(f32, 8), 32) for a in range(4)]
            return [b.fma(d0[a], sums[a], acc[a]) for a in range(4)]

        for a, total in enumerate(b.loop(blocks, [b.zero(f32, 8)] * 4, block)):
            b.store(total, b.at(out, b.add(b.mul(j, 128), 32 * a)), 32)
        return []

    b.loop(8, [], lane)
    for a in range(4):
        total = sum_of_lanes(b, [b.load(b.at(out, 128 * j + 32 * a), vec(f32, 8), 32) for j in range(8)])
        b.store(b.low(total), b.pointer(results, 16 * a), 16)
        b.store(b.high(total), b.pointer(results, 64 + 16 * a), 16)


@inner
def group_product(w, stride, q, d, table, columns, width, work, coming, results):
    """results[column][row] of 32 rows and a tile's columns, from the tile's tables."""
    blocks = width // 128
    scales = work + blocks * HALVES
    _transpose(w, stride, blocks, work, scales)
    for c in range(columns):
        lanes, d1 = scales + blocks * SCALES, d + c * width // 8
        _column(work, scales, table + 1024 * c, 1024 * columns, d1, blocks, lanes, results + 4 * GROUP * c)
