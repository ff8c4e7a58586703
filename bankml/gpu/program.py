"""The kernels of kernels.cl/ built for a card, and products over them whose arguments are set once.

    program = Program(context, device)                       # or software_fma=True; the canary says which
    product = program.product(Q1_0, weights, rows, width, (quants, scales), out)
    done = product.enqueue(queue, columns, wait_for=[...])   # cl.Event; returns at once, ~2 us

Buffers are cl.Buffers of the caller's, in the card's memory, never copied or widened here:
- weights: rows as they lie in the file (18 bytes a block; 2 a value for F16), beginning `start` bytes in;
- Q1_0 and Q2_0: quants int8 (columns, width) and scales float32 (columns, width/32), as the CPU quantizes them;
  F16: x float32 (columns, width), each the value of a half, a tuple of one;
- out: float32, element `out_start + column * out_stride + row`.

Whole rows only, so the bits do not depend on how many of a matrix's rows the card has. One thread may use a product
(OpenCL's kernel arguments are not thread-safe). Everything here raises cl.Error where the driver fails.
"""

import hashlib
import threading
from functools import cache
from pathlib import Path

import numpy as np

from bankml.blocks import F16, Q1_0, Q2_0, TYPES
from bankml.gpu import opencl

TILE = 4  # columns per reading of the weights
GROUP = 64  # work-items of a work-group
OPTIONS = ["-cl-std=CL1.2"]
_PARTS = ("exact.h", "q1_0.cl", "q2_0.cl", "f16.cl")
_ITEMS_PER_ROW = {Q1_0: 8, Q2_0: 1, F16: 8}
_WIDTHS = {Q1_0: 128, Q2_0: 64, F16: 32}
_generating = threading.Lock()  # PyOpenCL writes and loads code for a kernel's arguments; threads must not at once


def takes(wtype: int, width: int) -> bool:
    """Whether the kernels take rows of `width`: whole blocks; for F16 whole 32s, as the rest is added in double."""
    return wtype in _WIDTHS and width > 0 and width % _WIDTHS[wtype] == 0


def folder() -> Path:
    """Where the kernels' sources are: beside the package's modules when installed, else at the top of the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "kernels.cl"
    return installed if installed.is_dir() else package.parent / "kernels.cl"


@cache
def source(*parts: str) -> str:
    """Files of kernels.cl/ as one text, the products' where none is named: a driver would need a path to include them.

    Raises OSError.
    """
    return "\n".join((folder() / part).read_text("ascii") for part in parts or _PARTS)


def digest(text: str | None = None) -> str:
    """The hash of what is built, for a verdict's key."""
    said = f"{OPTIONS} {TILE} {GROUP}\n{source() if text is None else text}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class Program:
    """The kernels built for one device.

    software_fma: without the card's own fma(), 25-35 % slower and exact on any IEEE float32. text: other sources than
    the shipped ones, for tests.
    """

    def __init__(self, context, device, software_fma: bool = False, text: str | None = None):
        self.device, self.software_fma = device, software_fma
        head = f"#define TILE {TILE}\n" + "#define SOFTWARE_FMA\n" * software_fma
        self._built = opencl.build(context, device, head + (source() if text is None else text), OPTIONS)

    def kernel(self, name: str):
        """A kernel object of its own: its arguments are nobody else's."""
        return opencl.load().Kernel(self._built, name)

    def product(
        self,
        wtype: int,
        weights,
        rows: int,
        width: int,
        activation: tuple,
        out,
        *,
        start: int = 0,
        out_start: int = 0,
        out_stride: int | None = None,
        matrix_rows: int | None = None,
        tiled: bool = True,
    ) -> "Product":
        """out[c, r] = W[r] . activation[c] for `rows` rows, once enqueued. See the module for the buffers.

        out_stride: elements, default `rows`. matrix_rows: the rows of the whole matrix, where these are a part of it,
        since F16's float order for two columns or more depends on it. tiled: False takes every column through the
        matrix-vector kernel, which changes no bit of Q1_0 and Q2_0.
        """
        assert takes(wtype, width) and rows > 0 and start % 2 == 0, (wtype, rows, width, start)
        assert len(activation) == (1 if wtype == F16 else 2)
        stride = rows if out_stride is None else out_stride
        before = [np.uint32(rows), np.uint32(width), np.uint64(start // 2), weights, *activation]
        after = [out, np.uint64(out_start), np.uint64(stride)]
        tiled = tiled and (wtype != F16 or (matrix_rows or rows) % 4 == 0)
        return Product(self, wtype, rows, before, after, tiled)


class Product:
    """Some rows of a matrix on the card, times an activation's columns. Made by `Program.product`."""

    def __init__(self, program: Program, wtype: int, rows: int, before: list, after: list, tiled: bool):
        self._program, self._name, self._tiled = program, TYPES[wtype].name, tiled
        self._arguments, self._at = [*before, np.uint32(0), *after], len(before)
        self._groups = -(-rows * _ITEMS_PER_ROW[wtype] // GROUP)
        self._kernels, self._columns = {}, {}

    def enqueue(self, queue, columns: int, wait_for=None):
        """Put the product on the queue, not flushed, and return its cl.Event. wait_for: events, or None."""
        tiled = self._tiled and columns > 1
        name = f"{self._name}_columns" if tiled else f"{self._name}_column"
        kernel = self._kernels.get(name)
        if kernel is None:
            with _generating:
                kernel = self._kernels[name] = self._program.kernel(name)
                kernel.set_args(*self._arguments)
        if self._columns.get(name) != columns:
            kernel.set_arg(self._at, np.uint32(columns))
            self._columns[name] = columns
        size = (self._groups * GROUP, -(-columns // TILE) if tiled else columns)
        return opencl.load().enqueue_nd_range_kernel(queue, kernel, size, (GROUP, 1), None, wait_for)
