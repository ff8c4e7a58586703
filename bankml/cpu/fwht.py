"""The fast Walsh-Hadamard transform, by which a quantized K/V cache is rotated, so that no value of a head stands out.

Blocks of n values, n a power of two from 64 on: each times 1/sqrtf(n), then for distances 1, 2, 4, ... n/2 the pairs
(u, v) become (u + v, u - v). The transform is its own inverse, but for rounding.
"""

import numpy as np

from bankml.cpu import pool
from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments, f32_to_bits, sqrtf
from bankml.cpu.level import level
from bankml.cpu.simd import f32, i32, vec, vector

LANES = 16 if level() == "avx512" else 8
SMALLEST = 64  # values that are transformed in registers; larger distances go through memory
SIGN = -(2**31)


def rot_k_size(head_dim: int) -> int:
    """Values in a block of K's and Q's rotation: the largest power of two that divides a head; 0 for none.

    As the reference, which rotates only heads of a multiple of 64.
    """
    return head_dim & -head_dim if head_dim % SMALLEST == 0 else 0


def rot_v_size(head_dim: int) -> int:
    """Values in a block of V's and the output's rotation: 64, or 0 for none."""
    return SMALLEST if head_dim % SMALLEST == 0 else 0


def _emit_within(b, v, distance):
    """(u + v, u - v) of the lanes `distance` apart: the other lane, plus or minus the own one."""
    count = v.type.count
    other = b.shuffle(v, None, [lane ^ distance for lane in range(count)])
    signs = b.lanes(i32, [SIGN if lane & distance else 0 for lane in range(count)])
    return b.ir.fadd(other, b.cast(b.ir.xor(b.cast(v, signs.type), signs), v.type))


@vector
def _transform_64(b, x, out, factor):
    """64 values times `factor` (bits), and the distances up to 32; out may be x."""
    scale = b.broadcast(b.cast(b.ir.trunc(factor, i32), f32), LANES)
    offsets = range(0, 4 * SMALLEST, 4 * LANES)
    values = [b.ir.fmul(b.load(b.pointer(x, offset), vec(f32, LANES)), scale) for offset in offsets]
    distance = 1
    while distance < LANES:
        values = [_emit_within(b, value, distance) for value in values]
        distance *= 2
    distance = 1  # from here on in vectors
    while distance < len(values):
        for i in range(len(values)):
            if not i & distance:
                u, v = values[i], values[i + distance]
                values[i], values[i + distance] = b.ir.fadd(u, v), b.ir.fsub(u, v)
        distance *= 2
    for value, offset in zip(values, offsets, strict=True):
        b.store(value, b.pointer(out, offset))


@vector
def _across(b, x, distance):
    """(u + v, u - v) of `distance` values and as many after them, in place."""

    def one(i, carried):
        first = b.pointer(x, b.mul(i, 4 * LANES))
        second = b.at(first, b.mul(distance, 4))
        u, v = (b.load(pointer, vec(f32, LANES)) for pointer in (first, second))
        b.store(b.ir.fadd(u, v), first)
        b.store(b.ir.fsub(u, v), second)
        return carried

    b.loop(b.ir.lshr(distance, b.int(LANES.bit_length() - 1)), [], one)


@inner
def rotate(x, out, n, count):
    """Transform `count` float32, whole blocks of n, from x to out, which may be x."""
    factor = f32_to_bits(np.float32(1) / sqrtf(np.float32(n)))
    for at in range(0, count, SMALLEST):
        _transform_64(x + 4 * at, out + 4 * at, factor)
    distance = SMALLEST
    while distance < n:
        for at in range(0, count, 2 * distance):
            _across(out + 4 * at, distance)
        distance *= 2


@step
def rotate_rows(record, thread, threads):
    """Each row of x, float32 (rows, width), in place, in blocks of n."""
    rows, _, _, _, x, width, n = arguments(record, 7)
    for row in range(thread, rows, threads):
        rotate(x + 4 * width * row, x + 4 * width * row, n, width)


def fwht(x: np.ndarray, n: int) -> np.ndarray:
    """The transform of each n values along the last axis of x, float32 (..., whole blocks of n)."""
    out = np.array(x, np.float32, order="C")
    assert n >= SMALLEST and n & (n - 1) == 0 and out.shape[-1] % n == 0, (n, out.shape)
    width = out.shape[-1]
    pool.run_steps((rotate_rows, True, [out.size // width, 0, 0, 0, out.ctypes.data, width, n]))
    return out


def fwht_plain(x: np.ndarray) -> np.ndarray:
    """`fwht` of one block, float32 (n,), in scalar order."""
    n = len(x)
    out = x * (np.float32(1) / np.sqrt(np.float32(n)))
    distance = 1
    while distance < n:
        for i in range(n):
            if not i & distance:
                u, v = out[i], out[i + distance]
                out[i], out[i + distance] = u + v, u - v
        distance *= 2
    return out
