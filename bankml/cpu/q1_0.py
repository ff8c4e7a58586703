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
    even_tile,
    group_count,
    group_start,
    group_stride,
    item_count,
    item_part,
    piece,
    piece_count,
    share,
    write_group,
)

_kernels = import_module(f"bankml.cpu.q1_0_{level()}")
GROUP, TILE, TABLE_BYTES = _kernels.GROUP, _kernels.TILE, _kernels.TABLE_BYTES
build_tables, group_product, work_bytes = _kernels.build_tables, _kernels.group_product, _kernels.work_bytes

BLOCK, BLOCK_BYTES = 128, 18
AHEAD = 2  # row groups that are asked for early when there is one column
TABLES_AT_MOST = 768 << 10  # bytes of a tile's tables, to stay in a core's L2 cache
# scratch of a thread: the tile its tables are of (-1: none), results, a row's quants and scales, tables, work area
RESULTS = 64
ROW = RESULTS + 4 * TILE * GROUP


def tile_columns(width):
    """The most columns of a tile."""
    return max(1, min(TILE, TABLES_AT_MOST // max(1, TABLE_BYTES * width)))


@inner
def _tables_at(width):
    """Where the tables begin in a thread's scratch: after the row's quants and scales, on a cache line."""
    return ROW + (width * 9 // 8 + 63) // 64 * 64


def scratch_bytes(width):
    """Scratch per thread for rows of up to `width`."""
    tables = max(TABLES_AT_MOST if TILE > 1 else 0, TABLE_BYTES * width)
    return _tables_at.py_func(width) + tables + work_bytes(width)


@inner
def _copy(source, target, size):
    """Copy `size` bytes, a multiple of 8."""
    for at in range(0, size, 8):
        store_i64(target + at, load_i64(source + at))


@inner
def _fill(record, thread, threads, quantized):
    n, _, x, x_stride, width, scratch, scratch_stride, q, d = arguments(record, 9)
    mine = scratch + thread * scratch_stride
    store_i64(mine, -1)
    if n == 1:
        _fill_own(mine, x, width, q, d, quantized, thread == 0)
        return
    blocks = width // 32
    first, last = share(n * blocks, thread, threads)
    row = first // blocks
    while not quantized and first < last:
        block = first - row * blocks
        count = min(last - first, blocks - block)
        quantize_blocks(x + row * x_stride + 128 * block, q + 32 * first, d + 4 * first, count)
        first, row = first + count, row + 1


@inner
def _fill_own(mine, x, width, q, d, quantized, share_it):
    """A single row and its tables in a thread's own scratch: taking them from another core would cost more."""
    own_q, own_d, tables = mine + ROW, mine + ROW + width, mine + _tables_at(width)
    if quantized:
        _copy(q, own_q, width)
        _copy(d, own_d, width // 8)
    else:
        quantize_blocks(x, own_q, own_d, width // 32)
        if share_it:
            _copy(own_q, q, width)
            _copy(own_d, d, width // 8)
    for block in range(width // BLOCK):
        build_tables(own_q + 128 * block, own_d + 16 * block, tables, block, 0, 1)


@step
def fill_q1_0(record, thread, threads):
    """Quantize n rows. Of a single one every thread makes its own, with the tables: the next step needs no barrier."""
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
                build_tables(q + 128 * at, d + 16 * at, mine + _tables_at(width), block, c, columns)
        store_i64(mine, tile)


@inner
def _product_of_one(record, thread, threads):
    """The product with a single column: memory is the limit, so what this thread reads next is asked for early."""
    _, _, matrix, row_bytes, rows, width, out, _, residual, _ = arguments(record, 10)
    scratch, scratch_stride, _, _, _, following, following_bytes = arguments(record, 17)[10:]
    mine = scratch + thread * scratch_stride
    own_q, own_d, table, results = mine + ROW, mine + ROW + width, mine + _tables_at(width), mine + RESULTS
    groups, stride = group_count(rows, GROUP), group_stride(row_bytes, rows, GROUP)
    work, pieces, size = table + TABLE_BYTES * width, piece_count(groups, threads), GROUP * row_bytes
    then = following + following_bytes // threads * thread if following else matrix
    item = thread
    while item < pieces:
        coming_item = threads + next_item(record)
        group, last = piece(item, groups, threads)
        next_piece = matrix + piece(coming_item, groups, threads)[0] * size if coming_item < pieces else then
        while group < last:
            ahead = group + AHEAD
            coming = matrix + ahead * size if ahead < last else next_piece + (ahead - last) * size
            w = matrix + group_start(group, rows, GROUP) * row_bytes
            group_product(w, stride, own_q, own_d, table, 1, width, work, coming, results)
            write_group(results, 1, group, rows, GROUP, out, 0, residual, 0)
            group += 1
        item = coming_item


@step
def product_q1_0(record, thread, threads):
    """out[c, r] = W[r] . act[c] (+ residual[c, r])."""
    n, _, matrix, row_bytes, rows, width, out, out_stride, residual, residual_stride = arguments(record, 10)
    if n == 1:
        _product_of_one(record, thread, threads)
        return
    scratch, scratch_stride, q, d, most = arguments(record, 15)[10:]
    mine = scratch + thread * scratch_stride
    table = mine + _tables_at(width)
    tile, groups, stride = even_tile(n, most), group_count(rows, GROUP), group_stride(row_bytes, rows, GROUP)
    work = table + TABLE_BYTES * width * most
    tiles = (n + tile - 1) // tile
    item, items = thread, item_count(groups, tiles, threads)
    while item < items:
        number, first, last = item_part(item, groups, tiles, threads)
        column = number * tile
        columns = min(tile, n - column)
        _tables_of_tile(mine, q, d, column, columns, width)
        q_tile, d_tile, out_tile = q + column * width, d + column * width // 8, out + column * out_stride
        residual_tile = residual + column * residual_stride if residual else 0
        for group in range(first, last):
            w = matrix + group_start(group, rows, GROUP) * row_bytes
            group_product(w, stride, q_tile, d_tile, table, columns, width, work, 0, mine + RESULTS)
            write_group(
                mine + RESULTS, columns, group, rows, GROUP, out_tile, out_stride, residual_tile, residual_stride
            )
        item = threads + next_item(record)


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
