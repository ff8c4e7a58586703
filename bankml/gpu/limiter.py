"""How much of a card bankml uses: at most the part L of its memory, and of its time (`BANKML_GPU_LIMIT`).

Time is kept as a debt. A dispatch that took `d` seconds owes `d*(1-L)/L` of rest, and whatever time passes without a
dispatch pays it off. A small debt is let stand, since rests cannot be cut as finely as dispatches come; once it is
larger than `TOLERATED`, the card rests until all is paid. Nobody ever waits: while the card rests, others do its work.
"""

import time
from pathlib import Path

TOLERATED = 0.004  # seconds of debt that do not call for a rest yet
MOST_OWED = 10.0  # seconds: a process that was stopped during a dispatch took it for a very long one
CREDIT = 0.05  # seconds of idleness beyond the debt that count towards the next one


class TimeLimit:
    """The part `limit` (0.05 to 1) of the time. clock: seconds, as time.monotonic.

    busy_s: seconds of all dispatches. rests: what `resting` said last. skipped: products it was left out of, by the
    caller's count.
    """

    def __init__(self, limit: float, clock=time.monotonic):
        self.limit, self._clock = limit, clock
        self.busy_s, self.skipped = 0.0, 0
        self._owed, self._at, self.rests = 0.0, clock(), False

    def took(self, seconds: float):
        """A dispatch that ends now was busy for so long."""
        self._pay(seconds)
        self.busy_s += seconds
        self._owed = min(MOST_OWED, self._owed + seconds * (1 - self.limit) / self.limit)

    def resting(self) -> bool:
        """Whether the card must be left alone now."""
        self._pay()
        self.rests = self._owed > (0.0 if self.rests else TOLERATED)
        return self.rests

    def _pay(self, busy=0.0):
        """Let the time since the last look count as rest, but for so much of it."""
        now = self._clock()
        self._owed, self._at = max(-CREDIT, self._owed - max(0.0, now - self._at - busy)), now


class MemoryLimit:
    """Bytes of ours on a card: within the part `limit` of its memory.

    shared: the card uses the machine's own memory, so ours stay within that part of what is free there, too.
    largest: of a single allocation. free: bytes of memory the machine has free.
    """

    def __init__(self, total: int, limit: float, *, largest: int | None = None, shared: bool = False, free=None):
        self.most, self._limit = int(total * limit), limit
        self._largest = self.most if largest is None else largest
        self._free = (free or free_memory) if shared else None
        self.used = self.peak = 0

    def take(self, size: int, instead_of: int = 0) -> bool:
        """Count `size` more bytes, one allocation, in place of another that is given back; False if they do not fit."""
        used = self.used + size - instead_of
        if size > self._largest or used > self.most:
            return False
        if self._free is not None and used > self._limit * (self._free() + self.used):
            return False
        self.used, self.peak = used, max(self.peak, used)
        return True

    def give_back(self, size: int):
        """An allocation of so many bytes is gone."""
        self.used -= size


def free_memory() -> int:
    """Bytes of memory that Linux says are to be had without swapping; a great many where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return 1 << 62
