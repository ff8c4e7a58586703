"""sinf and cosf with glibc's bits, in lanes: RoPE's table. glibc's own are never called.

The method is that of Arm's optimized-routines, which glibc took over: in double, the argument less the nearest multiple
n of pi/2, by one FMA below 120 and by 96 bits of 2/pi above; then a polynomial for the sine and one for the cosine of
what is left. n says which of the two is wanted, and its sign. Checked against glibc on every float32 up to 100,000 in
magnitude (`testing/check_libm.py`).
"""

import numpy as np

from bankml.cpu.floats import scalar_function
from bankml.cpu.plain import fma64
from bankml.cpu.simd import f32, f64, i32, i64, vec

HALF_PI = float.fromhex("0x1.921fb54442d18p+0")
PER_HALF_PI = float.fromhex("0x1.45f306dc9c883p+23")  # 2^24 / (pi / 2)
SINE = [float.fromhex(text) for text in ("-0x1.555545995a603p-3", "0x1.1107605230bc4p-7", "-0x1.994eb3774cf24p-13")]
COSINE = [1.0] + [
    float.fromhex(text)
    for text in ("-0x1.ffffffd0c621cp-2", "0x1.55553e1068f19p-5", "-0x1.6c087e89a359dp-10", "0x1.99343027bf8c3p-16")
]
LARGE, TINY = 120.0, 2.0**-12
TWO_PER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041  # the first 192 bits after the point
WINDOWS = [TWO_PER_PI >> max(0, 184 - 8 * i) & 0xFFFFFFFF for i in range(24)]  # 32 bits that end at bit 8 * (i + 1)
QUARTER = 1 << 62  # of a turn of 2^64


def _emit_near(b, x):
    """(n, x - n * pi/2) of float32 lanes below LARGE in magnitude."""
    count = x.type.count
    wide = b.ir.fpext(x, vec(f64, count))
    turns = b.ir.fptosi(b.ir.fmul(wide, b.splat(f64, count, PER_HALF_PI)), vec(i32, count))
    n = b.ir.ashr(b.ir.add(turns, b.splat(i32, count, 1 << 23)), b.splat(i32, count, 24))
    minus_n = b.ir.fneg(b.ir.sitofp(n, wide.type))
    return n, b.fma(minus_n, b.splat(f64, count, HALF_PI), wide)


def _emit_far(b, bits):
    """(n, the rest) of lanes' magnitudes, given as i32 bits: a 32-bit mantissa times a window of 2/pi."""
    build, count = b.ir, bits.type.count

    def word(value):
        return b.splat(i64, count, value)

    bits = build.zext(bits, vec(i64, count))
    mantissa = build.or_(build.and_(bits, word(0x7FFFFF)), word(0x800000))
    mantissa = build.shl(mantissa, build.and_(build.lshr(bits, word(23)), word(7)))
    index = build.and_(build.lshr(bits, word(26)), word(15))
    table = b.table("two_per_pi", i64, WINDOWS)
    high, middle, low = (build.mul(mantissa, b.look_up(table, build.add(index, word(at)), i64)) for at in (0, 4, 8))
    turn = build.add(build.or_(build.shl(high, word(32)), build.lshr(low, word(32))), middle)
    n = build.lshr(build.add(turn, word(QUARTER // 2)), word(62))
    rest = build.sitofp(build.sub(turn, build.shl(n, word(62))), vec(f64, count))
    return build.trunc(n, vec(i32, count)), build.fmul(rest, b.splat(f64, count, HALF_PI / QUARTER))


def _emit_polynomials(b, x):
    """Sine and cosine of doubles within pi/4, as float32."""
    build, count = b.ir, x.type.count
    s1, s2, s3 = (b.splat(f64, count, c) for c in SINE)
    c0, c1, c2, c3, c4 = (b.splat(f64, count, c) for c in COSINE)
    square = build.fmul(x, x)
    cube, fourth = build.fmul(square, x), build.fmul(square, square)
    sine = b.fma(build.fmul(square, cube), b.fma(square, s3, s2), b.fma(cube, s1, x))
    low = b.fma(fourth, c2, b.fma(square, c1, c0))
    cosine = b.fma(build.fmul(square, fourth), b.fma(square, c4, c3), low)
    return [build.fptrunc(value, vec(f32, count)) for value in (sine, cosine)]


def emit_sinf_cosf(b, x):
    """(sine, cosine) of float32 lanes, any number of them; NaN for infinities."""
    build, count = b.ir, x.type.count
    words = vec(i32, count)

    def word(value):
        return b.splat(i32, count, value)

    bits = b.cast(x, words)
    magnitude = b.call(f"llvm.fabs.v{count}f32", x.type, [x])
    near = build.fcmp_ordered("<", magnitude, b.splat(f32, count, LARGE))
    n, rest = _emit_near(b, build.select(near, x, b.zero(f32, count)))
    far_n, far_rest = _emit_far(b, b.cast(magnitude, words))
    rest = build.select(near, rest, far_rest)
    n = build.select(near, n, far_n)
    turned = build.add(n, build.select(near, word(0), build.lshr(bits, word(31))))
    odd = build.icmp_unsigned("!=", build.and_(n, word(1)), word(0))
    signs = [build.shl(build.and_(side, word(2)), word(30)) for side in (build.add(turned, word(1)), turned)]
    sine, cosine = (
        b.cast(build.xor(b.cast(value, words), sign), x.type)
        for value, sign in zip(_emit_polynomials(b, rest), signs, strict=True)
    )
    is_tiny = build.fcmp_ordered("<", magnitude, b.splat(f32, count, TINY))
    is_finite = build.fcmp_ordered("<", magnitude, b.splat(f32, count, float("inf")))
    none = build.fsub(x, x)
    results = build.select(odd, cosine, sine), build.select(odd, sine, cosine)
    sine, cosine = (build.select(is_finite, result, none) for result in results)
    return build.select(is_tiny, x, sine), cosine


sinf = scalar_function("sinf", lambda b, x: emit_sinf_cosf(b, x)[0], 1)  # of one float32, inside kernels
cosf = scalar_function("cosf", lambda b, x: emit_sinf_cosf(b, x)[1], 1)


def sinf_cosf_plain(x) -> tuple[np.float32, np.float32]:
    """Sine and cosine of one finite value, in scalar Python."""
    x = np.float32(x)
    if abs(x) < LARGE:
        n = int(float(x) * PER_HALF_PI) + (1 << 23) >> 24
        rest, turned = fma64(-float(n), HALF_PI, float(x)), n
    else:
        n, rest = _far_plain(int(np.abs(x).view("u4")))
        turned = n + int(x < 0)
    (s1, s2, s3), (c0, c1, c2, c3, c4), square = SINE, COSINE, rest * rest
    cube, fourth = square * rest, square * square
    sine = fma64(square * cube, fma64(square, s3, s2), fma64(cube, s1, rest))
    cosine = fma64(square * fourth, fma64(square, c4, c3), fma64(fourth, c2, fma64(square, c1, c0)))
    sine = x if abs(x) < TINY else np.float32(-sine if turned + 1 & 2 else sine)
    cosine = np.float32(-cosine if turned & 2 else cosine)
    return (cosine, sine) if n & 1 else (sine, cosine)


def _far_plain(bits):
    mantissa = ((bits & 0x7FFFFF) | 0x800000) << (bits >> 23 & 7)
    high, middle, low = (mantissa * WINDOWS[(bits >> 26 & 15) + at] for at in (0, 4, 8))
    turn = (high << 32 | low >> 32) + middle & 2**64 - 1
    n = turn + QUARTER // 2 >> 62
    rest = (turn - n * QUARTER) % 2**64
    return n & 3, float(rest - 2**64 if rest >> 63 else rest) * (HALF_PI / QUARTER)
