"""The measuring of a running engine: it notes what happens as it happens, at next to no cost, and tells it on demand.

The engine calls `begin`, `took_over`, `token` and `end`; anyone, on any thread, calls `snapshot`. What takes place
between two of those calls (threads at work, time by kind of work) is the difference of counters that others keep.
"""

import threading
import time
from bisect import bisect_left
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bankml.snapshot import DECODE, IDLE, LOADING, PROMPT, Cache, Device, Prompt, PromptCache, Snapshot

SLOT_S, SLOTS = 0.5, 120  # the last minute, by half seconds
NOW_S = 1.0  # the rate now is the one of so long
CLOCK_PER_THREAD = 6  # with a thread's number, the name of its CPU clock: CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED


class Rates:
    """Tokens over time. Each is spread evenly over the time since the one before it: slow ones make no gaps."""

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


@dataclass(frozen=True)
class _Counters:
    """What was counted up to a moment; `phase` changes when a prompt or an answer begins."""

    at: float
    phase: int
    work: dict[str, float]
    cpu: dict[int, float]


@dataclass
class _Request:
    """The prompt and the answer under way."""

    total: int
    max_tokens: int | None
    begun: float
    stale: float
    cached: int | None = None
    first_token_at: float | None = None
    tokens: int = 0


@dataclass
class Meter:
    """Of one engine. weights: a `forward.Weights` once there is one; caches: its K/V caches; model: a name to show."""

    model: str | None = None
    weights: Any = None
    caches: Any = None
    state: str = LOADING
    rates: Rates = field(default_factory=Rates)
    lookups: int = 0  # prompts whose beginning was looked for
    hits: int = 0
    spared: int = 0  # tokens
    spent: dict[str, float] = field(default_factory=dict)  # seconds by kinds of work that the weights do not count

    def __post_init__(self):
        self._lock, self._past, self._phase = threading.Lock(), deque(maxlen=64), 0
        self._request: _Request | None = None
        self._caller: int | None = None

    # -- told by the engine ------------------------------------------------------------------------------------------

    def begin(self, total: int, max_tokens: int | None = None):
        """A prompt of `total` tokens, which go to the first cells; this thread computes."""
        self._caller = threading.get_native_id()
        self._request = _Request(total, max_tokens, time.monotonic(), getattr(self.weights, "reached", 0.0))
        self.state, self._phase = PROMPT, self._phase + 1

    def took_over(self, cached: int):
        """So many of the prompt's tokens need not be computed."""
        self._request.cached = cached
        self.lookups, self.hits, self.spared = self.lookups + 1, self.hits + (cached > 0), self.spared + cached

    @contextmanager
    def spending(self, kind: str):
        """The time that this takes counts as `kind`."""
        begun = time.perf_counter()
        yield
        self.spent[kind] = self.spent.get(kind, 0.0) + time.perf_counter() - begun

    def token(self):
        """One more token is there."""
        now, request = time.monotonic(), self._request
        request.tokens += 1
        if request.first_token_at is None:
            request.first_token_at = now
            self.rates.start(now)
            self.state, self._phase = DECODE, self._phase + 1
        else:
            self.rates.add(now)

    def end(self):
        """The answer is complete, or broken off."""
        self.state, self._phase = IDLE, self._phase + 1

    # -- told to those who look ----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What is known now."""
        now = time.monotonic()
        budget, threads = self._between(now)
        request, decoding = self._request, self.state == DECODE
        rate = self.rates.now(now) if decoding else None
        prompt = self._prompt(now)
        per_token = {PROMPT: prompt.rate if prompt else None, DECODE: rate}.get(self.state)
        first = request.first_token_at if request else None
        return Snapshot(
            model=self.model,
            state=self.state,
            rate=rate,
            rate_minute=self.rates.minute(now),
            rates=self.rates.series(now),
            first_token_s=first - request.begun if first else None,
            tokens=request.tokens if request else None,
            max_tokens=request.max_tokens if request else None,
            prompt=prompt,
            budget={kind: share / per_token for kind, share in budget.items()} if per_token else {},
            budget_of=self.state if per_token and budget else None,
            threads=threads,
            devices=self._devices(),
            cache=self._cache(),
            prompt_cache=PromptCache(self.hits, self.lookups, self.spared) if self.lookups else None,
        )

    def _prompt(self, now) -> Prompt | None:
        request = self._request
        if request is None:
            return None
        cached, until = request.cached or 0, request.first_token_at
        reached, done = getattr(self.weights, "reached", None), float(request.total)
        if until is None:
            if reached is None:
                return Prompt(request.total, float(cached), request.cached)
            computed = cached if reached == request.stale else reached
            done = min(max(computed, float(cached)), done)
        took = (until or now) - request.begun
        rate = (done - cached) / took if took > 0 and done > cached else None
        left = (request.total - done) / rate if rate and until is None else None
        return Prompt(request.total, done, request.cached, rate, left)

    def _cache(self) -> Cache | None:
        if not self.caches or not hasattr(self.caches[0], "capacity"):
            return None
        first = self.caches[0]
        return Cache(len(first), first.capacity, sum(cache.bytes for cache in self.caches), first.kind.value)

    def _devices(self) -> tuple[Device, ...]:
        names = list(getattr(self.weights, "devices", ()))
        return (Device(names[0], share=1.0),) if len(names) == 1 else tuple(map(Device, names))

    def _between(self, now):
        """Since about a second ago: kind of work -> share of the time, and the part that each thread was busy."""
        with self._lock:
            counted = _Counters(now, self._phase, self._work(), self._cpu_times())
            past = [old for old in self._past if old.phase == counted.phase]
            if not self._past or now - self._past[-1].at >= 0.1:
                self._past.append(counted)
        old = next((old for old in reversed(past) if now - old.at >= NOW_S), past[0] if past else None)
        if old is None or now - old.at < 0.1:
            return {}, ()
        span = now - old.at
        work = {kind: (seconds - old.work.get(kind, 0.0)) / span for kind, seconds in counted.work.items()}
        if work:
            work["other"] = max(0.0, 1 - sum(work.values()))
        if any(share < 0 for share in work.values()):  # counted anew since
            work = {}
        busy = [(spent - old.cpu[tid]) / span for tid, spent in counted.cpu.items() if tid in old.cpu]
        return {kind: share for kind, share in work.items() if share > 0}, tuple(min(1.0, part) for part in busy)

    def _work(self):
        return {**self.weights.seconds(), **self.spent} if hasattr(self.weights, "seconds") else {}

    def _cpu_times(self):
        """Thread number -> its CPU time, of the caller and the pool's other threads, as far as they live."""
        pool, times = getattr(self.weights, "pool", None), {}
        for tid in [self._caller, *pool.thread_ids()] if pool is not None and self._caller is not None else ():
            try:
                times[tid] = time.clock_gettime((~tid << 3) | CLOCK_PER_THREAD)
            except OSError:
                continue
        return times
