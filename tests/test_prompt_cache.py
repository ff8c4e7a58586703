"""The host prompt cache: what is kept, dropped and taken, as llama-server b11192's source decides it."""

import os

import numpy as np
import pytest

from bankml.environment import cache_ram
from bankml.errors import UsageError
from bankml.prompt_cache import MIB, PromptCache, common, gives_up, state_bytes
from bankml.slot import State


def tokens(text) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def state(text) -> State:
    return State(tokens(text), np.zeros(len(text), np.uint8), [])


def filled(*texts, limit_mib=-1, limit_tokens=10**6, size=100) -> PromptCache:
    cache = PromptCache(limit_mib, limit_tokens)
    for text in texts:
        cache.save(tokens(text), size, lambda text=text: state(text))
    return cache


def held(cache) -> list[str]:
    return [bytes(kept.tokens.astype(np.uint8)).decode() for kept, _ in cache.entries]


def test_common_beginnings():
    assert common(tokens("abcd"), tokens("abxd")) == 2
    assert common(tokens("ab"), tokens("abxd")) == 2
    assert common(tokens(""), tokens("a")) == 0


def test_when_a_slot_is_given_up():
    ten = "a" * 10
    assert gives_up(tokens(""), tokens("abc"))
    assert gives_up(tokens("abc"), tokens("xyz"))
    assert not gives_up(tokens(ten), tokens(ten))
    assert not gives_up(tokens(ten + "b" * 10), tokens(ten))  # half is kept
    assert gives_up(tokens(ten + "b" * 11), tokens(ten))
    assert gives_up(tokens("a"), tokens("a" + "b" * 9))  # a tenth of the prompt is not enough
    assert not gives_up(tokens("a"), tokens("a" + "b" * 8))


def test_a_prompt_that_another_contains_is_not_kept_twice():
    assert held(filled("abcd", "ab")) == ["abcd"]
    assert held(filled("ab", "abcd")) == ["abcd"]
    assert held(filled("ab", "ac")) == ["ab", "ac"]
    cache = filled("abcd")
    cache.save(tokens("abc"), 100, lambda: pytest.fail("copied for nothing"))


def test_the_oldest_make_room():
    size = MIB // 3
    assert held(filled("a", "b", "c", limit_mib=1, size=size)) == ["a", "b", "c"]
    assert held(filled("a", "b", "c", "d", limit_mib=1, size=size)) == ["b", "c", "d"]
    assert held(filled("a", "b", limit_mib=1, size=MIB + 1)) == []
    assert held(filled("a", "b", limit_mib=1, size=MIB)) == ["b"]


def test_tokens_are_limited_where_bytes_are_not():
    cache = filled("aaaa", "bbbb", "cc", limit_tokens=6)
    cache.trim()
    assert held(cache) == ["bbbb", "cc"]
    cache = filled("aaaa", "bbbb", "cc", limit_tokens=6, limit_mib=1)  # 30 bytes a token: there is room for more
    cache.trim()
    assert held(cache) == ["aaaa", "bbbb", "cc"]


def test_the_entry_that_goes_on_for_longer_is_taken():
    cache = filled("abcdefgh", "abcx", "zz")
    taken = cache.take(tokens("abcdefgh and more"), tokens(""))
    assert bytes(taken.tokens.astype(np.uint8)) == b"abcdefgh"
    assert held(cache) == ["abcx", "zz"]
    assert cache.take(tokens("ab"), tokens("ab")) is None  # the slot's own wastes nothing
    assert cache.take(tokens("abq"), tokens("")) is not None  # half of "abcx" goes on
    assert filled("abcdefghi").take(tokens("ab and more"), tokens("")) is None  # less than a quarter of it


def test_where_there_is_no_memory_the_limit_falls():
    cache = filled("aaaa", "bbbb")

    def no_room():
        raise MemoryError

    cache.save(tokens("cccc"), 1, no_room)
    assert cache.limit == 80 and held(cache) == []


def test_the_size_of_a_state():
    class Layer:
        row_bytes = 256

    # marks of the state, the stream and its cells; 12 bytes a cell; K and V of each layer with type and row size
    assert state_bytes(10, [Layer] * 3) == 4 + 4 + 4 + 4 + 10 * 12 + 4 + 4 + 3 * 2 * (4 + 8 + 10 * 256)


@pytest.mark.parametrize(("text", "limit"), [("0", 0), ("-1", -1), ("100", 100)])
def test_the_environment(text, limit, monkeypatch):
    monkeypatch.setenv("BANKML_CACHE_RAM", text)
    assert cache_ram() == limit


@pytest.mark.parametrize("text", ["-2", "much", "1.5", "٣", "1e3"])
def test_bad_environment_values_are_refused(text, monkeypatch):
    monkeypatch.setenv("BANKML_CACHE_RAM", text)
    with pytest.raises(UsageError, match="BANKML_CACHE_RAM"):
        cache_ram()


def test_the_default_leaves_the_machine_its_memory(monkeypatch):
    monkeypatch.delenv("BANKML_CACHE_RAM", raising=False)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < cache_ram() <= min(8192, memory / MIB / 4)
