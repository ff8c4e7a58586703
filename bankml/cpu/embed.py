"""Rows in and out of a run: the token embedding, dequantized as ggml's get_rows does, and the rows that go on."""

import numpy as np

from bankml.blocks import F16, Q1_0, Q2_0
from bankml.cpu import pool
from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments, half_to_f32, load_i64, load_u8, load_u16, store_f32, store_i64
from bankml.cpu.level import level
from bankml.cpu.simd import i16, vec, vector

LANES = 16 if level() == "avx512" else 8


@inner
def _row_q1_0(row, out, width):
    """Blocks of an f16 scale and 128 bits: a set bit is +d, a clear one -d."""
    for block in range(width // 128):
        at = row + 18 * block
        d = half_to_f32(load_u16(at))
        for i in range(128):
            bit = (load_u8(at + 2 + (i >> 3)) >> (i & 7)) & 1
            store_f32(out + 4 * (128 * block + i), d if bit != 0 else -d)


@inner
def _row_q2_0(row, out, width):
    """Blocks of an f16 scale and 64 codes of two bits: (code - 1) * d."""
    for block in range(width // 64):
        at = row + 18 * block
        d = half_to_f32(load_u16(at))
        for i in range(64):
            code = (load_u8(at + 2 + (i >> 2)) >> (2 * (i & 3))) & 3
            store_f32(out + 4 * (64 * block + i), np.float32(code - 1) * d)


@vector
def _widen(b, x, out, units):
    """Halves to float32, `units` times LANES values."""

    def one(i, carried):
        value = b.half_to_f32(b.load(b.pointer(x, b.mul(i, 2 * LANES)), vec(i16, LANES)))
        b.store(value, b.pointer(out, b.mul(i, 4 * LANES)))
        return carried

    b.loop(units, [], one)


@inner
def _row_f16(row, out, width):
    _widen(row, out, width // LANES)
    for i in range(width // LANES * LANES, width):
        store_f32(out + 4 * i, half_to_f32(load_u16(row + 2 * i)))


@step
def embed_q1_0(record, thread, threads):
    """out row i, float32 (n, width): row ids[i] of a Q1_0 table; ids int64 (n,)."""
    n, _, _, _, ids, table, row_bytes, width, out, out_stride = arguments(record, 10)
    for i in range(thread, n, threads):
        _row_q1_0(table + row_bytes * load_i64(ids + 8 * i), out + out_stride * i, width)


@step
def embed_q2_0(record, thread, threads):
    """As `embed_q1_0`, of a Q2_0 table."""
    n, _, _, _, ids, table, row_bytes, width, out, out_stride = arguments(record, 10)
    for i in range(thread, n, threads):
        _row_q2_0(table + row_bytes * load_i64(ids + 8 * i), out + out_stride * i, width)


@step
def embed_f16(record, thread, threads):
    """As `embed_q1_0`, of a table of halves."""
    n, _, _, _, ids, table, row_bytes, width, out, out_stride = arguments(record, 10)
    for i in range(thread, n, threads):
        _row_f16(table + row_bytes * load_i64(ids + 8 * i), out + out_stride * i, width)


EMBED = {Q1_0: embed_q1_0, Q2_0: embed_q2_0, F16: embed_f16}


@step
def copy_rows(record, thread, threads):
    """out row i = row first + i of x, for i < count (word 1), where first = n - count; width a multiple of 2 floats.

    Rows move up or stay, so out may be x; a thread takes columns, for then rows may overlap.
    """
    n, count, _, _, x, x_stride, out, out_stride, width = arguments(record, 9)
    first = n - count
    for i in range(count):
        source, target = x + x_stride * (first + i), out + out_stride * i
        for pair in range(width // 2 * thread // threads, width // 2 * (thread + 1) // threads):
            store_i64(target + 8 * pair, load_i64(source + 8 * pair))


def embed_step(wtype: int, table: int, row_bytes: int, ids: np.ndarray, out: np.ndarray):
    """The step that writes rows ids, int64 (rows,), of the table at an address into out, float32 (rows, width)."""
    words = [0, 0, 0, 0, ids.ctypes.data, table, row_bytes, out.shape[1], out.ctypes.data, out.strides[0]]
    return EMBED[wtype], True, words


def last_rows_step(x: np.ndarray, out: np.ndarray | None = None):
    """The step that moves the last rows of x, as many as word 1 says, to the front of x or of `out`."""
    out = x if out is None else out
    words = [0, 0, 0, 0, x.ctypes.data, x.strides[0], out.ctypes.data, out.strides[0], x.shape[1]]
    return copy_rows, True, words


def embed(wtype: int, table: np.ndarray, ids, width: int) -> np.ndarray:
    """Rows ids of a table, uint8 (rows, row bytes) of type `wtype`, as float32 (len(ids), width)."""
    table, ids = np.ascontiguousarray(table), np.ascontiguousarray(ids, np.int64)
    out = np.empty((len(ids), width), np.float32)
    code, wait, words = embed_step(wtype, table.ctypes.data, table.strides[0], ids, out)
    pool.run_steps((code, wait, [len(ids), *words[1:]]))
    return out
