"""What a chat template may use: time and memory, counted per thread, with no signals and no process of its own."""

import math
import sys
import threading
import time
from contextlib import contextmanager

SECONDS = 3.0  # on the clock, and
PROCESSOR_SECONDS = 0.5  # of this thread: where others keep the machine busy, the clock alone is no measure
ALLOWANCE = 128 << 20  # bytes that a rendering may make in all
MAX_WEIGHT = 8 << 20  # characters and items of one value, written out


class TooCostly(Exception):
    """A template asks for more time or memory than a prompt needs."""


class Budget(threading.local):
    """What one rendering in this thread may still use."""

    deadline, processor, left, limit = 0.0, 0.0, 0, MAX_WEIGHT
    weights: dict | None = None  # id -> (value, weight); None outside a rendering

    @contextmanager
    def rendering(self, given):
        """Renderings of `given`, all on one budget; inside another such block it goes on with that one's."""
        if self.weights is not None:
            yield
            return
        self.deadline, self.processor = time.monotonic() + SECONDS, time.thread_time() + PROCESSOR_SECONDS
        self.weights, self.limit = {}, math.inf
        try:
            self.limit = MAX_WEIGHT + 4 * self.weigh(given)
            self.left = ALLOWANCE + 32 * self.limit
            yield
        finally:
            self.weights = None

    def tick(self):
        if time.monotonic() > self.deadline and time.thread_time() > self.processor:
            raise TooCostly(f"takes more than {SECONDS:g} seconds")

    def ask(self, size):
        """Before a value of `size` characters or items is made."""
        self.tick()
        if size > self.limit or size > self.left:
            raise TooCostly("makes too large a value")

    def asked(self, size):
        """`size`, after asking for it."""
        self.ask(size)
        return size

    def keep(self, value):
        """Count a value that was made; returns it."""
        self.ask(self.weigh(value))
        if isinstance(value, (str, list, tuple, dict)):
            self.left -= sys.getsizeof(value)
        return value

    def weigh(self, value) -> int:
        """Characters and items of a value, shared parts counted as often as they would be written."""
        if isinstance(value, str):
            return len(value) + 1
        if not isinstance(value, (list, tuple, dict)):
            return 1
        known = self.weights.get(id(value))
        if known:
            return known[1]
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        weight = 1
        for part in parts:
            weight += self.weigh(part)
            if weight > self.limit:
                raise TooCostly("makes too large a value")
        self.weights[id(value)] = value, weight  # the value is held, so its id stays its own
        return weight


budget = Budget()
