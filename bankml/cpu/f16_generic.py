"""F16 products for any x86-64: halves widened by integer operations, and no FMA, since the products are exact."""

from bankml.cpu.f16_eight import dot_in_eights, tile_in_eights
from bankml.cpu.simd import vector

DOT_ROWS = 1
GROUP = 1
TILE = 4


@vector
def dot_rows(b, w, stride, x, width, results):
    """A row times one column."""
    dot_in_eights(b, DOT_ROWS, w, stride, x, width, results)


@vector
def tile_rows(b, w, stride, x, columns, width, results):
    """results[column] of a row and up to four columns; room for four is needed."""
    tile_in_eights(b, GROUP, TILE, w, stride, x, columns, width, results)
