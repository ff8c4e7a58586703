"""SwiGLU with ggml's own expf, lane by lane as its AVX2 form computes it; libm's expf for what is left of a row."""

import numpy as np
from llvmlite import ir

from bankml.cpu import pool
from bankml.cpu.compile import inner, step
from bankml.cpu.exponential import expf
from bankml.cpu.floats import arguments, load_f32, store_f32
from bankml.cpu.level import level
from bankml.cpu.plain import fma32, libm
from bankml.cpu.simd import f32, i32, vec, vector

LANES = 16 if level() == "avx512" else 8
GROUP = 8  # the reference's vector: what is left of a row after whole groups takes libm's expf


def emit_expf(b, x):
    """ggml_v_expf of float32 lanes: 2^n * (1 + j), n by adding 1.5 * 2^23, j a polynomial in FMAs.

    Where |n| > 126 the power is applied in two factors, and above 192 it is 0 or infinity. That branch is taken only
    where a lane needs it, for its denormal numbers are slow.
    """
    build, count = b.ir, x.type.count

    def number(text):
        return b.splat(f32, count, float.fromhex(text))

    def word(value):
        return b.splat(i32, count, value)

    shift = number("0x1.8p23")
    shifted = b.fma(x, number("0x1.715476p+0"), shift)
    n = build.fsub(shifted, shift)
    minus_n = build.fneg(n)
    rest = b.fma(minus_n, number("0x1.7f7d1cp-20"), b.fma(minus_n, number("0x1.62e4p-1"), x))
    exponent = build.shl(b.cast(shifted, vec(i32, count)), word(23))
    power = b.cast(build.add(exponent, word(0x3F800000)), vec(f32, count))
    square = build.fmul(rest, rest)
    high = b.fma(number("0x1.0e4020p-7"), rest, number("0x1.573e2ep-5"))
    low = b.fma(number("0x1.555e66p-3"), rest, number("0x1.fffdb6p-2"))
    j = b.fma(b.fma(high, square, low), square, build.fmul(number("0x1.ffffecp-1"), rest))
    ordinary = b.fma(power, j, power)
    size = b.call(f"llvm.fabs.v{count}f32", x.type, [n])
    is_far = build.fcmp_ordered(">", size, b.splat(f32, count, 126.0))
    some = build.icmp_unsigned("!=", b.cast(is_far, ir.IntType(count)), ir.Constant(ir.IntType(count), 0))
    before, rare, done = build.block, build.append_basic_block("far"), build.append_basic_block("done")
    build.cbranch(some, rare, done)
    build.position_at_end(rare)
    negative = build.fcmp_ordered("<=", n, b.zero(f32, count))
    part = build.select(negative, word(0x82000000 - (1 << 32)), word(0))
    first = b.cast(build.add(part, word(0x7F000000)), x.type)
    second = b.cast(build.sub(exponent, part), x.type)
    far = build.fmul(b.fma(second, j, second), first)
    far = build.select(build.fcmp_ordered(">", size, b.splat(f32, count, 192.0)), build.fmul(first, first), far)
    mixed, rare = build.select(is_far, far, ordinary), build.block
    build.branch(done)
    build.position_at_end(done)
    result = build.phi(x.type)
    result.add_incoming(ordinary, before)
    result.add_incoming(mixed, rare)
    return result


def _emit_swiglu(b, gate, up, out, units, lanes):
    """out = gate / (1 + exp(0 - gate)) * up."""
    wide = vec(f32, lanes)

    def one(i, carried):
        offset = b.mul(i, 4 * lanes)
        x = b.load(b.pointer(gate, offset), wide)
        below = b.ir.fadd(b.splat(f32, lanes, 1.0), emit_expf(b, b.ir.fsub(b.zero(f32, lanes), x)))
        silu = b.ir.fdiv(x, below)
        b.store(b.ir.fmul(silu, b.load(b.pointer(up, offset), wide)), b.pointer(out, offset))
        return carried

    b.loop(units, [], one)


@vector
def _swiglu_wide(b, gate, up, out, units):
    """`units` times LANES values."""
    _emit_swiglu(b, gate, up, out, units, LANES)


@vector
def _swiglu_group(b, gate, up, out, units):
    """`units` times GROUP values."""
    _emit_swiglu(b, gate, up, out, units, GROUP)


@vector
def _expf_wide(b, x, out, units):
    """exp of `units` times LANES values."""

    def one(i, carried):
        offset = b.mul(i, 4 * LANES)
        b.store(emit_expf(b, b.load(b.pointer(x, offset), vec(f32, LANES))), b.pointer(out, offset))
        return carried

    b.loop(units, [], one)


@inner
def _swiglu_span(gate, up, out, first, last):
    """Values first to last of a row, both multiples of GROUP."""
    wide = (last - first) // LANES
    _swiglu_wide(gate + 4 * first, up + 4 * first, out + 4 * first, wide)
    first += wide * LANES
    _swiglu_group(gate + 4 * first, up + 4 * first, out + 4 * first, (last - first) // GROUP)


@inner
def _swiglu_rest(gate, up, out, first, last):
    for i in range(first, last):
        x = load_f32(gate + 4 * i)
        store_f32(out + 4 * i, x / (np.float32(1) + expf(-x)) * load_f32(up + 4 * i))


@step
def swiglu_rows(record, thread, threads):
    """silu(gate) * up into out, rows of `width`, a stride (bytes) apart; out may be gate. Each thread takes columns."""
    n, _, _, _, gate, gate_stride, up, up_stride, out, out_stride, width = arguments(record, 11)
    groups = width // GROUP
    first, last = groups * thread // threads * GROUP, groups * (thread + 1) // threads * GROUP
    for row in range(n):
        g, u, o = gate + row * gate_stride, up + row * up_stride, out + row * out_stride
        _swiglu_span(g, u, o, first, last)
        if thread == threads - 1:
            _swiglu_rest(g, u, o, groups * GROUP, width)


@step
def expf_row(record, thread, threads):
    """ggml_v_expf of n values, a multiple of LANES."""
    n, _, _, _, x, out = arguments(record, 6)
    if thread == 0:
        _expf_wide(x, out, n // LANES)


def swiglu_step(gate: np.ndarray, up: np.ndarray, out: np.ndarray):
    """The step for buffers float32 (rows, width)."""
    words = [word for rows in (gate, up, out) for word in (rows.ctypes.data, rows.strides[0])]
    return swiglu_rows, True, [0, 0, 0, 0, *words, gate.shape[1]]


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu(gate) * up, float32 (rows, width)."""
    gate, up = (np.atleast_2d(np.ascontiguousarray(side, np.float32)) for side in (gate, up))
    out = np.empty_like(gate)
    code, wait, words = swiglu_step(gate, up, out)
    pool.run_steps((code, wait, [len(gate), *words[1:]]))
    return out


def v_expf(x) -> np.ndarray:
    """ggml's vectorised expf of float32 values of any shape."""
    x = np.asarray(x, np.float32)
    padded = np.zeros(-(-x.size // LANES) * LANES, np.float32)
    padded[: x.size] = x.reshape(-1)
    out = np.empty_like(padded)
    pool.run_steps((expf_row, True, [padded.size, 0, 0, 0, padded.ctypes.data, out.ctypes.data]))
    return out[: x.size].reshape(x.shape)


def v_expf_plain(x) -> np.float32:
    """`v_expf` of one value, in scalar Python."""

    def number(text):
        return np.float32(float.fromhex(text))

    def power(exponent):
        return np.array(exponent & 0xFFFFFFFF, "u4").view("f4")[()]

    shifted = fma32(x, number("0x1.715476p+0"), number("0x1.8p23"))
    n = shifted - number("0x1.8p23")
    rest = fma32(-n, number("0x1.7f7d1cp-20"), fma32(-n, number("0x1.62e4p-1"), x))
    exponent = int(shifted.view("u4")) << 23
    square = rest * rest
    high = fma32(number("0x1.0e4020p-7"), rest, number("0x1.573e2ep-5"))
    low = fma32(number("0x1.555e66p-3"), rest, number("0x1.fffdb6p-2"))
    j = fma32(fma32(high, square, low), square, number("0x1.ffffecp-1") * rest)
    if not abs(n) > 126:
        k = power(exponent + 0x3F800000)
        return fma32(k, j, k)
    part = 0x82000000 if n <= 0 else 0
    first, second = power(part + 0x7F000000), power(exponent - part)
    return first * first if abs(n) > 192 else fma32(second, j, second) * first


def swiglu_plain(gate, up) -> np.ndarray:
    """`swiglu` of one row, in scalar Python."""
    whole = len(gate) // GROUP * GROUP
    exps = [v_expf_plain(np.float32(0) - g) if i < whole else libm("expf", -g) for i, g in enumerate(gate)]
    return np.array([g / (np.float32(1) + e) * u for g, e, u in zip(gate, exps, up, strict=True)], np.float32)
