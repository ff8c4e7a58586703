"""Products of q8_0 rows: fast, plain and the reference's, on bits, with -128 and every kind of scale."""

import numpy as np
import pytest

from bankml.cpu.dot_q8_0 import dot_q8_0_q8_0_plain, vec_dot_q8_0_q8_0
from bankml.oracle import kernels
from tests import inputs
from tests.cpu.levels import OTHER_LEVELS, rerun_at, rerun_without_extras

PAIRS = 4000


def dots(given):
    """All pairs of a case's rows, as `kernels.dot` orders them."""
    x, y = np.broadcast_arrays(given["weights"][None], given["activations"][:, None])
    return vec_dot_q8_0_q8_0(given["k"], x, y)


@pytest.mark.parametrize("case", list(inputs.dot_cases("q8_0")), ids=str)
def test_equals_the_reference(case, check):
    check(case, dots(case.inputs()))


@pytest.mark.parametrize("case", [case for case in inputs.dot_cases("q8_0") if case.name.endswith("-128")], ids=str)
def test_equals_the_plain_twin(case):
    given = case.inputs()
    want = [[dot_q8_0_q8_0_plain(x, y) for x in given["weights"]] for y in given["activations"]]
    assert (dots(given).view("u4") == np.array(want, np.float32).view("u4")).all()


def any_bytes(side):
    """uint8 (PAIRS, 4 blocks): any quants, -128 among them often, and finite scales of any size and sign."""
    source = inputs.Source(f"q8_0 {side}")
    blocks = source.raw(PAIRS, 4, 34)
    blocks[..., 2:][source.integers(0, 3, (PAIRS, 4, 32)) == 0] = 128
    blocks[..., 1] &= 0xBF  # no infinity, no NaN: exponents below 16
    return blocks.reshape(PAIRS, -1)


def test_any_bytes(reference):
    x, y = any_bytes("x"), any_bytes("y")
    got = vec_dot_q8_0_q8_0(128, x, y)
    want = np.array([kernels.dot("q8_0", x[i : i + 1], y[i : i + 1], 128)[0, 0] for i in range(PAIRS)])
    assert (got.view("u4") == want.view("u4")).all()
    plain = np.array([dot_q8_0_q8_0_plain(x[i], y[i]) for i in range(40)])
    assert (plain.view("u4") == want[:40].view("u4")).all()


@pytest.mark.parametrize("name", OTHER_LEVELS)
def test_other_levels(name):
    rerun_at(name, __file__, "-k", "golden or any_bytes")


@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_without_vnni(tmp_path, name):
    rerun_without_extras(tmp_path, __file__, "-k", "golden or any_bytes", at=name)
