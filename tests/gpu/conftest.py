"""Fixtures of the card tests: the drivers, and the CPU's product."""

import pytest

from bankml.blocks import F16
from tests.gpu import drivers


@pytest.fixture(scope="session")
def pocl():
    """(Device, cl.Context)."""
    return drivers.driver("pocl")


@pytest.fixture(scope="session", params=drivers.DRIVERS)
def each_driver(request):
    """(Device, cl.Context) of every driver in turn."""
    return drivers.driver(request.param)


@pytest.fixture(scope="session")
def expected():
    """The CPU's product, as the self-test wants it."""
    from bankml.cpu import products
    from bankml.cpu.pool import Pool

    pool = Pool(2)
    yield lambda wtype, weights, activation: products.mm(
        pool, wtype, weights, activation[0] if wtype == F16 else activation
    )
    pool.close()
