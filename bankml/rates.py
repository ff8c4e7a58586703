"""Tokens over time: the rate now, over the last minute, and its course."""

from bisect import bisect_left
from collections import deque

SLOT_S, SLOTS = 0.5, 120  # the last minute, by half seconds
NOW_S = 1.0  # the rate now is the one of so long


class Rates:
    """Of the tokens that come. Each is spread evenly over the time since the one before it: slow ones make no gaps."""

    def __init__(self):
        self._recent: deque[float] = deque(maxlen=4096)  # when each token came
        self._slots: deque[list[float]] = deque(maxlen=SLOTS + 1)  # [number, tokens, seconds]
        self._first = None

    def start(self, now: float):
        """An answer's first token is there: it starts the clock, and is not counted itself."""
        self._recent.clear()
        self._recent.append(now)
        self._first = self._first or int(now / SLOT_S)

    def add(self, now: float):
        """One more token, at `now` of `time.monotonic`."""
        since = self._recent[-1]
        self._recent.append(now)
        slot, last, span = int(since / SLOT_S), int(now / SLOT_S), max(now - since, 1e-9)
        for number in range(max(slot, last - SLOTS), last + 1):
            part = min(now, (number + 1) * SLOT_S) - max(since, number * SLOT_S)
            self._add(number, part / span, part)

    def _add(self, number, tokens, seconds):
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append([number, 0.0, 0.0])
        self._slots[-1][1] += tokens
        self._slots[-1][2] += seconds

    def now(self, now: float) -> float | None:
        """Tokens/s of the last second, or of the last token where that took longer; None before the second token."""
        recent = list(self._recent)
        if len(recent) < 2:
            return None
        start = min(bisect_left(recent, now - NOW_S), len(recent) - 2)
        count, last = len(recent) - 1 - start, recent[-1]
        usual = (last - recent[start]) / count
        late = max(last, now - usual)  # a token that is overdue makes it slower
        return count / max(late - recent[start], 1e-9)

    def series(self, now: float) -> tuple[float, ...]:
        """Tokens/s of each full half second of the last minute since the first token, oldest first."""
        if self._first is None:
            return ()
        filled = {int(number): tokens for number, tokens, _ in list(self._slots)}
        last = int(now / SLOT_S)
        return tuple(filled.get(n, 0.0) / SLOT_S for n in range(max(self._first + 1, last - SLOTS), last))

    def minute(self, now: float) -> float | None:
        """Tokens/s over the last minute, counting the time in which tokens were made."""
        oldest = int(now / SLOT_S) - SLOTS
        slots = [slot for slot in list(self._slots) if slot[0] >= oldest]
        seconds = sum(slot[2] for slot in slots)
        return sum(slot[1] for slot in slots) / seconds if seconds > 0 else None
