"""Q1_0 matrices times q8_0 activations: the steps, and the plain twin. Equals ggml_vec_dot_q1_0_q8_0 (haswell).

Eight float32 lanes per row. Per 128-block: lane sums of four adjacent signed activations, exact integers (int8
negation wraps -128); `ab = d1*s` of the first 32, then `ab = fma(d1, s, ab)` of the other three;
`acc = fma(d0, ab, acc)`. At the end `((0+4)+(2+6)) + ((1+5)+(3+7))`. Kernels: the q1_0_* files, one per level.
"""

from importlib import import_module

import numpy as np

from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments, load_i64, store_i64
from bankml.cpu.level import level
from bankml.cpu.plain import fma32, half, sum8
from bankml.cpu.pool import next_item
from bankml.cpu.quantize import quantize_blocks
from bankml.cpu.row_groups import (
    chunk_of,
    coming_group,
    even_tile,
    group_count,
    group_start,
    group_stride,
    share,
    write_group,
)

_kernels = import_module(f"bankml.cpu.q1_0_{level()}")
GROUP, TILE, TABLE_BYTES = _kernels.GROUP, _kernels.TILE, _kernels.TABLE_BYTES
build_tables, group_product, work_bytes = _kernels.build_tables, _kernels.group_product, _kernels.work_bytes

BLOCK, BLOCK_BYTES = 128, 18
MOST_GROUPS = 32  # of a work item with one column: a thread asks for its next item while it is at one
TABLES_AT_MOST = 768 << 10  # bytes of a tile's tables, to stay in a core's L2 cache
RESULTS = 64  # scratch of a thread: the tile its tables are of (-1: none), results, tables, the kernel's work area
TABLES = RESULTS + 4 * TILE * GROUP


def tile_columns(width):
    """The most columns of a tile."""
    return max(1, min(TILE, TABLES_AT_MOST // max(1, TABLE_BYTES * width)))


def scratch_bytes(width):
    """Scratch per thread for rows of up to `width`."""
    tables = max(TABLES_AT_MOST if TILE > 1 else 0, TABLE_BYTES * width)
    return TABLES + tables + work_bytes(width)


@inner
def _fill(record, thread, threads, quantized):
    n, _, x, x_stride, width, scratch, scratch_stride, q, d, table = arguments(record, 10)
    store_i64(scratch + thread * scratch_stride, -1)
    blocks = width // BLOCK
    first, last = share(n * blocks, thread, threads)
    for row in range(first // blocks, (last + blocks - 1) // blocks):
        low, high = max(first - row * blocks, 0), min(last - row * blocks, blocks)
        for block in range(low, high):
            at = row * blocks + block
            if not quantized:
                quantize_blocks(x + row * x_stride + 512 * block, q + 128 * at, d + 16 * at, 4)
            if n == 1:
                build_tables(q + 128 * at, d + 16 * at, table, block, 0, 1)


@step
def fill_q1_0(record, thread, threads):
    """Quantize n rows. A single one gets its tables too; of several, each thread makes a tile's when it needs them."""
    _fill(record, thread, threads, False)


@step
def prepare_q1_0(record, thread, threads):
    """The same for rows that are quantized already."""
    _fill(record, thread, threads, True)


@inner
def _tables_of_tile(mine, q, d, column, columns, width):
    """Build the tables of `columns` columns from `column` on in this thread's scratch, unless they are there."""
    tile = column * TILE + columns - 1
    if load_i64(mine) != tile:
        blocks = width // 128
        for c in range(columns):
            for block in range(blocks):
                at = (column + c) * blocks + block
                build_tables(q + 128 * at, d + 16 * at, mine + TABLES, block, c, columns)
        store_i64(mine, tile)


@step
def product_q1_0(record, thread, threads):
    """out[c, r] = W[r] . act[c] (+ residual[c, r])."""
    n, _, matrix, row_bytes, rows, width, out, out_stride, residual, residual_stride = arguments(record, 10)
    scratch, scratch_stride, q, d, table, most, following = arguments(record, 17)[10:]
    mine = scratch + thread * scratch_stride
    tile, groups, stride = even_tile(n, most), group_count(rows, GROUP), group_stride(row_bytes, rows, GROUP)
    work = mine + TABLES + TABLE_BYTES * width * most
    tiles = (n + tile - 1) // tile
    chunk = chunk_of(groups, tiles, threads)
    if n == 1:
        chunk = min(chunk, MOST_GROUPS)
    chunks = (groups + chunk - 1) // chunk
    ahead, end = threads * chunk * GROUP * row_bytes, matrix + rows * row_bytes
    item = next_item(record)
    while item < tiles * chunks:
        column, first = item // chunks * tile, item % chunks * chunk
        columns = min(tile, n - column)
        if n > 1:
            table = mine + TABLES
            _tables_of_tile(mine, q, d, column, columns, width)
        q_tile, d_tile, out_tile = q + column * width, d + column * width // 8, out + column * out_stride
        residual_tile = residual + column * residual_stride if residual else 0
        for group in range(first, min(first + chunk, groups)):
            w = matrix + group_start(group, rows, GROUP) * row_bytes
            coming = coming_group(w, ahead, end, following)
            group_product(w, stride, q_tile, d_tile, table, columns, width, work, coming, mine + RESULTS)
            write_group(
                mine + RESULTS, columns, group, rows, GROUP, out_tile, out_stride, residual_tile, residual_stride
            )
        item = next_item(record)


def dot_q1_0_q8_0_plain(blocks, quants, scales):
    """One row, Q1_0 blocks (k/128,), times int8 (k,) with float32 scales (k/32,) -> float32: the plain twin."""
    lanes = np.zeros(8, np.float32)
    bits = np.unpackbits(blocks["qs"].reshape(-1), bitorder="little")
    signed = np.where(bits, quants, -quants)  # int8: -(-128) is -128
    sums = signed.astype(np.int32).reshape(-1, 4, 8, 4).sum(axis=3)  # (blocks, 32-blocks, lanes)
    for i, d0 in enumerate(half(blocks["d"])):
        for lane in range(8):
            ab = scales[4 * i] * np.float32(sums[i, 0, lane])
            for k in range(1, 4):
                ab = fma32(scales[4 * i + k], np.float32(sums[i, k, lane]), ab)
            lanes[lane] = fma32(d0, ab, lanes[lane])
    return sum8(lanes)
