"""What a user hands over on stdin or in a file: read whole, as bytes, and never without end."""

import sys

from bankml.errors import UsageError

MAX_PROMPT, MAX_TEXT = 1 << 25, 1 << 28  # bytes


def read(file, name: str, most: int) -> bytes:
    """All of a binary file. Raises UsageError where it cannot be read, or has more than `most` bytes."""
    try:
        data = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    if len(data) > most:
        raise UsageError(f"{name} has more than {most >> 20} MB, the most that is read")
    return data


def stdin(most: int = MAX_TEXT) -> bytes:
    """All of stdin."""
    if sys.stdin is None:  # closed by the caller, as by `<&-`
        raise UsageError("stdin is closed; the input goes there")
    return read(sys.stdin.buffer, "stdin", most)
