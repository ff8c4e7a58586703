"""Scalars inside kernels: typed memory access by address, fused multiply-add and half precision.

Everything takes and gives int64 addresses, float32 or float64; nothing allocates.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from bankml.cpu.level import level
from bankml.cpu.simd import Builder, f16, f32, i8, i16, i64, presented_as, vector

WORDS = 4  # a step's arguments start at this int64 word of its record (see pool.py)


@intrinsic(prefer_literal=True)
def arguments(typingctx, record, count):
    """The first `count` (a literal) int64 arguments of a step's record, as a tuple."""
    number = count.literal_value

    def codegen(context, builder, signature, values):
        b = Builder(builder)
        base = b.pointer(values[0], 8 * WORDS)
        words = [b.load(b.at(base, 8 * i), i64, 8) for i in range(number)]
        return context.make_tuple(builder, signature.return_type, words)

    return types.UniTuple(types.int64, number)(types.int64, count), codegen


def _loader(name, kind, returns, extend=None):
    def load(b, address):
        value = b.load(b.pointer(address), kind)
        return value if extend is None else getattr(b.ir, extend)(value, i64)

    load.__name__ = name
    return vector(load, returns=returns)


load_f32 = _loader("load_f32", f32, types.float32)
load_i64 = _loader("load_i64", i64, types.int64)
load_u8 = _loader("load_u8", i8, types.int64, "zext")
load_u16 = _loader("load_u16", i16, types.int64, "zext")


def _typed(name, arguments_, returns, emit):
    """An intrinsic over scalars of any Numba types."""

    def typing(typingctx, *given):
        return returns(*arguments_), lambda context, builder, signature, values: emit(
            context, Builder(builder), *values
        )

    typing.__name__ = name
    return intrinsic(presented_as(typing, typing, [f"x{i}" for i in range(len(arguments_))]))


def _store(name, numba_type):
    def emit(context, b, address, value):
        b.store(value, b.pointer(address))
        return context.get_dummy_value()

    return _typed(name, (types.int64, numba_type), types.void, emit)


store_f32 = _store("store_f32", types.float32)
store_i64 = _store("store_i64", types.int64)

fma = _typed("fma", (types.float32,) * 3, types.float32, lambda context, b, x, y, z: b.fma(x, y, z))
bits_to_f32 = _typed(
    "bits_to_f32",
    (types.int64,),
    types.float32,
    lambda context, b, word: b.cast(b.ir.trunc(word, ir.IntType(32)), f32),
)
f32_to_bits = _typed(
    "f32_to_bits",
    (types.float32,),
    types.int64,
    lambda context, b, value: b.ir.zext(b.cast(value, ir.IntType(32)), i64),
)

half_to_f32 = _typed(
    "half_to_f32",
    (types.int64,),
    types.float32,
    lambda context, b, bits: b.half_to_f32(b.ir.trunc(bits, i16)),
)


def _emit_half(context, b, value):
    """Round to nearest even: F16C where there, else by integers."""
    if level() != "generic":
        return b.ir.zext(b.cast(b.ir.fptrunc(value, f16), i16), i64)
    return emit_half_by_integers(b, value)


def emit_half_by_integers(b, value):
    """Half bits (i64) of a float32 with integer and float32 operations only."""
    i32, build = ir.IntType(32), b.ir

    def const(v):
        return ir.Constant(i32, v)

    word = b.cast(value, i32)
    sign = build.and_(build.lshr(word, const(16)), const(0x8000))
    magnitude = build.and_(word, const(0x7FFFFFFF))
    # normal: add the round-to-even bias to the mantissa, then re-bias the exponent
    odd = build.and_(build.lshr(magnitude, const(13)), const(1))
    rounded = build.add(build.add(magnitude, const(0xC8000FFF)), odd)
    normal = build.lshr(rounded, const(13))
    # denormal: 0.5 + |x| in float32 rounds at 2^-24
    shifted = b.cast(build.fadd(b.cast(magnitude, f32), ir.Constant(f32, 0.5)), i32)
    denormal = build.sub(shifted, const(0x3F000000))
    infinite = const(0x7C00)
    nan = build.or_(const(0x7E00), build.and_(build.lshr(magnitude, const(13)), const(0x3FF)))
    small = build.icmp_unsigned("<", magnitude, const(0x38800000))
    large = build.icmp_unsigned(">=", magnitude, const(0x477FF000))
    is_nan = build.icmp_unsigned(">", magnitude, const(0x7F800000))
    result = build.select(small, denormal, build.select(large, build.select(is_nan, nan, infinite), normal))
    return build.zext(build.or_(sign, build.and_(result, const(0x7FFF))), i64)


f32_to_half = _typed("f32_to_half", (types.float32,), types.int64, _emit_half)

sqrtf = _typed("sqrtf", (types.float32,), types.float32, lambda context, b, x: b.call("llvm.sqrt.f32", f32, [x]))


def scalar_function(name, emit, count):
    """A function of `count` float32 from one that emits code for lanes: it is given vectors of one lane."""

    def one(context, b, *values):
        return b.element(emit(b, *(b.broadcast(value, 1) for value in values)), 0)

    return _typed(name, (types.float32,) * count, types.float32, one)


@vector(returns=types.int64)
def fetch_add(b, address, amount):
    """Atomically add to an int64 in memory; returns what was there."""
    return b.ir.atomic_rmw("add", b.pointer(address), amount, "monotonic")
