"""Weight blocks to float32 and back, with the bits of ggml's `to_float` and `quantize_row_*_ref`.

Blocks are NumPy arrays of the dtypes in `bankml.blocks`; weights are float32, one row after the other. Nothing here is
fused and no sum is pairwise: `libggml-base`, which does this work in the reference, is built without FMA.
"""

import numpy as np

from bankml import blocks as b

HALF = np.float32(0.5)
LOW_NIBBLE = np.uint8(15)


def _scale(blocks, field="d"):
    """float32 (n, 1): a half field of each block, exactly."""
    return blocks[field].view("<f2").astype(np.float32)[:, None]


def _q1_0_to_float(blocks):
    """128 weights per block, +d where the bit is set, else -d; equals dequantize_row_q1_0."""
    d = _scale(blocks)
    return np.where(np.unpackbits(blocks["qs"], axis=1, bitorder="little"), d, -d)


def _q2_0_to_float(blocks):
    """64 weights per block, (q - 1) * d with q from two bits; equals dequantize_row_q2_0."""
    pairs = (blocks["qs"][:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & np.uint8(3)  # (n, 16, 4)
    return (pairs.reshape(len(blocks), 64).view(np.int8) - np.int8(1)) * _scale(blocks)


def _nibbles(blocks):
    """uint8 (n, 32): the low halves of the 16 bytes first, then the high ones."""
    qs = blocks["qs"]
    nibbles = np.empty((len(blocks), 32), np.uint8)
    np.bitwise_and(qs, LOW_NIBBLE, out=nibbles[:, :16])
    np.right_shift(qs, 4, out=nibbles[:, 16:])
    return nibbles


def _q4_0_to_float(blocks):
    """32 weights per block, (q - 8) * d; equals dequantize_row_q4_0."""
    return (_nibbles(blocks).view(np.int8) - np.int8(8)) * _scale(blocks)


def _q4_1_to_float(blocks):
    """32 weights per block, q * d, rounded, then + m; equals dequantize_row_q4_1."""
    weights = _nibbles(blocks) * _scale(blocks)
    weights += _scale(blocks, "m")
    return weights


def _q8_0_to_float(blocks):
    """32 weights per block, q * d; equals dequantize_row_q8_0."""
    return blocks["qs"] * _scale(blocks)


def _bf16_to_float(blocks):
    """The upper half of a float32; equals ggml_bf16_to_fp32_row."""
    return (blocks.astype(np.uint32) << 16).view(np.float32)


def _to_f16(weights):
    """Round to nearest, ties to even; equals ggml_fp32_to_fp16_row on finite values."""
    return weights.astype("<f2").view("<u2")


def _to_q1_0(weights):
    """d = mean of |w|, added one after the other in float32; a bit says w >= 0. Equals quantize_row_q1_0_ref."""
    groups = weights.reshape(-1, 128)
    blocks = np.empty(len(groups), b.Q1_0_BLOCK)
    total = np.zeros(len(groups), np.float32)
    for column in np.abs(groups.T, order="C"):  # (128, n): the order of adds within a block is the reference's
        total += column
    blocks["d"] = _to_f16(total / np.float32(128))
    blocks["qs"] = np.packbits(groups >= 0, axis=1, bitorder="little")
    return blocks


def _to_q2_0(weights):
    """d = max |w|; q = roundf(w * (1/d)) + 1 in 0..3. Equals quantize_row_q2_0_ref.

    |w * (1/d)| stays below 1.5, so rounding half away from zero is two comparisons. Where 1/d overflows (d a small
    denormal) the reference converts an infinity or NaN to an int, INT_MIN on x86, and clamps it to 0.
    """
    groups = weights.reshape(-1, 64)
    blocks = np.empty(len(groups), b.Q2_0_BLOCK)
    d = np.abs(groups).max(axis=1)
    inverse = np.where(d > 0, np.float32(1) / d, np.float32(0))
    scaled = groups * inverse[:, None]
    q = (scaled >= HALF).view(np.uint8) - (scaled <= -HALF).view(np.uint8)
    q += np.uint8(1)
    q[np.isinf(inverse)] = 0
    four = q.view("<u4")  # (n, 16): four quants, one a byte, to be drawn together into the lowest
    blocks["d"] = _to_f16(d)
    blocks["qs"] = (four | four >> 6 | four >> 12 | four >> 18).astype(np.uint8)
    return blocks


TO_FLOAT = {
    b.F32: lambda blocks: blocks,
    b.F16: lambda blocks: blocks.view("<f2").astype(np.float32),
    b.BF16: _bf16_to_float,
    b.Q8_0: _q8_0_to_float,
    b.Q4_0: _q4_0_to_float,
    b.Q4_1: _q4_1_to_float,
    b.Q2_0: _q2_0_to_float,
    b.Q1_0: _q1_0_to_float,
}
assert set(TO_FLOAT) == set(b.CONVERTIBLE)

FROM_FLOAT = {b.F16: _to_f16, b.Q1_0: _to_q1_0, b.Q2_0: _to_q2_0}
assert set(FROM_FLOAT) == set(b.RUNNABLE)


def to_float(kind, blocks):
    """float32 (weights,): what ggml's `to_float` makes of `blocks`, an array of the dtype of the type id `kind`."""
    with np.errstate(all="ignore"):
        return TO_FLOAT[kind](blocks).reshape(-1)


def from_float(kind, weights):
    """Blocks of the type id `kind` from float32 (weights,), as ggml_quantize_chunk makes them."""
    with np.errstate(all="ignore"):
        return FROM_FLOAT[kind](weights)


def finite(kind, blocks):
    """False where ggml_validate_row_data would refuse: an infinity or NaN among the values or scales."""
    if kind == b.F32:
        return bool(np.isfinite(blocks).all())
    if kind == b.BF16:
        return bool(np.all(blocks & np.uint16(0x7F80) != 0x7F80))
    halves = [blocks[name] for name in ("d", "m") if name in blocks.dtype.names] if blocks.dtype.names else [blocks]
    return all(bool(np.isfinite(bits.view("<f2")).all()) for bits in halves)
