"""libstdc++'s sorts: the compiled ones against their plain twin, ties and all. Whole chains: tests/test_sampler.py."""

from pathlib import Path

import numpy as np
import pytest

from bankml.cpu import order_plain
from bankml.cpu.order import HEAP_SORTED
from bankml.params import Params
from bankml.sampler_chain import Chain, log_probs
from tests.cpu.levels import OTHER_LEVELS, rerun_at

rng = np.random.default_rng(3)


def killer(n):
    """A run that the median of three halves badly, every key twice: introsort falls back on its heap."""
    keys = np.zeros(n, np.float32)
    places = [i for pair in zip(range(1, n, 2), range(n - 1, 0, -2), strict=False) for i in pair]
    keys[np.array(places) % n] = (np.arange(len(places)) // 2).astype(np.float32) * np.float32(1e-5)
    return keys


KEYS = {
    "one": [1.0],
    "two": [0.0, -0.0],
    "few": rng.normal(0, 2, 17),
    "a block and one": rng.normal(0, 2, 65),
    "many": rng.normal(0, 3, 5000),
    "tied": np.round(rng.normal(0, 2, 3000)),
    "rising": np.arange(700) / 100,
    "falling": np.arange(700)[::-1] / 100,
    "equal": np.zeros(1000),
    "far out": np.concatenate([rng.normal(0, 1e6, 300), [3e38, -3e38, 3e9, -3e9], np.full(40, -np.inf)]),
    "killer": killer(2000),
}


def by_buckets(keys, count):
    """llama_token_data_array_partial_sort with the plain sorts: whole buckets from the top, the last one in part."""
    order, first = [], 0
    with np.errstate(over="ignore"):
        place = np.float32(6.4) * keys + np.float32(64)
    place = np.where((place >= 2**31) | ~(place > 0), 0, place)  # what a C int does not hold is its least value
    buckets = np.minimum(place.astype(np.int64), 127)
    for bucket in range(127, -1, -1):
        order += np.flatnonzero(buckets == bucket).tolist()
        if len(order) >= count:
            order_plain.partial_sort(order, keys.tolist(), first, count - first, len(order))
            break
        order_plain.sort(order, keys.tolist(), first, len(order))
        first = len(order)
    return order[:count]


@pytest.mark.parametrize("name", KEYS)
def test_the_largest_come_in_the_plain_twins_order(name):
    keys = np.array(KEYS[name], np.float32)
    chain = Chain(Params(samplers=()), len(keys))
    for count in sorted({1, 2, 40, HEAP_SORTED, HEAP_SORTED + 1, len(keys) // 2, len(keys)}):
        if not 0 < count <= len(keys):
            continue
        if count <= HEAP_SORTED:
            order = list(range(len(keys)))
            order_plain.partial_sort(order, keys.tolist(), 0, count, len(keys))
            want = order[:count]
            assert chain.largest(keys, count, from_the_row=True) == want
        else:
            want = by_buckets(keys, count)
        assert chain.largest(keys, count) == want, count


@pytest.mark.parametrize("name", ["a block and one", "many", "tied", "equal", "killer"])
def test_log_probabilities_sum_in_the_order_that_is_left(name):
    """float32 sums depend on their order; equals get_token_probabilities step by step."""
    keys = np.array(KEYS[name], np.float32)
    for count in (1, 5, 60):
        order = list(range(len(keys)))
        order_plain.partial_sort(order, keys.tolist(), 0, count, len(keys))
        p = np.exp((keys[order] - keys[order[0]]).astype(np.float64)).astype(np.float32)
        p = p / np.cumsum(p, dtype=np.float32)[-1]
        want = np.log(p[:count].astype(np.float64)).astype(np.float32)
        told = log_probs(keys, order[0], count)
        assert [token for token, _ in told.top] == order[:count]
        got = np.array([value for _, value in told.top], np.float32)
        assert np.abs(got.view("i4") - want.view("i4")).max() <= 1 and told.value == got[0]


@pytest.mark.parametrize("level", OTHER_LEVELS)
def test_same_at_level(level):
    chains = Path(__file__).parent.parent / "test_sampler.py"
    rerun_at(level, __file__, str(chains), "-k", "plain_twins or log_probabilities or (recorded and tied)")
