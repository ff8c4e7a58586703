"""How long a model stays loaded: Ollama's `keep_alive`."""

import asyncio
import math
import re
import time
from contextlib import suppress
from pathlib import Path

from bankml.serve.answer import Outcome
from bankml.serve.errors import ApiError
from bankml.serve.service import Service

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(ns|us|µs|ms|s|m|h)")
NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{0,18})?")
FOR_EVER = 10 * 365 * 86400.0  # seconds from which on no timer is set
LOOK_S = 0.05  # after so long an engine that was at work when the time was over is looked at again


def seconds(given) -> float | None:
    """Seconds of a `keep_alive`: a number, or a text as "5m" and "1h30m"; below 0 is infinite, null is None."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise _wrong(given)
    found = _parsed(given.strip()) if isinstance(given, str) else given
    return math.inf if found < 0 or found >= FOR_EVER else float(found)


def _parsed(text) -> float:
    if NUMBER.fullmatch(text):
        return float(text)
    parts = PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text.lstrip("+-") or text.lstrip("+-") not in (text, text[1:]):
        raise _wrong(text)
    return sum(float(number) * UNITS[unit] for number, unit in parts) * (-1 if text[0] == "-" else 1)


def _wrong(given):
    return ApiError(400, f'keep_alive is {str(given)[:50]!r}; it takes seconds, or a duration such as "5m" or "1h30m"')


class KeepAlive:
    """Lets the resident model go when nothing asked it for its time, through whatever interface.

    A model that nobody gave a time stays. For the event loop's thread.
    """

    def __init__(self, service: Service):
        self.service, self._times, self._timer = service, {}, None
        self.expires_at = math.inf  # by time.time()
        self._tasks = set()
        service.listeners.append(self._used)

    def ask(self, path: Path, given: float | None):
        """Note what a request gave for its model; None leaves the time as it is."""
        if given is not None:
            self._times[path] = given

    def used(self):
        """The time begins anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = self._times.get(self.service.names.resident, math.inf)
        self.expires_at = time.time() + left
        self._wait(left)

    def _wait(self, left):
        if left < math.inf and not self.service.stopping:
            self._timer = asyncio.get_running_loop().call_later(left, self._expired)

    async def unload(self, path: Path):
        """Let a model go now, in its turn."""
        await self.service.unload(path)
        self._times.pop(path, None)
        self.used()

    def _used(self, outcome: Outcome):
        if outcome.kind != "refused":
            self.used()

    def _expired(self):
        self._timer = None
        path = self.service.names.resident
        if self.service.busy or self.service.waiting:
            self._wait(max(LOOK_S, self._times.get(path, math.inf)))  # the answer's end begins the time anew
            return
        if self.service.engine is None:
            return
        task = asyncio.ensure_future(self._let_go(path))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go(self, path):
        with suppress(ApiError):  # the queue is full, or the server stops
            await self.unload(path)
