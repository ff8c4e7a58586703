"""The meter: rates by arithmetic, and counters of others as shares of the time."""

from types import SimpleNamespace

import pytest

from bankml import meter as meter_module
from bankml.meter import Meter
from bankml.rates import SLOT_S, Rates
from bankml.snapshot import Cache, Device, Prompt, PromptCache


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets: `clock.now`."""
    clock = SimpleNamespace(now=1000.0, cpu={})

    def gettime(name):
        if name not in clock.cpu:
            raise OSError("no such thread")
        return clock.cpu[name]

    fake = SimpleNamespace(monotonic=lambda: clock.now, perf_counter=lambda: clock.now, clock_gettime=gettime)
    monkeypatch.setattr(meter_module, "time", fake)
    return clock


def test_the_rate_now_is_that_of_the_last_second():
    rates = Rates()
    assert rates.now(0.0) is None and rates.minute(0.0) is None and rates.series(0.0) == ()
    rates.start(10.0)
    assert rates.now(10.0) is None
    for i in range(1, 101):  # 20 a second for 5 seconds
        rates.add(10 + i / 20)
    assert rates.now(15.0) == pytest.approx(20)
    for i in range(1, 51):  # then 50 a second
        rates.add(15 + i / 50)
    assert rates.now(16.0) == pytest.approx(50)
    assert rates.minute(16.0) == pytest.approx(150 / 6)


def test_the_rate_falls_while_a_token_is_overdue():
    rates = Rates()
    rates.start(0.5)
    rates.add(1.0)
    assert rates.now(1.0) == pytest.approx(2)
    assert rates.now(1.5) == pytest.approx(2)  # it is not late yet
    assert rates.now(4.0) == pytest.approx(1 / 3)


def test_the_series_holds_every_token_once_and_slow_ones_make_no_gaps():
    rates = Rates()
    rates.start(100.25)
    times = [100.25 + i * 0.7 for i in range(1, 40)]
    for at in times:
        rates.add(at)
    series = rates.series(times[-1])
    assert series == pytest.approx([1 / 0.7] * len(series)) and len(series) == int((times[-1] - 100.5) / SLOT_S)
    rates.start(140.0)  # a pause, then another answer
    rates.add(140.5)
    assert 0.0 in rates.series(141.0)


def test_the_series_is_of_one_minute():
    rates = Rates()
    rates.start(0.25)
    for i in range(1, 2000):
        rates.add(0.25 + i / 10)
    series = rates.series(200.0)
    assert len(series) == 120 and set(map(round, series[1:-1])) == {10}
    assert set(rates.series(300.0)) == {0.0}


class Weights:
    """Counters as `forward.Weights` has them."""

    def __init__(self):
        self.reached, self.work, self.report = 0.0, {"qkv": 5.0, "logits": 1.0}, None
        self.devices, self.pool = ["cpu"], SimpleNamespace(thread_ids=lambda: [-11])

    def seconds(self):
        return dict(self.work)

    def card_report(self):
        return self.report


def test_a_prompt_on_its_way(clock):
    weights = Weights()
    meter = Meter("m", weights)
    assert meter.snapshot().prompt is None and meter.snapshot().state == "loading"
    weights.reached = 700.0  # of what was before
    meter.begin(500, max_tokens=9)
    meter.took_over(100)
    assert meter.snapshot().prompt == Prompt(500, 100.0, 100)
    clock.now, weights.reached = clock.now + 2, 300.0
    assert meter.snapshot().prompt == Prompt(500, 300.0, 100, 100.0, 2.0)
    clock.now, weights.reached = clock.now + 2, 500.0
    meter.token()
    clock.now += 10
    told = meter.snapshot()
    assert told.prompt == Prompt(500, 500.0, 100, 100.0) and told.first_token_s == 4.0
    assert (told.state, told.tokens, told.max_tokens) == ("decode", 1, 9)
    assert told.prompt_cache == PromptCache(1, 1, 100)
    meter.end()
    meter.begin(20)
    meter.took_over(0)
    assert meter.snapshot().prompt_cache == PromptCache(1, 2, 100)


def test_the_budget_of_a_token_is_what_the_counters_gained(clock):
    weights = Weights()
    meter = Meter("m", weights)
    meter.begin(1)
    meter.token()
    assert meter.snapshot().budget == {}
    for _ in range(20):
        clock.now += 0.1
        with meter.spending("sampling"):
            clock.now += 0.1
        meter.token()
    weights.work = {"qkv": 5.0 + 1.0, "logits": 1.0 + 0.5}
    told = meter.snapshot()  # of 4 seconds 1 went to q, k, v, 0.5 to logits, 2 to sampling; 5 tokens came a second
    assert told.rate == pytest.approx(5) and told.budget_of == "decode"
    assert told.budget == pytest.approx({"qkv": 0.05, "logits": 0.025, "sampling": 0.1, "other": 0.025})


def test_counters_that_began_anew_tell_nothing(clock):
    weights = Weights()
    meter = Meter("m", weights)
    meter.begin(1)
    meter.token()
    meter.snapshot()
    clock.now += 1
    meter.token()
    weights.work = {"qkv": 0.1}
    assert meter.snapshot().budget == {}


def test_how_busy_threads_are(clock):
    weights = Weights()
    meter = Meter("m", weights)
    clock.cpu = {(10 << 3) | 6: 0.0}
    meter.begin(1)
    own = (~meter._caller << 3) | 6
    clock.cpu[own] = 0.0
    assert meter.snapshot().threads == ()
    clock.now += 2
    clock.cpu = {own: 1.5, (10 << 3) | 6: 2.5}
    assert meter.snapshot().threads == (0.75, 1.0)


def test_devices_by_what_they_gained(clock):
    weights = Weights()
    meter = Meter("m", weights)
    assert meter.snapshot().devices == (Device("cpu", share=1.0),)
    card = {"name": "Radeon", "rows": 100, "busy_s": 1.0, "limit": 0.8, "resting": False, "bytes": 7, "bytes_limit": 9}
    weights.report = {"cpu_rows": 900, "cards": [card | {"dropped": None}]}
    meter.begin(1)
    first = meter.snapshot().devices
    assert first[1].share == 0.1 and first[1].busy is None
    clock.now += 2
    weights.report = {"cpu_rows": 1200, "cards": [card | {"dropped": "lost", "rows": 200, "busy_s": 2.0}]}
    cpu, other = meter.snapshot().devices
    assert cpu == Device("cpu", rows=1200, share=0.75)
    assert other == Device("Radeon", 200, 0.25, 0.5, 0.8, False, 7, 9, "lost")


def test_an_engine_that_tells_nothing():
    meter = Meter()
    meter.begin(3)
    meter.token()
    told = meter.snapshot()
    assert (told.budget, told.threads, told.devices, told.cache, told.rate) == ({}, (), (), None, None)


def test_the_cache_of_all_layers():
    layer = SimpleNamespace(capacity=512, bytes=1000, kind=SimpleNamespace(value="f16"))
    meter = Meter("m", Weights(), [type("Layer", (), {**vars(layer), "__len__": lambda self: 77})()] * 3)
    assert meter.snapshot().cache == Cache(77, 512, 3000, "f16")
