"""SmolLM2-135M-Instruct, a real model, in F16 and Q2_0: every layer's rows and logits, live and recorded."""

import tempfile
from pathlib import Path

import pytest

from bankml.cli.oracle import engine_stages
from bankml.convert import convert
from bankml.forward import Weights
from bankml.kv_cache import KvType
from bankml.oracle import record
from bankml.oracle.compare import compare
from bankml.oracle.model import ReferenceModel
from tests import models
from tests.vocab import smollm2_gguf

GOLDEN = Path(__file__).parent / "golden" / "models"


@pytest.fixture(scope="module", params=models.REAL)
def real(request):
    """(name, path) of a converted SmolLM2, which is the recorded file; it goes when its tests are done."""
    with tempfile.TemporaryDirectory() as folder:
        path = models.build_real(request.param, smollm2_gguf(), folder, convert)
        assert models.sha256(path) == record.read(GOLDEN / f"{request.param}.json")["model"]
        yield request.param, path


@pytest.fixture
def weights(real):
    with Weights.open(real[1], gpu=False) as opened:
        opened.llama_threads = 1
        yield opened


def test_every_row_is_the_references(real, weights, reference):
    name, path = real
    with ReferenceModel(path, n_ctx=512) as model:
        for run in models.runs(name):
            got = engine_stages(weights, *run.tokens(name), run.outputs)
            for stage in compare(models.reference_stages(model, name, run), got):
                assert stage.same, f"{name}, {run}: {stage.as_dict()}"


def test_every_row_over_a_q8_0_cache_is_the_references(real, weights, reference):
    name, path = real
    with ReferenceModel(path, n_ctx=512, cache="q8_0") as model:
        for run in (models.Run(2, "all"), models.Run(20, forced=4)):
            got = engine_stages(weights, *run.tokens(name), run.outputs, kind=KvType.Q8_0)
            for stage in compare(models.reference_stages(model, name, run), got):
                assert stage.same, f"{name}, {run}: {stage.as_dict()}"


def test_every_row_is_the_recorded_one(real, weights):
    name = real[0]
    for run in models.runs(name):
        got = record.of_stages(engine_stages(weights, *run.tokens(name), run.outputs))
        assert got == record.read(GOLDEN / f"{name}.json")["runs"][str(run)], run
