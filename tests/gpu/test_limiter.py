"""The limiter: the part of time and of memory that a card gives, told from a clock that the test moves."""

import random

import pytest

from bankml.gpu.limiter import CREDIT, TOLERATED, MemoryLimit, TimeLimit, free_memory


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("seconds", [0.0002, 0.003, 0.05])
@pytest.mark.parametrize("limit", [0.05, 0.25, 0.5, 0.8, 0.9, 1.0])
def test_a_card_that_is_always_wanted_is_busy_for_its_part(limit, seconds):
    clock, source = Clock(), random.Random(1)
    part, busy, end = TimeLimit(limit, clock), 0.0, 120.0
    while clock.now < end:
        if part.resting():
            clock.now += 0.0005  # the CPU does the product
            continue
        d = seconds * source.uniform(0.5, 1.5)
        clock.now += d
        busy += d
        part.took(d)
    assert part.busy_s == pytest.approx(busy)
    assert busy / 20 == pytest.approx(limit, abs=0.02)


def test_idle_time_pays_the_debt_and_is_no_endless_credit():
    clock = Clock()
    part = TimeLimit(0.5, clock)
    clock.now += 1000
    assert not part.resting()
    clock.now += 0.2
    part.took(0.2)  # owes 0.2 of rest, less the credit
    assert part.resting()
    clock.now += 0.2 - CREDIT - 0.001
    assert part.resting()
    clock.now += 0.002
    assert not part.resting()


def test_a_small_debt_is_let_stand_until_it_is_more():
    clock = Clock()
    part, dispatches = TimeLimit(0.5, clock), 0
    while not part.resting():
        clock.now += 0.001
        part.took(0.001)
        dispatches += 1
    assert dispatches == int(TOLERATED / 0.001) + 1


def test_memory_stays_within_the_part():
    memory = MemoryLimit(1000, 0.5, largest=300)
    assert not memory.take(301), "more than one allocation may have"
    assert memory.take(300) and memory.take(200)
    assert not memory.take(1)
    assert not memory.take(202, instead_of=200) and memory.take(190, instead_of=200)
    memory.give_back(300)
    assert (memory.used, memory.peak) == (190, 500)


def test_shared_memory_stays_within_what_is_free():
    free = 400
    memory = MemoryLimit(10_000, 0.5, shared=True, free=lambda: free)
    assert memory.take(150)
    free = 250  # ours are gone from it
    assert not memory.take(51) and memory.take(50)
    assert memory.used == 200 and free_memory() > 1 << 20
