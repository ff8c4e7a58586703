"""Pieces of vector code that the matrix products share: horizontal sums in the reference's orders, and rows turned
into lanes. All are functions over a `simd.Builder`.
"""

from llvmlite import ir

from bankml.cpu.simd import i16, i32, vec


def sum_of_lanes(b, lanes):
    """`((0+4)+(2+6)) + ((1+5)+(3+7))` over a list of eight vectors (a row per lane); equals hsum_float_8."""
    half = [b.ir.fadd(lanes[i + 4], lanes[i]) for i in range(4)]
    return b.ir.fadd(b.ir.fadd(half[0], half[2]), b.ir.fadd(half[1], half[3]))


def sum8(b, v):
    """`((0+4)+(2+6)) + ((1+5)+(3+7))` within a vector of eight: hsum_float_8, and the hsum of llamafile's tiles."""
    four = b.ir.fadd(b.high(v), b.low(v))
    two = b.ir.fadd(four, b.shuffle(four, None, [2, 3, 2, 3]))
    return b.ir.fadd(b.element(two, 0), b.element(two, 1))


def sum8_by_pairs(b, v):
    """`((0+4)+(1+5)) + ((2+6)+(3+7))` within a vector of eight: the end of ggml_vec_dot_f16."""
    four = b.ir.fadd(b.low(v), b.high(v))
    pairs = b.ir.fadd(four, b.shuffle(four, None, [1, 0, 3, 2]))
    return b.ir.fadd(b.element(pairs, 0), b.element(pairs, 2))


def duplicate(b, v):
    """The lanes twice over."""
    return b.shuffle(v, None, list(range(v.type.count)) * 2)


def scalar_at(b, pointer, kind, count):
    """A scalar from memory in every lane."""
    return b.broadcast(b.load(pointer, kind), count)


# ---- sixteen rows in the lanes (AVX-512) -----------------------------------------------------------------------------


class RowBlocks:
    """Sixteen rows of 18-byte blocks (an f16 scale, then 16 bytes), read in place: `address` + row * `stride`."""

    def __init__(self, b, address, stride):
        self.b = b
        self.steps = [None, stride, b.mul(stride, 2), b.mul(stride, 3)]
        self.quads = [b.pointer(b.add(address, b.mul(stride, 4 * q))) for q in range(4)]

    def quants(self, offset):
        """The 16 bytes after the scale of the block at byte `offset` of each row: four vectors of 16 dwords."""
        b = self.b
        at = b.add(offset, 2)
        whole = []
        for step in self.steps:
            places = [b.at(quad, at) for quad in self.quads]
            if step is not None:
                places = [b.at(place, step) for place in places]
            x = [b.load(place, vec(i32, 4)) for place in places]
            whole.append(b.concat(b.concat(x[0], x[1]), b.concat(x[2], x[3])))
        return _transpose_4x4(b, *whole)

    def scales(self, offset):
        """float32 of the 16 scales at byte `offset`."""
        return self.b.half_to_f32(self.b.ir.trunc(self.dwords(offset), vec(i16, 16)))

    def dwords(self, offset):
        """The dword at byte `offset` of each row: inserted one by one, which costs less than a gather."""
        b, fours = self.b, []
        for quad in self.quads:
            four = ir.Constant(vec(i32, 4), ir.Undefined)
            for r, step in enumerate(self.steps):
                place = b.at(quad, offset)
                word = b.load(place if step is None else b.at(place, step), i32)
                four = b.ir.insert_element(four, word, b.int(r, i32))
            fours.append(four)
        return b.concat(b.concat(*fours[:2]), b.concat(*fours[2:]))

    def block_pair(self, offset):
        """The 36 bytes of the two blocks at byte `offset` of each row: nine vectors of 16 dwords.

        Fewer loads and insertions than reading the blocks one by one.
        """
        b, vectors = self.b, []
        for quad in (0, 2):
            for step in self.steps:
                places = [b.at(self.quads[q], offset) for q in (quad, quad + 1)]
                if step is not None:
                    places = [b.at(place, step) for place in places]
                vectors.append(b.concat(*(b.load(place, vec(i32, 8)) for place in places)))
        left, right = _transpose_4x4(b, *vectors[:4]), _transpose_4x4(b, *vectors[4:])
        lanes = [e + 8 * part for part in range(4) for e in range(4)]  # every other 128 bits of the two
        first = [b.shuffle(x, y, lanes) for x, y in zip(left, right, strict=True)]
        second = [b.shuffle(x, y, [e + 4 for e in lanes]) for x, y in zip(left, right, strict=True)]
        return [*first, *second, self.dwords(b.add(offset, 32))]


def _transpose_4x4(b, a0, a1, a2, a3):
    """Dword c of 128-bit lane l of vector r goes to lane 4l+r of vector c."""
    first = [e for lane in range(4) for e in (4 * lane, 16 + 4 * lane, 4 * lane + 1, 17 + 4 * lane)]
    second = [e + 2 for e in first]
    low = [e for q in range(4) for e in (4 * q, 4 * q + 1, 16 + 4 * q, 17 + 4 * q)]
    high = [e + 2 for e in low]
    t0, t1 = b.shuffle(a0, a1, first), b.shuffle(a2, a3, first)
    t2, t3 = b.shuffle(a0, a1, second), b.shuffle(a2, a3, second)
    return [b.shuffle(t0, t1, low), b.shuffle(t0, t1, high), b.shuffle(t2, t3, low), b.shuffle(t2, t3, high)]


def prefetch_ahead(b, address, distance, offset, lines, near=True):
    """Ask for `lines` cache lines from `address + distance + offset` on, into the first cache or the second."""
    start = b.pointer(b.add(b.add(address, distance), offset))
    for line in range(lines):
        b.prefetch(b.at(start, 64 * line), near)


# ---- eight rows' scales, any level -----------------------------------------------------------------------------------


def scales_of_rows(b, pointers):
    """float32 of the halves at a list of pointers, one per lane."""
    halves = ir.Constant(vec(i16, len(pointers)), ir.Undefined)
    for lane, pointer in enumerate(pointers):
        halves = b.ir.insert_element(halves, b.load(pointer, i16), b.int(lane, i32))
    return b.half_to_f32(halves)
