"""The stages of cards, on OpenCL drivers that need none: the self-test against the reference, and a card's share."""

import numpy as np
import pytest

from bankml.blocks import F16, TYPES
from bankml.gpu import canary
from bankml.oracle import graph, kernels
from testing.stages import engine, expected
from testing.stages.stage import Count, Given, Stage, items, stages, total
from tests import models
from tests.gpu import drivers, joined

MODELS = ("qwen3-q1_0-untied", "llama-q2_0-tied", "llama-f16-tied")
RUNS = (models.Run(1), models.Run(20), models.Run(65, "all"), models.Run(240, forced=30))
SHARE = 0.5


def expected_product(wtype, weights, activation) -> np.ndarray:
    """The reference's product of a hard case: vec_dots of q8_0 rows; for F16 the product that it chooses itself."""
    if wtype == F16:
        return graph.mul_mat("f16", weights, activation[0])
    quants, scales = activation
    columns = np.empty((len(quants), quants.shape[1] // 32, 34), np.uint8)
    columns[..., :2] = scales.astype(np.float16)[..., None].view(np.uint8)
    columns[..., 2:] = quants.view(np.uint8).reshape(len(quants), -1, 32)
    return kernels.dot(TYPES[wtype].name, weights, columns, quants.shape[1])


def self_test(given: Given) -> Count:
    """Each check of the self-test, its expected side the live reference in place of the CPU kernels."""
    counts = Count()
    for name in drivers.DRIVERS:
        try:
            verdict = canary.prove(*drivers.driver(name), expected_product)
        except pytest.skip.Exception as why:  # one driver is enough; which one is not there is told
            counts += Count(first=str(why), facts={f"without {name}": str(why)})
            continue
        said = [str(check) for check in verdict.checks]
        right = [str(check._replace(fault="")) for check in verdict.checks]
        counts += items(f"{name}: {verdict.reason}", right, said)
    return counts


def a_cards_share(given: Given) -> Count:
    """Whole models, half of every product on a card."""
    return total(_shared(name, given) for name in (MODELS[:1] if given.quick else MODELS))


def _shared(name, given) -> Count:
    path, counts = expected.model_file(name, given.folder), Count()
    with (
        expected.reference_model(path, n_ctx=models.CONTEXT) as model,
        joined.opened(name, given.folder, SHARE) as weights,
    ):
        for run in RUNS:
            tokens = run.tokens(name)
            want = models.joined(expected.run_stages(model, *tokens, run))
            got = models.joined(engine.run_stages(weights, *tokens, run))
            counts += stages(f"{name}, {run}", want.items(), ((stage, got[stage]) for stage in want))
        report = weights.card_report()
    assert not any(card["dropped"] for card in report["cards"]), report
    return counts.told(card_rows=sum(card["rows"] for card in report["cards"]), cpu_rows=report["cpu_rows"])


STAGES = (
    Stage(
        "card self-test", "shipped library: hard rows of every kernel, on PoCL and rusticl", "checks", self_test, 20, 60
    ),
    Stage(
        "a card's share", "shipped library: whole models, half of each product on PoCL", "rows", a_cards_share, 30, 1064
    ),
)
