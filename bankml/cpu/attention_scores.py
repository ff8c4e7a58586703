"""Scores of the reference attention kernel: dot products of cells' keys with Q rounded to halves, times the scale.

Each is added up as `ggml_vec_dot_f16` does it: four 8-lane FMA chains over 32 values, `(a0+a2) + (a1+a3)`, then
`((0+4)+(1+5)) + ((2+6)+(3+7))`. Several cells and heads go together, each with sums of its own.
"""

from bankml.cpu.attention_ahead import AGAIN, emit_asked
from bankml.cpu.compile import inner
from bankml.cpu.level import level
from bankml.cpu.online_softmax import RUN
from bankml.cpu.simd import f32, i16, i32, vec, vector

LANES = 16 if level() == "avx512" else 8
# cells and heads whose scores are computed together, as far as there are registers for their sums
CELLS, HEADS = {"avx512": (4, 2), "avx2": (1, 2), "generic": (2, 1)}[level()]
STEP = 32  # values of a head in one step of the dot product


def _emit_dot_sum(b, sums):
    """Eight lanes of one dot product: accumulators a0..a3 as (a0+a2) + (a1+a3)."""
    if LANES == 16:  # [a0|a1], [a2|a3]
        both = b.ir.fadd(*sums)
        return b.ir.fadd(b.low(both), b.high(both))
    return b.ir.fadd(b.ir.fadd(sums[0], sums[2]), b.ir.fadd(sums[1], sums[3]))


def _emit_lane_sums(b, vectors):
    """Of each 8-lane vector ((0+4)+(1+5)) + ((2+6)+(3+7)); a vector of as many values."""

    def add_pairs(v):
        count = v.type.count
        return b.ir.fadd(b.shuffle(v, None, range(0, count, 2)), b.shuffle(v, None, range(1, count, 2)))

    joined = [b.ir.fadd(b.low(v), b.high(v)) for v in vectors]
    while len(joined) > 1:
        joined = [b.concat(*joined[i : i + 2]) for i in range(0, len(joined), 2)]
    return add_pairs(add_pairs(joined[0]))


def _emit_eight_dots(b, sums):
    """`_emit_dot_sum` and `_emit_lane_sums` of eight dot products at once, of 16 lanes each; a vector of eight values.

    Lanes to be added are brought together from two vectors at a time, so that every addition has all lanes at work.
    """

    def folded(first, second, width):
        """Of every `width` lanes of both, the lower half added to the upper."""
        lanes = range(32)
        low, high = ([i for i in lanes if i % width // (width // 2) == side] for side in (0, 1))
        return b.ir.fadd(b.shuffle(first, second, low), b.shuffle(first, second, high))

    x = [b.ir.fadd(*sums[2 * dot : 2 * dot + 2]) for dot in range(8)]
    y = [folded(*x[i : i + 2], 16) for i in range(0, 8, 2)]
    z = [folded(*y[i : i + 2], 8) for i in range(0, 4, 2)]  # four lanes of four dot products
    even = [4 * dot + i + side for dot in range(4) for side in (0, 16) for i in (0, 2)]
    w = b.ir.fadd(b.shuffle(*z, even), b.shuffle(*z, [lane + 1 for lane in even]))
    w = b.ir.fadd(w, b.shuffle(w, None, [lane ^ 1 for lane in range(16)]))
    return b.shuffle(w, None, [0, 4, 8, 12, 2, 6, 10, 14])


def _make_scores(name, heads, whole, steps_known=None):
    """An intrinsic: the scaled scores of CELLS cells (the last one again where fewer remain) for `heads` heads.

    k: first cell; q: float32 (heads, 32 * steps), half-precision values; out: float32, RUN of them per head; ahead and
    number: see `emit_asked`. whole: CELLS cells do remain.
    """
    parts = STEP // LANES

    def scores(b, k, stride, remaining, q, steps, out, scale, ahead, number):
        last, cells = b.ir.sub(remaining, b.int(1)), []
        for cell in range(CELLS):
            at = b.int(cell) if whole else b.ir.select(b.ir.icmp_signed("<", last, b.int(cell)), last, b.int(cell))
            cells.append(b.pointer(b.add(k, b.mul(stride, at))))
        asked = emit_asked(b, ahead, number, CELLS)
        steps = steps if steps_known is None else b.int(steps_known)
        queries = [b.pointer(b.add(q, b.mul(steps, 4 * STEP * head))) for head in range(heads)]

        def one(i, sums):
            sums = list(sums)
            for cell in range(CELLS):
                b.prefetch(b.at(asked[cell], b.mul(i, 2 * STEP)))
                b.prefetch(b.at(cells[cell], b.add(b.mul(i, 2 * STEP), b.mul(stride, AGAIN))))
            for part in range(parts):
                q_at = b.add(b.mul(i, 4 * STEP), 4 * LANES * part)
                k_at = b.add(b.mul(i, 2 * STEP), 2 * LANES * part)
                query = [b.load(b.at(pointer, q_at), vec(f32, LANES)) for pointer in queries]
                for cell, pointer in enumerate(cells):
                    key = b.half_to_f32(b.load(b.at(pointer, k_at), vec(i16, LANES)))
                    for head in range(heads):
                        at = (head * CELLS + cell) * parts + part
                        sums[at] = b.fma_exact_product(key, query[head], sums[at])
            return sums

        sums = [b.zero(f32, LANES)] * (heads * CELLS * parts)
        if steps_known is None:
            sums = b.loop(steps, sums, one)
        else:
            for i in range(steps_known):
                sums = one(b.int(i), sums)
        if heads * CELLS == 8 and LANES == 16:
            eight = _emit_eight_dots(b, sums)
            dots = [b.low(eight), b.high(eight)]
        else:
            groups = [sums[at : at + CELLS * parts] for at in range(0, len(sums), CELLS * parts)]
            dots = [
                _emit_lane_sums(b, [_emit_dot_sum(b, group[at : at + parts]) for at in range(0, len(group), parts)])
                for group in groups
            ]
        factor = b.broadcast(b.cast(b.ir.trunc(scale, i32), f32), CELLS)
        for head, values in enumerate(dots):
            b.store(b.ir.fmul(values, factor), b.pointer(out, 4 * RUN * head))

    scores.__name__ = name
    return vector(scores)


_scores_of_one = _make_scores("scores_of_one", 1, False)
_scores_of_more = _make_scores("scores_of_more", HEADS, False)
_whole_scores_of_more = _make_scores("whole_scores_of_more", HEADS, True)
_whole_scores_of_128 = _make_scores("whole_scores_of_128", HEADS, True, 128 // STEP)


@inner
def block_scores(k, stride, count, q, heads, size, scores, scale, ahead, number):
    """Scores of `count` cells for heads that share them, float32 (heads, RUN)."""
    for cell in range(0, count, CELLS):
        at, remaining, out, asked = k + stride * cell, count - cell, scores + 4 * cell, number + cell
        head = 0
        while heads - head >= HEADS:
            query, to = q + 4 * size * head, out + 4 * RUN * head
            if remaining < CELLS:
                _scores_of_more(at, stride, remaining, query, size // STEP, to, scale, ahead, asked)
            elif size == 128:
                _whole_scores_of_128(at, stride, remaining, query, size // STEP, to, scale, ahead, asked)
            else:
                _whole_scores_of_more(at, stride, remaining, query, size // STEP, to, scale, ahead, asked)
            head += HEADS
        if head < heads:
            query, to = q + 4 * size * head, out + 4 * RUN * head
            _scores_of_one(at, stride, remaining, query, size // STEP, to, scale, ahead, asked)
