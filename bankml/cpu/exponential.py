"""expf with glibc's bits, in lanes: what a softmax needs.

The method is that of Arm's optimized-routines, which glibc took over: x/ln 2 = k/32 + r/32 in double with k an integer,
so that exp(x) = 2^(k/32) * 2^(r/32); the first factor from a table of 32, the second a cubic polynomial in r. Being
worked out in double, the result is hardly ever in doubt once rounded to float32; but it is the rounding of *this*
polynomial, which the most precise result now and then is not. Checked against glibc on all 2^32 arguments
(`testing/check_libm.py`).
"""

from decimal import Decimal, localcontext

import numpy as np

from bankml.cpu import pool
from bankml.cpu.compile import step
from bankml.cpu.floats import arguments, scalar_function
from bankml.cpu.level import level
from bankml.cpu.plain import float_bits, fma64, from_bits
from bankml.cpu.simd import f32, f64, i64, vec, vector

LANES = {"avx512": 16, "avx2": 8, "generic": 4}[level()]
ENTRIES, BITS = 32, 5
PER_LN2 = float.fromhex("0x1.71547652b82fep+5")  # 32 / ln 2
CUBIC = [float.fromhex(text) for text in ("0x1.c6af84b912394p-20", "0x1.ebfce50fac4f3p-13", "0x1.62e42ff0c52d6p-6")]
SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer, which the low bits then hold
# Beyond these the result is 0 or infinity, and so it is there: 2^k stays a double.
LEAST, MOST = -200.0, 200.0


def powers_of_two() -> list[int]:
    """Bits of 2^(i/32) rounded to double, less what the addition of k << 47 puts into the exponent besides k // 32."""
    with localcontext() as context:
        context.prec = 40
        powers = [float(Decimal(2) ** (Decimal(i) / ENTRIES)) for i in range(ENTRIES)]
    return [float_bits(power) - (i << 52 - BITS) for i, power in enumerate(powers)]


POWERS = powers_of_two()


def _emit_power(b, k):
    """2^(k/32) of i64 lanes whose low bits are k."""
    count = k.type.count
    if level() == "avx512" and count % 8 == 0:
        parts = [_emit_permuted(b, part) for part in ([b.low(k), b.high(k)] if count == 16 else [k])]
        entries = b.concat(*parts) if count == 16 else parts[0]
    else:
        index = b.ir.and_(k, b.splat(i64, count, ENTRIES - 1))
        entries = b.look_up(b.table("powers_of_two", i64, POWERS), index, i64)
    return b.cast(b.ir.add(entries, b.ir.shl(k, b.splat(i64, count, 52 - BITS))), vec(f64, count))


def _emit_permuted(b, k):
    """Table entries of eight lanes, by permutations of the four registers that the table fills."""
    table = b.table("powers_of_two", i64, POWERS)
    eight = vec(i64, 8)
    quarters = [b.load(b.at(table, 64 * i), eight, 64) for i in range(4)]
    low, high = (b.call("llvm.x86.avx512.vpermi2var.q.512", eight, [quarters[i], k, quarters[i + 1]]) for i in (0, 2))
    is_high = b.ir.icmp_unsigned("!=", b.ir.and_(k, b.splat(i64, 8, 16)), b.zero(i64, 8))
    return b.ir.select(is_high, high, low)


def emit_expf(b, x):
    """exp of float32 lanes, any number of them; NaN stays NaN."""
    build, count = b.ir, x.type.count
    wide = vec(f64, count)

    def number(value):
        return b.splat(f64, count, value)

    least, most = b.splat(f32, count, LEAST), b.splat(f32, count, MOST)
    x = build.select(build.fcmp_ordered("<", x, least), least, x)
    x = build.select(build.fcmp_ordered(">", x, most), most, x)
    x = build.fpext(x, wide)
    shifted = b.fma_or_not(number(PER_LN2), x, number(SHIFT))
    rest = _emit_rest(b, x, build.fsub(shifted, number(SHIFT)))
    return build.fptrunc(emit_power_of_two(b, b.cast(shifted, vec(i64, count)), rest, CUBIC), vec(f32, count))


def _emit_rest(b, x, k):
    """32 / ln 2 * x - k, rounded once. Without an FMA: the constant in two parts, whose products with x are exact."""
    count = k.type.count
    if level() != "generic":
        return b.fma(b.splat(f64, count, PER_LN2), x, b.ir.fneg(k))
    high = float(np.float32(PER_LN2))
    products = [b.ir.fmul(b.splat(f64, count, part), x) for part in (high, PER_LN2 - high)]
    return b.ir.fadd(b.ir.fsub(products[0], k), products[1])


def emit_power_of_two(b, k, rest, cubic):
    """2^((k + rest) / 32) in double: the low bits of i64 lanes, and what the integer leaves."""
    c0, c1, c2 = (b.splat(f64, k.type.count, c) for c in cubic)
    square = b.ir.fmul(rest, rest)
    low = b.fma_or_not(c2, rest, b.splat(f64, k.type.count, 1.0))
    return b.ir.fmul(b.fma_or_not(b.fma_or_not(c0, rest, c1), square, low), _emit_power(b, k))


expf = scalar_function("expf", emit_expf, 1)  # of one float32, inside kernels


@vector
def expf_lanes(b, x, out, units):
    """exp of `units` times LANES float32 values."""

    def one(i, carried):
        offset = b.mul(i, 4 * LANES)
        b.store(emit_expf(b, b.load(b.pointer(x, offset), vec(f32, LANES))), b.pointer(out, offset))
        return carried

    b.loop(units, [], one)


@step
def expf_row(record, thread, threads):
    """exp of n float32 values, a multiple of LANES."""
    n, _, _, _, x, out = arguments(record, 6)
    if thread == 0:
        expf_lanes(x, out, n // LANES)


def expf_array(x) -> np.ndarray:
    """exp of float32 values of any shape."""
    x = np.asarray(x, np.float32)
    padded = np.zeros(-(-x.size // LANES) * LANES, np.float32)
    padded[: x.size] = x.reshape(-1)
    pool.run_steps((expf_row, False, [padded.size, 0, 0, 0, padded.ctypes.data, padded.ctypes.data]))
    return padded[: x.size].reshape(x.shape)


def expf_plain(x) -> np.float32:
    """`expf` of one value, in scalar Python."""
    if np.isnan(x):
        return np.float32(x)
    x = min(max(float(x), LEAST), MOST)
    shifted = fma64(PER_LN2, x, SHIFT)
    rest = fma64(PER_LN2, x, -(shifted - SHIFT))
    with np.errstate(over="ignore"):
        return np.float32(power_of_two_plain(float_bits(shifted), rest, CUBIC))


def power_of_two_plain(k, rest, cubic) -> float:
    """`emit_power_of_two` of one value."""
    c0, c1, c2 = cubic
    factor = from_bits((POWERS[k % ENTRIES] + (k << 52 - BITS)) % 2**64)
    return fma64(fma64(c0, rest, c1), rest * rest, fma64(c2, rest, 1.0)) * factor
