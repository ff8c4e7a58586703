"""The memory behind a cache: there before it is written while decoding, given back when cells go."""

import resource

import pytest

from bankml.kv_cache import AHEAD, SLACK, KvCache, KvType

WIDTH = 1024  # 2,048 bytes a cell: a page holds two


def faults_of_writing(cache, first, last):
    """Page faults while cells `first` to `last` are written."""
    k, v = cache.raw(last)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    k[first:last] = 1
    v[first:last] = 1
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_prepared_cells_are_written_without_a_fault():
    cache = KvCache(WIDTH, 1024)
    assert cache.needs_memory()
    cache.prepare()
    assert not cache.needs_memory()
    assert faults_of_writing(cache, 0, AHEAD) < 8  # of 112 pages
    cache.length = AHEAD - SLACK
    assert not cache.needs_memory()
    cache.length += 1
    assert cache.needs_memory()


def test_the_end_of_a_cache_needs_nothing_after_it():
    cache = KvCache(WIDTH, 256)
    cache.length = 255
    cache.prepare()
    assert cache.prepared == cache.capacity and not cache.needs_memory()
    cache.length = 256
    assert not cache.needs_memory()


@pytest.mark.parametrize("kind", list(KvType))
def test_memory_is_given_back_but_for_what_the_next_token_takes(kind):
    cache = KvCache(WIDTH, 2048, kind)
    cache.length = 1500
    for part in cache.raw():
        part[:] = 1
    cache.prepare()
    cache.truncate(300)
    assert not cache.needs_memory()
    assert cache.raw(512)[0][511].any() and not cache.raw(513)[0][512].any()
    cache.truncate(0)
    assert cache.needs_memory()
    assert not any(part.any() for part in cache.raw(1500))
