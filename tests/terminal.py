"""A command at a real pseudo-terminal, and what its screen shows, by a terminal emulator."""

import contextlib
import copy
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pyte

ALTERNATE, CURSOR = 1049, 25  # DEC's private modes


class Screen(pyte.Screen):
    """pyte's, with the alternate screen, which it does not know."""

    def __init__(self, width, height):
        super().__init__(width, height)
        self.behind = None  # the screen that was there before

    def set_mode(self, *modes, **options):
        if options.get("private") and ALTERNATE in modes and self.behind is None:
            self.behind = copy.deepcopy((self.buffer, self.cursor))
            self.erase_in_display(2)
        super().set_mode(*modes, **options)

    def reset_mode(self, *modes, **options):
        super().reset_mode(*modes, **options)
        if options.get("private") and ALTERNATE in modes and self.behind is not None:
            (self.buffer, self.cursor), self.behind = self.behind, None
            self.dirty.update(range(self.lines))


class Terminal:
    """`with Terminal(command, 80, 24) as terminal:` runs a command whose stdin, stdout and stderr are a terminal.

    stdout: another stream for it. The command leads a session of its own, which the terminal controls.
    """

    def __init__(self, command, width=80, height=24, *, env=None, stdout=None):
        self.leader, self.follower = pty.openpty()
        self.screen, self.written = Screen(width, height), b""
        self._stream = pyte.ByteStream(self.screen)
        self.resize(width, height)
        self.settings = termios.tcgetattr(self.follower)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],  # util-linux's; it becomes the command, with a session of its own
            stdin=self.follower,
            stdout=self.follower if stdout is None else stdout,
            stderr=self.follower,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.leader)
        os.close(self.follower)

    def resize(self, width, height):
        """As when a window is pulled larger or smaller."""
        fcntl.ioctl(self.follower, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.screen.resize(height, width)

    def press(self, keys: bytes):
        """Type something: b"\\x03" is Ctrl-C."""
        os.write(self.leader, keys)

    def read(self, seconds=0.0):
        """Let the emulator see what has been written meanwhile."""
        until = time.monotonic() + seconds
        while select.select([self.leader], [], [], max(0.0, until - time.monotonic()))[0]:
            data = os.read(self.leader, 1 << 16)
            self.written += data
            self._stream.feed(data)
            if time.monotonic() > until:
                break

    def until(self, *texts, seconds=40):
        """Read until the screen shows all these texts; returns its lines. Time in which nothing runs does not count."""
        for _ in range(20 * seconds):
            ended = self.process.poll() is not None
            self.read(0.05)
            if all(text in self.text for text in texts):
                return self.lines
            assert not ended, f"it has ended, with no {texts} on the screen:\n{self.text}"
        raise AssertionError(f"no {texts} on the screen:\n{self.text}")

    def end(self, seconds=40) -> int:
        """Wait for the command's end; returns its exit code."""
        for _ in range(20 * seconds):
            if self.process.poll() is not None:
                self.read(0.05)
                return self.process.returncode
            self.read(0.05)
        raise AssertionError(f"it does not end:\n{self.text}")

    @property
    def lines(self) -> list[str]:
        """The screen's lines, with the spaces at their ends."""
        return list(self.screen.display)

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    @property
    def running_text(self) -> str:
        """The screen as one text without line ends, as what the terminal has wrapped reads."""
        return "".join(self.screen.display)

    def is_as_before(self) -> bool:
        """Whether the terminal is as the command found it: settings, main screen, cursor shown, lines wrapped."""
        modes = self.screen.mode
        shown = not self.screen.cursor.hidden and pyte.modes.DECAWM in modes
        return shown and self.screen.behind is None and termios.tcgetattr(self.follower) == self.settings
