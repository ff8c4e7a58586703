"""Rotary embedding: a table of cosines and sines per micro-batch, the rotation of heads, and the way into the cache.

The reference's binary fuses the YaRN mix, the magnitude term and the rotation into FMAs, and calls glibc's sinf, cosf,
powf and logf; so does this, with functions of our own that give the same bits.
"""

from dataclasses import dataclass

import numpy as np
from numba.core import types

from bankml.cpu import pool
from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments, bits_to_f32, f32_to_bits, fma, store_f32
from bankml.cpu.level import level
from bankml.cpu.logarithm import logf, logf_plain, powf_plain
from bankml.cpu.norm import f32_bits, norm_row
from bankml.cpu.plain import fma32, libm
from bankml.cpu.simd import f32, i32, vec, vector
from bankml.cpu.trigonometry import emit_sinf_cosf

LANES = 16 if level() == "avx512" else 8  # divides half a head, for heads are multiples of 32
BETA_FAST, BETA_SLOW = 32.0, 1.0  # the reference's defaults, which no supported model changes


@dataclass(frozen=True)
class Rope:
    """The parameters of one model. yarn_factor 0: no YaRN; attn_factor None: what a llama context passes on."""

    n_dims: int
    freq_base: float = 1e4
    yarn_factor: float = 0.0
    n_ctx_orig: int = 0
    mode: str = "neox"
    attn_factor: float | None = None

    @classmethod
    def of(cls, shape) -> "Rope":
        """From a plan's Shape."""
        return cls(shape.head_dim, shape.rope_base, shape.yarn_factor, shape.n_ctx_orig, str(shape.rope_mode))

    @property
    def magnitude(self) -> np.float32:
        """attn_factor: YaRN's magnitude divided by the term that the operation multiplies again."""
        if self.attn_factor is not None:
            return np.float32(self.attn_factor)
        if not self.yarn_factor:
            return np.float32(1)
        one, tenth = np.float32(1), np.float32(0.1)
        factor = one / (one / np.float32(self.yarn_factor))
        scale = tenth * logf_plain(factor) + one if factor > one else one
        return scale * (one / (one + tenth * logf_plain(factor)))

    def correction(self) -> tuple[np.float32, np.float32]:
        """Where YaRN's ramp starts and ends, in pairs."""
        turn = np.float32(2) * np.float32(np.pi)
        length = [np.float32(self.n_ctx_orig) / (np.float32(beta) * turn) for beta in (BETA_FAST, BETA_SLOW)]
        scale = np.float32(2) * logf_plain(self.freq_base)
        low, high = (np.float32(self.n_dims) * logf_plain(x) / scale for x in length)
        return max(np.float32(0), np.floor(low)), min(np.float32(self.n_dims - 1), np.ceil(high))

    def words(self) -> list[int]:
        """What `rope_table` needs of it, six words."""
        theta_scale = powf_plain(self.freq_base, np.float32(-2) / np.float32(self.n_dims))
        yarn = self.yarn_factor != 0
        low, high = self.correction() if yarn else (0, 0)
        scale = np.float32(1) / np.float32(self.yarn_factor) if yarn else 1
        return [int(yarn), *map(f32_bits, (theta_scale, scale, self.magnitude, low, high))]

    def apply(self, x: np.ndarray, positions) -> np.ndarray:
        """x, float32 (tokens, heads, head size), rotated at `positions` (tokens,)."""
        out = np.array(x, np.float32, order="C")
        table = np.empty((1, self.n_dims), np.float32)
        steps = [rope_table_step(self, table), _heads_step(out.reshape(len(out), -1), table, self)]
        record = pool.program(*steps)
        for row, position in enumerate(positions):
            record[:, pool.ARGUMENTS : pool.ARGUMENTS + 2] = 1, position
            record[1, pool.ARGUMENTS + 4] = out[row].ctypes.data
            pool.run_alone(record)
        return out


@inner
def _theta(interpolated, extrapolated, pair, low, high):
    """YaRN's mix of the two angles."""
    reach = (np.float32(pair) - low) / max(np.float32(0.001), high - low)
    mix = np.float32(1) - min(np.float32(1), max(np.float32(0), reach))
    return fma(interpolated, np.float32(1) - mix, extrapolated * mix)  # the reference fuses here


@vector
def _turns(b, angles, sines, magnitude, units):
    """Angles become their cosines, and `sines` their sines, all times the magnitude; `units` times LANES values."""
    wide = vec(f32, LANES)
    size = b.broadcast(b.cast(b.ir.trunc(magnitude, i32), f32), LANES)

    def one(i, carried):
        at, to = (b.pointer(address, b.mul(i, 4 * LANES)) for address in (angles, sines))
        sine, cosine = emit_sinf_cosf(b, b.load(at, wide))
        b.store(b.ir.fmul(cosine, size), at)
        b.store(b.ir.fmul(sine, size), to)
        return carried

    b.loop(units, [], one)


@step
def rope_table(record, thread, threads):
    """table row i: the cosines of position pos + i, then its sines, float32 (n, 2 * half), times the magnitude."""
    n, pos, _, _, table, half, yarn, theta_scale, freq_scale, magnitude, low, high = arguments(record, 12)
    scale, size = bits_to_f32(freq_scale), bits_to_f32(magnitude)
    if yarn != 0:
        size = size * fma(np.float32(0.1), logf(np.float32(1) / scale), np.float32(1))  # fused too
    for row in range(thread, n, threads):
        out = table + 8 * half * row
        extrapolated = np.float32(pos + row)
        for pair in range(half):
            theta = scale * extrapolated
            if yarn != 0:
                theta = _theta(theta, extrapolated, pair, bits_to_f32(low), bits_to_f32(high))
            store_f32(out + 4 * pair, theta)
            extrapolated = extrapolated * bits_to_f32(theta_scale)
        _turns(out, out + 4 * half, f32_to_bits(size), half // LANES)


def rope_table_step(rope: Rope, table: np.ndarray):
    """The step that fills `table`, float32 (rows, head size), for the micro-batch's positions."""
    first, *others = rope.words()
    return rope_table, True, [0, 0, 0, 0, table.ctypes.data, rope.n_dims // 2, first, *others]


def _emit_rotation(b, x0, x1, cosine, sine):
    """(x0*cos - x1*sin, x0*sin + x1*cos), the first product of each fused."""
    fused = b.fma(x0, cosine, b.ir.fneg(b.ir.fmul(x1, sine)))
    return fused, b.fma(x0, sine, b.ir.fmul(x1, cosine))


def _make_rotation(name, adjacent, halves):
    """An intrinsic (x, table, out, half): rotate one head; out float32, or halves."""
    wide = vec(f32, LANES)
    size = 2 if halves else 4

    def store(b, value, address, offset):
        b.store(b.f32_to_half(value) if halves else value, b.pointer(address, offset))

    def pair(b, x, offset, half):
        if not adjacent:
            return b.load(b.pointer(x, offset), wide), b.load(b.pointer(x, b.add(offset, b.mul(half, 4))), wide)
        first, second = (b.load(b.pointer(x, b.add(b.mul(offset, 2), 4 * LANES * i)), wide) for i in range(2))
        return b.shuffle(first, second, range(0, 2 * LANES, 2)), b.shuffle(first, second, range(1, 2 * LANES, 2))

    def rotate(b, x, table, out, half):
        def one(i, carried):
            offset = b.mul(i, 4 * LANES)
            x0, x1 = pair(b, x, offset, half)
            cosine = b.load(b.pointer(table, offset), wide)
            sine = b.load(b.pointer(table, b.add(offset, b.mul(half, 4))), wide)
            y0, y1 = _emit_rotation(b, x0, x1, cosine, sine)
            at = b.mul(i, size * LANES)
            if adjacent:
                for part in range(2):
                    lanes = [part * LANES // 2 + j // 2 + (j % 2) * LANES for j in range(LANES)]
                    store(b, b.shuffle(y0, y1, lanes), out, b.add(b.mul(at, 2), size * LANES * part))
            else:
                store(b, y0, out, at)
                store(b, y1, out, b.add(at, b.mul(half, size)))
            return carried

        b.loop(b.ir.sdiv(half, b.int(LANES)), [], one)

    rotate.__name__ = name
    return vector(rotate)


_rotate_neox = _make_rotation("rotate_neox", False, False)
_rotate_norm = _make_rotation("rotate_norm", True, False)
_rotate_neox_half = _make_rotation("rotate_neox_half", False, True)
_rotate_norm_half = _make_rotation("rotate_norm_half", True, True)


@vector(returns=types.void)
def _halve(b, x, out, units):
    """float32 to halves, `units` times LANES values."""

    def one(i, carried):
        value = b.load(b.pointer(x, b.mul(i, 4 * LANES)), vec(f32, LANES))
        b.store(b.f32_to_half(value), b.pointer(out, b.mul(i, 2 * LANES)))
        return carried

    b.loop(units, [], one)


@inner
def _normed(x, weight, width, eps):
    if weight != 0:
        norm_row(x, weight, x, width, bits_to_f32(eps))


@inner
def turn_head(here, turns, size, adjacent, weight, eps):
    """One head, float32 (size,), in place: RMS norm where there is a weight, then the rotation by a table's row."""
    _normed(here, weight, size, eps)
    if adjacent != 0:
        _rotate_norm(here, turns, here, size // 2)
    else:
        _rotate_neox(here, turns, here, size // 2)


@step
def heads(record, thread, threads):
    """Each head of x (n, heads * size), in place: RMS norm where there is a weight, then the rotation."""
    n, _, _, _, x, x_stride, count, size, table, adjacent, weight, eps = arguments(record, 12)
    for item in range(thread, n * count, threads):
        row, head = item // count, item % count
        turn_head(x + row * x_stride + 4 * size * head, table + 4 * size * row, size, adjacent, weight, eps)


@step
def store_keys(record, thread, threads):
    """As `heads`, and then as halves into cell pos + row of the K cache; x is scratch afterwards."""
    n, pos, cache, _, x, x_stride, count, size, table, adjacent, weight, eps = arguments(record, 12)
    for item in range(thread, n * count, threads):
        row, head = item // count, item % count
        here, turns = x + row * x_stride + 4 * size * head, table + 4 * size * row
        cell = cache + 2 * size * ((pos + row) * count + head)
        _normed(here, weight, size, eps)
        if adjacent != 0:
            _rotate_norm_half(here, turns, cell, size // 2)
        else:
            _rotate_neox_half(here, turns, cell, size // 2)


@step
def store_values(record, thread, threads):
    """Rows of V (n, width) as halves into the cells from pos on."""
    n, pos, _, cache, x, x_stride, width = arguments(record, 7)
    for row in range(threads - 1 - thread, n, threads):
        _halve(x + row * x_stride, cache + 2 * width * (pos + row), width // LANES)


def heads_words(x, table, rope, weight, eps):
    """The words of a step over the heads of x, float32 (rows, heads * size); weight: an address, or 0."""
    count = x.shape[1] // rope.n_dims
    where = [x.ctypes.data, x.strides[0], count, rope.n_dims, table.ctypes.data]
    return [0, 0, 0, 0, *where, int(rope.mode == "norm"), weight, f32_bits(eps)]


def _heads_step(x, table, rope, weight=0, eps=0.0, wait=True):
    return heads, wait, heads_words(x, table, rope, weight, eps)


def heads_step(shape, q: np.ndarray, table: np.ndarray, weight: int = 0):
    """The step that norms (weight: address of float32 (head size,), or 0) and rotates Q in place; no barrier after."""
    return _heads_step(q, table, Rope.of(shape), weight, shape.rms_eps, wait=False)


def store_step(shape, k: np.ndarray, v: np.ndarray, table: np.ndarray, weight: int = 0):
    """The two steps that write K, normed and rotated, and V into the caches at words 2 and 3."""
    keys = heads_words(k, table, Rope.of(shape), weight, shape.rms_eps)
    values = [0, 0, 0, 0, v.ctypes.data, v.strides[0], v.shape[1]]
    return [(store_keys, False, keys), (store_values, True, values)]


def rope_plain(rope: Rope, x, position) -> np.ndarray:
    """`Rope.apply` of one head, float32 (size,), in scalar Python."""
    _, theta_scale, scale, magnitude, low, high = rope.words()
    theta_scale, scale, magnitude, low, high = np.array([theta_scale, scale, magnitude, low, high], "u4").view("f4")
    one, half = np.float32(1), rope.n_dims // 2
    if rope.yarn_factor:
        magnitude = magnitude * fma32(np.float32(0.1), libm("logf", one / scale), one)
    out, extrapolated = np.empty(rope.n_dims, np.float32), np.float32(position)
    for pair in range(half):
        theta = scale * extrapolated
        if rope.yarn_factor:
            reach = (np.float32(pair) - low) / max(np.float32(0.001), high - low)
            mix = one - min(one, max(np.float32(0), reach))
            theta = fma32(theta, one - mix, extrapolated * mix)
        cosine, sine = libm("cosf", theta) * magnitude, libm("sinf", theta) * magnitude
        first, second = (2 * pair, 2 * pair + 1) if rope.mode == "norm" else (pair, pair + half)
        out[first] = fma32(x[first], cosine, -(x[second] * sine))
        out[second] = fma32(x[first], sine, x[second] * cosine)
        extrapolated = extrapolated * theta_scale
    return out
