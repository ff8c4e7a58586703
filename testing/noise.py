"""Decoding beside other load: tokens/s for several thread counts while busy loops of other programs want the cores.

    python testing/noise.py MODEL.gguf [--threads 1,2,4,8] [--loops 0,1,2] [--seconds 3]

What must hold is that no thread count is more than 1.3 times slower than the best one under the same load; counts below
the number of cores are shown, and not judged, for they leave cores unused.
"""

import argparse
import os
import subprocess
import sys
import time

from bankml.forward import Weights

CELLS, LONGEST = 32, 1.3
BUSY = "import time\nend = time.time() + {}\nwhile time.time() < end: pass"


def rate(path: str, threads: int, seconds: float) -> float:
    """Tokens per second over `seconds` of decoding after 32 cells."""
    with Weights.open(path, gpu=False, threads=threads) as weights:
        caches = weights.caches(n_ctx=256)
        weights.prefill(caches, range(CELLS))
        weights.logits(weights.decode(caches, 1))
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            weights.logits(weights.decode(caches, 1))
            count += 1
            for cache in caches:
                cache.truncate(CELLS)
        return count / (time.perf_counter() - start)


def beside(loops: int, seconds: float) -> list[subprocess.Popen]:
    """Busy loops in sessions of their own, so that the system gives each the share of a program."""
    command = [sys.executable, "-c", BUSY.format(seconds)]
    return [subprocess.Popen(command, start_new_session=True) for _ in range(loops)]


def main() -> int:
    """Print a line per load; exit 2 if a thread count falls behind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", default="1,2,4,8")
    parser.add_argument("--loops", default="0,1,2")
    parser.add_argument("--seconds", type=float, default=3)
    args = parser.parse_args()
    counts, behind = [int(word) for word in args.threads.split(",")], False
    print("busy loops  " + "  ".join(f"{n:>3} threads" for n in counts) + "   worst/best")
    for loops in map(int, args.loops.split(",")):
        rates = []
        for threads in counts:
            others = beside(loops, args.seconds + 5)
            time.sleep(0.3)
            rates.append(rate(args.model, threads, args.seconds))
            for other in others:
                other.kill()
                other.wait()
        judged = [r for n, r in zip(counts, rates, strict=True) if n >= len(os.sched_getaffinity(0))]
        worst = max(rates) / min(judged or rates)
        behind |= worst > LONGEST
        print(f"{loops:>10}  " + "  ".join(f"{r:>11.1f}" for r in rates) + f"   {worst:.2f}", flush=True)
    return 2 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
