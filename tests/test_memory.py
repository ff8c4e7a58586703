"""Weights are mapped, never copied: the private memory of a run with a Bonsai-1.7B-shaped model."""

import json
import subprocess
import sys

from bankml import shapes
from tests import vocab

LIMIT = 550e6  # bytes, a 2,048-cell f16 cache (235 MB of it) and the tokenizer included
CACHE = 28 * 2 * 2048 * 8 * 128 * 2

SCRIPT = """
import json, sys
from bankml import Tokenizer, Weights
tokenizer = Tokenizer.from_gguf(sys.argv[2])
ids = tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 300)
with Weights.open(sys.argv[1], gpu=False, threads=2) as weights:
    caches = weights.caches(n_ctx=2048)
    row = weights.prefill(caches, ids[:2040])
    for _ in range(8):
        row = weights.decode(caches, int(weights.logits(row).argmax()))
    with open("/proc/self/smaps_rollup") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line)
    anonymous = int(fields["Anonymous"].split()[0]) * 1024
    print(json.dumps({"anonymous": anonymous, "caches": sum(cache.bytes for cache in caches)}))
"""


def test_private_memory_of_a_large_run(tmp_path):
    path = tmp_path / "model.gguf"
    shapes.write_model(path, *shapes.parse("bonsai-1.7b:q1_0")[1:])
    command = [sys.executable, "-c", SCRIPT, str(path), str(vocab.qwen3_gguf())]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["caches"] == CACHE
    assert found["anonymous"] < LIMIT, f"{found['anonymous'] / 1e6:.0f} MB"
    print(f"private memory: {found['anonymous'] / 1e6:.0f} MB")
