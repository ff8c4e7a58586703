"""Block layouts of ggml's tensor types, as NumPy dtypes whose sizes are asserted, and the table of every type id.

The ids, names and sizes are those of ggml at llama.cpp b11192 (`type_traits` in ggml.c); 43 and up are unknown to it.
"""

from dataclasses import dataclass

import numpy as np

F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8
BF16, Q1_0, Q2_0 = 30, 41, 42

# One scale `d` (f16 bits) for the block; `qs` holds the quants.
Q1_0_BLOCK = np.dtype([("d", "<u2"), ("qs", "u1", 16)])  # 128 weights, one bit each, low bit first
Q2_0_BLOCK = np.dtype([("d", "<u2"), ("qs", "u1", 16)])  # 64 weights, two bits each, low bits first
Q4_0_BLOCK = np.dtype([("d", "<u2"), ("qs", "u1", 16)])  # 32 weights, a nibble each: low nibbles are the first 16
Q4_1_BLOCK = np.dtype([("d", "<u2"), ("m", "<u2"), ("qs", "u1", 16)])  # as Q4_0, with the minimum `m` (f16 bits)
Q8_0_BLOCK = np.dtype([("d", "<u2"), ("qs", "i1", 32)])  # 32 weights, one signed byte each
assert Q1_0_BLOCK.itemsize == Q2_0_BLOCK.itemsize == Q4_0_BLOCK.itemsize == 18
assert Q4_1_BLOCK.itemsize == 20
assert Q8_0_BLOCK.itemsize == 34


@dataclass(frozen=True)
class BlockType:
    """A ggml tensor type: `block_size` weights take `block_bytes` bytes.

    `block_size` is 0 for the ids ggml has removed. `dtype` is one block's layout, None where bankml never reads one.
    """

    id: int
    name: str
    block_size: int
    block_bytes: int
    dtype: np.dtype | None = None

    def __str__(self):
        return f"{self.name} (type {self.id})"

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` weights; `width` must be a multiple of `block_size`."""
        return width // self.block_size * self.block_bytes


_ROWS = [
    (F32, "f32", 1, 4, np.dtype("<f4")),
    (F16, "f16", 1, 2, np.dtype("<u2")),
    (Q4_0, "q4_0", 32, 18, Q4_0_BLOCK),
    (Q4_1, "q4_1", 32, 20, Q4_1_BLOCK),
    (4, "q4_2", 0, 0),
    (5, "q4_3", 0, 0),
    (6, "q5_0", 32, 22),
    (7, "q5_1", 32, 24),
    (Q8_0, "q8_0", 32, 34, Q8_0_BLOCK),
    (9, "q8_1", 32, 36),
    (10, "q2_K", 256, 84),
    (11, "q3_K", 256, 110),
    (12, "q4_K", 256, 144),
    (13, "q5_K", 256, 176),
    (14, "q6_K", 256, 210),
    (15, "q8_K", 256, 292),
    (16, "iq2_xxs", 256, 66),
    (17, "iq2_xs", 256, 74),
    (18, "iq3_xxs", 256, 98),
    (19, "iq1_s", 256, 50),
    (20, "iq4_nl", 32, 18),
    (21, "iq3_s", 256, 110),
    (22, "iq2_s", 256, 82),
    (23, "iq4_xs", 256, 136),
    (24, "i8", 1, 1),
    (25, "i16", 1, 2),
    (26, "i32", 1, 4),
    (27, "i64", 1, 8),
    (28, "f64", 1, 8),
    (29, "iq1_m", 256, 56),
    (BF16, "bf16", 1, 2, np.dtype("<u2")),
    (31, "q4_0_4_4", 0, 0),
    (32, "q4_0_4_8", 0, 0),
    (33, "q4_0_8_8", 0, 0),
    (34, "tq1_0", 256, 54),
    (35, "tq2_0", 256, 66),
    (36, "iq4_nl_4_4", 0, 0),
    (37, "iq4_nl_4_8", 0, 0),
    (38, "iq4_nl_8_8", 0, 0),
    (39, "mxfp4", 32, 17),
    (40, "nvfp4", 64, 36),
    (Q1_0, "q1_0", 128, 18, Q1_0_BLOCK),
    (Q2_0, "q2_0", 64, 18, Q2_0_BLOCK),
]

TYPES: dict[int, BlockType] = {row[0]: BlockType(*row) for row in _ROWS}
assert list(TYPES) == list(range(43))

# The types a model's matrices may have, and those `convert` also reads.
RUNNABLE = (Q1_0, Q2_0, F16)
CONVERTIBLE = (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q2_0, Q1_0)


def names(ids) -> str:
    """The types' names with their ids, for a message: "Q1_0 (41), F16 (1)"."""
    return ", ".join(f"{TYPES[i].name.upper()} ({i})" for i in ids)
