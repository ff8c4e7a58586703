"""expf, logf, sinf, cosf and powf of our own have glibc's bits: a sample; testing/check_libm.py takes all arguments."""

import re
from pathlib import Path

import numpy as np
import pytest

import bankml
from bankml.cpu.exponential import expf_array, expf_plain
from bankml.cpu.logarithm import logf_plain, powf_plain
from bankml.cpu.plain import libm
from bankml.cpu.trigonometry import sinf_cosf_plain
from testing.check_libm import FUNCTIONS, check
from tests import inputs

EDGES = np.float32([0, 1e-45, 1e-40, 2**-12, 0.75, 1, 87, 88.8, 103.9, 104, 119.99, 120, 1e5, 3e38, np.inf])


def bits(x):
    return np.asarray(x, np.float32).view(np.uint32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_glibc(name):
    """A step that is prime to powers of two, so that all exponents and low bits come up."""
    compared, differs = check(name, 4001)
    assert not differs
    assert compared > 25_000


def test_plain_twins_equal_glibc():
    source = inputs.Source("libm-plain")
    for x in np.concatenate([EDGES[:-1], np.exp(source.bell(300) * np.float32(4))]).astype(np.float32):
        y = source.bell(1)[0]
        got, want = [expf_plain(-x), *sinf_cosf_plain(x)], [libm("expf", -x), libm("sinf", x), libm("cosf", x)]
        if x > 0:
            got, want = [*got, logf_plain(x), powf_plain(x, y)], [*want, libm("logf", x), libm("powf", x, y)]
        assert np.array_equal(bits(got), bits(want)), x


@pytest.mark.parametrize("size", [0, 1, 15, 16, 33])
def test_expf_of_arrays_of_any_size(size):
    x = -np.abs(inputs.Source("libm-array").bell(size)) * np.float32(9)
    assert np.array_equal(bits(expf_array(x)), bits([libm("expf", value) for value in x]))


def test_no_kernel_calls_the_c_librarys():
    """Nor does anything else of the engine: bankml.oracle is the reference's side, and plain.py serves tests."""
    called = re.compile(
        r"""(ExternalFunction|libm\w*)\(["'](exp|log|sin|cos|pow)f?["']|\blibm\w*\.(exp|log|sin|cos|pow)f"""
    )
    plain = {"plain.py", "attention_plain.py"}
    for path in Path(bankml.__file__).parent.rglob("*.py"):
        if path.name in plain or path.parent.name == "oracle":
            continue
        engine = re.split(r"^def \w+_plain\(", path.read_text(), flags=re.M)[0]
        assert not called.search(engine), path
