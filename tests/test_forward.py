"""Whole models against the reference, live and recorded: every layer's rows, result_norm and logits, on bits."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from bankml.cli.oracle import call_stages
from bankml.errors import UsageError
from bankml.forward import Outputs, llama_threads
from bankml.kv_cache import KvType
from bankml.oracle import record
from bankml.oracle.compare import compare
from bankml.oracle.model import ReferenceModel
from tests import models
from tests.cpu.levels import OTHER_LEVELS, rerun_at
from tests.models import joined

GOLDEN = Path(__file__).parent / "golden" / "models"
SMALL = [name for name in models.MODELS if models.MODELS[name].vocab < 100_000]
TYPES = ["qwen3-q1_0-untied", "llama-q2_0-tied", "llama-f16-tied"]


@functools.cache
def recorded(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def engine_stages(weights, name, run, call=call_stages):
    """What `models.reference_stages` yields, from the engine."""
    caches = weights.caches(n_ctx=models.CONTEXT)
    tokens, forced = run.tokens(name)
    weights.llama_threads = 1
    yield from call(weights, caches, tokens, Outputs(run.outputs))
    weights.llama_threads = run.threads
    for token in forced:
        yield from call(weights, caches, [token], Outputs.LAST)


def whole(weights, caches, tokens, outputs):
    """As `call_stages`, through the driver that runs whole layers: no layer's rows are to be had."""
    result = weights.prefill_with(caches, tokens, outputs)
    yield "result_norm", result
    yield "logits", weights.logits_rows(result)


def hold_recorded(name, run, got):
    """Hold the rows of a run, stage -> rows, equal to the recording."""
    for stage, digests in recorded(name)["runs"][str(run)].items():
        if stage not in got and stage.startswith("l_out"):
            continue
        mine = record.digest(got[stage]) if stage.startswith("l_out") else record.row_digests(got[stage])
        assert mine == digests, f"{name}, {run}: {stage} is not the recorded one"


@pytest.mark.parametrize("name", models.MODELS)
def test_every_row_is_the_references(name, reference, opened, folder):
    weights = opened(name)
    with ReferenceModel(models.build(name, folder), n_ctx=models.CONTEXT) as model:
        for run in models.runs(name):
            want = joined(models.reference_stages(model, name, run))
            got = joined(engine_stages(weights, name, run))
            for stage in compare(want.items(), ((stage, got[stage]) for stage in want)):
                assert stage.same, f"{name}, {run}: {stage.as_dict()}"


@pytest.mark.parametrize("name", models.MODELS)
def test_every_row_is_the_recorded_one(name, opened, folder):
    assert models.sha256(models.build(name, folder)) == recorded(name)["model"], "not the recorded model"
    weights = opened(name)
    for run in models.runs(name):
        hold_recorded(name, run, joined(engine_stages(weights, name, run)))


@pytest.mark.parametrize("threads", range(1, 9))
@pytest.mark.parametrize("name", TYPES)
def test_threads_and_drivers_change_nothing(name, threads, opened):
    weights = opened(name, threads)
    for run in (models.Run(20), models.Run(65), models.Run(240, forced=30), models.Run(64, "all")):
        hold_recorded(name, run, joined(engine_stages(weights, name, run, whole)))


@pytest.mark.parametrize("level", OTHER_LEVELS)
def test_levels_change_nothing(level):
    rerun_at(level, "tests/test_forward.py", "-k", f"recorded_one and ({' or '.join(TYPES)})")


@pytest.mark.parametrize("name", [name for name in SMALL if "f16" not in name])
def test_micro_batches_change_nothing(name, opened):
    weights = opened(name)
    tokens = models.prompt(name, 600, weights.shape.n_vocab)
    for count, splits in ((40, (1, 2, 7, 39, 63, 512)), (600, (100, 200, 512))):
        answers = []
        for n_ubatch in splits:
            caches = weights.caches(n_ctx=768)
            row = weights.prefill(caches, tokens[:count], n_ubatch=n_ubatch)
            answers.append(weights.logits(row).view(np.uint32))
        assert all((answer == answers[0]).all() for answer in answers), f"{count} tokens"


@pytest.mark.parametrize("name", TYPES)
def test_a_prompt_in_two_calls_is_the_prompt_in_two_micro_batches(name, opened):
    weights = opened(name)
    tokens = models.prompt(name, 100, weights.shape.n_vocab)
    one, two = weights.caches(n_ctx=256), weights.caches(n_ctx=256)
    want = weights.prefill(one, tokens, n_ubatch=70)
    weights.prefill_with(two, tokens[:70], Outputs.NONE)
    got = weights.prefill(two, tokens[70:])
    assert (got.view("u4") == want.view("u4")).all()


@pytest.mark.parametrize("name", TYPES)
def test_the_pieces_make_the_layer(name, opened):
    """The layer pieces, called one by one, end where the whole run ends."""
    from bankml.cpu.attention import kernel_for

    weights = opened(name)
    tokens = models.prompt(name, 20, weights.shape.n_vocab)
    rows = {}
    caches = weights.caches(n_ctx=256)
    weights.prefill_with(caches, tokens, Outputs.ALL, each=lambda il, first, x: rows.setdefault(il, x))
    caches = weights.caches(n_ctx=256)
    x = weights.embed(tokens)
    for il in range(weights.shape.n_layer):
        q = weights.qkv(il, caches, weights.norm(x, f"blk.{il}.attn_norm"))
        attended = weights.attention(il, caches, q, kernel_for(20, 20, 1))
        x = weights.ffn(il, x + weights.mm(f"blk.{il}.attn_output.weight", attended))
        assert (x.view("u4") == rows[il].view("u4")).all(), f"layer {il}"


def test_a_failed_call_leaves_the_caches(opened):
    weights = opened(TYPES[0])
    caches = weights.caches(n_ctx=256)
    weights.prefill(caches, [1, 2, 3])

    def fail(il, first, rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights.prefill(caches, [4, 5], each=fail)
    assert [len(cache) for cache in caches] == [3] * len(caches)
    weights.decode(caches, 4)
    assert len(caches[0]) == 4


def test_a_truncated_cache_goes_on_as_if_never_longer(opened):
    weights = opened(TYPES[0])
    tokens = models.prompt(TYPES[0], 700, weights.shape.n_vocab)
    caches = weights.caches(n_ctx=1024)
    weights.prefill(caches, tokens[:30])
    want = weights.decode(caches, 7)
    weights.prefill(caches, tokens[30:])
    assert caches[0].bytes == 2 * 768 * caches[0].row_bytes
    for cache in caches:
        cache.truncate(30)
    assert caches[0].bytes == 2 * 256 * caches[0].row_bytes
    assert (weights.decode(caches, 7).view("u4") == want.view("u4")).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w: w.prefill(w.caches(n_ctx=256), []), "no tokens"),
        (lambda w: w.prefill(w.caches(n_ctx=256), [4099]), "4099 is outside the vocabulary of 4099"),
        (lambda w: w.prefill(w.caches(n_ctx=256), [-1]), "outside the vocabulary"),
        (lambda w: w.prefill(w.caches(n_ctx=200), [1] * 257), "257 tokens after 0 do not fit"),
        (lambda w: w.prefill(w.caches(n_ctx=256)[:1], [1]), "layers"),
        (lambda w: w.prefill(w.caches(n_ctx=256), [1], n_ubatch=0), "micro-batch of 0"),
        (lambda w: w.caches(n_ctx=0), "1 or more"),
        (lambda w: w.caches()[0].truncate(1), "cannot keep 1 of 0"),
        (lambda w: KvType.parse("q4_0"), "f16, q8_0"),
    ],
)
def test_mistakes_are_sentences(call, words, opened):
    with pytest.raises(UsageError, match=words):
        call(opened("qwen3-q1_0-tied"))


@pytest.mark.parametrize("text", ["0", "65", "x", "-3"])
def test_bad_reference_threads_are_refused(text, monkeypatch):
    monkeypatch.setenv("BANKML_LLAMA_THREADS", text)
    with pytest.raises(UsageError, match="1 to 64"):
        llama_threads()
