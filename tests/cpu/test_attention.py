"""The three attention kernels: each where the reference takes it, with its bits, whoever computes."""

import functools

import numpy as np
import pytest

from bankml.cpu import attention_plain as plain
from bankml.cpu.attention import Kernel, attention, kernel_for, padded_kv
from bankml.cpu.pool import Pool
from tests import inputs

KERNELS = ("reference", "tiled", "split")


def bits(x):
    return np.ascontiguousarray(x).view(np.uint32)


@functools.cache
def answers(name):
    """Every case of a kernel, computed by the kernel that `kernel_for` names."""
    found = {}
    for case in inputs.attention_cases(name):
        given = case.inputs()
        q, k, v = (given[side] for side in "qkv")
        kernel = kernel_for(len(q), len(k), given["threads"])
        assert kernel.name == name, case
        found[case] = attention(q, k, v, kernel=kernel)
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_equals_the_reference(name, check):
    for case, got in answers(name).items():
        check(case, got)


def test_padding():
    assert [padded_kv(cells) for cells in (0, 1, 255, 256, 257, 512, 513)] == [256, 256, 256, 256, 512, 512, 768]


@pytest.mark.parametrize(
    ("rows", "cells", "kernel"),
    [
        (1, 1, Kernel.reference()),
        (1, 256, Kernel.reference()),
        (1, 257, Kernel.split(512, 3)),
        (1, 1100, Kernel.split(1280, 3)),
        (2, 2, Kernel.reference()),
        (2, 5000, Kernel.reference()),
        (63, 5000, Kernel.reference()),
        (64, 64, Kernel.tiled()),
        (512, 5000, Kernel.tiled()),
    ],
)
def test_choice(rows, cells, kernel):
    assert kernel_for(rows, cells, 3) == kernel


def qkv(tokens, cells, heads, heads_kv, size):
    source = inputs.Source(f"attention-{tokens}-{cells}-{heads}-{heads_kv}-{size}")
    k, v = (source.bell(cells, heads_kv, size).astype(np.float16).view(np.uint16) for _ in "kv")
    return source.bell(tokens, heads, size) * np.float32(3), k, v


def test_reference_equals_the_plain_twin():
    q, k, v = qkv(3, 100, 3, 1, 64)
    got = attention(q, k, v, kernel=Kernel.reference())
    assert np.array_equal(bits(got[1, 2]), bits(plain.attention_reference_plain(q[1, 2], k[:99, 0], v[:99, 0])))


def test_split_equals_the_plain_twin():
    q, k, v = qkv(1, 260, 2, 2, 32)
    for chunks in (1, 3, 4):
        got = attention(q, k, v, kernel=Kernel.split(512, chunks))
        assert np.array_equal(
            bits(got[0, 1]), bits(plain.attention_split_plain(q[0, 1], k[:, 1], v[:, 1], 512, chunks))
        )


def test_tiled_equals_the_plain_twin():
    q, k, v = qkv(70, 100, 2, 2, 32)
    got = attention(q, k, v, kernel=Kernel.tiled())
    for row in (0, 42, 69):
        seen = 31 + row
        assert np.array_equal(bits(got[row, 1]), bits(plain.attention_tiled_plain(q[row, 1], k[:seen, 1], v[:seen, 1])))


@pytest.mark.parametrize("threads", [2, 3, 8, 64])
@pytest.mark.parametrize(
    ("tokens", "cells", "kernel"),
    [(5, 90, Kernel.reference()), (130, 200, Kernel.tiled()), (1, 300, Kernel.split(512, 3))],
    ids=KERNELS,
)
def test_threads_do_not_matter(tokens, cells, kernel, threads):
    q, k, v = qkv(tokens, cells, 6, 2, 64)
    crew = Pool(threads, shares=threads)
    got = attention(q, k, v, kernel=kernel, pool=crew)
    crew.close()
    assert np.array_equal(bits(got), bits(attention(q, k, v, kernel=kernel)))


@pytest.mark.parametrize("size", [32, 96, 160, 256])
@pytest.mark.parametrize(("tokens", "cells", "threads"), [(3, 70, 1), (66, 130, 1), (1, 400, 2)])
def test_other_head_sizes_equal_the_reference(size, tokens, cells, threads, reference):
    from bankml.oracle import graph

    q, k, v = qkv(tokens, cells, 4, 2, size)
    got = attention(q, k, v, kernel=kernel_for(tokens, cells, threads))
    assert np.array_equal(bits(got), bits(graph.attention(q, k, v, threads=threads)))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("heads", "heads_kv"), [(16, 8), (9, 3)])
def test_kv_heads_side_by_side_equal_the_reference(heads, heads_kv, threads, reference):
    """How many KV heads an item takes depends on the threads; 650 cells leave the last chunk a block that is short."""
    from bankml.oracle import graph

    q, k, v = qkv(1, 650, heads, heads_kv, 128)
    crew = Pool(threads, shares=threads)
    got = attention(q, k, v, kernel=kernel_for(1, 650, 3), pool=crew)
    crew.close()
    assert np.array_equal(bits(got), bits(graph.attention(q, k, v, threads=3)))
