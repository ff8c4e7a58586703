"""The K/V cache of one layer: a row per cell, K and V apart, in address space reserved whole and filled as it grows."""

import mmap
import operator
import os
from contextlib import suppress
from enum import Enum

import numpy as np

from bankml.errors import UsageError

Q8_0_VALUES, Q8_0_BYTES = 32, 34  # a q8_0 block: an f16 scale, then 32 int8
CELLS = 256  # capacities are multiples of this many cells, and memory is given back by it
SLACK = 48  # cells after the last that attention may ask memory for; where no page lies, asking is slow
AHEAD = SLACK + 64  # cells that are prepared when there are not SLACK of them left
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
MADV_POPULATE_WRITE = 23  # since Linux 5.14


class KvType(Enum):
    """How cached values are stored, by llama.cpp's name for it."""

    F16 = "f16"
    Q8_0 = "q8_0"

    @classmethod
    def parse(cls, text: str) -> "KvType":
        """The type of that name; UsageError names the accepted ones."""
        try:
            return cls(text)
        except ValueError:
            names = ", ".join(kind.value for kind in cls)
            raise UsageError(f"cache type {text!r} is unknown; it is one of {names}") from None

    @classmethod
    def from_environment(cls, flag: str | None = None) -> "KvType":
        """The type a flag asks for, else `BANKML_CACHE_TYPE`, else f16. A bad variable is refused in any case."""
        try:
            chosen = cls.parse(os.environ.get("BANKML_CACHE_TYPE", "") or "f16")
        except UsageError as error:
            raise UsageError(f"BANKML_CACHE_TYPE: {error}") from None
        return cls.parse(flag) if flag else chosen


def padded(cells: int) -> int:
    """`cells` rounded up to a multiple of 256."""
    return -(-cells // CELLS) * CELLS


class KvCache:
    """K and V of one layer, `len(cache)` cells of them in use.

    width: values in a row of K or of V (n_head_kv * head_dim). n_ctx: the most cells, rounded up to 256.
    Pages that were never written cost nothing, so growing never copies.
    """

    def __init__(self, width: int, n_ctx: int, kind: KvType = KvType.F16):
        if not isinstance(kind, KvType):
            raise UsageError(f"cache type {kind!r}; it takes one of {', '.join(map(str, KvType))}")
        if operator.index(n_ctx) < 1:
            raise UsageError(f"a context of {n_ctx} cells; it takes 1 or more")
        self.kind, self.width, self.capacity, self.length = kind, width, padded(n_ctx), 0
        self.prepared = 0  # cells that have memory behind them
        if kind is KvType.Q8_0 and width % Q8_0_VALUES:
            raise UsageError(f"rows of {width} values; a q8_0 cache takes multiples of {Q8_0_VALUES}")
        self.row_bytes = 2 * width if kind is KvType.F16 else width // Q8_0_VALUES * Q8_0_BYTES
        self._k, self._v = self._reserve(), self._reserve()
        self.k_address, self.v_address = (np.frombuffer(m, "u1").ctypes.data for m in (self._k, self._v))

    def _reserve(self):
        size = self.capacity * self.row_bytes
        try:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"no room for a cache of {self.capacity} cells ({size // 10**6} MB): "
                f"{getattr(error, 'strerror', error)}; use a smaller context"
            ) from None

    def __len__(self):
        return self.length

    @property
    def bytes(self) -> int:
        """Bytes of the cells in use, in steps of 256 cells, K and V together."""
        return 2 * padded(self.length) * self.row_bytes

    def rows(self):
        """The cells in use as two views: K, V. float16 (cells, width), or q8_0 bytes, uint8 (cells, row_bytes)."""
        unit = np.dtype(np.float16 if self.kind is KvType.F16 else np.uint8)
        width = self.row_bytes // unit.itemsize
        return tuple(
            np.frombuffer(memory, unit, self.length * width).reshape(self.length, width)
            for memory in (self._k, self._v)
        )

    def raw(self, cells: int | None = None):
        """The bytes of the first `cells` cells (those in use) as two uint8 views (cells, row_bytes) to copy: K, V."""
        cells = self.length if cells is None else cells
        return tuple(
            np.frombuffer(memory, np.uint8, cells * self.row_bytes).reshape(cells, self.row_bytes)
            for memory in (self._k, self._v)
        )

    def fill(self, k, v):
        """Hold these cells and no others: uint8 (cells, row_bytes) each, as `raw` gives them."""
        if k.shape != v.shape or k.shape[1:] != (self.row_bytes,) or len(k) > self.capacity:
            raise UsageError(f"cells of shape {k.shape} and {v.shape} do not fit this cache")
        self.truncate(0)
        for into, rows in zip(self.raw(len(k)), (k, v), strict=True):
            into[:] = rows
        self.length = len(k)

    def needs_memory(self) -> bool:
        """Whether the next cell, or what attention asks for after it, may have no memory behind it yet."""
        return self.prepared < min(self.length + SLACK, self.capacity)

    def prepare(self):
        """Put memory behind the next AHEAD cells at once.

        Left to the first write, page by page, it costs every token 0.3 ms. A prompt's cells are left to that: there
        it is shared among the threads and hardly counts.
        """
        cells = min(self.length + AHEAD, self.capacity)
        start, end = max(self.prepared, self.length) * self.row_bytes, cells * self.row_bytes
        start -= start % mmap.PAGESIZE
        if start < end:
            for memory in (self._k, self._v):
                with suppress(OSError):  # an older kernel, or no memory: then the first write shows it
                    memory.madvise(MADV_POPULATE_WRITE, start, end - start)
        self.prepared = cells

    def truncate(self, n: int):
        """Keep the first `n` cells, as llama.cpp's seq_rm does, and give the memory after them back."""
        n = operator.index(n)
        if not 0 <= n <= self.length:
            raise UsageError(f"cannot keep {n} of {self.length} cells")
        # The memory that the next token would ask for again is kept, unless no cell is.
        kept, held = padded(n + AHEAD) if n else 0, padded(max(self.length, self.prepared))
        self.prepared = min(self.prepared, kept)
        start, end = kept * self.row_bytes, held * self.row_bytes
        start += -start % mmap.PAGESIZE  # a page is given back when no cell that stays lies on it
        if start < end:
            for memory in (self._k, self._v):
                memory.madvise(mmap.MADV_DONTNEED, start, end - start)
        self.length = n
