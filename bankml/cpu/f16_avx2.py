"""F16 products with AVX2, FMA and F16C: twelve accumulators at most, for there are 16 registers."""

from bankml.cpu.compile import inner
from bankml.cpu.f16_eight import dot_in_eights, tile_in_eights
from bankml.cpu.simd import vector

DOT_ROWS = 2
GROUP = 4
TILE = 6


@vector
def dot_rows(b, w, stride, x, width, results):
    """Two rows times one column."""
    dot_in_eights(b, DOT_ROWS, w, stride, x, width, results)


def _tile(height, count):
    """The kernel of `height` rows and up to `count` columns."""

    def tile(b, w, stride, x, columns, width, results):
        tile_in_eights(b, height, count, w, stride, x, columns, width, results, GROUP)

    tile.__name__ = f"tile_{height}_{count}"
    return vector(tile)


_tile_4_2, _tile_2_4, _tile_2_6 = (_tile(height, count) for height, count in ((4, 2), (2, 4), (2, 6)))


@inner
def tile_rows(w, stride, x, columns, width, results):
    """results[column][row] of four rows and up to six columns; room for six is needed."""
    if columns <= 2:
        _tile_4_2(w, stride, x, columns, width, results)
    elif columns <= 4:
        for pair in range(2):
            _tile_2_4(w + 2 * pair * stride, stride, x, columns, width, results + 8 * pair)
    else:
        for pair in range(2):
            _tile_2_6(w + 2 * pair * stride, stride, x, columns, width, results + 8 * pair)
