"""Shares from times that the test makes up: the least time wins, and the CPU alone wins ties."""

import pytest

from bankml.blocks import Q1_0
from bankml.gpu.calibrate import HOPELESS, MOST, TURNS, Shape, Shares, Trial, choose, columns_class


class Machine:
    """A CPU that needs `cpu` seconds for a whole group, and cards that need so many; `begin` is lost with any card."""

    def __init__(self, cpu, *cards, begin=0.0):
        self.cpu, self.cards, self.begin, self.asked = cpu, cards, begin, set()

    def __call__(self, shares):
        self.asked.add(shares)
        parts = [share * seconds for share, seconds in zip(shares, self.cards, strict=True)]
        return max(self.cpu * (1 - sum(shares)), *parts) + (self.begin if any(shares) else 0)


@pytest.mark.parametrize(("cpu", "card", "share"), [(0.003, 0.001, 0.75), (0.002, 0.002, 0.5), (0.001, 0.003, 0.25)])
def test_both_sides_end_together(cpu, card, share):
    machine = Machine(cpu, card)
    assert choose(machine, 1) == pytest.approx((share,))
    assert {(0.0,), (1.0,)} < machine.asked and len(machine.asked) >= 5, "card alone, CPU alone, a few splits"


def test_a_fast_card_takes_all_but_the_cpus_least():
    assert choose(Machine(1.0, 0.001), 1) == pytest.approx((MOST,))


def test_the_cpu_wins_ties():
    assert choose(Machine(0.001, 0.001, begin=0.0005), 1) == (0.0,)
    assert choose(Machine(0.001, 0.001, begin=0.0004), 1) == pytest.approx((0.5,), abs=0.05)
    assert choose(Machine(0.001, 0.001 * HOPELESS + 0.001), 1) == (0.0,)


def test_cards_divide_by_their_rates():
    shares = choose(Machine(0.002, 0.001, 0.002), 2)
    assert shares == pytest.approx((0.5, 0.25))
    assert choose(Machine(0.002, 0.001, 0.1), 2)[1] == 0.0, "a hopeless card beside a fast one"


def test_a_given_share_is_divided_by_rates_too():
    assert choose(Machine(0.001, 0.3, 0.1), 2, 0.8) == pytest.approx((0.2, 0.6))
    assert choose(Machine(0.001, 0.3, 0.1), 2, 0.0) == (0.0, 0.0)


def test_shares_are_kept_by_shape_and_columns():
    shape, other = Shape(Q1_0, (512, 128), 36), Shape(Q1_0, (512,), 72)
    shares = Shares(1)
    assert not shares.known(shape, 1) and shares.of(shape, 1) == (0.0,)
    shares.measure(shape, 1, Machine(0.002, 0.002))
    shares.measure(shape, 40, Machine(0.003, 0.001))
    assert shares.known(shape, 1) and shares.known(shape, 500) and not shares.known(shape, 2)
    assert shares.of(shape, 500) == pytest.approx((0.75,)) and not shares.known(other, 1)
    assert shares.report() == {"512+128x256, 1 column": [0.5], "512+128x256, 32 columns or more": [0.75]}
    shares.none_for_tokens(None)
    assert shares.of(shape, 1) == (0.0,) and shares.of(shape, 40) == pytest.approx((0.75,))
    assert [columns_class(columns) for columns in (1, 2, 31, 32, 512)] == [1, 2, 2, 32, 32]


def test_a_fixed_share_is_measured_only_for_several_cards():
    one, two = Shares(1, 0.3), Shares(2, 0.3)
    shape = Shape(Q1_0, (512,), 36)
    assert one.known(shape, 1) and one.of(shape, 7) == (0.3,) and one.report() == {"all": [0.3]}
    assert not two.known(shape, 1)
    two.measure(shape, 1, Machine(0.001, 0.001, 0.001))
    assert two.of(shape, 1) == pytest.approx((0.15, 0.15))


@pytest.mark.parametrize(("cards", "won"), [(0.9, True), (0.98, False), (1.5, False)])
def test_a_trial_lets_the_sides_take_turns(cards, won):
    trial, turns = Trial(), []
    while not trial.over:
        side = trial.cards_next
        turns.append(side)
        trial.took(side, 50.0 if len(turns) <= 2 else cards if side else 1.0)  # the first of each uploads, warms up
    assert turns == [True, False] * TURNS and trial.cards_won == won
