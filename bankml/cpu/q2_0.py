"""Q2_0 (group 64) matrices times q8_0 activations: the steps, and the plain twin. Equals ggml_vec_dot_q2_0_q8_0.

One scalar chain per row. Per 64-block: `sumi = d1*s` of the first 32, `sumi = fma(d1, s, sumi)` of the second, the sums
of (code - 1) * q exact; then `sumf = fma(d0, sumi, sumf)`. Kernels: the q2_0_* files.
"""

from importlib import import_module

import numpy as np

from bankml.cpu.compile import inner, step
from bankml.cpu.floats import arguments
from bankml.cpu.level import level
from bankml.cpu.plain import fma32, half
from bankml.cpu.pool import next_item
from bankml.cpu.quantize import arrange_planes, quantize_blocks
from bankml.cpu.row_groups import (
    even_tile,
    group_count,
    group_start,
    group_stride,
    item_count,
    item_part,
    share,
    write_group,
)

_kernels = import_module(f"bankml.cpu.q2_0_{level()}")
GROUP, TILE, group_product = _kernels.GROUP, _kernels.TILE, _kernels.group_product


def scratch_bytes(width):
    """Scratch per thread: the results of one group."""
    return 4 * TILE * GROUP


@inner
def _fill(record, thread, threads, quantized):
    n, _, x, x_stride, width, _, _, q, d, planes, minus_sums = arguments(record, 11)
    blocks = width // 64
    first, last = share(n * blocks, thread, threads)
    for row in range(first // blocks, (last + blocks - 1) // blocks):
        low, high = max(first - row * blocks, 0), min(last - row * blocks, blocks)
        for block in range(low, high):
            at = row * blocks + block
            if not quantized:
                quantize_blocks(x + row * x_stride + 256 * block, q + 64 * at, d + 8 * at, 2)
            arrange_planes(q + 64 * at, planes + 64 * at, minus_sums + 8 * at)


@step
def fill_q2_0(record, thread, threads):
    """Quantize n rows, lay the quants out in planes and sum them."""
    _fill(record, thread, threads, False)


@step
def prepare_q2_0(record, thread, threads):
    """The same for rows that are quantized already."""
    _fill(record, thread, threads, True)


@step
def product_q2_0(record, thread, threads):
    """out[c, r] = W[r] . act[c] (+ residual[c, r])."""
    n, _, matrix, row_bytes, rows, width, out, out_stride, residual, residual_stride = arguments(record, 10)
    scratch, scratch_stride, _, d, planes, minus_sums = arguments(record, 16)[10:]
    results = scratch + thread * scratch_stride
    tile, groups, stride = even_tile(n, TILE), group_count(rows, GROUP), group_stride(row_bytes, rows, GROUP)
    tiles = (n + tile - 1) // tile
    item, items = thread, item_count(groups, tiles, threads)
    while item < items:
        number, first, last = item_part(item, groups, tiles, threads)
        column = number * tile
        columns, at, at_scale = min(tile, n - column), column * width, column * width // 8
        residual_tile = residual + column * residual_stride if residual else 0
        out_tile = out + column * out_stride
        for group in range(first, last):
            w = matrix + group_start(group, rows, GROUP) * row_bytes
            group_product(w, stride, planes + at, minus_sums + at_scale, d + at_scale, columns, width, results)
            write_group(results, columns, group, rows, GROUP, out_tile, out_stride, residual_tile, residual_stride)
        item = threads + next_item(record)


def dot_q2_0_q8_0_plain(blocks, quants, scales):
    """One row, Q2_0 blocks (k/64,), times int8 (k,) with float32 scales (k/32,) -> float32: the plain twin."""
    codes = (blocks["qs"].reshape(-1)[:, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
    sums = ((codes.reshape(-1).astype(np.int32) - 1) * quants).reshape(-1, 2, 32).sum(axis=2)
    total = np.float32(0)
    for i, d0 in enumerate(half(blocks["d"])):
        sumi = scales[2 * i] * np.float32(sums[i, 0])
        sumi = fma32(scales[2 * i + 1], np.float32(sums[i, 1]), sumi)
        total = fma32(d0, sumi, total)
    return total
