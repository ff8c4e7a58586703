"""Whole models with cards at work: every row is the reference's, and each side computes its part of every product."""

from itertools import pairwise

import pytest

from tests import models
from tests.gpu.joined import measure, opened, watch
from tests.test_forward import TYPES, engine_stages, hold_recorded, joined, whole

FEW = (models.Run(1), models.Run(20), models.Run(2, "all"), models.Run(513, "all"), models.Run(240, forced=30))
WAYS = [("pocl", 0.3, 1), ("pocl", 0.5, 1), ("pocl", 0.95, 1), ("pocl", 0.5, 2), ("rusticl", 0.5, 1)]
LONG_ENOUGH_S = 0.0005  # of the CPU's part of a product: a card's thread may take so long to wake up on a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize(("driver", "share", "n_cards"), WAYS)
@pytest.mark.parametrize("name", TYPES)
def test_every_row_is_the_references(name, driver, share, n_cards, folder, capfd):
    with opened(name, folder, share, n_cards, driver=driver) as weights:
        measure(weights, 1, 2, 64)  # of several cards, how they divide the share
        seen = watch(weights)
        for run in models.runs(name) if share == 0.5 and driver == "pocl" else FEW:
            hold_recorded(name, run, joined(engine_stages(weights, name, run, whole)))
        for run in FEW[1:3]:  # layer by layer
            hold_recorded(name, run, joined(engine_stages(weights, name, run)))
        report, n_layer = weights.card_report(), weights.shape.n_layer
    assert "dropped" not in capfd.readouterr().err and not any(card["dropped"] for card in report["cards"])
    groups = ("qkv", "attn_out", "ffn_gate_up", "ffn_down")
    assert {name for name, *_ in seen} == {"logits"} | {
        f"blk.{il}.{group}" for il in range(n_layer) for group in groups
    }
    hold_division(seen, share, n_cards)
    rows = sum(values.size for _, _, done, *_ in seen for _, values in done)
    assert sum(card["rows"] for card in report["cards"]) == rows
    assert report["cpu_rows"] == sum((p.last - p.first) * columns for _, columns, _, left, *_ in seen for p in left)
    hold_overlap(seen)


def hold_division(seen, share, n_cards):
    """Hold each side's rows of every matrix of every product within 5 % of its share, none left out or done twice."""
    for name, columns, done, left, *_ in seen:
        matrices = {piece.matrix for piece, _ in done}
        assert matrices and matrices == {piece.matrix for piece in left}, f"{name}: a side has no rows of a matrix"
        assert len(done) == n_cards * len(matrices), f"{name}: a card has no rows of a matrix"
        assert all(values.shape == (columns, piece.last - piece.first) for piece, values in done)
        for matrix in matrices:
            theirs = [piece for piece, _ in done if piece.matrix == matrix]
            pieces = sorted([*theirs, *(piece for piece in left if piece.matrix == matrix)])
            assert pieces[0].first == 0 and all(a.last == b.first for a, b in pairwise(pieces)), f"{name}: {pieces}"
            rows, cards = pieces[-1].last, sum(piece.last - piece.first for piece in theirs)
            for side, part in ((cards, share), (rows - cards, 1 - share)):
                assert abs(side - part * rows) <= max(0.5, 0.05 * part * rows), f"{name}: {side} of {rows} rows"


def hold_overlap(seen):
    """Hold the times of the sides to overlap, in most products that are long enough for that.

    On a machine with fewer cores than threads that want one, a card's thread may come late in any of them.
    """
    together = []
    for *_, (_, begun, ended), spans in seen:
        if ended - begun > LONG_ENOUGH_S:
            together.append(max(begun, *(start for start, _ in spans)) < min(ended, *(end for _, end in spans)))
    assert len(together) > 5 and sum(together) > 0.5 * len(together), f"{sum(together)} of {len(together)} products"
