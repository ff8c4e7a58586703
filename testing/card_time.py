"""How busy the limiter lets a card be: `python testing/card_time.py [DEVICE]` asks for 0.25, 0.5 and 0.9, 20 s each.

The card is wanted all the time, for products that take from some milliseconds to some tens of them; the busy time comes
from the card's own event times. On a machine that is busy with other things the card starts late, and less comes out.
"""

import random
import sys
import time

import numpy as np

from bankml import cards
from bankml.blocks import Q2_0, TYPES
from bankml.cpu.pool import Pool
from bankml.gpu import devices
from bankml.gpu.calibrate import Shares
from bankml.gpu.worker import Worker

ROWS, WIDTH, MOST_COLUMNS = 4096, 1024, 48  # long enough that a card is busy for more than 0.9 of an unlimited time
LEVELS, SECONDS, ALLOWED = (0.25, 0.5, 0.9), 20.0, 0.03
CPU_S = 0.0005  # that another device would take for a product in the place of a card that rests


def busy_part(device, limit: float, seconds: float) -> float:
    """The part of the time that a `devices.Device` was busy, under a limit."""
    source, pool = np.random.default_rng(1), Pool(1)
    block = TYPES[Q2_0]
    matrix = source.integers(0, 60, (ROWS, WIDTH // block.block_size * block.block_bytes), np.uint8)
    card = cards.card_of(device, pool, Q2_0, limit)
    worker, columns = Worker([card], Q2_0, Shares(1, 0.95)), random.Random(1)
    activations = [
        (source.integers(-127, 128, (n, WIDTH), np.int8), source.random((n, WIDTH // 32), np.float32))
        for n in range(1, MOST_COLUMNS + 1)
    ]
    for activation in (activations[0], activations[-1]):  # the upload, and the kernels' first run
        worker.finish(worker.begin("matrix", [("matrix", matrix)], activation, (0.95,)))
    begun, before = time.monotonic(), card.time.busy_s
    while time.monotonic() - begun < seconds:
        started = worker.begin("matrix", [("matrix", matrix)], columns.choice(activations))
        if started.tasks:
            worker.finish(started)
        else:
            time.sleep(CPU_S)
    part = (card.time.busy_s - before) / (time.monotonic() - begun)
    worker.close()
    pool.close()
    assert card.note == "closed", card.note
    return part


def main() -> int:
    """Print a line per level; 1 if one is off by more than what is allowed."""
    found = devices.listing()
    asked = sys.argv[1] if len(sys.argv) > 1 else "0"
    (device, *_) = devices.choose(found, [int(asked) if asked.isdigit() else asked])
    off = 0
    for level in LEVELS:
        part = busy_part(device, level, SECONDS)
        off |= abs(part - level) > ALLOWED
        print(f"{device.name}: limit {level:g}, busy {part:.3f} of {SECONDS:.0f} s")
    return int(off)


if __name__ == "__main__":
    sys.exit(main())
