"""logf and powf with glibc's bits, in lanes: RoPE's frequencies and YaRN's magnitude. glibc's own are never called.

The method is that of Arm's optimized-routines, which glibc took over: x = 2^k * z, with z near 1; a table gives a
reciprocal of the sixteenth that z lies in, the centre of which has the logarithm that the table gives too; a polynomial
in r = z * reciprocal - 1 gives the rest; all in double. powf adds the exponential of `exponential.py`. Checked against
glibc on all 2^32 arguments of logf and on 10^8 pairs in RoPE's range (`testing/check_libm.py`).
"""

from decimal import Decimal, localcontext

import numpy as np

from bankml.cpu.exponential import emit_power_of_two, power_of_two_plain
from bankml.cpu.floats import scalar_function
from bankml.cpu.plain import float_bits, fma64
from bankml.cpu.simd import f32, f64, i32, i64, vec

START = 0x3F330000  # bits of the least z, 0.699; the greatest is twice that
RECIPROCALS = [
    float.fromhex(text)
    for text in (
        *("0x1.661ec79f8f3bep+0", "0x1.571ed4aaf883dp+0", "0x1.49539f0f010b0p+0", "0x1.3c995b0b80385p+0"),
        *("0x1.30d190c8864a5p+0", "0x1.25e227b0b8ea0p+0", "0x1.1bb4a4a1a343fp+0", "0x1.12358f08ae5bap+0"),
        *("0x1.0953f419900a7p+0", "0x1p+0", "0x1.e608cfd9a47acp-1", "0x1.ca4b31f026aa0p-1"),
        *("0x1.b2036576afce6p-1", "0x1.9c2d163a1aa2dp-1", "0x1.886e6037841edp-1", "0x1.767dcf5534862p-1"),
    )
]
LN2 = float.fromhex("0x1.62e42fefa39efp-1")
LN = [float.fromhex(text) for text in ("-0x1.00ea348b88334p-2", "0x1.5575b0be00b6ap-2", "-0x1.ffffef20a4123p-2")]
LOG2 = [float.fromhex(text) for text in ("0x1.27616c9496e0bp-2", "-0x1.71969a075c67ap-2", "0x1.ec70a6ca7baddp-2")]
LOG2 += [float.fromhex(text) for text in ("-0x1.7154748bef6c8p-1", "0x1.71547652ab82bp+0")]
CUBIC = [float.fromhex(text) for text in ("0x1.c6af84b912394p-5", "0x1.ebfce50fac4f3p-3", "0x1.62e42ff0c52d6p-1")]
SHIFT = 1.5 * 2.0**47  # adding it rounds to a 32nd
FARTHEST = 400.0  # beyond 2 to the power of so much every float32 is 0 or infinity


def _logarithms(base) -> list[float]:
    """The logarithms of the centres, rounded to double."""
    with localcontext() as context:
        context.prec = 40
        scale = -(Decimal(base).ln() if base else Decimal(1))
        return [float(Decimal(value).ln() / scale) + 0.0 for value in RECIPROCALS]


CENTRES_LN, CENTRES_LOG2 = _logarithms(None), _logarithms(2)


def _emit_reduced(b, bits, name, centres):
    """(r, k, the centre's logarithm) in double, of i32 lanes with the bits of normal positive float32."""
    build, count = b.ir, bits.type.count
    wide = vec(f64, count)

    def word(value):
        return b.splat(i32, count, value)

    above = build.sub(bits, word(START))
    index = build.zext(build.and_(build.lshr(above, word(19)), word(15)), vec(i64, count))
    z = build.sub(bits, build.and_(above, word(0xFF800000 - 2**32)))
    z = build.fpext(b.cast(z, vec(f32, count)), wide)
    r = b.fma(z, b.look_up(b.table("reciprocals", f64, RECIPROCALS), index, f64), b.splat(f64, count, -1.0))
    k = build.sitofp(build.ashr(above, word(23)), wide)
    return r, k, b.look_up(b.table(name, f64, centres), index, f64)


def _emit_normal(b, x):
    """i32 bits of positive float32 lanes; of denormal ones, bits that have a smaller exponent than there is."""
    build, count = b.ir, x.type.count
    words = vec(i32, count)
    raised = b.cast(build.fmul(x, b.splat(f32, count, 2.0**23)), words)
    raised = build.sub(raised, b.splat(i32, count, 23 << 23))
    return build.select(build.fcmp_ordered("<", x, b.splat(f32, count, 2.0**-126)), raised, b.cast(x, words))


def emit_logf(b, x):
    """Natural logarithm of float32 lanes, any number of them; minus infinity for 0, NaN below."""
    build, count = b.ir, x.type.count
    a0, a1, a2 = (b.splat(f64, count, c) for c in LN)
    r, k, centre = _emit_reduced(b, _emit_normal(b, x), "centres_ln", CENTRES_LN)
    start, square = b.fma(k, b.splat(f64, count, LN2), centre), build.fmul(r, r)
    rest = b.fma(a0, square, b.fma(a1, r, a2))
    result = build.fptrunc(b.fma(square, rest, build.fadd(start, r)), x.type)
    zero, infinite = b.zero(f32, count), b.splat(f32, count, float("inf"))
    result = build.select(build.fcmp_ordered("==", x, zero), build.fneg(infinite), result)
    result = build.select(build.fcmp_ordered("==", x, infinite), x, result)
    none = build.fdiv(build.fsub(x, x), zero)
    return build.select(build.fcmp_unordered("<", x, zero), none, result)


def emit_powf(b, x, y):
    """x to the power of y in float32 lanes, any number of them; x not below 0, y finite."""
    build, count = b.ir, x.type.count
    wide = vec(f64, count)
    a0, a1, a2, a3, a4 = (b.splat(f64, count, c) for c in LOG2)
    r, k, centre = _emit_reduced(b, _emit_normal(b, x), "centres_log2", CENTRES_LOG2)
    square = build.fmul(r, r)
    low = b.fma(square, b.fma(a2, r, a3), b.fma(a4, r, build.fadd(centre, k)))
    exponent = build.fmul(build.fpext(y, wide), b.fma(build.fmul(square, square), b.fma(a0, r, a1), low))
    least, most, shift = (b.splat(f64, count, value) for value in (-FARTHEST, FARTHEST, SHIFT))
    exponent = build.select(build.fcmp_ordered("<", exponent, least), least, exponent)
    exponent = build.select(build.fcmp_ordered(">", exponent, most), most, exponent)
    shifted = build.fadd(exponent, shift)
    rest = build.fsub(exponent, build.fsub(shifted, shift))
    result = build.fptrunc(emit_power_of_two(b, b.cast(shifted, vec(i64, count)), rest, CUBIC), x.type)
    zero, infinite = b.zero(f32, count), b.splat(f32, count, float("inf"))
    is_zero, is_infinite = build.fcmp_ordered("==", x, zero), build.fcmp_ordered("==", x, infinite)
    grows = build.xor(is_zero, build.fcmp_ordered(">", y, zero))  # only looked at where x is 0 or infinite
    edge = build.select(grows, infinite, zero)
    result = build.select(build.or_(is_zero, is_infinite), edge, result)
    result = build.select(build.fcmp_unordered("uno", x, x), build.fadd(x, x), result)
    return build.select(build.fcmp_ordered("==", y, zero), b.splat(f32, count, 1.0), result)


logf = scalar_function("logf", emit_logf, 1)  # of one float32, inside kernels
powf = scalar_function("powf", emit_powf, 2)


def _reduced_plain(x, centres):
    """`_emit_reduced` of one value, positive and finite."""
    x = np.float32(x)
    bits = int(x.view("u4")) if x >= 2.0**-126 else int((x * np.float32(2.0**23)).view("u4")) - (23 << 23)
    above = bits - START
    k, index = above >> 23, above >> 19 & 15
    z = float(np.array(bits - (k << 23), "u4").view("f4"))
    return fma64(z, RECIPROCALS[index], -1.0), float(k), centres[index]


def logf_plain(x) -> np.float32:
    """Natural logarithm of one positive finite value, in scalar Python."""
    a0, a1, a2 = LN
    r, k, centre = _reduced_plain(x, CENTRES_LN)
    start, square = fma64(k, LN2, centre), r * r
    return np.float32(fma64(square, fma64(a0, square, fma64(a1, r, a2)), start + r))


def powf_plain(x, y) -> np.float32:
    """x to the power of y, x positive and both finite, in scalar Python."""
    a0, a1, a2, a3, a4 = LOG2
    r, k, centre = _reduced_plain(x, CENTRES_LOG2)
    square = r * r
    low = fma64(square, fma64(a2, r, a3), fma64(a4, r, centre + k))
    exponent = float(np.float32(y)) * fma64(square * square, fma64(a0, r, a1), low)
    exponent = min(max(exponent, -FARTHEST), FARTHEST)
    shifted = exponent + SHIFT
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(power_of_two_plain(float_bits(shifted), exponent - (shifted - SHIFT), CUBIC))
