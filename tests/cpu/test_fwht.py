"""The Walsh-Hadamard transform: fast, plain and the reference's, on bits, at every level."""

import numpy as np
import pytest

from bankml.cpu.fwht import fwht, fwht_plain, rot_k_size, rot_v_size
from tests import inputs
from tests.cpu.levels import OTHER_LEVELS, rerun_at


@pytest.mark.parametrize("case", list(inputs.fwht_cases()), ids=str)
def test_equals_the_reference(case, check):
    given = case.inputs()
    check(case, fwht(given["x"], given["n"]))


@pytest.mark.parametrize("case", list(inputs.fwht_cases()), ids=str)
def test_equals_the_plain_twin(case):
    x, n = case.inputs().values()
    got = fwht(x, n).reshape(-1, n)[:2]
    want = np.array([fwht_plain(row) for row in x.reshape(-1, n)[:2]])
    assert (got.view("u4") == want.view("u4")).all()


def test_it_undoes_itself():
    x = inputs.Source("fwht").bell(7, 256)
    assert np.allclose(fwht(fwht(x, 128), 128), x, atol=1e-5)
    assert np.allclose(np.square(fwht(x, 64)).sum(1), np.square(x).sum(1), rtol=1e-5)


def test_block_sizes():
    """As llama_kv_cache::build_input_k_rot and _v_rot choose them."""
    assert [rot_k_size(n) for n in (32, 64, 96, 128, 160, 192, 256, 320, 384)] == [0, 64, 0, 128, 0, 64, 256, 64, 128]
    assert [rot_v_size(n) for n in (32, 64, 96, 128, 256)] == [0, 64, 0, 64, 64]


@pytest.mark.parametrize("name", OTHER_LEVELS)
def test_other_levels(name):
    rerun_at(name, __file__, "-k", "not other_levels and not live")
