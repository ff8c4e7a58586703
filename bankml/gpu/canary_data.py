"""What a card is asked: rows on which a wrong step cannot look right. Expected bits come from elsewhere.

Tie rows end within 32 of the middle between two float32, on the side that rounding twice gets wrong; then kinds of
rows, each of which shows a mistake that the others hide; then whole matrices of real shapes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bankml.blocks import F16, Q1_0, Q1_0_BLOCK, Q2_0, Q2_0_BLOCK, TYPES

KINDS = ("random", "wide scales", "denormal scales", "cancelling", "extreme", "zeros")
ROWS, WIDTH, COLUMNS = 64, 1024, 5  # of a kind: whole tiles, and one begun
TIES = 24
SHAPES = ((64, 128), (192, 640), (1024, 2048), (2560, 4096), (12288, 4096))  # rows, width
SHAPE_COLUMNS = (1, 6)


class Case(NamedTuple):
    """weights uint8 (rows, row bytes) times an activation as `gpu.program` takes it; in which ways, see `canary`."""

    name: str
    wtype: int
    weights: np.ndarray
    activation: tuple[np.ndarray, ...]

    @property
    def width(self) -> int:
        return self.activation[0].shape[1]

    @property
    def columns(self) -> int:
        return self.activation[0].shape[0]


def hard_cases(wtype: int) -> Iterator[Case]:
    """The tie rows, and the kinds."""
    name = TYPES[wtype].name
    if wtype in _TIES:
        yield Case(f"{name} tie rows", wtype, *_tie_rows(*_TIES[wtype]))
    for seed, kind in enumerate(KINDS):
        rng = np.random.default_rng([wtype, seed])
        make = _halves if wtype == F16 else _blocks
        yield Case(f"{name} {kind}", wtype, *make(wtype, kind, ROWS, WIDTH, COLUMNS, rng))


def shape_case(wtype: int, rows: int, width: int, columns: int) -> Case:
    """A random matrix of a real shape."""
    rng = np.random.default_rng([wtype, rows, width])
    make = _halves if wtype == F16 else _blocks
    name = f"{TYPES[wtype].name} {rows}x{width} times {columns}"
    return Case(name, wtype, *make(wtype, "random", rows, width, columns, rng))


# --- tie rows


def _factors() -> list[tuple[int, int, int]]:
    """A (an f16's 11 bits), B and M (float32's 24 bits): A*B lies within 32 of 2^34, which is half a unit in the last
    place of M*2^35; M is even if the product lies above, else odd, so rounding to even first goes the wrong way."""
    rng, found = np.random.default_rng(3), []
    while len(found) < TIES // 2:
        a = int(rng.integers(1024, 2048))
        b = (1 << 34) // a + int(rng.integers(0, 2))
        m = int(rng.integers(1 << 23, 1 << 24))
        beyond = a * b - (1 << 34)
        if 1 << 23 <= b < 1 << 24 and 0 < abs(beyond) < 32 and (beyond > 0) == (m % 2 == 0):
            found.append((a, b, m))
    return found


def _q1_0_digits(value: int, lane: int) -> list[tuple[float, np.ndarray]]:
    """A 24-bit value as the lane's sums of a 128-block: three 8-bit digits, each four quants' sum; (scale, quants)."""
    digits = []
    for shift in (16, 8, 0, 0):
        digit = (value >> shift) & 255 if len(digits) < 3 else 0
        quants = np.zeros(32, np.int8)
        quants[4 * lane : 4 * lane + 4] = [(digit + i) // 4 for i in range(4)]
        digits.append((2.0**shift, quants))
    return digits


def _q2_0_digits(value: int, _lane: int) -> list[tuple[float, np.ndarray]]:
    """A 24-bit value as the two sums of a 64-block: 12-bit digits, made with codes of weight 2, and 1 in the last."""
    digits = []
    for shift in (12, 0):
        digit = (value >> shift) & 4095
        quants = np.zeros(32, np.int8)
        quants[:31] = [(digit // 2 + i) // 31 for i in range(31)]
        quants[31] = digit & 1
        digits.append((2.0**shift, quants))
    return digits


_Q2_0_CODES = np.array([255] * 7 + [0b10111111], np.uint8)  # thirty-one of weight 2 (code 3), one of weight 1 (code 2)
_TIES = {
    Q1_0: (Q1_0_BLOCK, np.full(16, 255, np.uint8), _q1_0_digits, 2.0**-10),
    Q2_0: (Q2_0_BLOCK, np.tile(_Q2_0_CODES, 2), _q2_0_digits, 2.0**-10),
}


def _tie_rows(block, codes, digits_of, a_unit):
    """TIES rows of two blocks and as many columns: row i times column i is a tie, in both signs; the others are not."""
    rows, quants, scales = [], [], []
    for i, (a, b, m) in enumerate(_factors() * 2):
        sign = 1.0 if i < TIES // 2 else -1.0
        row = np.zeros(2, block)
        row["d"] = np.array([4.0 * sign, a * a_unit * sign], np.float16).view(np.uint16)
        row["qs"] = codes
        digits = [(s * 2.0**e, q) for value, e in ((m, -1), (b, -24)) for s, q in digits_of(value, i % 8)]
        rows.append(row.view(np.uint8))
        scales.append(np.array([np.float16(s) for s, _ in digits], np.float32))
        quants.append(np.concatenate([q for _, q in digits]))
    return np.stack(rows), (np.stack(quants), np.stack(scales))


# --- the kinds


def _blocks(wtype, kind, rows, width, columns, rng):
    """Q1_0 or Q2_0 rows, and q8_0 columns."""
    block = TYPES[wtype].dtype
    count, halves = width // TYPES[wtype].block_size, width // 32
    weights = np.zeros((rows, count), block)
    weights["qs"] = np.frombuffer(rng.bytes(16 * rows * count), np.uint8).reshape(rows, count, 16)
    quants = rng.integers(-127, 128, (columns, width), np.int8)
    own, scales = _scales(kind, (rows, count), rng), np.abs(_scales(kind, (columns, halves), rng))
    if kind == "cancelling":  # each second block undoes the first but for some quants
        own[:, 1::2] = -own[:, 0::2]
        weights["qs"][:, 1::2, 1:] = weights["qs"][:, 0::2, 1:]
        size = TYPES[wtype].block_size
        pairs, scale_pairs = quants.reshape(columns, -1, 2, size), scales.reshape(columns, -1, 2, size // 32)
        pairs[:, :, 1], scale_pairs[:, :, 1] = pairs[:, :, 0], scale_pairs[:, :, 0]
    if kind == "extreme":
        quants = rng.choice(np.array([-128, -128, -127, 127], np.int8), (columns, width))
    if kind == "zeros":
        weights["qs"] = np.where(np.arange(rows) % 2, 255, 0)[:, None, None]  # of one sign, as the quants are
        own, scales, quants = _zeros(own, 1), _zeros(scales, 0), np.abs(quants)
    weights["d"] = own.astype(np.float16).view(np.uint16)
    return weights.view(np.uint8).reshape(rows, -1), (quants, scales.astype(np.float16).astype(np.float32))


def _zeros(values, signed):
    """Every second pair of rows +-0, every second of those with a minus (where `signed`): sums of -0 alone."""
    at = np.arange(len(values))
    sign = np.where(signed * (at // 4 % 2), -1.0, 1.0)[:, None]
    return np.copysign(np.abs(values) * (at // 2 % 2)[:, None], sign)


def _scales(kind, shape, rng):
    """Block scales as float32 in an f16's range, of both signs."""
    signs = rng.choice(np.array([-1, 1], np.float32), shape)
    if kind == "wide scales":
        return signs * rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-14, 12, shape)
    if kind == "denormal scales":
        return signs * rng.integers(1, 1024, shape) * 2.0**-24
    if kind == "extreme":
        return signs * rng.choice(np.array([65504, 65472, 2.0**-24], np.float32), shape)
    return signs * rng.uniform(0.01, 0.1, shape)


def _halves(_wtype, kind, rows, width, columns, rng):
    """F16 rows, and columns of halves kept as float32."""
    if kind == "random":  # made fast, for the large shapes: exponents 2^-9 to 2^-2
        bits = np.frombuffer(rng.bytes(2 * rows * width), np.uint16) & 0x9FFF
        weights = (bits + np.uint16(6 << 10)).view(np.float16).reshape(rows, width)
    else:
        weights = _values(kind, (rows, width), rng).astype(np.float16)
    x = _values(kind, (columns, width), rng).astype(np.float16)
    if kind == "cancelling":  # each second 32 undoes the first but for a unit in the last place
        weights.reshape(rows, -1, 2, 32)[:, :, 1] = -weights.reshape(rows, -1, 2, 32)[:, :, 0]
        weights.view(np.uint16).reshape(rows, -1, 2, 32)[:, :, 1, ::3] ^= 1
        x.reshape(columns, -1, 2, 32)[:, :, 1] = x.reshape(columns, -1, 2, 32)[:, :, 0]
    if kind == "zeros":
        weights, x = _zeros(weights, 1).astype(np.float16), _zeros(x, 0).astype(np.float16)
    return weights.view(np.uint8).reshape(rows, -1), (x.astype(np.float32),)


def _values(kind, shape, rng):
    if kind in ("random", "cancelling", "zeros"):
        return rng.standard_normal(shape, np.float32)
    return _scales(kind, shape, rng)
