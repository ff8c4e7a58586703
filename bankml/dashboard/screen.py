"""The terminal while a dashboard is on it: the alternate screen, no cursor, no echo, and all of it given back.

Only lines that changed are written, each frame in one call.
"""

import os
import signal
import termios
import time
from contextlib import suppress

from rich.color import ColorSystem
from rich.console import Console

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # alternate screen, no cursor, no wrapping; and clear
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
COLOURS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
PLAIN = str.maketrans("╭╮╰╯─│·●▏▎▍▌▋▊▉█▁▂▃▄▅▆▇▀", "++++-|.*..==####__..--==")  # where there is no UTF-8
NOTE_S = 10.0  # how long a line for stderr is shown
STOPS = (signal.SIGTSTP, signal.SIGQUIT, signal.SIGHUP)  # what these do comes after the terminal is given back


def has_terminal(stream) -> bool:
    """Whether a dashboard can be drawn there."""
    try:
        able = stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
        return able and in_front(stream.fileno())
    except ValueError:  # closed
        return False


def in_front(fd) -> bool:
    """Whether the terminal is this program's now: not where a shell has it in the background."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # it controls no session, so there is no shell either
        return True


class Screen:
    """The terminal of `stream`. `enter`, then `draw`, then `leave`; each may come again, and `leave` at any time."""

    def __init__(self, stream):
        self._stream, self._fd = stream, stream.fileno()
        console = Console(file=stream)
        self._colours, self._no_colour = COLOURS.get(console.color_system or ""), console.no_color
        self._utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        self._shown, self._attributes, self._pid = [], None, os.getpid()
        self.entered = False

    def size(self) -> tuple[int, int]:
        """Columns and rows now."""
        try:
            width, height = os.get_terminal_size(self._fd)
        except OSError:
            width, height = 0, 0
        return width or 80, height or 24

    def enter(self):
        """Take the terminal over, if it is ours."""
        if not in_front(self._fd):
            return
        self._stream.flush()
        self.entered, self._shown = True, []
        self._echo(False)
        self._write(ENTER)

    def leave(self):
        """Give it back as it was. A second time changes nothing; nor does a child process that was forked off."""
        if self.entered and os.getpid() == self._pid:
            self.entered = False
            with suppress(OSError):  # a terminal that is gone takes nothing
                self._write(LEAVE)
            self._echo(True)

    def draw(self, lines):
        """Show these lines of segments, from the top."""
        parts = []
        for row, line in enumerate(lines):
            if row >= len(self._shown) or self._shown[row] != line:
                parts.append(f"\x1b[{row + 1};1H{self._encoded(line)}")
        self._shown = lines
        if parts and self.entered:
            self._write("".join(parts))

    def redraw(self):
        """Draw everything the next time: the terminal's size has changed, or another program was on it."""
        self._shown = []
        self._write("\x1b[0m\x1b[2J")

    def _encoded(self, line):
        parts = []
        for segment in line:
            style = segment.style
            if style is None or self._colours is None:
                parts.append(segment.text)
            else:
                style = style.without_color if self._no_colour else style
                parts.append(style.render(segment.text, color_system=self._colours))
        return "".join(parts)

    def _write(self, text):
        data = text.encode() if self._utf8 else text.translate(PLAIN).encode("ascii", "replace")
        while data:
            data = data[os.write(self._fd, data) :]

    def _echo(self, on):
        """Keys are not shown while the dashboard is there. In the background the terminal's settings are not ours."""
        with suppress(OSError, termios.error):
            if not in_front(self._fd):
                return
            if not on:
                self._attributes = termios.tcgetattr(self._fd)
                quiet = [*self._attributes]
                quiet[3] &= ~termios.ECHO
                termios.tcsetattr(self._fd, termios.TCSANOW, quiet)
            elif self._attributes is not None:
                termios.tcsetattr(self._fd, termios.TCSANOW, self._attributes)
                self._attributes = None


class Held:
    """Stands in for a stream while its terminal is taken: what is written is kept."""

    def __init__(self, stream):
        self._stream, self._parts, self._last, self._at = stream, [], "", 0.0

    def write(self, text):
        self._parts.append(text)
        if lines := [line for line in text.splitlines() if line.strip()]:
            self._last, self._at = lines[-1], time.monotonic()
        return len(text)

    def last(self) -> str:
        """The last line, if it is not old."""
        return self._last if time.monotonic() - self._at < NOTE_S else ""

    def flush(self):
        """Nothing to do: it comes out when the terminal is free again."""

    def release(self):
        """Write what was kept to the stream itself."""
        parts, self._parts = self._parts, []
        if parts:
            self._stream.write("".join(parts))
            self._stream.flush()

    def __getattr__(self, name):
        return getattr(self._stream, name)


class Stops:
    """Ctrl-Z, Ctrl-\\ and a hung-up line: the terminal is given back first, and taken again if the program goes on."""

    def __init__(self, screen: Screen, lock):
        self._screen, self._lock, self._before = screen, lock, {}

    def install(self):
        """From now on; in the main thread alone, as Python has it."""
        with suppress(ValueError):
            for number in STOPS:
                if signal.getsignal(number) == signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._on_signal)

    def remove(self):
        """No longer."""
        with suppress(ValueError):
            while self._before:
                signal.signal(*self._before.popitem())

    def _on_signal(self, number, frame):
        taken = self._lock.acquire(timeout=1)  # else a write hangs: then the signal matters more
        try:
            self._screen.leave()
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            os.kill(os.getpid(), number)  # here it stops, or ends
            signal.signal(number, self._on_signal)  # the next picture takes the terminal over again
        finally:
            if taken:
                self._lock.release()
