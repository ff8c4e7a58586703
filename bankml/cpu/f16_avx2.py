"""F16 products with AVX2, FMA and F16C: two rows at once for one column, tiles of four rows and three columns."""

from bankml.cpu.compile import inner
from bankml.cpu.f16_eight import dot_in_eights, tile_in_eights
from bankml.cpu.simd import vector

DOT_ROWS = 2
GROUP = 4
TILE = 3


@vector
def dot_rows(b, w, stride, x, width, results):
    """Two rows times one column."""
    dot_in_eights(b, DOT_ROWS, w, stride, x, width, results)


@vector
def _tile_2(b, w, stride, x, columns, width, results):
    tile_in_eights(b, GROUP, 2, w, stride, x, columns, width, results)


@vector
def _tile_3(b, w, stride, x, columns, width, results):
    tile_in_eights(b, GROUP, 3, w, stride, x, columns, width, results)


@inner
def tile_rows(w, stride, x, columns, width, results):
    """results[column][row] of four rows and up to three columns; room for three is needed."""
    if columns > 2:
        _tile_3(w, stride, x, columns, width, results)
    else:
        _tile_2(w, stride, x, columns, width, results)
