"""Attention of one decoded token over long f16 caches, alone: milliseconds for all layers, and what of memory it reads.

    python testing/attention_speed.py [--cells 2048,4096,8192] [--threads 1,2] [--shape 28,16,8,128] [--rounds 40]

The caches hold random numbers and are as many as the model's layers, so that they come from memory as they do there;
the best of the rounds counts. Beside it the time in which the same threads merely read as much.
"""

import argparse
import sys
import time

import numpy as np

from bankml.cpu import pool as pools
from bankml.cpu.attention import Heads, attention_steps, kernel_for, scratch_bytes
from bankml.cpu.read_floor import read_floor

LLAMA_THREADS = 3


def numbers(text):
    """Integers between commas."""
    return [int(word) for word in text.split(",")]


def seconds(pool, shape, caches, cells, rounds) -> float:
    """The best time of one token's attention over all caches, pairs of K and V, half bits (cells, width)."""
    q = np.random.default_rng(1).standard_normal((1, shape.n_head * shape.head_dim), np.float32)
    out, per_thread = np.empty_like(q), scratch_bytes(shape.n_head, shape.n_head_kv, shape.head_dim, 1)
    scratch = np.empty(pool.threads * per_thread + 64, np.uint8)
    steps = attention_steps(kernel_for(1, cells, LLAMA_THREADS), shape, q, out, scratch, per_thread)
    first = [[1, cells - 1, k.ctypes.data, v.ctypes.data] for k, v in caches]
    program = pools.program(*((code, wait, [*at, *words[4:]]) for at in first for code, wait, words in steps))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        pool.run(program)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Print a line per number of cells and threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=numbers, default=[2048, 4096, 8192])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--shape", type=numbers, default=[28, 16, 8, 128], help="layers, heads, KV heads, head size")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    layers, *heads = args.shape
    shape = Heads(*heads)
    width = shape.n_head_kv * shape.head_dim
    for cells in args.cells:
        half = np.random.default_rng(0).standard_normal((cells, width), np.float32).astype(np.float16)
        caches = [(half.copy(), half.copy()) for _ in range(layers)]
        for threads in args.threads:
            pool = pools.Pool(threads)
            taken, size = seconds(pool, shape, caches, cells, args.rounds), 4 * layers * cells * width
            alone = size / read_floor(pool, np.concatenate([k for k, _ in caches]).view(np.uint8).reshape(-1))
            print(
                f"{cells} cells, {threads} threads: {taken * 1e3:.2f} ms, {size / taken / 1e9:.1f} GB/s;"
                f" merely read: {alone * 1e3:.2f} ms",
                flush=True,
            )
            pool.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
