"""Attention over q8_0 cells: fast, plain and the reference's, on bits, whoever computes."""

import functools

import numpy as np
import pytest

from bankml.cpu.attention import Kernel, attention, kernel_for
from bankml.cpu.attention_plain import attention_q8_0_plain
from bankml.cpu.pool import Pool
from bankml.errors import UsageError
from tests import inputs
from tests.cpu.levels import OTHER_LEVELS, rerun_at

CASES = list(inputs.rotated_attention_cases())


@functools.cache
def answer(case):
    given = case.inputs()
    return attention(given["q"], given["k"], given["v"], kernel=Kernel.reference(), cache="q8_0")


def bits(x):
    return np.ascontiguousarray(x).view(np.uint32)


def test_equals_the_reference(check):
    for case in CASES:
        check(case, answer(case))


@pytest.mark.parametrize("case", [case for case in CASES if "random-3of256" in str(case) or "gqa2-64" in str(case)][:6])
def test_equals_the_plain_twin(case):
    q, k, v, *rotations = case.inputs().values()
    row, head = len(q) - 1, q.shape[1] - 1
    want = attention_q8_0_plain(q[row, head], k[:, 1], v[:, 1], *rotations)
    assert (bits(answer(case)[row, head]) == bits(want)).all()


@pytest.mark.parametrize("threads", [2, 3, 8, 64])
def test_threads_do_not_matter(threads):
    crew = Pool(threads, shares=threads)
    for case in CASES[::7]:
        given = case.inputs()
        got = attention(given["q"], given["k"], given["v"], kernel=Kernel.reference(), cache="q8_0", pool=crew)
        assert (bits(got) == bits(answer(case))).all(), case
    crew.close()


@pytest.mark.parametrize(("rows", "cells"), [(1, 1), (1, 257), (1, 5000), (2, 2), (64, 64), (512, 5000)])
def test_it_is_always_the_reference_kernel(rows, cells):
    assert kernel_for(rows, cells, 3, "q8_0") == Kernel.reference()


@pytest.mark.parametrize("kernel", [Kernel.tiled(), Kernel.split(512, 2)])
def test_there_is_no_other_kernel(kernel):
    given = CASES[0].inputs()
    with pytest.raises(UsageError, match=f"the {kernel.name} attention kernel takes an f16 cache"):
        attention(given["q"], given["k"], given["v"], kernel=kernel, cache="q8_0")


@pytest.mark.parametrize("name", OTHER_LEVELS)
def test_other_levels(name):
    rerun_at(name, __file__, "-k", "golden or plain")
