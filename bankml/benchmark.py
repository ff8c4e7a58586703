"""Speed of bankml beside the reference: both engines in one run, alternating, and their logits compared on bits.

A run of the reference below `COLLAPSED` of its own best is thrown away: its barriers spin, and on a busy machine it can
collapse, which would make any ratio a lie.
"""

import os
import platform
import statistics
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from bankml.cpu.pool import read_stamp
from bankml.cpu.read_floor import read_floor
from bankml.forward import Outputs, Weights
from bankml.kv_cache import KvType
from bankml.meter import Meter
from bankml.oracle.model import ReferenceModel
from bankml.snapshot import Snapshot

COLLAPSED = 0.8
TRIES = 4  # extra runs of the reference to replace collapsed ones
SETTLE = 0.02  # seconds until the other engine's threads have stopped spinning
LONG = 512  # tokens of a run that needs no run before it to warm up
PATIENCE = 60  # seconds of the reference's runs of one kind, beyond which there are fewer rounds
SEED = 7
BITS = {True: "equal", False: "DIFFERENT", None: "by design"}


@dataclass
class Row:
    """One line of the table: tokens/s of both, the medians' ratio, and the spread (max - min) / median of ours.

    gb_s: for decoding, the bytes of weights and cells that ours reads per second, and floor_share that over the rate at
    which the same threads merely read the file, taken just before. budget: what share of our time each kind of work
    took ("python": all the rest). bits_equal is None where the reference's variant has other bits by design.
    """

    model: str
    work: str
    n: int
    ours: float
    reference: float
    reference_threads: int
    ratio: float
    spread: float
    bits_equal: bool | None
    gb_s: float = 0.0
    floor_share: float = 0.0
    budget: dict[str, float] = field(default_factory=dict)


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

    def __init__(
        self,
        name,
        path,
        *,
        threads=2,
        reference_threads=(2, 1),
        variant="haswell",
        n_ctx=4096,
        rounds=5,
        kind=KvType.F16,
    ):
        self.name, self.rounds, self.tried = name, rounds, reference_threads
        self.weights = Weights.open(path, gpu=False, threads=threads)
        self.reference = ReferenceModel(
            path, n_ctx=n_ctx, n_threads=reference_threads[0], variant=variant, cache=kind.value
        )
        self.caches = self.weights.caches(kind, n_ctx=n_ctx)
        self.meter, self.rows, self._under_way = Meter(name, self.weights, self.caches), [], None
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
            self.meter.begin(n)
            rows = self.weights.prefill_with(self.caches, tokens, Outputs.LAST)
            return list(self.weights.logits_rows(rows))

        def theirs():
            self.meter.end("reference")
            self.reference.forget(0)
            return list(self.reference.decode(tokens, watch=()).logits)

        return self._row("prompt", n, n, ours, theirs, threads or self.tried[:1])

    def decode(self, cells: int, tokens: int = 16, tried=None) -> Row:
        """`tokens` forced tokens one at a time after `cells` cells, logits of each included."""
        self._reach(cells)
        forced = self.tokens[cells : cells + tokens]

        def ours():
            self._truncate(cells)
            self.meter.go_on()
            return [self._decoded(t) for t in forced]

        def theirs():
            self.meter.end("reference")
            self.reference.forget(cells)
            return [self.reference.decode([t], watch=()).logits[0] for t in forced]

        return self._row("decode", cells, tokens, ours, theirs, tried or self.tried)

    def _decoded(self, token):
        logits = self.weights.logits(self.weights.decode(self.caches, int(token)))
        self.meter.token()
        return logits

    def snapshot(self) -> Snapshot:
        """What is measured now, and the rows so far; for any thread."""
        return replace(self.meter.snapshot(), answer=short_table(self.rows, self._under_way))

    def _reach(self, cells):
        """Bring both caches to the first `cells` tokens, keeping what they have of them, in the same calls on both."""
        kept = min(cells, self.reference.n_past, len(self.caches[0]))
        self._truncate(kept)
        self.reference.forget(kept)
        if kept < cells:
            self.weights.prefill_with(self.caches, self.tokens[kept:cells], Outputs.NONE)
            self.reference.decode(self.tokens[kept:cells], "none", watch=())

    def _truncate(self, cells):
        for cache in self.caches:
            cache.truncate(min(cells, len(cache)))

    def _row(self, work, n, tokens, ours, theirs, tried) -> Row:
        mine, equal, best, self._spent = [], True, (0.0, 0, []), Counter()
        floor = read_floor(self.weights.pool, self.weights.map.largest_part()) if work == "decode" else 0.0
        if tokens <= LONG:
            ours()  # kernels compiled, pages mapped
        for threads in tried:
            self.reference.set_threads(threads)
            self.weights.llama_threads = threads
            self._under_way = (work, n, own_so_far := [], theirs_so_far := [])
            rates, own, same = self._alternate(tokens, ours, theirs, own_so_far, theirs_so_far)
            mine += own
            equal &= same
            best = max(best, (statistics.median(rates), threads, rates))
        median, gb_s, share = statistics.median(mine), 0.0, 0.0
        spread, ratio = (max(mine) - min(mine)) / median, median / best[0]
        if work == "decode":
            gb_s = median * (self.weights.map.nbytes + self._cell_bytes()) / 1e9
            share = 1e9 * gb_s / floor
        row = Row(self.name, work, n, median, best[0], best[1], ratio, spread, equal, gb_s, share, self._budget())
        self.rows, self._under_way = [*self.rows, row], None
        return row

    def _cell_bytes(self):
        """Bytes of the cells that attention reads for one token."""
        return sum(2 * len(cache) * cache.row_bytes for cache in self.caches)

    def _budget(self):
        """Shares of our time by kind of work, largest first."""
        taken = self._spent.pop("all")
        shares = {kind: cycles / taken for kind, cycles in self._spent.items()}
        shares["python"] = 1 - sum(shares.values())
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def _alternate(self, tokens, ours, theirs, our_rates, theirs_rates):
        """Rates of the reference (collapsed runs left out) and ours, and whether all logits were equal.

        our_rates, theirs_rates: lists that are filled as the runs end.
        """
        equal = True
        for attempt in range(self.rounds + TRIES):
            theirs_rate, _, want = _timed(tokens, theirs)
            self.weights.take_cycles()
            our_rate, cycles, got = _timed(tokens, ours)
            self._spent.update(self.weights.take_cycles(), all=cycles)
            theirs_rates.append(theirs_rate)
            our_rates.append(our_rate)
            equal &= all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in zip(want, got, strict=True))
            good = [rate for rate in theirs_rates if rate >= COLLAPSED * max(theirs_rates)]
            rounds = max(1, min(self.rounds, int(PATIENCE * theirs_rates[0] / tokens)))  # fewer of the very long
            if attempt + 1 >= rounds and len(good) >= (rounds + 1) // 2:
                break
        return good, our_rates, equal


def _timed(tokens, work):
    """Tokens per second, cycles of the time stamp counter, and the result."""
    time.sleep(SETTLE)
    start, stamp = time.perf_counter(), read_stamp()
    result = work()
    cycles = read_stamp() - stamp
    return tokens / (time.perf_counter() - start), cycles, result


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [
        f"{'model':<20} {'work':<8} {'n':>5} {'ours':>9} {'reference':>10} {'ratio':>6} {'spread':>7}"
        f" {'GB/s':>6} {'floor':>6}  {'bits':<9}  time"
    ]
    for row in rows:
        memory = f"{row.gb_s:>6.1f} {row.floor_share:>6.0%}" if row.gb_s else " " * 13
        budget = ", ".join(f"{kind} {share:.0%}" for kind, share in row.budget.items() if share >= 0.01)
        lines.append(
            f"{row.model:<20} {row.work:<8} {row.n:>5} {row.ours:>9.2f} {row.reference:>7.2f}/{row.reference_threads}t "
            f"{row.ratio:>6.2f} {row.spread:>6.0%} {memory}  {BITS[row.bits_equal]:<9}  {budget}"
        )
    return "\n".join(lines)


def short_table(rows: list[Row], under_way=None) -> str:
    """The rows in few columns; `under_way` is (work, n, our rates, the reference's) of one that is not complete."""
    lines = [f"{'work':<8} {'n':>5} {'bankml':>9} {'reference':>10} {'ratio':>6}  bits"]
    for row in rows:
        bits = BITS[row.bits_equal]
        lines.append(f"{row.work:<8} {row.n:>5} {row.ours:>9.2f} {row.reference:>10.2f} {row.ratio:>6.2f}  {bits}")
    if under_way is not None:
        work, n, *both = under_way
        ours, theirs = (f"{statistics.median(rates):.2f}" if rates else "" for rates in both)
        lines.append(f"{work:<8} {n:>5} {ours:>9} {theirs:>10} {'':>6}  run {len(both[0]) + 1}")
    return "\n".join(lines)


def as_json(rows: list[Row]) -> dict:
    """`{machine, rows}`, as docs/cli.md gives it."""
    return {"machine": machine(), "rows": [asdict(row) for row in rows]}


def say(text: str):
    """A line of progress on stderr."""
    print(f"bankml: {text}", file=sys.stderr, flush=True)
