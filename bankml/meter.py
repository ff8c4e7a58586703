"""The measuring of a running engine: it notes what happens as it happens, at next to no cost, and tells it on demand.

The engine calls `begin`, `took_over`, `token` and `end`; anyone, on any thread, calls `snapshot`. What takes place
between two of those calls (threads at work, time by kind of work) is the difference of counters that others keep.
"""

import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bankml.rates import Rates
from bankml.snapshot import DECODE, IDLE, LOADING, PROMPT, Cache, Device, Prompt, PromptCache, Snapshot

SINCE_S, LEAST_S = 1.0, 0.1  # counters are compared with those of so long ago, or at least so long
CLOCK_PER_THREAD = 6  # with a thread's number, the name of its CPU clock: CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED


@dataclass(frozen=True)
class _Counters:
    """What was counted up to a moment; `phase` changes when a prompt or an answer begins."""

    at: float
    phase: int
    work: dict[str, float]  # kind -> seconds
    cpu: dict[int, float]  # thread -> seconds of CPU time
    rows: dict[str, int]  # device -> rows, times columns
    busy: dict[str, float]  # card -> seconds


@dataclass
class _Request:
    """The prompt and the answer under way."""

    total: int
    max_tokens: int | None
    begun: float
    cached: int | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
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
        if hasattr(self.weights, "reached"):
            self.weights.reached = 0.0  # what it tells from now on is of this prompt
        self._request = _Request(total, max_tokens, time.monotonic())
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

    def go_on(self):
        """Tokens will come without a prompt; this thread computes."""
        self._caller, self._request = threading.get_native_id(), None
        self.rates.start(time.monotonic())
        self.state, self._phase = DECODE, self._phase + 1

    def token(self):
        """One more token is there."""
        now, request = time.monotonic(), self._request
        if request is None:
            self.rates.add(now)
            return
        request.tokens += 1
        if request.first_token_at is None:
            request.first_token_at = now
            self.rates.start(now)
            self.state, self._phase = DECODE, self._phase + 1
        else:
            self.rates.add(now)

    def end(self, state: str = IDLE):
        """The answer is complete, or broken off."""
        if self._request is not None:
            self._request.ended_at = time.monotonic()
        self.state, self._phase = state, self._phase + 1

    # -- told to those who look ----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What is known now."""
        now = time.monotonic()
        new, old = self._counters(now)
        request, decoding = self._request, self.state == DECODE
        rate = self.rates.now(now) if decoding else None
        prompt = self._prompt(now)
        per_token = {PROMPT: prompt.rate if prompt else None, DECODE: rate}.get(self.state)
        budget = _budget(new, old) if per_token else {}
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
            budget={kind: share / per_token for kind, share in budget.items()},
            budget_of=self.state if budget else None,
            threads=_busy(new, old),
            devices=self._devices(new, old),
            cache=self._cache(),
            prompt_cache=PromptCache(self.hits, self.lookups, self.spared) if self.lookups else None,
        )

    def _prompt(self, now) -> Prompt | None:
        request = self._request
        if request is None:
            return None
        cached, until = request.cached or 0, request.first_token_at or request.ended_at
        done = float(request.total)
        if request.first_token_at is None:
            done = min(max(getattr(self.weights, "reached", 0.0), float(cached)), done)
        took = (until or now) - request.begun
        rate = (done - cached) / took if took > 0 and done > cached else None
        left = (request.total - done) / rate if rate and until is None else None
        return Prompt(request.total, done, request.cached, rate, left)

    def _cache(self) -> Cache | None:
        if not self.caches or not hasattr(self.caches[0], "capacity"):
            return None
        first = self.caches[0]
        return Cache(len(first), first.capacity, sum(cache.bytes for cache in self.caches), first.kind.value)

    def _devices(self, new, old) -> tuple[Device, ...]:
        report = self._cards()
        if report is None:
            return tuple(Device(name, share=1.0) for name in getattr(self.weights, "devices", ())[:1])
        rows = {name: count - (old.rows.get(name, 0) if old else 0) for name, count in new.rows.items()}
        total = sum(rows.values())

        def device(name, card):
            busy = (new.busy[name] - old.busy.get(name, 0.0)) / (new.at - old.at) if card and old else None
            return Device(
                card.get("name", name),
                rows=new.rows[name],
                share=rows[name] / total if total > 0 else None,
                busy=min(1.0, busy) if busy is not None else None,
                limit=card.get("limit"),
                resting=card.get("resting"),
                bytes=card.get("bytes"),
                bytes_limit=card.get("bytes_limit"),
                note=card.get("dropped"),
            )

        return (device("cpu", {}), *(device(str(n), card) for n, card in enumerate(report["cards"])))

    # -- counters of others --------------------------------------------------------------------------------------------

    def _counters(self, now):
        """Those of now, and those of about a second ago in the same phase; None where there are none old enough."""
        report = self._cards()
        cards = {str(n): card for n, card in enumerate(report["cards"])} if report else {}
        rows = {"cpu": report["cpu_rows"], **{n: card["rows"] for n, card in cards.items()}} if report else {}
        busy = {n: card["busy_s"] for n, card in cards.items()}
        with self._lock:
            new = _Counters(now, self._phase, self._work(), self._cpu_times(), rows, busy)
            past = [old for old in self._past if old.phase == new.phase and now - old.at >= LEAST_S]
            if not self._past or now - self._past[-1].at >= LEAST_S or self._past[-1].phase != new.phase:
                self._past.append(new)
        return new, next((old for old in reversed(past) if now - old.at >= SINCE_S), past[0] if past else None)

    def _cards(self):
        return self.weights.card_report() if hasattr(self.weights, "card_report") else None

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


def _budget(new, old) -> dict[str, float]:
    """Kind of work -> share of the time from one to the other."""
    if old is None or not new.work:
        return {}
    span = new.at - old.at
    work = {kind: (seconds - old.work.get(kind, 0.0)) / span for kind, seconds in new.work.items()}
    if min(work.values()) < 0:  # counted anew since
        return {}
    work["other"] = 1 - sum(work.values())
    return {kind: share for kind, share in work.items() if share > 0}


def _busy(new, old) -> tuple[float, ...]:
    """The part of the time that each thread had a CPU."""
    if old is None:
        return ()
    return tuple(min(1.0, (t - old.cpu[tid]) / (new.at - old.at)) for tid, t in new.cpu.items() if tid in old.cpu)
