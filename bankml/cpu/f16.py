"""F16 matrices times activations rounded to f16: the steps, and the plain twins.

One column, or rows % 4 or k % 8 left over: ggml_vec_dot_f16 (haswell), four 8-lane FMA accumulators over 32 values,
`(a0+a2)+(a1+a3)`, then `((0+4)+(1+5)) + ((2+6)+(3+7))`, the k % 32 values left in double. Otherwise, for two columns
or more: llamafile's tile, one 8-lane FMA chain per element, then `((0+4)+(2+6)) + ((1+5)+(3+7))`. So the bits depend on
whether one column is computed or more. The products of two halves are exact in float32. Kernels: the f16_* files.
"""

from importlib import import_module

import numpy as np

from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments
from bankml.cpu.level import level
from bankml.cpu.plain import half, sum8, sum8_by_pairs
from bankml.cpu.pool import next_item
from bankml.cpu.quantize import round_one_to_half, round_to_half
from bankml.cpu.row_groups import (
    chunk_of,
    even_tile,
    group_count,
    group_start,
    group_stride,
    piece,
    piece_count,
    share,
    write_group,
)

_kernels = import_module(f"bankml.cpu.f16_{level()}")
DOT_ROWS, GROUP, TILE = _kernels.DOT_ROWS, _kernels.GROUP, _kernels.TILE
dot_rows, tile_rows = _kernels.dot_rows, _kernels.tile_rows

TILES_PER_BLOCK = 8  # column tiles of a work item: their activations and the item's rows share a core's L2 cache
GROUPS_PER_ITEM = 8


def scratch_bytes(width):
    """Scratch per thread: the results of one group."""
    return 4 * TILE * max(GROUP, DOT_ROWS)


@step
def fill_f16(record, thread, threads):
    """Round n rows to f16, kept as float32."""
    n, _, x, x_stride, width, _, _, out = arguments(record, 8)
    eights = (width + 7) // 8
    first, last = share(n * eights, thread, threads)
    for row in range(first // eights, (last + eights - 1) // eights):
        low, high = max(first - row * eights, 0), min(last - row * eights, eights)
        source, target = x + row * x_stride, out + 4 * row * width
        for i in range(low, min(high, width // 8)):
            round_to_half(source + 32 * i, target + 32 * i)
        if high * 8 > width:
            for i in range(width // 8 * 8, width):
                round_one_to_half(source + 4 * i, target + 4 * i)


@inner
def _dots(record, thread, threads):
    n, _, matrix, row_bytes, rows, width, out, out_stride, residual, residual_stride = arguments(record, 10)
    scratch, scratch_stride, x = arguments(record, 13)[10:]
    results = scratch + thread * scratch_stride
    groups, stride = group_count(rows, DOT_ROWS), group_stride(row_bytes, rows, DOT_ROWS)
    item, pieces = thread, piece_count(groups, threads)
    while item < pieces:
        first, last = piece(item, groups, threads)
        for group in range(first, last):
            w = matrix + group_start(group, rows, DOT_ROWS) * row_bytes
            for c in range(n):
                dot_rows(w, stride, x + 4 * c * width, width, results)
                addend = residual + c * residual_stride if residual else 0
                write_group(
                    results, 1, group, rows, DOT_ROWS, out + c * out_stride, out_stride, addend, residual_stride
                )
        item = threads + next_item(record)


@inner
def _tiles(record, thread, threads):
    n, _, matrix, row_bytes, rows, width, out, out_stride, residual, residual_stride = arguments(record, 10)
    scratch, scratch_stride, x = arguments(record, 13)[10:]
    results = scratch + thread * scratch_stride
    tile, groups, stride = even_tile(n, TILE), group_count(rows, GROUP), group_stride(row_bytes, rows, GROUP)
    block = TILES_PER_BLOCK * tile
    blocks = (n + block - 1) // block
    chunk = min(GROUPS_PER_ITEM, chunk_of(groups, blocks, threads))
    chunks = (groups + chunk - 1) // chunk
    item = next_item(record)
    while item < blocks * chunks:
        left, first = item // chunks * block, item % chunks * chunk
        for column in range(left, min(left + block, n), tile):
            columns, x_tile, out_tile = min(tile, n - column), x + 4 * column * width, out + column * out_stride
            addend = residual + column * residual_stride if residual else 0
            for group in range(first, min(first + chunk, groups)):
                w = matrix + group_start(group, rows, GROUP) * row_bytes
                tile_rows(w, stride, x_tile, columns, width, results)
                write_group(results, columns, group, rows, GROUP, out_tile, out_stride, addend, residual_stride)
        item = next_item(record)


@step
def product_f16(record, thread, threads):
    """out[c, r] = W[r] . act[c] (+ residual[c, r])."""
    may_tile = arguments(record, 14)[13]
    if arguments(record, 1)[0] > 1 and may_tile:
        _tiles(record, thread, threads)
    else:
        _dots(record, thread, threads)


def dot_f16_plain(row, column):
    """f16 bits (k,) times float32 values of halves (k,) -> float32: the plain twin for one column."""
    products = half(row) * column  # exact
    whole = len(products) // 32 * 32
    acc = np.zeros((4, 8), np.float32)
    for block in products[:whole].reshape(-1, 4, 8):
        acc = acc + block
    total = np.float64(sum8_by_pairs((acc[0] + acc[2]) + (acc[1] + acc[3])))
    for p in products[whole:]:
        total = total + np.float64(p)
    return np.float32(total)


def tile_f16_plain(row, column):
    """f16 bits (k,) times float32 values of halves (k,) -> float32: the plain twin for two columns or more."""
    acc = np.zeros(8, np.float32)
    for block in (half(row) * column).reshape(-1, 8):
        acc = acc + block
    return sum8(acc)
