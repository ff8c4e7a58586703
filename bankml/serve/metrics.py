"""`/metrics`: what was counted since the start, and what is measured now, in the text format of Prometheus.

Counters come from the outcomes of requests (`Service.listeners`), gauges from its snapshot; what is not known is left
out. https://prometheus.io/docs/instrumenting/exposition_formats/ is the format.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bankml.serve.answer import Outcome
from bankml.serve.service import Service
from bankml.snapshot import Snapshot

KINDS = ("completed", "cancelled", "failed", "refused")
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
PAGE = os.sysconf("SC_PAGE_SIZE")


class Histogram:
    """How many values were at most each of BOUNDS, how many in all, and their sum."""

    def __init__(self):
        self.buckets, self.count, self.sum = [0] * len(BOUNDS), 0, 0.0

    def add(self, value: float):
        """One more value."""
        self.buckets = [count + (value <= bound) for count, bound in zip(self.buckets, BOUNDS, strict=True)]
        self.count, self.sum = self.count + 1, self.sum + value

    def samples(self) -> Iterator[tuple]:
        """(suffix, labels, value) of each sample."""
        for bound, count in zip(BOUNDS, self.buckets, strict=True):
            yield "_bucket", {"le": f"{bound:g}"}, count
        yield "_bucket", {"le": "+Inf"}, self.count
        yield "_sum", {}, self.sum
        yield "_count", {}, self.count


class Metrics:
    """Listens to outcomes; `text` tells of them. For the event loop's thread."""

    def __init__(self):
        self.requests, self.totals = Counter(), Counter()
        self.first_token, self.queue = Histogram(), Histogram()

    def __call__(self, outcome: Outcome):
        self.requests[outcome.kind] += 1
        self.totals["prompt"] += outcome.prompt_tokens
        self.totals["cached"] += outcome.cached_tokens
        self.totals["generated"] += outcome.completion_tokens
        self.totals["hits"] += outcome.cached_tokens > 0
        self.totals["prompt_s"] += outcome.prompt_s
        self.totals["decode_s"] += outcome.decode_s
        if outcome.first_token_s is not None:
            self.first_token.add(outcome.first_token_s)
        if outcome.queue_s is not None:
            self.queue.add(outcome.queue_s)

    def text(self, snapshot: Snapshot) -> str:
        """The whole reply."""
        return "".join([*self._counted(), *_measured(snapshot)])

    def _counted(self):
        t = self.totals
        kinds = [("", {"outcome": kind}, self.requests[kind]) for kind in KINDS]
        yield _family("requests_total", "counter", "Requests, by how they ended.", kinds)
        for name, help_text, key in (
            ("prompt_tokens_total", "Tokens of prompts, those from the cache included.", "prompt"),
            ("cached_tokens_total", "Tokens of prompts that were computed before.", "cached"),
            ("generated_tokens_total", "Tokens generated.", "generated"),
            ("prompt_cache_hits_total", "Requests that found the beginning of their prompt computed.", "hits"),
            ("prompt_seconds_total", "Time spent with prompts.", "prompt_s"),
            ("decode_seconds_total", "Time spent generating.", "decode_s"),
        ):
            yield _family(name, "counter", help_text, [("", {}, t[key])])
        text = "From a request's coming to its first token."
        yield _family("first_token_seconds", "histogram", text, self.first_token.samples())
        text = "From a request's coming to its turn."
        yield _family("queue_seconds", "histogram", text, self.queue.samples())


def _measured(s: Snapshot):
    """What is so now."""
    for name, help_text, value in (
        ("generated_tokens_per_second", "Speed over the last second.", s.rate),
        ("queue_requests", "Requests that wait.", s.queue),
        ("cache_cells", "Cells of the K/V cache in use.", s.cache.cells if s.cache else None),
        ("cache_capacity_cells", "Cells of the K/V cache.", s.cache.capacity if s.cache else None),
        ("process_resident_memory_bytes", "Memory of the process.", _resident()),
    ):
        yield _family(name, "gauge", help_text, [("", {}, value)])
    labels = [({"device": str(n), "name": device.name}, device) for n, device in enumerate(s.devices)]
    for name, kind, help_text, field in (
        ("device_rows_total", "counter", "Rows of products that a device computed.", "rows"),
        ("device_row_share", "gauge", "Its part of the rows of the last second.", "share"),
        ("device_busy_ratio", "gauge", "The part of the time that it computed.", "busy"),
        ("device_limit_ratio", "gauge", "The part of the time that the limiter leaves it.", "limit"),
    ):
        yield _family(name, kind, help_text, [("", label, getattr(device, field)) for label, device in labels])


def _family(name, kind, help_text, samples) -> str:
    """HELP, TYPE and samples; nothing where no value is known."""
    lines = []
    for suffix, labels, value in samples:
        if value is not None:
            inner = ",".join(f'{key}="{text.translate(ESCAPED)}"' for key, text in labels.items())
            lines.append(f"bankml_{name}{suffix}{f'{{{inner}}}' if inner else ''} {value!r}\n")
    return "".join([f"# HELP bankml_{name} {help_text}\n# TYPE bankml_{name} {kind}\n", *lines]) if lines else ""


def _resident() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return None


def routes(service: Service) -> list[Route]:
    """`/metrics`."""
    metrics = Metrics()
    service.listeners.append(metrics)

    async def told(request: Request):
        return Response(metrics.text(service.snapshot()), headers={"Content-Type": CONTENT_TYPE})

    return [Route("/metrics", told)]
