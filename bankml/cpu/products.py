"""Matrix products as steps of a program: an activation is filled once, then any number of products read it.

    act = Activation(wtype, rows, width, threads)
    program(*act.fill(x, width, stride), (*product(wtype, matrix, ..., act, out, stride), True))

The word 0 of every step is the number of columns n, patched before a run: one is a matrix-vector product, more go
through the tile. A filling and the products over it have the same n and width; several products need no barrier
between them. The pool may not have more threads than the activation was made for.
"""

from typing import NamedTuple

import numpy as np

from bankml.blocks import F16, Q1_0, Q2_0, TYPES
from bankml.cpu import f16, q1_0, q2_0
from bankml.cpu.pool import Pool, program

LINE = 64


class _Kind(NamedTuple):
    """What a weight type wants: its steps, scratch per thread, and the bytes of each activation array per value."""

    fill: object
    prepare: object  # the same from q8_0 rows that are there already; None for f16
    product: object
    scratch_bytes: object
    arrays: tuple  # bytes per value and row
    apart: bool = False  # every thread fills a single row for itself, and no barrier need follow


_KINDS = {
    Q1_0: _Kind(q1_0.fill_q1_0, q1_0.prepare_q1_0, q1_0.product_q1_0, q1_0.scratch_bytes, (1, 1 / 8), True),
    Q2_0: _Kind(q2_0.fill_q2_0, q2_0.prepare_q2_0, q2_0.product_q2_0, q2_0.scratch_bytes, (1, 1 / 8, 1, 1 / 8)),
    F16: _Kind(f16.fill_f16, None, f16.product_f16, f16.scratch_bytes, (4,)),
}


GROUPS = {Q1_0: q1_0.GROUP, Q2_0: q2_0.GROUP, F16: max(f16.GROUP, f16.DOT_ROWS)}  # adjacent rows computed at once


def _last_word(wtype, matrix_rows, width):
    """The word after the activation's addresses: Q1_0's tile, or whether two columns take F16's tiled product."""
    if wtype == Q1_0:
        return [q1_0.tile_columns(width)]
    return [int(matrix_rows % 4 == 0 and width % 8 == 0)] if wtype == F16 else []


class _Room:
    """Bytes that begin on a cache line, never touched until they are used."""

    def __init__(self, size):
        self.memory = np.empty(int(size) + 2 * LINE, np.uint8)
        self.address = -(-self.memory.ctypes.data // LINE) * LINE

    def view(self, dtype, shape):
        """The front of it as an array."""
        start = self.address - self.memory.ctypes.data
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.memory[start : start + size].view(dtype).reshape(shape)


class Activation:
    """Room for up to `rows` rows of up to `width` values as the products of `wtype` want them at this CPU level.

    Q1_0: int8 quants and float32 scales (look-up tables are each thread's own); Q2_0: those, the quants in planes, and
    minus their sums; F16: float32 rounded to f16. Row strides follow the width that is filled.
    """

    def __init__(self, wtype: int, rows: int, width: int, threads: int):
        self.wtype, self.rows, self.width, self.threads = wtype, rows, width, threads
        kind = self.kind = _KINDS[wtype]
        self._arrays = [_Room(size * rows * width) for size in kind.arrays]
        self.scratch_stride = -(-kind.scratch_bytes(width) // LINE) * LINE
        self._scratch = _Room(self.scratch_stride * threads)

    @property
    def words(self):
        """What the products are told of it: scratch, its stride, and the arrays' addresses."""
        return [self._scratch.address, self.scratch_stride, *(room.address for room in self._arrays)]

    def fill(self, x_address: int, width: int, x_stride: int) -> list:
        """The step that brings n rows of float32, `x_stride` bytes apart, into this form: (step, barrier, words)."""
        self._check(width)
        return [(self.kind.fill, True, [1, 0, x_address, x_stride, width, *self.words])]

    def waits(self, n: int) -> bool:
        """Whether a barrier must follow the step that fills n rows; `fill` has one set."""
        return n != 1 or not self.kind.apart

    def prepare(self, q: np.ndarray, d: np.ndarray) -> list:
        """Take q8_0 rows as they are, int8 (n, width) and float32 (n, width/32), and return the step for the rest."""
        n, width = q.shape
        self._check(width)
        quants, scales = self._q8_views(n, width)
        quants[:], scales[:] = q, d
        return [(self.kind.prepare, True, [n, 0, 0, 0, width, *self.words])]

    def q8(self, n: int, width: int | None = None):
        """The rows last filled, of `width` values each: int8 (n, width) and float32 scales (n, width/32)."""
        return self._q8_views(n, width or self.width)

    def f32(self, n: int, width: int):
        """The rows last filled for F16: float32 (n, width) of halves' values."""
        return self._arrays[0].view(np.float32, (n, width))

    def _q8_views(self, n, width):
        return self._arrays[0].view(np.int8, (n, width)), self._arrays[1].view(np.float32, (n, width // 32))

    def _check(self, width):
        block = TYPES[self.wtype].block_size
        assert width <= self.width and width % block == 0, (width, self.width, block)


def product(
    wtype: int,
    matrix_address: int,
    row_bytes: int,
    n_rows: int,
    width: int,
    activation: Activation,
    out_address: int,
    out_stride: int,
    residual_address: int = 0,
    residual_stride: int = 0,
    matrix_rows: int | None = None,
    following: tuple[int, int] = (0, 0),
):
    """(step, words) of out[c, r] = W[r] . act[c] (+ residual[c, r], added after, as ggml_add does), float32.

    Strides are bytes; out may be the residual. matrix_rows: the rows of the whole matrix, where these are a part of it,
    since F16's choice of kernel depends on it. following: the address of the matrix that is read next and its bytes, to
    be asked for ahead of time, or zeros.
    """
    words = [1, 0, matrix_address, row_bytes, n_rows, width, out_address, out_stride, residual_address, residual_stride]
    words += activation.words + _last_word(wtype, n_rows if matrix_rows is None else matrix_rows, width) + [*following]
    return activation.kind.product, words


def mm(pool: Pool, wtype: int, weights: np.ndarray, x, residual=None) -> np.ndarray:
    """weights uint8 (rows, row bytes) times x float32 (n, width), plus the residual if any -> float32 (n, rows).

    x may also be q8_0 rows, a pair of int8 (n, width) and float32 (n, width/32).
    """
    quantized = isinstance(x, tuple)
    x = x if quantized else np.ascontiguousarray(x, np.float32)
    n, width = x[0].shape if quantized else x.shape
    rows, row_bytes = weights.shape
    activation = Activation(wtype, n, width, pool.threads)
    out = np.empty((n, rows), np.float32) if residual is None else np.array(residual, np.float32)
    extra = () if residual is None else (out.ctypes.data, out.strides[0])
    fill = activation.prepare(*x) if quantized else activation.fill(x.ctypes.data, width, x.strides[0])
    step, words = product(
        wtype, weights.ctypes.data, row_bytes, rows, width, activation, out.ctypes.data, out.strides[0], *extra
    )
    steps = program(*[(code, wait, [n, *rest[1:]]) for code, wait, rest in fill], (step, True, [n, *words[1:]]))
    pool.run(steps)
    return out


def mv(pool: Pool, wtype: int, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """weights uint8 (rows, row bytes) times x float32 (width,) -> float32 (rows,)."""
    return mm(pool, wtype, weights, np.asarray(x)[None])[0]
