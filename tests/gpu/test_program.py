"""The kernels' products: the reference's bits, live and recorded, on every driver and in both builds."""

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pytest

from bankml.blocks import F16, Q1_0, Q2_0, RUNNABLE, TYPES
from bankml.cpu import plain, products, quantize
from bankml.cpu.pool import Pool
from bankml.gpu import opencl, program
from bankml.gpu.program import Program, takes
from tests import inputs

KINDS = {TYPES[wtype].name: wtype for wtype in RUNNABLE}
TAKEN = {"q1_0": 128, "q2_0": 64, "f16": 32}
ROWS = ("1", "5", "8", "23", "32")  # of the many cases of random values that are small


def _taken():
    for kind, whole in TAKEN.items():
        for case in inputs.product_cases(kind, large=False):
            _, data, shape = case.name.split("-")
            rows, _, width = shape.split("x")
            if int(width) % whole == 0 and (data != "random" or width != "256" or rows in ROWS):
                yield case


CASES = list(_taken())


@pytest.fixture(scope="module", params=[False, True], ids=["fma", "software-fma"])
def build(request, each_driver):
    """(Program, cl.CommandQueue) on each driver, in each build."""
    device, context = each_driver
    return Program(context, device.handle, request.param), opencl.load().CommandQueue(context)


@pytest.fixture(scope="module")
def one(pocl):
    """(Program, cl.CommandQueue) on PoCL."""
    device, context = pocl
    return Program(context, device.handle), opencl.load().CommandQueue(context)


def buffer(queue, array):
    flags = opencl.load().mem_flags
    array = np.ascontiguousarray(array)
    return opencl.load().Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=array)


def activation(wtype, x) -> tuple[np.ndarray, ...]:
    """float32 (n, width) as the CPU's products have it: quants and scales, or rounded to f16."""
    if wtype == F16:
        return (x.astype(np.float16).astype(np.float32),)
    rows = [quantize.quantize_q8_0_plain(row) for row in x]
    return np.stack([q for q, _ in rows]), np.stack([d for _, d in rows])


def multiply(built, wtype, weights, x, rows=None, **options) -> np.ndarray:
    """What the card makes of weights uint8 (rows, bytes) times float32 (n, width): float32 (n, rows)."""
    prog, queue = built
    rows = rows or len(weights)
    stride = options.get("out_stride", rows)
    out = np.full(len(x) * stride + options.get("out_start", 0), np.nan, np.float32)
    target, arrays = buffer(queue, out), activation(wtype, x)
    product = prog.product(
        wtype, buffer(queue, weights), rows, x.shape[1], tuple(buffer(queue, a) for a in arrays), target, **options
    )
    done = product.enqueue(queue, len(x))
    opencl.load().enqueue_copy(queue, out, target, wait_for=[done])
    return out[options.get("out_start", 0) :].reshape(len(x), stride)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products(case, build, check):
    given = case.inputs()
    check(case, multiply(build, KINDS[given["kind"]], given["weights"], given["activations"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 8, 9])
def test_parts_of_a_matrix(kind, columns, one):
    """Some rows, from anywhere in a buffer to anywhere in another, have the whole matrix's bits; no others change."""
    source, pool, wtype = inputs.Source(f"gpu part {kind}"), Pool(1), KINDS[kind]
    for rows in (48, 51):
        weights, x = source.weights(kind, "random", rows, 384), source.bell(columns, 384)
        want = products.mm(pool, wtype, weights, x)
        for first, last in ((0, 17), (5, 40), (46, 48), (0, rows)):
            placing = {"start": first * weights.shape[1], "out_start": 7, "out_stride": 60, "matrix_rows": rows}
            got = multiply(one, wtype, weights, x, last - first, **placing)
            assert (got[:, : last - first].view("u4") == want[:, first:last].view("u4")).all()
            assert np.isnan(got[:, last - first :]).all()
    pool.close()


def test_arguments_are_set_once_and_columns_change(one):
    """The same product, again and again, with other columns and other values in its buffers."""
    prog, queue = one
    source, pool, cl = inputs.Source("gpu again"), Pool(1), opencl.load()
    weights, x = source.weights("q1_0", "random", 24, 256), source.bell(9, 256)
    quants, scales = activation(Q1_0, x)
    held = buffer(queue, quants), buffer(queue, scales)
    out = np.empty((9, 24), np.float32)
    target = buffer(queue, out)
    product = prog.product(Q1_0, buffer(queue, weights), 24, 256, held, target)
    for columns, first in ((9, 0), (1, 3), (4, 5), (1, 4), (9, 0), (2, 7)):
        copies = [
            cl.enqueue_copy(queue, there, np.ascontiguousarray(array[first:][:columns]), is_blocking=False)
            for there, array in zip(held, (quants, scales), strict=True)
        ]
        done = product.enqueue(queue, columns, wait_for=copies)
        cl.enqueue_copy(queue, out, target, wait_for=[done])
        want = products.mm(pool, Q1_0, weights, x[first : first + columns])
        assert (out.reshape(-1)[: columns * 24].view("u4") == want.reshape(-1).view("u4")).all()
    pool.close()


def test_the_software_fma_is_one(pocl, reference):
    """a*b+c rounded once, against exact arithmetic, in the regimes that a product of ours meets and near ties."""
    device, context = pocl
    text = program.source("exact.h") + (
        "__kernel void triples(__global const float *a, __global const float *b, __global const float *c,\n"
        "                      __global float *out)\n"
        "{\n    size_t i = get_global_id(0);\n    out[i] = fused(a[i], b[i], c[i]);\n}\n"
    )
    cl = opencl.load()
    queue, rng = cl.CommandQueue(context), np.random.default_rng(4)
    a, b, c = (np.concatenate(parts) for parts in zip(*_triples(rng, 20_000), strict=True))
    prog = Program(context, device.handle, True, text)
    out, kernel = np.empty_like(a), prog.kernel("triples")
    held = [buffer(queue, array) for array in (a, b, c, out)]  # a kernel does not keep its arguments alive
    kernel.set_args(*held)
    cl.enqueue_nd_range_kernel(queue, kernel, a.shape, None)
    cl.enqueue_copy(queue, out, held[-1])
    want = np.array([plain.fma32(*triple) for triple in zip(a, b, c, strict=True)], np.float32)
    assert (out.view("u4") == want.view("u4")).all()
    assert (a * b + c != want).mean() > 0.05  # where rounding twice would show


def _triples(rng, n):
    """a: an f16 scale; b: a block's sum; c: what was added before; in float32."""
    halves = (rng.integers(1, 2048, n) * 2.0 ** rng.integers(-24, 5, n)).astype(np.float16).astype(np.float32)
    signs = rng.choice(np.array([-1, 1], np.float32), n)
    sums = rng.integers(1, 1 << 24, n).astype(np.float32) * np.float32(2.0) ** rng.integers(-24, 3, n).astype(
        np.float32
    )
    for shift in (-30, -12, -2, 0, 2, 12, 30):  # how c compares with the product
        c = (halves * sums * np.float32(2.0) ** shift * rng.uniform(0.5, 2, n)).astype(np.float32)
        c = np.round(c.astype(np.float64) * 2.0**48) * 2.0**-48
        yield halves * signs, sums, c.astype(np.float32)
    yield halves * signs, sums, -(halves * signs * sums)  # cancelling to the last bit
    a = rng.integers(1024, 2048, n)
    b = (1 << 34) // a
    odd = rng.integers(1 << 23, 1 << 24, n)
    yield (a * 2.0**-10).astype(np.float32), (b * 2.0**-24).astype(np.float32), (odd * 2.0).astype(np.float32)


def test_every_half_is_decoded(each_driver):
    """To the very float32, denormals, infinities and NaNs too."""
    device, context = each_driver
    cl, halves = opencl.load(), np.arange(65536, dtype=np.uint16)
    text = program.source("exact.h") + (
        "__kernel void decode(__global const ushort *bits, __global uint *out)\n"
        "{\n    size_t i = get_global_id(0);\n    out[i] = as_uint(f16_bits_to_f32(bits[i]));\n}\n"
    )
    queue, out = cl.CommandQueue(context), np.zeros(65536, np.uint32)
    kernel, held = Program(context, device.handle, text=text).kernel("decode"), [buffer(queue, halves)]
    held.append(buffer(queue, out))
    kernel.set_args(*held)
    cl.enqueue_nd_range_kernel(queue, kernel, out.shape, None)
    cl.enqueue_copy(queue, out, held[-1])
    want = halves.view(np.float16).astype(np.float32).view(np.uint32)
    number = halves & 0x7FFF <= 0x7C00
    assert (out[number] == want[number]).all() and np.isnan(out[~number].view(np.float32)).all()


def test_what_is_taken():
    assert takes(Q1_0, 128) and takes(Q2_0, 64) and takes(F16, 32)
    assert not takes(Q1_0, 64) and not takes(Q2_0, 32) and not takes(F16, 8) and not takes(F16, 0)
    assert not takes(41_000, 128)


def test_sources_are_found_in_the_checkout_and_beside_an_installed_package(tmp_path, monkeypatch):
    assert program.folder() == Path(program.__file__).parents[2] / "kernels.cl"
    installed = tmp_path / "bankml"
    (installed / "kernels.cl").mkdir(parents=True)
    monkeypatch.setattr(program, "__file__", str(installed / "gpu" / "program.py"))
    assert program.folder() == installed / "kernels.cl"


def test_the_sources_keep_to_opencl_1_2():
    """No double, no half, no mad, and fusing only where it is written."""
    text = re.sub(r"/\*.*?\*/", "", program.source(), flags=re.DOTALL)
    for word in ("double", "half ", "half4", "mad(", "mad24", "cl_khr", "FP_CONTRACT ON", "native_"):
        assert word not in text, word
    assert text.count("fma(") == 1


def test_options_from_outside_are_ignored(pocl, monkeypatch):
    """PyOpenCL would append them; it would also warn of what a compiler says, which is an error here."""
    monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-fast-relaxed-math -DTILE=3 -D__nonsense(")
    monkeypatch.setenv("PYOPENCL_COMPILER_OUTPUT", "1")
    device, context = pocl
    assert Program(context, device.handle).kernel("q1_0_column").num_args == 10
    assert "nonsense" in os.environ["PYOPENCL_BUILD_OPTIONS"]


def test_digests_tell_sources_apart():
    assert program.digest() == program.digest(program.source()) != program.digest(program.source() + " ")


def test_devices_compare_by_what_they_are(pocl):
    device, _ = pocl
    assert dataclasses.replace(device, handle=None) == device
