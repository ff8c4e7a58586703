"""Fixtures that every part shares: the reference library, and checks against it or against its recordings."""

import functools
import os
from pathlib import Path

import numpy as np
import pytest

from bankml.errors import BankmlError
from bankml.oracle import library, record
from tests import inputs, models

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def reference():
    """The shipped reference library, loaded; fetched with npm if need be."""
    try:
        return library.load()
    except (BankmlError, OSError) as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must compare with the live reference: {error}")
        pytest.skip(f"needs the live reference: {error}")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where test models are built."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def opened(folder):
    """opened(name, threads): a test model's Weights, closed at the end."""
    from bankml.forward import Weights

    weights = []

    def open_model(name, threads=2):
        weights.append(Weights.open(models.build(name, folder), gpu=False, threads=threads))
        return weights[-1]

    yield open_model
    for each in weights:
        each.close()


@functools.cache
def _recorded_kernels() -> dict:
    return record.read(GOLDEN / "kernels.json")["cases"]


def _check_live(case: inputs.Case, got: np.ndarray):
    want = inputs.expected(case)
    assert got.shape == want.shape and got.dtype == want.dtype, f"{case}: {got.dtype} {got.shape}"
    unit = np.dtype(f"u{want.dtype.itemsize}")
    unequal = np.argwhere(np.ascontiguousarray(got).view(unit) != want.view(unit))
    if len(unequal):
        at = tuple(int(index) for index in unequal[0])
        pytest.fail(f"{case}: {len(unequal)} of {want.size} differ, first at {at}: {got[at]!r}, not {want[at]!r}")


def _check_golden(case: inputs.Case, got: np.ndarray):
    input_digest, output_digest = _recorded_kernels()[str(case)]
    assert inputs.input_digest(case) == input_digest, f"{case}: the inputs are not the recorded ones"
    assert record.digest(got) == output_digest, f"{case}: not the recorded bits"


@pytest.fixture(params=["live", "golden"])
def check(request):
    """check(case, got): holds the bits of `got` equal to the reference's for an `inputs.Case`, live and recorded."""
    if request.param == "golden":
        return _check_golden
    request.getfixturevalue("reference")
    return _check_live
