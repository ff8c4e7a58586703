"""`reuse="exact"`: whatever the slot and the prompt cache held before, not a bit differs from an uncached run."""

import random

import numpy as np
import pytest

from bankml.engine import Engine
from bankml.exact import UNKNOWN, exact_prefix, without_split
from bankml.kv_cache import KvType
from bankml.params import Params
from tests import conversations

PARAMS = Params(temperature=0, n_probs=3)


def requests(seed):
    """Prompts (token lists) and how many tokens to answer with: some go on with earlier ones, some leave them."""
    rng = random.Random(seed)
    history = [[rng.randrange(32, 127) for _ in range(700)]]
    for _ in range(14):
        base = rng.choice(history)
        length = rng.choice([1, 2, 30, 63, 64, 65, 96, 97, 100, 192, 193, 300, 511, 513, 640])
        prompt = base[: rng.randint(0, len(base))]
        prompt = (prompt + [rng.randrange(32, 127) for _ in range(length)])[:length]
        answer = rng.choice([1, 5, 40])
        yield prompt, answer, history
        history.append(prompt)


def outcome(engine, prompt, answer, reuse):
    """(tokens, log-probabilities, the cells' bytes) of an answer, and how many tokens were taken over."""
    generation = engine.generate(prompt, PARAMS, max_tokens=answer, reuse=reuse)
    list(generation)
    cells = [part[: len(prompt)].copy() for cache in engine.slot.caches for part in cache.raw()]
    return (generation.tokens, generation.probs, cells), generation


@pytest.mark.parametrize(
    ("kind", "cache", "n_ubatch"),
    [("q1_0", "f16", 96), ("f16", "f16", 96), ("q2_0", "f16", 512), ("f16", "q8_0", 64), ("q1_0", "f16", 7)],
)
def test_exact_reuse_changes_no_bit(kind, cache, n_ubatch, tmp_path):
    path = conversations.write_tiny(tmp_path / "tiny.gguf", kind)
    taken = 0
    options = {"kind": KvType(cache), "n_ubatch": n_ubatch}
    with Engine.open(path, 1024, False, **options) as used, Engine.open(path, 1024, False, **options) as fresh:
        for prompt, answer, history in requests(f"{kind} {cache} {n_ubatch}"):
            got, generation = outcome(used, prompt, answer, "exact")
            fresh.erase()
            want, _ = outcome(fresh, prompt, answer, "off")
            assert got[0] == want[0] and got[1] == want[1], len(prompt)
            assert all(map(np.array_equal, got[2], want[2])), len(prompt)
            taken += generation.cached > 0
            history.append(prompt + generation.tokens)
    assert taken >= 4


def test_which_cells_are_taken_over():
    """Micro-batches of 100: 64 rows or more go path 1, fewer path 0, one row alone path 3."""

    def path(rows, cells):
        return 3 if rows == 1 else int(rows >= 64)

    def prefix(same, paths, total):
        return exact_prefix(same, bytes(paths), total, 100, path)

    assert prefix(100, [1] * 100, 150) == 100
    assert prefix(120, [1] * 100 + [0] * 20, 150) == 120
    assert prefix(150, [1] * 100 + [0] * 50, 150) == 148  # two rows at least are left: one goes another path
    assert prefix(90, [0] * 90, 100) == 0  # an uncached run goes path 1
    assert prefix(90, [1] * 90, 100) == 36  # what is left must have 64 rows
    assert prefix(200, [1] * 200, 201) == 200
    assert prefix(101, [1] * 100 + [3], 101) == 100  # one token is always computed
    assert prefix(150, [1] * 100 + [3] * 50, 150) == 100
    assert prefix(0, [], 50) == 0
    assert prefix(100, [1] * 50 + [UNKNOWN] + [1] * 49, 150) == 36


def test_splits_of_another_thread_count_are_not_known():
    assert without_split(np.array([0, 1, 2, 3, 5, UNKNOWN], np.uint8)).tolist() == [0, 1, UNKNOWN, 3, UNKNOWN, UNKNOWN]
