"""Which cells of an earlier prompt can be taken over without changing a bit of what an uncached run gives.

The reference computes a micro-batch by one of three attention kernels, and for F16 weights by one of two product paths;
which, depends on how many rows it has (see docs/numerics.md). A cell's *path* is the number of that choice. A cell that
took the path of an uncached run, behind others that did, holds the bits of an uncached run.
"""

from itertools import takewhile

import numpy as np

from bankml.blocks import F16

KERNELS = ("reference", "tiled", "split")
ONE_COLUMN = len(KERNELS)
UNKNOWN = 255  # computed by a process that matched another thread count of llama.cpp


def path_of(kernel: str, rows: int, wtype: int) -> int:
    """The path of a micro-batch of `rows` whose attention takes the kernel of that name."""
    return KERNELS.index(kernel) + (ONE_COLUMN if rows == 1 and wtype == F16 else 0)


def exact_prefix(same: int, paths, total: int, n_ubatch: int, path) -> int:
    """How many of the first `same` cells, which hold a prompt's own tokens, an uncached run would make just so.

    paths: of those cells. total: the prompt's tokens, of which one at least is left to compute. path(rows, cells): as
    `Weights.path`. What is left of the micro-batch that the answer lies in takes the path of the whole micro-batch.
    """
    for first in range(0, total, n_ubatch):
        end = min(first + n_ubatch, total)
        want = path(end - first, end)
        good = sum(1 for _ in takewhile(lambda found: found == want, paths[first : min(end, same)]))  # noqa: B023
        kept = first + min(good, end - first - (end == total))
        if kept < end:
            while path(end - kept, end) != want:
                kept -= 1
            return kept
    return 0


def without_split(paths: np.ndarray) -> np.ndarray:
    """The paths, uint8 (n,), of cells from a process that matched another thread count: its splits are not ours."""
    return np.where(paths % ONE_COLUMN == KERNELS.index("split"), np.uint8(UNKNOWN), paths)
