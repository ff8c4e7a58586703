"""Speed of bankml beside the reference: both engines in one run, alternating, and their logits compared on bits.

A run of the reference below `COLLAPSED` of its own best is thrown away: its barriers spin, and on a busy machine it can
collapse, which would make any ratio a lie.
"""

import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

from bankml.forward import Outputs, Weights
from bankml.oracle.model import ReferenceModel

COLLAPSED = 0.8
TRIES = 4  # extra runs of the reference to replace collapsed ones
SEED = 7


@dataclass
class Row:
    """One line of the table: tokens/s of both, the medians' ratio, and the spread (max - min) / median of ours."""

    model: str
    work: str
    n: int
    ours: float
    reference: float
    reference_threads: int
    ratio: float
    spread: float
    bits_equal: bool


def machine() -> dict:
    """What was measured on."""
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    from bankml.cpu.level import level

    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "level": level(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d"),
    }


class Bench:
    """Both engines with one model open. threads: ours; reference_threads: those tried for the reference, best taken."""

    def __init__(self, name, path, *, threads=2, reference_threads=(2, 1), variant="haswell", n_ctx=4096, rounds=5):
        self.name, self.rounds, self.tried = name, rounds, reference_threads
        self.weights = Weights.open(path, gpu=False, threads=threads)
        self.reference = ReferenceModel(path, n_ctx=n_ctx, n_threads=reference_threads[0], variant=variant)
        self.caches = self.weights.caches(n_ctx=n_ctx)
        self.tokens = np.random.default_rng(SEED).integers(0, self.reference.n_vocab, n_ctx)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.reference.close()
        self.weights.close()

    def prompt(self, n: int, threads=None) -> Row:
        """A prompt of `n` tokens into an empty cache, the last token's logits included."""
        tokens = self.tokens[:n]

        def ours():
            self._truncate(0)
            rows = self.weights.prefill_with(self.caches, tokens, Outputs.LAST)
            return self.weights.logits_rows(rows)

        def theirs():
            self.reference.forget(0)
            return self.reference.decode(tokens, watch=()).logits

        return self._row("prompt", n, n, ours, theirs, threads or self.tried[:1])

    def decode(self, cells: int, tokens: int = 16) -> Row:
        """`tokens` forced tokens one at a time after `cells` cells, logits of each included."""
        self._truncate(0)
        self.reference.forget(0)
        if cells:
            self.weights.prefill_with(self.caches, self.tokens[:cells], Outputs.NONE)
            self.reference.decode(self.tokens[:cells], "none", watch=())
        forced = self.tokens[cells : cells + tokens]

        def ours():
            self._truncate(cells)
            return np.stack([self.weights.logits(self.weights.decode(self.caches, int(t))) for t in forced])

        def theirs():
            self.reference.forget(cells)
            return np.concatenate([self.reference.decode([t], watch=()).logits for t in forced])

        return self._row("decode", cells, tokens, ours, theirs, self.tried)

    def _truncate(self, cells):
        for cache in self.caches:
            cache.truncate(min(cells, len(cache)))

    def _row(self, work, n, tokens, ours, theirs, tried) -> Row:
        mine, equal, best = [], True, (0.0, 0, [])
        for threads in tried:
            self.reference.set_threads(threads)
            self.weights.llama_threads = threads
            rates, own, same = self._alternate(tokens, ours, theirs)
            mine += own
            equal &= same
            best = max(best, (statistics.median(rates), threads, rates))
        median = statistics.median(mine)
        spread = (max(mine) - min(mine)) / median
        return Row(self.name, work, n, median, best[0], best[1], median / best[0], spread, equal)

    def _alternate(self, tokens, ours, theirs):
        """Rates of the reference (collapsed runs left out) and ours, and whether all logits were equal."""
        ours()  # kernels compiled, pages mapped
        theirs_rates, our_rates, equal = [], [], True
        for attempt in range(self.rounds + TRIES):
            theirs_rate, want = _timed(tokens, theirs)
            our_rate, got = _timed(tokens, ours)
            theirs_rates.append(theirs_rate)
            our_rates.append(our_rate)
            equal &= np.array_equal(want.view(np.uint32), got.view(np.uint32))
            good = [rate for rate in theirs_rates if rate >= COLLAPSED * max(theirs_rates)]
            if attempt + 1 >= self.rounds and len(good) >= (self.rounds + 1) // 2:
                break
        return good, our_rates, equal


def _timed(tokens, work):
    start = time.perf_counter()
    result = work()
    return tokens / (time.perf_counter() - start), result


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [f"{'model':<20} {'work':<8} {'n':>5} {'ours':>9} {'reference':>10} {'ratio':>6} {'spread':>7}  bits"]
    for row in rows:
        lines.append(
            f"{row.model:<20} {row.work:<8} {row.n:>5} {row.ours:>9.2f} {row.reference:>7.2f}/{row.reference_threads}t "
            f"{row.ratio:>6.2f} {row.spread:>6.0%}  {'equal' if row.bits_equal else 'DIFFERENT'}"
        )
    return "\n".join(lines)


def as_json(rows: list[Row]) -> dict:
    """`{machine, rows}`, as docs/cli.md gives it."""
    return {"machine": machine(), "rows": [asdict(row) for row in rows]}


def say(text: str):
    """A line of progress on stderr."""
    print(f"bankml: {text}", file=sys.stderr, flush=True)
