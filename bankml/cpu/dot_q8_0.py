"""Products of q8_0 rows with q8_0 rows, exactly as ggml_vec_dot_q8_0_q8_0 (AVX2) takes them.

Per block of 32: x's values without sign times y's with x's sign put on (int8: -(-128) wraps to -128), four adjacent
products added to a whole number in each of 8 lanes; `acc = fma(dx * dy, sums, acc)`, dx * dy exact; in the end
`((0+4)+(2+6)) + ((1+5)+(3+7))`.
"""

import numpy as np

from bankml.cpu import pool
from bankml.cpu.compile import step
from bankml.cpu.floats import arguments
from bankml.cpu.lanes import sum8
from bankml.cpu.level import level
from bankml.cpu.plain import fma32, half
from bankml.cpu.plain import sum8 as sum8_plain
from bankml.cpu.quantize import BLOCK, STORED
from bankml.cpu.simd import f32, i1, i8, i16, i32, vec, vector


def emit_sums_of_four(b, x, y):
    """Lanes of 4 adjacent products |x| * (y with x's sign), as float32: int8 (32 * n) each -> float32 (8 * n)."""
    count = x.type.count
    without_sign = b.call(f"llvm.abs.v{count}i8", x.type, [x, b.int(0, i1)])
    negative = b.ir.icmp_signed("<", x, b.zero(i8, count))
    signed = b.ir.select(negative, b.ir.sub(b.zero(i8, count), y), y)
    if level() == "generic":
        return b.to_f32(_sums_by_words(b, without_sign, signed))
    # 2 * 128 * 128 at most below zero, 2 * 128 * 127 above: no pair of products saturates
    return b.to_f32(b.dot_u8_i8(b.zero(i32, count // 4), without_sign, signed))


def _sums_by_words(b, unsigned, signed):
    """The same whole numbers from 16-bit products, for 32 values."""
    wide = vec(i16, BLOCK)
    u, s = b.ir.zext(unsigned, wide), b.ir.sext(signed, wide)
    pairs = []
    for at in range(0, BLOCK, 8):
        eight = [b.shuffle(side, None, range(at, at + 8)) for side in (u, s)]
        pairs.append(b.call("llvm.x86.sse2.pmadd.wd", vec(i32, 4), eight))
    fours = []
    for first, second in (pairs[:2], pairs[2:]):
        even, odd = (b.shuffle(first, second, range(start, 8, 2)) for start in (0, 1))
        fours.append(b.ir.add(even, odd))
    return b.concat(*fours)


@vector
def _dot(b, x, y, blocks, out):
    """One product of two stored rows."""
    rows = b.pointer(x), b.pointer(y)

    def block(i, acc):
        here = [b.at(row, b.mul(i, STORED)) for row in rows]
        scales = [b.half_to_f32(b.load(at, i16)) for at in here]
        quants = [b.load(b.at(at, 2), vec(i8, BLOCK)) for at in here]
        return [b.fma(b.broadcast(b.ir.fmul(*scales), 8), emit_sums_of_four(b, *quants), acc[0])]

    (acc,) = b.loop(blocks, [b.zero(f32, 8)], block)
    b.store(sum8(b, acc), b.pointer(out), 4)


@step
def dot_rows(record, thread, threads):
    """out[i], float32, of row i of x and of y, `blocks` stored blocks each."""
    rows, _, _, _, x, y, blocks, out = arguments(record, 8)
    for row in range(thread, rows, threads):
        _dot(x + STORED * blocks * row, y + STORED * blocks * row, blocks, out + 4 * row)


def vec_dot_q8_0_q8_0(n: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Products of n values: x and y uint8 (..., n / 32 * 34), rows of q8_0 blocks -> float32 (...)."""
    x, y = np.ascontiguousarray(x, np.uint8), np.ascontiguousarray(y, np.uint8)
    assert x.shape == y.shape and n % BLOCK == 0 and x.shape[-1] == n // BLOCK * STORED, (n, x.shape, y.shape)
    out = np.empty(x.shape[:-1], np.float32)
    words = [out.size, 0, 0, 0, x.ctypes.data, y.ctypes.data, n // BLOCK, out.ctypes.data]
    pool.run_steps((dot_rows, True, words))
    return out


def stored_blocks(rows: np.ndarray):
    """(scales float32, quants int8) of q8_0 bytes, uint8 (..., n / 32 * 34)."""
    blocks = np.ascontiguousarray(rows, np.uint8).reshape(*rows.shape[:-1], -1, STORED)
    return half(np.ascontiguousarray(blocks[..., :2]).view("<u2")[..., 0]), blocks[..., 2:].view(np.int8)


def dot_q8_0_q8_0_plain(x: np.ndarray, y: np.ndarray) -> np.float32:
    """`vec_dot_q8_0_q8_0` of one pair of rows, in scalar order."""
    acc = [np.float32(0)] * 8
    for dx, qx, dy, qy in zip(*stored_blocks(x), *stored_blocks(y), strict=True):
        for lane in range(8):
            total = 0
            for u, v in zip(qx[4 * lane : 4 * lane + 4].tolist(), qy[4 * lane : 4 * lane + 4].tolist(), strict=True):
                total += abs(u) * (v if u >= 0 or v == -128 else -v)
            acc[lane] = fma32(dx * dy, np.float32(total), acc[lane])
    return sum8_plain(acc)
