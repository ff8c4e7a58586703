"""A progress bar on stderr: rich's where stderr is a terminal, else a plain line every few seconds."""

import sys
import time
from contextlib import contextmanager

EVERY_S = 5.0


class _Lines:
    """Progress for logs: says nothing in the first seconds, then a percentage now and then."""

    def __init__(self, label, total):
        self.label, self.total, self.done = label, max(total, 1), 0
        self.spoke = time.monotonic()

    def to(self, done):
        """Set how much of `total` is done."""
        self.done = done
        if time.monotonic() - self.spoke >= EVERY_S:
            self.spoke = time.monotonic()
            print(f"{self.label}: {min(100, 100 * done // self.total)}%", file=sys.stderr, flush=True)


class _Bar:
    """Progress for a terminal, drawn by rich."""

    def __init__(self, progress, label, total):
        self.progress = progress
        self.task = progress.add_task(label, total=total)

    def to(self, done):
        """Set how much of `total` is done."""
        self.progress.update(self.task, completed=done)


@contextmanager
def bar(label, total):
    """Yields an object whose `to(done)` moves the bar; `total` and `done` are bytes."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _Lines(label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress, label, total)
