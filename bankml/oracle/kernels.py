"""Single kernels of the reference, called as they are exported: NumPy arrays in, NumPy arrays out.

Weights and quantized rows may come as structured blocks, bytes or halves; only their bytes are read.
"""

import numpy as np

from bankml.oracle import library

Q8_0_VALUES, Q8_0_BYTES = 32, 34  # a q8_0 block: an f16 scale, then 32 int8

_DOTS = {  # weight type -> kernel
    "q1_0": "ggml_vec_dot_q1_0_q8_0",
    "q2_0": "ggml_vec_dot_q2_0_q8_0",
    "q8_0": "ggml_vec_dot_q8_0_q8_0",
    "f16": "ggml_vec_dot_f16",
}
_QUANTIZERS = {"q8_0": (32, 34), "q1_0": (128, 18), "q2_0": (64, 18)}  # type -> values and bytes of a block


def as_bytes(rows: np.ndarray) -> np.ndarray:
    """The bytes of `rows` (rows, ...) of any dtype, as uint8 (rows, bytes of a row)."""
    rows = np.ascontiguousarray(rows)
    return rows.reshape(len(rows), -1).view(np.uint8)


def quantize(x: np.ndarray, kind: str = "q8_0") -> np.ndarray:
    """float32 (rows, k) -> uint8 (rows, bytes) as quantize_row_<kind> writes it; k must be whole blocks."""
    x = np.ascontiguousarray(x, np.float32)
    values, size = _QUANTIZERS[kind]
    rows, k = x.shape
    assert k % values == 0
    kernel = getattr(library.load().api, f"quantize_row_{kind}")
    out = np.empty((rows, k // values * size), np.uint8)
    for row in range(rows):
        kernel(x[row].ctypes.data, out[row].ctypes.data, k)
    return out


def dot(kind: str, weights: np.ndarray, activations: np.ndarray, k: int) -> np.ndarray:
    """One vec_dot per pair: weights (rows, ...) and activations (columns, ...) of k values -> float32 (columns, rows).

    Activations are q8_0 rows, and halves for f16.
    """
    weights, activations = as_bytes(weights), as_bytes(activations)
    kernel = getattr(library.load().api, _DOTS[kind])
    out = np.empty((len(activations), len(weights)), np.float32)
    x, y, s = weights.ctypes.data, activations.ctypes.data, out.ctypes.data
    for column in range(len(activations)):
        for row in range(len(weights)):
            at = s + 4 * (column * len(weights) + row)
            kernel(k, at, 0, x + row * weights.shape[1], 0, y + column * activations.shape[1], 0, 1)
    return out


def to_f16(x: np.ndarray) -> np.ndarray:
    """float32 -> the bits of its f16 (uint16, same shape): the hardware's rounding, as the CPU backend does it."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty(x.shape, np.uint16)
    library.load().api.ggml_cpu_fp32_to_fp16(x.ctypes.data, out.ctypes.data, x.size)
    return out


def from_f16(halves: np.ndarray) -> np.ndarray:
    """f16 bits (uint16 or float16) -> float32, same shape."""
    halves = np.ascontiguousarray(halves)
    assert halves.itemsize == 2
    out = np.empty(halves.shape, np.float32)
    library.load().api.ggml_cpu_fp16_to_fp32(halves.ctypes.data, out.ctypes.data, halves.size)
    return out
