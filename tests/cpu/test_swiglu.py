"""SwiGLU: the reference's bits over a sweep and at the ends of its expf, whole vectors and what is left."""

import numpy as np
import pytest

from bankml.cpu import pool
from bankml.cpu.swiglu import swiglu, swiglu_plain, swiglu_step, v_expf, v_expf_plain
from tests import inputs


def bits(x):
    return np.ascontiguousarray(x).view(np.uint32)


def test_equals_the_reference(check):
    for case in inputs.swiglu_cases():
        check(case, swiglu(**case.inputs()))


def test_expf_equals_the_plain_twin():
    source = inputs.Source("expf")
    ends = [0, -0.0, 87.4, 88.38, 88.8, 103.9, 104, 133, 133.1, 200, np.inf]
    x = np.concatenate([source.bell(400) * np.float32(s) for s in (1, 20, 90)] + [np.float32(ends), -np.float32(ends)])
    with np.errstate(all="ignore"):
        want = np.array([v_expf_plain(value) for value in x], np.float32)
    assert np.array_equal(bits(v_expf(x)), bits(want))


def test_expf_is_the_exponential():
    x = np.linspace(-87, 88, 100_001).astype(np.float32)
    assert np.allclose(v_expf(x), np.exp(x.astype(np.float64)), rtol=2e-7, atol=0)
    assert v_expf(np.float32([-np.inf, -104, np.inf, 89])).tolist() == [0, 0, np.inf, np.inf]
    assert np.isnan(v_expf(np.float32(np.nan)))


def test_equals_the_plain_twin():
    source = inputs.Source("swiglu-plain")
    gate, up = source.bell(3, 61) * np.float32(8), source.bell(3, 61)
    want = np.stack([swiglu_plain(*row) for row in zip(gate, up, strict=True)])
    assert np.array_equal(bits(swiglu(gate, up)), bits(want))


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("width", [5, 72, 1000])
def test_threads_do_not_matter(threads, width):
    source = inputs.Source(f"swiglu-threads-{width}")
    gate, up = source.bell(5, width), source.bell(5, width)
    want = swiglu(gate, up)
    code, wait, words = swiglu_step(gate, up, gate)
    crew = pool.Pool(threads, shares=threads)
    pool.run_steps((code, wait, [5, *words[1:]]), pool=crew)
    crew.close()
    assert np.array_equal(bits(gate), bits(want))
