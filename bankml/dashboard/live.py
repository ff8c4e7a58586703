"""Keeps the dashboard on the terminal while the program works: a thread that looks and draws a few times a second.

What it costs is bounded: frames come more slowly where they take longer, and a thread that computes never waits long
for the interpreter's lock.
"""

import atexit
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from bankml.dashboard import figures
from bankml.snapshot import DECODE, LOADING, PROMPT, Snapshot

FASTEST_S, SLOWEST_S = 0.1, 0.22  # between two frames
COST = 0.006  # of the time, that drawing may take; others wait for it about twice as long
SWITCH_S = 0.0005  # how long a thread that computes waits for the interpreter at most, while a frame is made
LINES_S = 5.0  # between two lines, where there is no terminal


class Live:
    """`with Live(look):` shows what `look()` returns, until the block ends. `terminal` says whether there is one.

    look: called from a thread of its own, returns a Snapshot. heading: see `render`. With a terminal on stderr that is
    a picture on its alternate screen; what others write to stderr meanwhile comes after it. Else it is a line on stderr
    every few seconds. At the end, by whatever way, the terminal is as it was.
    """

    def __init__(self, look: Callable[[], Snapshot], heading: str = "answer"):
        from bankml.dashboard.screen import has_terminal

        self.look, self.heading, self.frames = look, heading, 0
        self._stream = sys.stderr
        self.terminal = has_terminal(self._stream)
        self._screen = self._held = self._stops = self._thread = None
        self._lock, self._over = threading.Lock(), threading.Event()

    def __enter__(self):
        self.start()
        return self

    def start(self):
        """Begin; `leave` ends it."""
        from bankml.dashboard.screen import Held, Screen, Stops

        self._switch = sys.getswitchinterval()
        try:
            if self.terminal:
                screen = Screen(self._stream)
                self._held, self._stops = Held(self._stream), Stops(screen, self._lock)
                self._screen = screen
                atexit.register(self.leave)
                self._stops.install()
                sys.stderr = self._held
                sys.setswitchinterval(SWITCH_S)
                self._screen.enter()
            work = self._pictures if self.terminal else self._lines
            self._thread = threading.Thread(target=work, name="bankml-dashboard", daemon=True)
            self._thread.start()
        except BaseException:
            self.leave()
            raise

    def __exit__(self, *exception):
        self.leave()

    def leave(self):
        """Give the terminal back, now; a second time changes nothing."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=1)
        if self._screen is None:
            return
        taken = self._lock.acquire(timeout=1)  # a write that hangs must not keep it
        try:
            self._screen.leave()
        finally:
            if taken:
                self._lock.release()
        self._stops.remove()
        sys.setswitchinterval(self._switch)
        if sys.stderr is self._held:
            sys.stderr = self._stream
        self._held.release()
        atexit.unregister(self.leave)  # until here it is called again where a signal breaks it off

    def _pictures(self):
        """Draw until it is over. Where that fails the program goes on without; that a terminal is gone is no news."""
        size, pause = None, 0.0
        try:
            while not self._over.wait(pause):
                begun = time.thread_time()
                size = self._picture(size)
                pause = min(max((time.thread_time() - begun) / COST, FASTEST_S), SLOWEST_S)
        except OSError:
            pass
        except Exception as error:
            self._held.write(f"bankml: the dashboard stopped: {error!r}\n")

    def _picture(self, before):
        from bankml.dashboard.view import render

        snapshot = self.look()
        with self._lock:
            size = self._screen.size()
            if not self._screen.entered and not self._over.is_set():
                self._screen.enter()
            if not self._screen.entered:
                return None
            if before not in (None, size):
                self._screen.redraw()
            self._screen.draw(render(snapshot, *size, self.heading, self._held.last()).lines)
            self.frames += 1
        return size

    def _lines(self):
        with suppress(OSError, ValueError):
            while not self._over.wait(LINES_S):
                if text := line(self.look()):
                    print(f"bankml: {text}", file=self._stream, flush=True)


def line(s: Snapshot) -> str:
    """A snapshot as one plain line; empty where there is nothing to tell."""
    if s.state == LOADING:
        return f"loading {s.model}" if s.model else "loading"
    if s.state == PROMPT and s.prompt:
        p = s.prompt
        parts = [f"prompt {figures.count(p.done)} of {figures.count(p.total)} tokens"]
        parts += [f"{figures.rate(p.rate)} tokens/s"] if p.rate is not None else []
        parts += [f"{figures.seconds(p.left_s)} left"] if p.left_s is not None else []
        return ", ".join(parts)
    if s.state == DECODE and s.tokens:
        rate = f", {figures.rate(s.rate)} tokens/s" if s.rate is not None else ""
        return f"{figures.count(s.tokens)} tokens{rate}"
    return ""
