"""The plain twins of the attention kernels: one row of one head, in scalar order. For tests only.

q is float32 (size,); k and v are half bits (cells, size), the cells that the row sees; all return float32 (size,).
"""

import numpy as np

from bankml.cpu.dot_q8_0 import dot_q8_0_q8_0_plain, stored_blocks
from bankml.cpu.f16 import dot_f16_plain
from bankml.cpu.fwht import fwht_plain
from bankml.cpu.plain import fma32, half, libm, sum8
from bankml.cpu.quantize import BLOCK, STORED, quantize_q8_0_plain
from bankml.cpu.swiglu import v_expf_plain

TILE = 64
MINUS_INFINITY, ZERO = np.float32(-np.inf), np.float32(0)


def _to_half(x):
    return np.float32(np.float16(x))


def _scale(size):
    return np.float32(1) / np.sqrt(np.float32(size))


def cells_plain(q, k, v):
    """What the reference kernel knows after these cells: (maximum, sum of weights, half-precision sums)."""
    query = q.astype(np.float16).astype(np.float32)
    maximum, weight_sum, total = MINUS_INFINITY, ZERO, np.zeros(len(q), np.float32)
    for key, value in zip(k, half(v), strict=True):
        score = dot_f16_plain(key, query) * _scale(len(q))
        shrink = weight = np.float32(1)
        if score > maximum:
            shrink, maximum = libm("expf", maximum - score), score
            total = np.array([_to_half(t * shrink) for t in total])
        else:
            weight = libm("expf", score - maximum)
        total = np.array([_to_half(fma32(x, weight, t)) for x, t in zip(value, total, strict=True)])
        weight_sum = weight_sum * shrink + weight
    return maximum, weight_sum, total


def attention_reference_plain(q, k, v):
    """Cell after cell."""
    _, weight_sum, total = cells_plain(q, k, v)
    return total * (np.float32(1) / weight_sum)


def attention_split_plain(q, k, v, padded, chunks):
    """Chunks of the padded cells, combined in order."""
    length = -(-padded // chunks)
    maximum, weight_sum, total = MINUS_INFINITY, ZERO, np.zeros(len(q), np.float32)
    for first in range(0, len(k), length):
        part_maximum, part_sum, part = cells_plain(q, k[first : first + length], v[first : first + length])
        new = max(maximum, part_maximum)
        before, after = libm("expf", maximum - new), libm("expf", part_maximum - new)
        total = np.array([fma32(t, before, p * after) for t, p in zip(total, part, strict=True)])
        weight_sum, maximum = fma32(weight_sum, before, part_sum * after), new
    return total * (np.float32(1) / weight_sum)


def attention_q8_0_plain(q, k, v, rot_k, rot_v):
    """Cell after cell over q8_0 bytes (cells, size / 32 * 34); the rotations' block sizes, 0 for none."""
    query = _rotated(q, rot_k)
    quants, scales = quantize_q8_0_plain(query)
    blocks = np.empty((len(scales), STORED), np.uint8)
    blocks[:, :2] = scales.astype("<f2")[:, None].view(np.uint8)
    blocks[:, 2:] = quants.reshape(-1, BLOCK).view(np.uint8)
    query = blocks.reshape(-1)
    maximum, weight_sum, total = MINUS_INFINITY, ZERO, np.zeros(len(q), np.float32)
    for key, value in zip(k, v, strict=True):
        score = dot_q8_0_q8_0_plain(key, query) * _scale(len(q))
        shrink = weight = np.float32(1)
        if score > maximum:
            shrink, maximum = libm("expf", maximum - score), score
            total = total * shrink
        else:
            weight = libm("expf", score - maximum)
        d, values = stored_blocks(value)
        widened = (values.astype(np.float32) * d[:, None]).reshape(-1)
        total = np.array([fma32(x, weight, t) for x, t in zip(widened, total, strict=True)])
        weight_sum = weight_sum * shrink + weight
    return _rotated(total * (np.float32(1) / weight_sum), rot_v)


def _rotated(x, n):
    return np.concatenate([fwht_plain(block) for block in x.reshape(-1, n)]) if n else x


def attention_tiled_plain(q, k, v):
    """Tile after tile; the cells that are missing from the last one weigh nothing."""
    maximum, weight_sum, total = MINUS_INFINITY, ZERO, np.zeros(len(q), np.float32)
    for first in range(0, len(k), TILE):
        keys, values = half(k[first : first + TILE]), half(v[first : first + TILE])
        scores = np.array([_chain(q, key) * _scale(len(q)) for key in keys])
        new = max(maximum, scores.max())
        if new > maximum:
            shrink = libm("expf", maximum - new)
            total, weight_sum, maximum = total * shrink, weight_sum * shrink, new
        weights = np.zeros(TILE, np.float32)
        weights[: len(scores)] = [v_expf_plain(score - maximum) for score in scores]
        added = np.float64(0)
        for eight in weights.reshape(-1, 8):
            added += np.float64(sum8(eight))
        weight_sum = np.float32(np.float64(weight_sum) + added)
        total = np.array([_chain(weights, column, t) for column, t in zip(values.T, total, strict=True)])
    return total * (np.float32(1) / weight_sum)


def _chain(left, right, start=ZERO):
    """One FMA chain of products, as far as both go."""
    for a, b in zip(left, right, strict=False):
        start = fma32(a, b, start)
    return start
