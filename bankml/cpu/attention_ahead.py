"""What attention asks memory for while it works on a block of cells: the next block, in the order of its addresses.

A block of K or V is rows of *pieces*, a piece being what one KV head has in one cell. Work on a block goes piece by
piece, KV head after KV head, and step for step asks for as many pieces of the next block, but row by row: memory must
never rest, and gives much less where it is read here and there.
"""

from bankml.cpu.compile import inner
from bankml.cpu.floats import store_i64
from bankml.cpu.simd import i32, i64

AHEAD = 32  # bytes of what is told about a block to come
AGAIN = 16  # cells ahead that are asked for once more: a processor with enough to fetch ignores what it is asked for


@inner
def tell(ahead, first, pieces, stride, size):
    """The next block: address of its first piece, pieces side by side, bytes from row to row, halves in a piece."""
    store_i64(ahead, first)
    store_i64(ahead + 8, pieces)
    store_i64(ahead + 16, stride)
    store_i64(ahead + 24, 2 * size)


def emit_asked(b, ahead, number, count):
    """Pointers to `count` pieces, from that number on, of what is to be read next; `ahead` is where `tell` told it."""
    build = b.ir
    first, pieces, stride, size = (b.load(b.pointer(ahead, 8 * i), i64, 8) for i in range(4))
    row = build.zext(build.udiv(build.trunc(number, i32), build.trunc(pieces, i32)), i64)
    within = build.sub(number, build.mul(row, pieces))
    address, places = b.add(b.add(first, b.mul(row, stride)), b.mul(within, size)), []
    for _ in range(count):
        places.append(b.pointer(address))
        within = b.add(within, 1)
        is_over = build.icmp_signed("==", within, pieces)
        address = b.add(address, build.select(is_over, build.sub(stride, build.mul(size, b.add(pieces, -1))), size))
        within = build.select(is_over, b.int(0), within)
    return places
