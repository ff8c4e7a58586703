"""The way into a q8_0 cache: K, normed and turned by RoPE, and V, each rotated and quantized into its cell.

A cell holds the blocks of all its heads one after the other, 34 bytes per 32 values.
"""

import numpy as np

from bankml.cpu.compile import step
from bankml.cpu.floats import arguments
from bankml.cpu.fwht import rot_k_size, rot_v_size, rotate
from bankml.cpu.quantize import BLOCK, STORED, quantize_stored_blocks
from bankml.cpu.rope import Rope, heads_words, turn_head


@step
def store_keys_q8_0(record, thread, threads):
    """Heads of x (n, heads * size) into cell pos + row of the K cache; x is scratch afterwards."""
    n, pos, cache, _, x, x_stride, count, size, table, adjacent, weight, eps, rot = arguments(record, 13)
    for item in range(thread, n * count, threads):
        row, head = item // count, item % count
        here = x + row * x_stride + 4 * size * head
        turn_head(here, table + 4 * size * row, size, adjacent, weight, eps)
        if rot != 0:
            rotate(here, here, rot, size)
        quantize_stored_blocks(here, cache + size // BLOCK * STORED * ((pos + row) * count + head), size // BLOCK)


@step
def store_values_q8_0(record, thread, threads):
    """Rows of V (n, width) into the cells from pos on; x is scratch afterwards."""
    n, pos, _, cache, x, x_stride, width, rot = arguments(record, 8)
    for row in range(threads - 1 - thread, n, threads):
        here = x + row * x_stride
        if rot != 0:
            rotate(here, here, rot, width)
        quantize_stored_blocks(here, cache + width // BLOCK * STORED * (pos + row), width // BLOCK)


def store_step_q8_0(shape, k: np.ndarray, v: np.ndarray, table: np.ndarray, weight: int = 0):
    """As `rope.store_step`, for q8_0 caches."""
    keys = heads_words(k, table, Rope.of(shape), weight, shape.rms_eps)
    values = [0, 0, 0, 0, v.ctypes.data, v.strides[0], v.shape[1], rot_v_size(shape.head_dim)]
    return [(store_keys_q8_0, False, [*keys, rot_k_size(shape.head_dim)]), (store_values_q8_0, True, values)]
