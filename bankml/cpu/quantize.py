"""float32 activations to q8_0, as quantize_row_q8_0 does it on AVX2, and to the rounded float32 that F16 products want.

Per 32 values: amax = max |x|; the stored scale is f16(amax / 127), kept here as float32; the quants are
x * (127 / amax), rounded to nearest even and saturated, so that an infinite factor (amax a tiny denormal, scale 0)
gives -128.
"""

import math

import numpy as np
from llvmlite import ir

from bankml.cpu.compile import inner
from bankml.cpu.level import level
from bankml.cpu.simd import f32, i8, i16, i32, i64, vec, vector

BLOCK = 32
STORED = 34  # bytes of a block of 32 values: an f16 scale, then the quants


def _absolute(b, v):
    """Sign bits cleared."""
    word = vec(i32, v.type.count)
    return b.cast(b.ir.and_(b.cast(v, word), b.splat(i32, v.type.count, 0x7FFFFFFF)), v.type)


def _max(b, x, y):
    """`maxps`: the second operand where they are unordered."""
    return b.ir.select(b.ir.fcmp_ordered(">", x, y), x, y)


def _to_i32(b, v):
    """Eight float32 rounded to nearest even as two vectors of four i32; INT_MIN where out of range."""
    if level() == "generic":
        return [b.call("llvm.x86.sse2.cvtps2dq", vec(i32, 4), [half]) for half in (b.low(v), b.high(v))]
    whole = b.call("llvm.x86.avx.cvt.ps2dq.256", vec(i32, 8), [v])
    return [b.low(whole), b.high(whole)]


def _through_half(b, v):
    """float32 rounded to f16 and back."""
    return b.half_to_f32(b.f32_to_half(v))


def _emit_block(b, x, q):
    """32 float32 at x -> 32 int8 at q; returns amax / 127, a float32."""
    build, source, zero = b.ir, b.pointer(x), ir.Constant(f32, 0.0)
    values = [b.load(b.at(source, 32 * i), vec(f32, 8)) for i in range(4)]
    top = _absolute(b, values[0])
    for v in values[1:]:
        top = _max(b, top, _absolute(b, v))
    four = _max(b, b.high(top), b.low(top))
    two = _max(b, four, b.shuffle(four, None, [2, 3, 2, 3]))
    amax = b.element(_max(b, two, b.shuffle(two, None, [1, 1, 3, 3])), 0)
    scale = build.fdiv(amax, ir.Constant(f32, 127.0))
    factor = build.select(build.fcmp_unordered("!=", amax, zero), build.fdiv(ir.Constant(f32, 127.0), amax), zero)
    factor = b.broadcast(factor, 8)
    for half in range(2):
        words = [w for v in values[2 * half : 2 * half + 2] for w in _to_i32(b, build.fmul(v, factor))]
        pairs = [b.call("llvm.x86.sse2.packssdw.128", vec(i16, 8), words[2 * i : 2 * i + 2]) for i in range(2)]
        b.store(b.call("llvm.x86.sse2.packsswb.128", vec(i8, 16), pairs), b.pointer(q, 16 * half))
    return scale


@vector
def quantize_block(b, x, q, d):
    """32 float32 at x -> 32 int8 at q and one float32 scale at d."""
    b.store(_through_half(b, _emit_block(b, x, q)), b.pointer(d), 4)


@vector
def _quantize_stored_block(b, x, block):
    """32 float32 at x -> a block as it is stored: the scale's half, then 32 int8."""
    b.store(b.f32_to_half(_emit_block(b, x, b.add(block, 2))), b.pointer(block))


@vector
def arrange_planes(b, q, planes, minus_sums):
    """64 int8 at q -> planes[j][i] = q[4i+j] (4 x 16 int8), and minus the sum of each 32 as int32."""
    source, build = b.pointer(q), b.ir
    halves = [b.load(b.at(source, 32 * i), vec(i8, 32)) for i in range(2)]
    even, odd = (b.shuffle(halves[0], halves[1], range(start, 64, 2)) for start in (0, 1))
    for plane, (v, start) in enumerate([(even, 0), (odd, 0), (even, 1), (odd, 1)]):
        b.store(b.shuffle(v, None, range(start, 32, 2)), b.pointer(planes, 16 * plane))
    for half in range(2):
        total = None
        for part in range(2):
            quants = b.load(b.at(source, 32 * half + 16 * part), vec(i8, 16))
            shifted = build.xor(quants, b.splat(i8, 16, -128))
            sad = b.call("llvm.x86.sse2.psad.bw", vec(i64, 2), [shifted, b.zero(i8, 16)])
            total = sad if total is None else build.add(total, sad)
        total = build.add(b.element(total, 0), b.element(total, 1))
        b.store(build.trunc(build.sub(b.int(32 * 128), total), i32), b.pointer(minus_sums, 4 * half), 4)


@vector
def round_to_half(b, x, out):
    """Eight float32 at x, rounded to f16 and back, to out."""
    b.store(_through_half(b, b.load(b.pointer(x), vec(f32, 8))), b.pointer(out))


@vector
def round_one_to_half(b, x, out):
    """One float32 at x, rounded to f16 and back, to out."""
    b.store(_through_half(b, b.load(b.pointer(x), f32)), b.pointer(out))


@inner
def quantize_blocks(x, q, d, blocks):
    """`blocks` adjacent blocks of 32."""
    for i in range(blocks):
        quantize_block(x + 128 * i, q + 32 * i, d + 4 * i)


@inner
def quantize_stored_blocks(x, blocks, count):
    """`count` adjacent blocks of 32 as q8_0 blocks of 34 bytes."""
    for i in range(count):
        _quantize_stored_block(x + 128 * i, blocks + STORED * i)


def quantize_q8_0_plain(x):
    """float32 (k,) -> int8 (k,), float32 (k/32,): the plain twin of `quantize_block`."""
    quants, scales = np.empty(len(x), np.int8), np.empty(len(x) // BLOCK, np.float32)
    with np.errstate(all="ignore"):
        for i in range(len(scales)):
            block = x[BLOCK * i : BLOCK * (i + 1)]
            amax = np.float32(max(abs(float(v)) for v in block))
            scales[i] = np.float16(amax / np.float32(127))
            factor = np.float32(127) / amax if amax != 0 else np.float32(0)
            for j, value in enumerate(block):
                scaled = float(value * factor)
                rounded = round(scaled) if math.isfinite(scaled) else -(2**31)  # what cvtps2dq makes of it
                quants[BLOCK * i + j] = min(127, max(-128, rounded))
    return quants, scales
