"""Which attention kernel a micro-batch takes, as the reference chooses it, and that kernel's steps.

The three kernels give different bits, so the choice is part of the result: `Split` for one row over 512 padded cells or
more, `Tiled` for 64 rows or more, `Reference` otherwise, and always over a q8_0 cache.
"""

from dataclasses import dataclass

import numpy as np

from bankml.cpu import pool as pools
from bankml.cpu.attention_q8_0 import attention_q8_0, q8_0_scratch_bytes
from bankml.cpu.attention_reference import attention_reference, cells_scratch_bytes
from bankml.cpu.attention_split import PARTIAL, attention_chunks, attention_join
from bankml.cpu.attention_tiled import attention_tiled, tiled_scratch_bytes
from bankml.cpu.fwht import rot_k_size, rot_v_size
from bankml.cpu.norm import f32_bits
from bankml.errors import UsageError

PADDING = 256  # the reference looks at its cache in steps of so many cells
SPLIT_CELLS = 512  # padded cells from which one row is split
TILED_ROWS = 64  # rows from which the tiled kernel runs
MAX_CHUNKS = 64  # the most threads of the reference
PADDED_WORD = 12  # where the first of the split's steps is told how many padded cells there are


@dataclass(frozen=True)
class Kernel:
    """Reference, Tiled, or Split over `padded` cells with one chunk for each of the reference's `nth` threads."""

    name: str
    padded: int = 0
    nth: int = 0

    @classmethod
    def reference(cls) -> "Kernel":
        """Cell after cell, with a half-precision accumulator."""
        return cls("reference")

    @classmethod
    def tiled(cls) -> "Kernel":
        """Tiles of 64 cells, all in float32."""
        return cls("tiled")

    @classmethod
    def split(cls, padded: int, nth: int) -> "Kernel":
        """The reference kernel over chunks of the padded cells."""
        return cls("split", padded, nth)


def padded_kv(cells: int) -> int:
    """The cells the reference looks at: a multiple of 256, at least 256."""
    return max(1, -(-cells // PADDING)) * PADDING


def kernel_for(rows: int, cells: int, llama_threads: int, cache: str = "f16") -> Kernel:
    """The kernel for a micro-batch of `rows`, whose own cells are the last of `cells`, over a cache of that type."""
    if cache != "f16":
        return Kernel.reference()
    padded = padded_kv(cells)
    if rows == 1 and padded >= SPLIT_CELLS:
        return Kernel.split(padded, llama_threads)
    return Kernel.tiled() if rows >= TILED_ROWS else Kernel.reference()


def _aligned(size):
    return -(-size // 64) * 64


def _work_bytes(n_head, n_head_kv, head_dim):
    needs = [need(n_head, head_dim) for need in (cells_scratch_bytes, q8_0_scratch_bytes)]
    return _aligned(max(tiled_scratch_bytes(n_head // n_head_kv, head_dim), *needs))


def scratch_bytes(n_head: int, n_head_kv: int, head_dim: int, rows: int = 0) -> int:
    """Bytes of scratch per thread, a multiple of 64, for any kernel; partial results of a split lie in the first's."""
    partials = 4 * n_head * MAX_CHUNKS * (PARTIAL + head_dim)
    return _work_bytes(n_head, n_head_kv, head_dim) + _aligned(partials)


def attention_steps(
    kernel: Kernel, shape, q: np.ndarray, out: np.ndarray, scratch: np.ndarray, per_thread: int, cache: str = "f16"
):
    """The steps of `kernel`: q, float32 (rows, n_head * head_dim), at positions pos + row over cells 0 to pos + row.

    shape: n_head, n_head_kv and head_dim; scratch: bytes for every thread, `per_thread` (of `scratch_bytes`) each.
    Raises UsageError for a kernel that the cache's type does not have.
    """
    base = scratch.ctypes.data + -scratch.ctypes.data % 64
    scale = f32_bits(np.float32(1) / np.sqrt(np.float32(shape.head_dim)))
    sizes = [shape.n_head, shape.n_head_kv, shape.head_dim, scale, base, per_thread]
    if cache == "q8_0" and kernel.name != "reference":
        raise UsageError(f"the {kernel.name} attention kernel takes an f16 cache; over a q8_0 one it is the reference")
    if kernel.name == "split":
        partials = base + _work_bytes(shape.n_head, shape.n_head_kv, shape.head_dim)
        chunks = [0, 0, 0, 0, q.ctypes.data, *sizes, partials, kernel.padded, kernel.nth]
        joined = [0, 0, 0, 0, partials, out.ctypes.data, shape.n_head, shape.head_dim, kernel.nth]
        return [(attention_chunks, True, chunks), (attention_join, True, joined)]
    words = [0, 0, 0, 0, q.ctypes.data, q.strides[0], out.ctypes.data, out.strides[0], *sizes]
    if cache == "q8_0":
        words += [rot_k_size(shape.head_dim), rot_v_size(shape.head_dim)]
    return [(_KERNELS[cache, kernel.name], True, words)]


_KERNELS = {
    ("f16", "reference"): attention_reference,
    ("f16", "tiled"): attention_tiled,
    ("q8_0", "reference"): attention_q8_0,
}


@dataclass(frozen=True)
class Heads:
    """What `attention_steps` needs of a model's shape."""

    n_head: int
    n_head_kv: int
    head_dim: int


def attention(q, k, v, *, kernel: Kernel, pool: pools.Pool | None = None, cache: str = "f16") -> np.ndarray:
    """Causal attention of the last rows of a sequence, on `pool` or on the calling thread.

    q: float32 (tokens, heads, size); k, v: half bits (cells, KV heads, size), the tokens' own cells last, or what a
    q8_0 cache holds of them, rotated and quantized, uint8 (cells, KV heads, size / 32 * 34). Returns float32
    (tokens, heads, size).
    """
    tokens, n_head, size = q.shape
    shape = Heads(n_head, k.shape[1], size)
    rows = np.ascontiguousarray(q, np.float32).reshape(tokens, -1)
    k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
    out = np.empty_like(rows)
    per_thread = scratch_bytes(n_head, k.shape[1], size, tokens)
    scratch = np.empty((pool.threads if pool else 1) * per_thread + 64, np.uint8)
    first = [tokens, len(k) - tokens, k.ctypes.data, v.ctypes.data]
    steps = attention_steps(kernel, shape, rows, out, scratch, per_thread, cache)
    pools.run_steps(*((code, wait, [*first, *words[4:]]) for code, wait, words in steps), pool=pool)
    return out.reshape(q.shape)
