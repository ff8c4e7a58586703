"""RMS norm: the reference's bits, also where the order of adding the squares decides the rounding."""

import numpy as np
import pytest

from bankml.cpu import norm, pool
from bankml.oracle import graph
from tests import inputs


def bits(x):
    return np.ascontiguousarray(x).view(np.uint32)


def test_equals_the_reference(check):
    for case in inputs.norm_cases():
        check(case, norm.rms_norm_mul(**case.inputs()))


def rows_on_the_edge(width):
    """Rows whose mean square lies within a few roundings of the middle between two float32: the order may decide."""
    source = inputs.Source(f"edge-{width}")
    rows = np.zeros((200, width), np.float32)
    rows[:, 0] = np.float32(np.sqrt(width))  # a mean near 1
    rows[:, 1:] = np.ldexp(source.bell(200, width - 1), -21)
    middle = np.float64(width) * (1 + np.float64(2.0**-24) * (2 * np.arange(200) - 199))
    square = (rows * rows).astype(np.float64).sum(1)
    lift = np.maximum(middle - square, 0)
    rows[:, width // 2] = np.sqrt(lift)
    return rows


@pytest.mark.parametrize("width", [64, 70, 128, 576, 1000])
def test_equals_the_plain_twin(width):
    source = inputs.Source(f"norm-{width}")
    x = np.concatenate([source.values(data, 4, width) for data in inputs.DATA] + [rows_on_the_edge(width)[::8]])
    weight = source.bell(width)
    got = norm.rms_norm_mul(x, weight, 1e-6)
    want = np.stack([norm.rms_norm_mul_plain(row, weight, 1e-6) for row in x])
    assert np.array_equal(bits(got), bits(want))


def test_exact_ties_take_the_long_way():
    """64 values whose squares add to 64 * (1 + 2^-24), the middle between two float32 means: to even, so 1."""
    x = np.zeros((1, 64), np.float32)
    x[0, 0], x[0, 1] = 8, 2.0**-9
    one = norm.rms_norm_mul(x, np.ones(64, np.float32), 0.0)
    assert np.array_equal(bits(one), bits(x))


@pytest.mark.parametrize(
    ("others", "mean"),
    [
        ([2.0**-22], 2 + 2.0**-22),  # above the middle by the last bit of the sum
        ([2.0**-24] * 60, 2),  # each lost beside the sum so far, though together they would lift it above the middle
    ],
)
def test_the_chain_of_sums_decides(others, mean, reference):
    x = np.zeros((1, 64), np.float32)
    x[0, :2], x[0, 2:4] = 8, 2.0**-9  # 64 * (2 + 2^-23): a middle
    x[0, 4 : 4 + len(others)] = others
    total = np.float64(0)
    for value in x[0].astype(np.float64):
        total += value * value
    assert np.float32(total / 64) == np.float32(mean)
    weight = np.ones(64, np.float32)
    assert np.array_equal(bits(norm.rms_norm_mul(x, weight, 0.0)), bits(graph.rms_norm_mul(x, weight, 0.0)))


def test_infinities_and_nan_come_through():
    x = np.ones((3, 64), np.float32)
    x[0, 5], x[1, 5] = np.inf, np.nan
    out = norm.rms_norm_mul(x, np.ones(64, np.float32), 1e-6)
    assert np.isnan(out[0, 5]) and (np.delete(out[0], 5) == 0).all()
    assert np.isnan(out[1]).all() and np.isfinite(out[2]).all()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_matter(threads):
    source = inputs.Source("norm-threads")
    x, weight = source.bell(13, 576), source.bell(576)
    out = np.empty_like(x)
    code, wait, words = norm.rms_norm_step(x, weight.ctypes.data, out, 1e-6)
    crew = pool.Pool(threads, shares=threads)
    pool.run_steps((code, wait, [13, *words[1:]]), pool=crew)
    crew.close()
    assert np.array_equal(bits(out), bits(norm.rms_norm_mul(x, weight, 1e-6)))
