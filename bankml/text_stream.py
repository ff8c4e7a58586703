"""An answer's bytes as text: whole characters only, and nothing that may become a stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Bytes in as they come, text out in whole characters; what may become a stop string is held back.

    `text` is all that belongs to the answer, `sent` how many characters of it were handed out. A broken byte becomes
    U+FFFD; a character that is cut off at the very end is dropped.
    """

    def __init__(self, stop: Sequence[str] = ()):
        self._stop = [word for word in stop if word]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text, self.sent, self.stopped = "", 0, False

    def push(self, piece: bytes) -> str:
        """The text that these bytes make ready. After a stop string (`stopped`) nothing follows."""
        if self.stopped:
            return ""
        self.text += self._decoder.decode(piece)
        found = [at for at in (self.text.find(word, self.sent) for word in self._stop) if at >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True
            return self._send(len(self.text))
        return self._send(len(self.text) - self._held())

    def finish(self) -> str:
        """The text held back, now that no more will come."""
        return self._send(len(self.text))

    def _send(self, end) -> str:
        ready, self.sent = self.text[self.sent : end], end
        return ready

    def _held(self) -> int:
        """How many characters at the end could be the beginning of a stop string."""
        longest = min(max(map(len, self._stop), default=0) - 1, len(self.text) - self.sent)
        return next(
            (n for n in range(longest, 0, -1) if any(word.startswith(self.text[-n:]) for word in self._stop)), 0
        )
