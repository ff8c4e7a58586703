"""Embedding rows of the three weight types, and the rows that leave the last layer."""

import numpy as np
import pytest

from bankml import blocks
from bankml.cpu import pool
from bankml.cpu.embed import embed, last_rows_step
from tests import inputs

TYPES = {"q1_0": blocks.Q1_0, "q2_0": blocks.Q2_0, "f16": blocks.F16}


@pytest.mark.parametrize("kind", TYPES)
def test_equals_the_reference(kind, check):
    for case in inputs.get_rows_cases(kind):
        given = case.inputs()
        check(case, embed(TYPES[kind], given["table"], given["ids"], given["k"]))


@pytest.mark.parametrize("count", [0, 1, 3, 7])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [64, 576])
def test_last_rows_move_to_the_front(count, threads, width):
    x = inputs.Source("rows").bell(7, width)
    want = x[7 - count :].copy()
    code, wait, words = last_rows_step(x)
    crew = pool.Pool(threads, shares=threads)
    pool.run_steps((code, wait, [7, count, *words[2:]]), pool=crew)
    crew.close()
    assert np.array_equal(x[:count], want)
