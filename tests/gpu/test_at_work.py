"""Cards at work in real time: the limiter's part of it, and that a card which only slows things down is let be."""

import time
from statistics import median

import numpy as np
import pytest

from bankml.forward import Weights
from testing.card_time import ALLOWED, busy_part
from tests import models
from tests.gpu import drivers
from tests.gpu.joined import measure, opened


def test_a_card_is_busy_for_its_part_of_the_time(pocl):
    parts = []  # of up to three tries: on a machine that halts for a while, the card is not wanted all the time
    while not parts or (abs(parts[-1] - 0.5) > ALLOWED and len(parts) < 3):
        parts.append(busy_part(pocl[0], 0.5, 5.0))
    assert parts[-1] == pytest.approx(0.5, abs=ALLOWED), parts
    assert max(parts) < 0.5 + ALLOWED, "never more than its part"


@pytest.mark.parametrize("name", ["qwen3-q1_0-large-vocab", "smaller"])
def test_decode_with_cards_on_is_no_slower_than_the_cpu_alone(name, tmp_path):
    """Tokens of both take turns, so that other load meets both; a try in six must do, for the noise of a machine."""
    name = "qwen3-q2_0-tied" if name == "smaller" else name
    with (
        Weights.open(models.build(name, tmp_path), gpu=False, threads=2) as alone,
        opened(name, tmp_path, None) as cards,
    ):
        measure(cards, 1)
        sides, caches = (alone, cards), [weights.caches(n_ctx=512) for weights in (alone, cards)]
        ratios = []
        while not ratios or (max(ratios) < 0.95 and len(ratios) < 6):
            seconds = ([], [])
            for token in range(80):
                rows = []
                turns = list(zip(sides, caches, seconds, strict=True))
                for weights, cache, taken in turns if token % 2 else reversed(turns):
                    begun = time.perf_counter()
                    rows.append(weights.logits(weights.decode(cache, token)))
                    taken.append(time.perf_counter() - begun)
                assert np.array_equal(*(row.view("u4") for row in rows))
            ratios.append(median(seconds[0]) / median(seconds[1]))
        assert max(ratios) >= 0.95, f"{ratios} of the CPU's speed; {cards.card_report()}"


def test_a_model_opened_by_name_has_its_cards(tmp_path, monkeypatch):
    device, _ = drivers.driver("pocl")
    monkeypatch.setenv("BANKML_GPU", str(device.index))
    monkeypatch.setenv("BANKML_GPU_LIMIT", "0.6")
    path = models.build("qwen3-q2_0-tied", tmp_path)
    with Weights.open(path, threads=2) as weights:
        assert weights.devices == ["cpu", device.name] and "passed" in weights.card_notes[0]
        report = weights.card_report()
        assert report["cards"][0]["limit"] == 0.6 and report["cpu_rows"] == 0
        assert len(report["shares"]) == 3, "measured before the first token"
    with Weights.open(path, gpu=["no such card"], threads=2) as weights:
        assert weights.devices == ["cpu"] and device.name in weights.card_notes[0]
    monkeypatch.setenv("BANKML_GPU_SHARE", "0")
    with Weights.open(path, threads=2) as weights:
        assert weights.devices == ["cpu"] and weights.card_report() is None


def test_tokens_are_tried_only_while_the_card_may_work(tmp_path):
    """The trial of tokens waits until a card has rested from the measuring, and its verdict is kept."""
    with opened("qwen3-q2_0-tied", tmp_path, None) as weights:
        split, shares = weights.split, weights.split.worker.shares
        measure(weights, 1)
        for shape, columns in shares._found:
            shares._found[shape, columns] = (0.5,)
        split.worker.version += 1
        (card,) = split.worker.cards
        caches, rest = weights.caches(n_ctx=256), card.time.resting
        card.time.resting = lambda: True
        weights.decode(caches, 1)
        assert card.rows == 0 and not split.trial.seconds[True] and not split.trial.seconds[False]
        card.time.resting = lambda: False
        for token in range(8):
            weights.decode(caches, token)
            assert (card.rows > 0) and len(split.trial.seconds[True]) == token // 2 + 1
        assert split.trial.over
        rows = card.rows
        weights.decode(caches, 9)
        assert (card.rows > rows) == split.trial.cards_won
        card.time.resting = rest
