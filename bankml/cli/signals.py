"""Ctrl-C and SIGTERM as one exception, KeyboardInterrupt, that never falls between two steps that belong together.

And a word on SIGBUS, which is what a mapped file gives that is cut short while it is in use.
"""

import os
import signal
import sys
import time
from contextlib import contextmanager

NAMES = (signal.SIGINT, signal.SIGTERM)
AGAIN_S = 1.0  # one that follows sooner is the same wish: a key that bounced, or a shell that passed it on too


class Interrupts:
    """Raises KeyboardInterrupt where the program is, or at the end of a `held()` block. Use in a `with` block.

    `exit_code` is 130 after Ctrl-C and 143 after SIGTERM. Leaving the block gives the signals back as they were.
    """

    exit_code = 130

    def __init__(self):
        self._holding = self._pending = False
        self._came = 0.0

    def __enter__(self):
        self._before = {number: signal.signal(number, self._on_signal) for number in NAMES}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._quiet
        return self

    def __exit__(self, *exception):
        sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number, frame):
        if not self._pending:
            self._pending, self._came, self.exit_code = True, time.monotonic(), 128 + number
            put_off = self._holding
        else:  # later on, it is not put off: the held write may be what hangs
            put_off = time.monotonic() - self._came < AGAIN_S
        if not put_off:
            raise KeyboardInterrupt

    def _quiet(self, about):
        """One that struck inside a callback is not lost (`check` raises it again), and not worth a traceback."""
        if not issubclass(about.exc_type, KeyboardInterrupt):
            self._hook(about)

    def check(self):
        """Raise KeyboardInterrupt if a signal came that has not stopped the program."""
        if self._pending:
            raise KeyboardInterrupt

    @contextmanager
    def held(self):
        """Put a signal off until the block is through."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        self.check()

    def ignore(self):
        """What follows is short and must be finished: further signals change nothing."""
        for number in NAMES:
            signal.signal(number, signal.SIG_IGN)


_bus_error = []  # the handler in force, kept for as long as the C library may call it


def tell_of_lost_data(path, first=lambda: None):
    """From here on, a model file that is cut, or that its disk no longer gives, ends the process with one line and 1.

    first: called before that line is written.

    Python cannot raise an exception where that strikes, in the midst of a kernel.
    """
    import ctypes

    line = f"bankml: {path}: its data cannot be read any more; was the file cut while it was in use?"
    lines = ["".join(c if c.isprintable() else "?" for c in line).encode(errors="replace") + b"\n"]

    def lost(number):
        if lines:
            first()
            os.write(2, lines.pop())
            os._exit(1)
        time.sleep(60)  # it strikes every thread of the pool, and the first one speaks

    _bus_error[:] = [ctypes.CFUNCTYPE(None, ctypes.c_int)(lost)]
    ctypes.CDLL(None).signal(ctypes.c_int(signal.SIGBUS), _bus_error[0])
