"""Activations to q8_0 and to f16: the kernels equal the reference and their plain twins, at every level."""

import numpy as np
import pytest

from bankml.blocks import F16, Q1_0, Q2_0
from bankml.cpu.compile import step
from bankml.cpu.floats import arguments
from bankml.cpu.pool import Pool, program
from bankml.cpu.products import Activation
from bankml.cpu.quantize import quantize_blocks, quantize_q8_0_plain, quantize_stored_blocks
from bankml.oracle import kernels
from tests import inputs
from tests.cpu.levels import OTHER_LEVELS, rerun_at


@step
def quantize_row(record, thread, threads):
    """`blocks` blocks of float32 at x to quants at q and scales at d."""
    blocks, x, q, d = arguments(record, 4)
    quantize_blocks(x, q, d, blocks)


@step
def store_row(record, thread, threads):
    """`blocks` blocks of float32 at x as they are stored in a cache."""
    blocks, x, out = arguments(record, 3)
    quantize_stored_blocks(x, out, blocks)


@pytest.fixture(scope="module")
def pool():
    pool = Pool(1)
    yield pool
    pool.close()


def quantized(pool, x):
    """int8 and float32 scales of float32 (n, k), by the kernel."""
    q, d = np.empty(x.shape, np.int8), np.empty((len(x), x.shape[1] // 32), np.float32)
    pool.run(program((quantize_row, True, [d.size, x.ctypes.data, q.ctypes.data, d.ctypes.data])))
    return q, d


def stored(pool, x):
    """uint8 (n, k / 32 * 34) of float32 (n, k), by the kernel that fills a q8_0 cache."""
    out = np.empty((len(x), x.shape[1] // 32 * 34), np.uint8)
    pool.run(program((store_row, True, [x.size // 32, x.ctypes.data, out.ctypes.data])))
    return out


def as_blocks(q, d):
    """uint8 (n, bytes) as quantize_row_q8_0 writes rows."""
    blocks = np.empty((*d.shape, 34), np.uint8)
    blocks[..., :2] = d.astype(np.float16)[..., None].view(np.uint8)
    blocks[..., 2:] = q.reshape(*d.shape, 32).view(np.uint8)
    return blocks.reshape(len(q), -1)


@pytest.mark.parametrize("case", list(inputs.quantize_cases()), ids=str)
def test_q8_0_rows(case, pool, check):
    x = case.inputs()["x"]
    q, d = quantized(pool, x)
    assert (d == d.astype(np.float16)).all()
    check(case, as_blocks(q, d))
    check(case, stored(pool, x))


def test_any_rows(pool, reference):
    """4,000 rows of any float32 but NaN: infinities, and denormals whose factor is infinite: quants saturate."""
    source = inputs.Source("any rows")
    words = source.raw(4000, 128, 4).view(np.uint32)[..., 0]
    words[source.integers(0, 4, 4000) == 0] &= 0x807FFFFF
    words[source.integers(0, 2000, words.shape) == 0] = 0xFF800000
    x = np.where(np.isnan(words.view(np.float32)), np.float32(1), words.view(np.float32))
    got = stored(pool, x)
    want = kernels.quantize(x)
    assert (got == want).all()
    assert (want.reshape(4000, 4, 34)[..., 2:] == 128).any() and np.isinf(x).any()
    assert (as_blocks(*map(np.array, zip(*map(quantize_q8_0_plain, x[:60]), strict=True))) == want[:60]).all()


@pytest.mark.parametrize("case", [c for c in inputs.quantize_cases() if c.name.endswith(("-32", "-128"))], ids=str)
def test_q8_0_is_its_plain_twin(case, pool):
    x = case.inputs()["x"]
    q, d = quantized(pool, x)
    for row in range(len(x)):
        quants, scales = quantize_q8_0_plain(x[row])
        assert (quants == q[row]).all() and (scales.view("u4") == d[row].view("u4")).all()


@pytest.mark.parametrize("wtype", [Q1_0, Q2_0])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_an_activation_shows_its_quants(wtype, threads, reference):
    pool, x = Pool(threads, shares=threads), inputs.Source("shown").values("wide", 7, 640)
    activation = Activation(wtype, 7, 768, threads)
    for n, width in ((7, 640), (1, 640), (3, 128)):
        rows = np.ascontiguousarray(x[:n, :width])
        fill = activation.fill(x.ctypes.data, width, x.strides[0])
        pool.run(program(*[(code, wait, [n, *words[1:]]) for code, wait, words in fill]))
        assert (as_blocks(*activation.q8(n, width)) == kernels.quantize(rows)).all()
    pool.close()


def test_f16_rounding(reference):
    """All halves and what lies between them, in rows whose width is not whole vectors."""
    pool = Pool(2)
    for case in inputs.half_cases():
        if case.operation == "to_f16":
            x = case.inputs()["x"]
            x = x[~np.isnan(x)]
            for width in (len(x), 31):
                activation = Activation(F16, len(x) // width, width, 2)
                rows = np.ascontiguousarray(x[: len(x) // width * width].reshape(-1, width))
                fill = activation.fill(rows.ctypes.data, width, rows.strides[0])
                pool.run(program(*[(code, wait, [len(rows), *words[1:]]) for code, wait, words in fill]))
                got = activation.f32(len(rows), width)
                assert (got.view("u4") == kernels.from_f16(kernels.to_f16(rows)).view("u4")).all()
    pool.close()


@pytest.mark.parametrize("name", OTHER_LEVELS)
def test_other_levels(name):
    rerun_at(name, __file__, "-k", "not other_levels")
