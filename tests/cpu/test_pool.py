"""The thread pool: every thread does its share, work is handed out once, and nothing hangs."""

import os
import threading

import numpy as np
import pytest

from bankml.cpu import pool as pools
from bankml.cpu.compile import step
from bankml.cpu.floats import arguments, load_i64, store_i64
from bankml.cpu.pool import Pool, next_item, program, thread_count
from bankml.errors import UsageError


@step
def count_items(record, thread, threads):
    """Word 1: address of `n` int64 counters (word 0), each raised by whoever takes its number."""
    n, counters = arguments(record, 2)
    item = next_item(record)
    while item < n:
        store_i64(counters + 8 * item, load_i64(counters + 8 * item) + 1)
        item = next_item(record)


@step
def neighbours(record, thread, threads):
    """out[thread] = in[(thread + 1) % threads] + 1: wrong unless a barrier stood before."""
    source, target = arguments(record, 2)
    store_i64(target + 8 * thread, load_i64(source + 8 * ((thread + 1) % threads)) + 1)


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
def test_every_item_is_taken_once(threads):
    pool, counters = Pool(threads, shares=threads), np.zeros(1000, np.int64)
    work = program(*[(count_items, True, (1000, counters.ctypes.data))] * 3)
    pool.run(work)
    pool.run(work)
    pool.close()
    assert (counters == 6).all()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_barriers_order_the_steps(threads):
    pool = Pool(threads, shares=threads)
    a, b = np.zeros(threads, np.int64), np.zeros(threads, np.int64)
    there, back = (a.ctypes.data, b.ctypes.data), (b.ctypes.data, a.ctypes.data)
    work = program(*[(neighbours, True, there), (neighbours, True, back)] * 200)
    for _ in range(5):
        pool.run(work)
    pool.close()
    assert (a == 2000).all()


def test_two_callers_take_turns():
    pool, counters = Pool(2), np.zeros(64, np.int64)
    work = program((count_items, True, (64, counters.ctypes.data)))
    callers = [threading.Thread(target=lambda: [pool.run(work) for _ in range(100)]) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    pool.close()
    assert (counters == 400).all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 and later warn of it
def test_a_forked_child_has_threads_of_its_own():
    pool, counters = Pool(2), np.zeros(64, np.int64)
    work = program((count_items, True, (64, counters.ctypes.data)))
    pool.run(work)
    child = os.fork()
    if child == 0:
        pool.run(work)
        os._exit(0 if (counters == 2).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    pool.run(work)
    pool.close()
    assert (counters == 2).all()


@pytest.mark.parametrize("text", ["0", "65", "-1", "two", "1.5", "²"])
def test_bad_thread_counts_are_refused(monkeypatch, text):
    monkeypatch.setenv("BANKML_THREADS", text)
    with pytest.raises(UsageError, match="1 to 64"):
        thread_count()


def test_thread_count_from_the_environment(monkeypatch):
    monkeypatch.setenv("BANKML_THREADS", "5")
    assert thread_count() == 5
    assert thread_count(2) == 2
    monkeypatch.delenv("BANKML_THREADS")
    assert thread_count() == len(os.sched_getaffinity(0))


def test_a_crew_shrinks_while_it_waits_and_tries_again_ever_later(monkeypatch):
    now, waited, window = [0.0], np.zeros(2, np.int64), pools._Crew.WINDOW
    monkeypatch.setattr(pools.time, "monotonic", lambda: now[0])
    crew = pools._Crew(waited)
    waited += window // 20  # a tenth of the time in all: a quiet machine
    assert not crew.after(window) and crew.active == 2
    for pause in (0.25, 0.5, 1.0, 2.0, 4.0, 4.0):
        waited[1] += window // 2
        assert not crew.after(window // 2) and crew.after(window // 2) and crew.active == 1
        now[0] += 0.9 * pause
        assert not crew.after(window) and crew.active == 1
        now[0] += 0.2 * pause
        assert crew.after(window) and crew.active == 2
    assert not crew.after(window) and crew.active == 2


def test_fewer_workers_do_all_the_shares():
    pool, counters = Pool(4, shares=4), np.zeros(1000, np.int64)
    work = program(*[(count_items, True, (1000, counters.ctypes.data))] * 3)
    pool._word(pools.WORKERS).value = 1
    pool.run(work)
    pool.close()
    assert (counters == 3).all()


def test_a_pool_that_is_let_go_of_ends_its_threads():
    """They would wait in memory that the next pool gets, and take what it posts."""
    for _ in range(20):
        pool, counters = Pool(2), np.zeros(64, np.int64)
        pool.run(program((count_items, True, (64, counters.ctypes.data))))
        helpers = list(pool._helpers)
        del pool
        for helper in helpers:
            helper.join(timeout=5)
            assert not helper.is_alive()
