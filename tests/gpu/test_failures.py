"""Whatever fails on a card: the CPU computes it again, the card is dropped with one line, and no token changes."""

import gc
import random
import time

import pytest

from bankml import cards
from bankml.forward import Weights
from bankml.gpu import card as card_module
from bankml.gpu import opencl, verdicts
from tests import models
from tests.gpu import drivers
from tests.gpu.faults import Faults, injected
from tests.gpu.joined import opened

NAME = "qwen3-q1_0-untied"  # three layers
PROMPT, TOKENS, SHARE, SEEDED = 24, 60, 0.5, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def generate(weights, count=TOKENS) -> list[int]:
    """The greedy continuation of a fixed prompt."""
    caches, tokens = weights.caches(n_ctx=256), []
    row = weights.prefill(caches, models.prompt(NAME, PROMPT, weights.shape.n_vocab))
    while True:
        tokens.append(int(weights.logits(row).argmax()))
        if len(tokens) == count:
            return tokens
        row = weights.decode(caches, tokens[-1])


@pytest.fixture(scope="module")
def expected(folder):
    """The tokens of the CPU alone, whose rows test_forward.py holds equal to the reference's."""
    with Weights.open(models.build(NAME, folder), gpu=False, threads=2) as weights:
        return generate(weights)


@pytest.fixture(scope="module")
def sites(folder, expected):
    """Site -> how often it is called in a generation."""
    with injected(Faults()) as faults, opened(NAME, folder, SHARE) as weights:
        faults.counts.clear()  # of opening
        assert generate(weights) == expected
        assert weights.split.worker.on
        return dict(faults.counts)


def hold_survived(faults, folder, expected, capfd):
    """Hold a generation with that fault equal to the CPU's, and the card dropped with one line."""
    capfd.readouterr()
    with opened(NAME, folder, SHARE) as weights, injected(faults):
        tokens = generate(weights)
        assert faults.hit, "the fault did not come"
        assert tokens == expected, faults.__dict__
        (card,) = weights.split.worker.cards
        told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("bankml:")]
        assert len(told) == 1 and "is dropped" in told[0] and card.name in told[0], told
        assert not card.on and card.memory.used == 0
        calls = sum(faults.counts.values())
        assert generate(weights, 3) == expected[:3] and sum(faults.counts.values()) == calls, "the card is off"


def test_a_fault_at_each_call_changes_no_token(sites, folder, expected, capfd):
    assert len(sites) >= 10, sites
    errors = (opencl.load().MemoryError, opencl.load().LogicError, MemoryError, RuntimeError)
    for number, (site, count) in enumerate(sites.items()):
        for nth in sorted({1, (count + 1) // 2, count}):
            error = errors[number % len(errors)](f"{site[2]} failed: injected")
            hold_survived(Faults(site, nth, "once", error), folder, expected, capfd)


def test_seeded_faults_and_lost_devices_change_no_token(sites, folder, expected, capfd):
    for seed in range(SEEDED):
        source = random.Random(seed)
        site = source.choice(sorted(sites))
        nth, way = source.randint(1, sites[site]), source.choice(["once", "lost"])
        hold_survived(Faults(site, nth, way), folder, expected, capfd)


def test_wrong_rows_change_no_token(sites, folder, expected, capfd, monkeypatch):
    """The spot check sees a card that computes nonsense in the product where it begins to; its pass is forgotten."""
    forgotten = []
    monkeypatch.setattr(verdicts, "forget", forgotten.append)
    copies = sorted((count, site) for site, count in sites.items() if site[2] == "enqueue_copy")
    read = copies[-2][1]  # once a product; the writing of quants and scales is one place for both
    for nth in (1, sites[read] // 2, sites[read]):
        hold_survived(Faults(read, nth, "wrong"), folder, expected, capfd)
        assert forgotten and len(set(forgotten)) == 1
        forgotten.clear()


def test_a_card_that_does_not_answer_is_left_alone(folder, expected, capfd, monkeypatch):
    monkeypatch.setattr(card_module.Task.wait, "__defaults__", (0.3,))
    original, calls = opencl.load().enqueue_nd_range_kernel, []

    def hang(*arguments):
        calls.append(1)
        if len(calls) == 40:
            time.sleep(2)
        return original(*arguments)

    with opened(NAME, folder, SHARE) as weights:
        monkeypatch.setattr(opencl.load(), "enqueue_nd_range_kernel", hang)
        assert generate(weights) == expected
        assert not weights.split.worker.on
    assert "no answer" in capfd.readouterr().err


def test_an_interrupted_call_leaves_the_card_at_work(folder, expected):
    with opened(NAME, folder, SHARE) as weights:
        run, calls = weights.pool.run, []

        def interrupted(records):
            calls.append(1)
            if len(calls) == 9:
                raise KeyboardInterrupt
            run(records)

        weights.pool.run = interrupted
        with pytest.raises(KeyboardInterrupt):
            generate(weights)
        weights.pool.run = run
        assert generate(weights) == expected and weights.split.worker.on


def test_a_fault_while_it_joins_leaves_the_cpu(folder, expected, tmp_path, monkeypatch):
    """At every call of the self-test and the building, the first time, and with a verdict that was kept."""
    monkeypatch.setattr(verdicts, "_folder", lambda: tmp_path / "cards")
    device, _ = drivers.driver("pocl")
    path = models.build(NAME, folder)
    monkeypatch.setenv("BANKML_GPU_SHARE", str(SHARE))
    for kept in (False, True):
        with injected(Faults()) as faults, Weights.open(path, gpu=[device.index], threads=2) as weights:
            assert weights.split.worker.on, weights.card_notes
            weights.split.close()
        joining = dict(faults.counts)
        assert joining
        for site in joining:
            for verdict in [] if kept else (tmp_path / "cards").iterdir():
                verdict.unlink()
            with injected(Faults(site, 1)) as faults:
                weights = Weights.open(path, gpu=[device.index], threads=2)
            with weights:
                assert faults.hit
                assert generate(weights, 5) == expected[:5], site
                assert weights.split is None or weights.split.worker.on
                assert weights.split is not None or "injected" in weights.card_notes[0], weights.card_notes


def test_memory_stays_within_its_limit_and_what_does_not_fit_is_the_cpus(folder, expected, monkeypatch):
    """Live bytes of every buffer, counted at OpenCL, beside a limit that lets some matrices in."""
    cl, live, most = opencl.load(), {}, [0]
    make, release = cl.Buffer, cl.Buffer.release

    def made(context, flags, size):
        buffer = make(context, flags, size)
        live[buffer.int_ptr] = size
        most[0] = max(most[0], sum(live.values()))
        return buffer

    def let_go(buffer):
        live.pop(buffer.int_ptr)
        release(buffer)

    def small(card):
        card.memory = cards.MemoryLimit(200_000, 0.8, largest=100_000)

    with opened(NAME, folder, SHARE, change=small) as weights:
        monkeypatch.setattr(make, "release", let_go)
        monkeypatch.setattr(cl, "Buffer", made)
        assert generate(weights) == expected
        (card,) = weights.split.worker.cards
        assert card.on and 0 < card.rows < 0.4 * weights.card_report()["cpu_rows"]
        assert 100_000 < most[0] <= card.memory.peak <= 160_000
        assert sum(live.values()) == card.memory.used


def test_a_child_process_has_no_cards(folder):
    with opened(NAME, folder, SHARE) as weights:
        (card,) = weights.split.worker.cards
        note = card.note
        card._after_fork()
        assert note is None and not weights.split.worker.on
        assert len(generate(weights, 3)) == 3
        card.note = None


def test_a_model_that_is_let_go_of_gives_its_cards_back(folder):
    weights = opened("qwen3-q2_0-tied", folder, 0.5)
    threads = [card._thread for card in weights.split.worker.cards]
    assert threads and all(thread.is_alive() for thread in threads)
    del weights
    gc.collect()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_rests_are_the_cpus(folder, expected):
    with opened(NAME, folder, SHARE, limit=0.05) as weights:
        assert generate(weights) == expected
        (card,) = weights.card_report()["cards"]
        assert card["skipped"] > 10 and card["rows"] > 0 and card["limit"] == 0.05
