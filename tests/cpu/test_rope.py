"""Rotary embedding: the reference's bits at all positions, with and without YaRN, and the way into the cache."""

from types import SimpleNamespace

import numpy as np
import pytest

from bankml.cpu import pool
from bankml.cpu.norm import rms_norm_mul
from bankml.cpu.rope import Rope, heads_step, rope_plain, rope_table_step, store_step
from bankml.oracle import graph
from tests import inputs


def bits(x):
    return np.ascontiguousarray(x).view(np.uint32)


def rope_of(x, *, mode, freq_base, freq_scale=1.0, ext_factor=0.0, n_ctx_orig=4096, attn_factor=1.0):
    """The Rope of a case's parameters, which are the reference operation's."""
    factor = 1 / freq_scale if ext_factor else 0.0
    return Rope(x.shape[-1], freq_base, factor, n_ctx_orig, mode, attn_factor)


def test_equals_the_reference(check):
    for case in inputs.rope_cases():
        given = case.inputs()
        x, positions = given.pop("x"), given.pop("positions")
        check(case, rope_of(x, **given).apply(x, positions))


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0, 4.0, 8.0, 40.0])
def test_magnitude_is_what_a_llama_context_passes(factor, reference):
    assert float(Rope(64, 1e6, factor, 16384).magnitude) == graph.yarn_attn_factor(factor)


def test_a_model_with_yarn_equals_the_reference(reference):
    """Parameters as a model has them: the context's attn_factor beside YaRN's."""
    x, positions = inputs.Source("rope-yarn").bell(40, 2, 128), np.arange(40) * 1597
    got = Rope(128, 1e6, 4.0, 16384).apply(x, positions)
    numbers = {"freq_scale": 0.25, "ext_factor": 1.0, "attn_factor": graph.yarn_attn_factor(4.0), "n_ctx_orig": 16384}
    assert np.array_equal(bits(got), bits(graph.rope(x, positions, mode="neox", freq_base=1e6, **numbers)))


@pytest.mark.parametrize("mode", ["neox", "norm"])
@pytest.mark.parametrize("factor", [0.0, 4.0])
def test_equals_the_plain_twin(mode, factor):
    rope, positions = Rope(64, 1e6, factor, 16384, mode), [0, 1, 777, 62_999]
    x = inputs.Source("rope-plain").bell(4, 2, 64)
    want = [[rope_plain(rope, head, position) for head in row] for row, position in zip(x, positions, strict=True)]
    assert np.array_equal(bits(rope.apply(x, positions)), bits(np.array(want)))


@pytest.mark.parametrize("mode", ["neox", "norm"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [64, 128])
def test_heads_and_cache(mode, threads, size):
    """Q in place, K and V as halves behind the cells that are there; norms before the rotation."""
    n, pos, heads, heads_kv, source = 7, 5, 4, 2, inputs.Source(f"heads-{mode}-{size}")
    shape = SimpleNamespace(
        head_dim=size, rope_base=1e6, yarn_factor=4.0, n_ctx_orig=1024, rope_mode=mode, rms_eps=1e-6
    )
    q, k, v = (source.bell(n, count * size) for count in (heads, heads_kv, heads_kv))
    k[0, 0], v[0, :4] = 3e5, [1e-7, 2049, 2051, -0.0]
    weight, table = source.bell(size), np.empty((n, size), np.float32)
    cache = np.full((2, n + pos + 1, heads_kv * size), 77, np.uint16)
    rope, (queries, keys) = Rope.of(shape), ((x.reshape(n, -1, size).copy()) for x in (q, k))
    positions = np.arange(pos, pos + n)
    want_q = rope.apply(rms_norm_mul(queries, weight, 1e-6), positions)
    want_k = rope.apply(rms_norm_mul(keys, weight, 1e-6), positions)
    steps = [rope_table_step(rope, table), heads_step(shape, q, table, weight.ctypes.data)]
    steps += store_step(shape, k, v, table, weight.ctypes.data)
    crew = pool.Pool(threads, shares=threads)
    first = [n, pos, cache[0].ctypes.data, cache[1].ctypes.data]
    pool.run_steps(*((code, wait, [*first, *words[4:]]) for code, wait, words in steps), pool=crew)
    crew.close()
    assert np.array_equal(bits(q), bits(want_q).reshape(n, -1))
    assert np.array_equal(cache[0, pos:-1], want_k.reshape(n, -1).astype(np.float16).view(np.uint16))
    assert np.array_equal(cache[1, pos:-1], v.astype(np.float16).view(np.uint16))
    assert (cache[:, :pos] == 77).all() and (cache[:, -1] == 77).all()
