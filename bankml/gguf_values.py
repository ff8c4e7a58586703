"""The values of a GGUF header: numbers, texts and arrays that stay in the file until they are asked for."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

# value type id -> (name, struct format, NumPy dtype)
SCALARS = {
    0: ("u8", "<B", "u1"),
    1: ("i8", "<b", "i1"),
    2: ("u16", "<H", "<u2"),
    3: ("i16", "<h", "<i2"),
    4: ("u32", "<I", "<u4"),
    5: ("i32", "<i", "<i4"),
    6: ("f32", "<f", "<f4"),
    7: ("bool", "<?", "?"),
    10: ("u64", "<Q", "<u8"),
    11: ("i64", "<q", "<i8"),
    12: ("f64", "<d", "<f8"),
}
STRING, ARRAY = 8, 9


def printable(raw: bytes | str) -> str:
    """Text from a file as one harmless line: no control character, no broken UTF-8."""
    text = raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Strings(Sequence):
    """A string array left in the file: `[i]` and iteration give bytes, decoded when asked for."""

    def __init__(self, buffer, starts: array):
        self._buffer, self._starts = buffer, starts  # starts: of every length word, and the end of the last string

    def __len__(self):
        return len(self._starts) - 1

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        return self._buffer[self._starts[i] + 8 : self._starts[i + 1]]

    def __iter__(self):
        return iter(self.all())

    def all(self) -> list[bytes]:
        """All strings at once; the fast way."""
        starts = self._starts
        block = self._buffer[starts[0] : starts[-1]]
        at = [s - starts[0] for s in starts]
        return [block[a + 8 : b] for a, b in pairwise(at)]


@dataclass(frozen=True)
class Text:
    """Where a string value lies; decoded when asked for."""

    buffer: object
    start: int
    size: int

    def decode(self) -> str:
        return self.buffer[self.start : self.start + self.size].decode("utf-8", "replace")


class Values(Mapping):
    """key -> value: int, float, bool, str, a NumPy array on the file's own bytes, or `Strings`.

    `kind(key)` is the type as stored ("u32", "str", "arr[str]", ...), None where the key is missing.
    """

    def __init__(self):
        self._values, self._kinds = {}, {}

    def add(self, key, kind, value):
        self._kinds[key], self._values[key] = kind, value

    def __getitem__(self, key):
        value = self._values[key]
        return value.decode() if isinstance(value, Text) else value

    def __contains__(self, key):
        return key in self._values

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)

    def kind(self, key: str) -> str | None:
        return self._kinds.get(key)

    def nbytes(self, key: str) -> int:
        """Bytes of a string value, without reading it."""
        return self._values[key].size
