"""How a matrix product is cut into work: groups of adjacent rows that one kernel call computes, and column tiles.

A group holds `size` rows. The last group of a matrix overlaps the one before it, and only its new rows are written; a
matrix of fewer than `size` rows is computed one row at a time (a row stride of 0 puts that row in every lane).
"""

from bankml.cpu.compile import inner
from bankml.cpu.floats import load_f32, store_f32

LAST_PIECE = 2  # row groups of the smallest work item when a thread reads on through a stretch
ITEMS_PER_THREAD = 8  # work items a thread should find, so that a slow one does not hold up the others


@inner
def share(total, thread, threads):
    """The half-open range of `total` units that is this thread's."""
    return total * thread // threads, total * (thread + 1) // threads


@inner
def group_count(rows, size):
    """Groups that cover `rows` rows."""
    return rows if rows < size else (rows + size - 1) // size


@inner
def group_start(group, rows, size):
    """The first row that a group computes."""
    return group if rows < size else min(group * size, rows - size)


@inner
def group_stride(row_bytes, rows, size):
    """The row stride for the kernel: 0 where rows are computed one at a time."""
    return 0 if rows < size else row_bytes


@inner
def write_group(results, columns, group, rows, size, out, out_stride, residual, residual_stride):
    """Move a group's new rows from results, float32 (columns, size), to out[column, row], plus the residual if any."""
    first, skip, count = group, 0, 1
    if rows >= size:
        first = group * size
        count = min(size, rows - first)
        skip = size - count if first > 0 else 0
    for column in range(columns):
        source = results + 4 * (column * size + skip)
        target = out + column * out_stride + 4 * first
        if residual == 0:
            for row in range(count):
                store_f32(target + 4 * row, load_f32(source + 4 * row))
        else:
            addend = residual + column * residual_stride + 4 * first
            for row in range(count):
                store_f32(target + 4 * row, load_f32(source + 4 * row) + load_f32(addend + 4 * row))


@inner
def even_tile(n, most):
    """Columns per tile when n columns go into the fewest tiles of at most `most`."""
    tiles = (n + most - 1) // most
    return (n + tiles - 1) // tiles


@inner
def piece(item, groups, threads):
    """The half-open range of row groups of a work item when every thread reads on through a stretch of its own.

    A thread's first item, the one of its number, is half of its stretch; the next one of that stretch is half of what
    is left, and so on: long runs in memory, and little to wait for in the end. Empty past the last one.
    """
    first, last = share(groups, item % threads, threads)
    level, size = item // threads, last - first
    left = size >> level
    if level > 0 and size >> (level - 1) <= LAST_PIECE:
        return last, last
    return last - left, last if left <= LAST_PIECE else last - (size >> (level + 1))


@inner
def piece_count(groups, threads):
    """One more than the last item that is not empty."""
    size, levels = (groups + threads - 1) // threads, 1
    while size > LAST_PIECE:
        size, levels = size >> 1, levels + 1
    return levels * threads


@inner
def chunk_of(groups, tiles, threads):
    """Row groups per work item: whole tiles where there are many, else enough items for every thread."""
    return max(1, min(groups, groups * tiles // (ITEMS_PER_THREAD * threads)))


@inner
def item_count(groups, tiles, threads):
    """Work items of a product over `tiles` column tiles; a thread begins with the one of its number."""
    if tiles == 1:
        return piece_count(groups, threads)
    chunk = chunk_of(groups, tiles, threads)
    return tiles * ((groups + chunk - 1) // chunk)


@inner
def item_part(item, groups, tiles, threads):
    """A work item's tile, and its half-open range of row groups."""
    if tiles == 1:
        first, last = piece(item, groups, threads)
        return 0, first, last
    chunk = chunk_of(groups, tiles, threads)
    chunks = (groups + chunk - 1) // chunk
    return item // chunks, item % chunks * chunk, min(item % chunks * chunk + chunk, groups)
