"""Test models with cards at work: queues on an OpenCL driver that every test machine has."""

from bankml import cards
from bankml.forward import Weights
from tests import models
from tests.gpu import drivers


def opened(name, folder, share, n_cards=1, *, driver="pocl", limit=1.0, change=lambda card: None) -> Weights:
    """A test model with `n_cards` queues on a driver as its cards. share: None to measure. change: gets each card."""
    device, _ = drivers.driver(driver)
    weights = Weights.open(models.build(name, folder), gpu=False, threads=2)
    joining = [cards.card_of(device, weights.pool, weights.plan.wtype, limit) for _ in range(n_cards)]
    for card in joining:
        change(card)
    plan = weights.plan
    weights.split = cards.split_of(joining, weights.pool, plan.wtype, weights.map, plan.output, share)
    weights.devices += [card.name for card in joining]
    return weights


def measure(weights, *columns):
    """Let it find its shares for micro-batches of these sizes now."""
    layers = weights._layers_of(max(columns))
    for count in columns:
        weights.split.prepare(layers, count)
        weights.split.prepare(layers, count, logits=True)


def watch(weights) -> list:
    """What is done in each product from now on: name, columns, the cards' (piece, values), the CPU's pieces, times."""
    seen = []
    weights.split.trace = lambda *about: seen.append(about)
    return seen
