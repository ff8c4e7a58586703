"""What a person types, or a file holds, as whole inputs: a line, lines joined by a backslash, or a quoted block."""

import sys
from typing import NamedTuple

from bankml.cli import given
from bankml.errors import UsageError

FIRST, MORE = "> ", ". "
BLOCK = '"""'


class Said(NamedTuple):
    """An input without its last newline; `quoted` if it stood between lines of quotes."""

    text: str
    quoted: bool = False


class Lines:
    """Reads stdin. On a terminal it asks with a prompt: where both are one, with line editing and history.

    A line that ends with a backslash goes on in the next one; between two lines of three double quotes there may be
    anything. Bytes that are no UTF-8 are carried along as they are.
    """

    def __init__(self):
        if sys.stdin is None:  # closed by the caller, as by `<&-`
            raise UsageError("stdin is closed; what you say goes there")
        self.on_terminal = sys.stdin.isatty()
        self._edits = self.on_terminal and sys.stdout.isatty()
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        if self._edits:
            self._load_editor()

    @staticmethod
    def _load_editor():
        """Line editing and history come with this import, in Pythons that have it."""
        try:
            import readline
        except ImportError:
            return
        readline.set_auto_history(True)

    def read(self) -> Said | None:
        """The next input; None at the end."""
        line = self._line(FIRST)
        if line is None:
            return None
        if line.strip() == BLOCK:
            return Said(self._block(), quoted=True)
        while line.endswith("\\"):
            more = self._line(MORE)
            line = line[:-1] + ("" if more is None else "\n" + more)
        return Said(line)

    def _block(self) -> str:
        """Everything up to the closing quotes, or to the end."""
        lines = []
        while (line := self._line(MORE)) is not None and line.strip() != BLOCK:
            lines.append(line)
        return "\n".join(lines)

    def _line(self, prompt) -> str | None:
        if self._edits:
            try:
                return input(prompt)
            except EOFError:
                print(flush=True)
                return None
        if self.on_terminal:
            print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline(given.MAX_PROMPT)
        if len(line) >= given.MAX_PROMPT:
            raise UsageError(f"a line of more than {given.MAX_PROMPT >> 20} MB, the most that is read")
        return line.removesuffix("\n") if line else None
