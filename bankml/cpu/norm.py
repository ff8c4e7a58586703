"""RMS norm times a weight, with the bits of the reference's fused `rms_norm` and `mul`.

The reference adds the squares one by one in double. That chain is slow and hardly ever decides a bit, so the squares
are added in vector lanes, and the chain is run only when the rounding of the mean could depend on the order.
"""

import numpy as np
from llvmlite import ir
from numba.core import types

from bankml.cpu import pool
from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments, bits_to_f32, f32_to_bits, load_f32, sqrtf, store_f32
from bankml.cpu.level import level
from bankml.cpu.simd import f32, f64, vec, vector

LANES = 16 if level() == "avx512" else 8
UNIT = 2 * LANES


@vector(returns=types.float64)
def _squares(b, x, units):
    """Sum in double of the float32 squares of x, `units` times UNIT values, in no particular order."""
    wide, half = vec(f32, LANES), vec(f64, LANES // 2)

    def add(i, sums):
        out = []
        for part in range(2):
            value = b.load(b.pointer(x, b.add(b.mul(i, 4 * UNIT), 4 * LANES * part)), wide)
            square = b.ir.fmul(value, value)
            for side in (b.low(square), b.high(square)):
                out.append(b.ir.fadd(sums[len(out)], b.ir.fpext(side, half)))
        return out

    p, q, r, s = b.loop(units, [b.zero(f64, LANES // 2)] * 4, add)
    total = b.ir.fadd(b.ir.fadd(p, q), b.ir.fadd(r, s))
    while total.type.count > 2:
        total = b.ir.fadd(b.low(total), b.high(total))
    return b.ir.fadd(b.element(total, 0), b.element(total, 1))


@vector
def _scale_weighted(b, x, weight, out, bits, units):
    """out = (x * scale) * weight over `units` times LANES values; two roundings, as the reference has them."""
    wide = vec(f32, LANES)
    scale = b.broadcast(b.cast(b.ir.trunc(bits, ir.IntType(32)), f32), LANES)

    def one(i, carried):
        offset = b.mul(i, 4 * LANES)
        scaled = b.ir.fmul(b.load(b.pointer(x, offset), wide), scale)
        b.store(b.ir.fmul(scaled, b.load(b.pointer(weight, offset), wide)), b.pointer(out, offset))
        return carried

    b.loop(units, [], one)


@inner
def _mean_of_squares(x, width):
    """float32 of (the double sum, element by element, of the float32 squares) / width."""
    total = _squares(x, width // UNIT)
    for i in range(width // UNIT * UNIT, width):
        value = load_f32(x + 4 * i)
        total += np.float64(value * value)
    # Any two orders of adding n values that are not negative differ by less than 2n roundings of the sum.
    slack = total * (np.float64(width) * np.float64(2.0**-51))
    low, high = np.float32((total - slack) / np.float64(width)), np.float32((total + slack) / np.float64(width))
    if low == high:
        return low
    total = np.float64(0)
    for i in range(width):
        value = load_f32(x + 4 * i)
        total += np.float64(value * value)
    return np.float32(total / np.float64(width))


@inner
def norm_row(x, weight, out, width, eps):
    """One row: out = (x * 1/sqrt(mean + eps)) * weight; addresses of float32 (width,), out may be x."""
    scale = np.float32(1) / sqrtf(_mean_of_squares(x, width) + eps)
    _scale_weighted(x, weight, out, f32_to_bits(scale), width // LANES)
    for i in range(width // LANES * LANES, width):
        store_f32(out + 4 * i, load_f32(x + 4 * i) * scale * load_f32(weight + 4 * i))


@step
def rms_norm(record, thread, threads):
    """Rows of x (n, width) normed and weighted into out; x and out are row strides apart (bytes)."""
    n, _, _, _, x, x_stride, weight, width, eps, out, out_stride = arguments(record, 11)
    for row in range(thread, n, threads):
        norm_row(x + row * x_stride, weight, out + row * out_stride, width, bits_to_f32(eps))


def rms_norm_step(x: np.ndarray, weight: int, out: np.ndarray, eps: float):
    """The step for buffers x and out, float32 (rows, width), and the address of the weight, float32 (width,)."""
    words = [0, 0, 0, 0, x.ctypes.data, x.strides[0], weight, x.shape[1], f32_bits(eps), out.ctypes.data]
    return rms_norm, True, [*words, out.strides[0]]


def f32_bits(value) -> int:
    """The bits of a float32, as the int that a step's word holds."""
    return int(np.float32(value).view(np.uint32))


def rms_norm_mul(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm over the last axis of x, float32 (..., n), times weight (n,); as the reference has it."""
    x, weight = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(weight, np.float32)
    rows = x.reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    code, wait, words = rms_norm_step(rows, weight.ctypes.data, out, eps)
    pool.run_steps((code, wait, [len(rows), *words[1:]]))
    return out.reshape(x.shape)


def rms_norm_mul_plain(x, weight, eps):
    """`rms_norm_mul` of one row, in scalar Python."""
    total = np.float64(0)
    for value in x:
        total += np.float64(value * value)
    mean = np.float32(total / np.float64(len(x)))
    scale = np.float32(1) / np.sqrt(mean + np.float32(eps))
    return np.array([value * scale * w for value, w in zip(x, weight, strict=True)], np.float32)
