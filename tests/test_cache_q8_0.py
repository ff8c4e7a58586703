"""Whole models over q8_0 caches: every layer's rows, result_norm and logits as the reference has them, on bits."""

import numpy as np
import pytest

from bankml.cli.oracle import call_stages
from bankml.cpu.attention import Kernel
from bankml.errors import UsageError
from bankml.forward import Outputs
from bankml.kv_cache import KvCache, KvType
from bankml.oracle import record
from bankml.oracle.compare import compare
from bankml.oracle.model import ReferenceModel
from tests import models
from tests.cache_runs import MODELS, RUNS
from tests.cpu.levels import OTHER_LEVELS, rerun_at
from tests.models import joined
from tests.test_forward import GOLDEN, whole

RECORDED = record.read(GOLDEN.parent / "cache_q8_0.json")
THREE = [name for name in MODELS if name.startswith("llama")]


def stages(weights, name, run, call=call_stages):
    """What `models.reference_stages` yields, from the engine over q8_0 caches."""
    caches = weights.caches(KvType.Q8_0, n_ctx=models.CONTEXT)
    tokens, forced = run.tokens(name)
    yield from call(weights, caches, tokens, Outputs(run.outputs))
    for token in forced:
        yield from call(weights, caches, [token], Outputs.LAST)


def hold_recorded(name, run, got):
    """Hold the rows of a run, stage -> rows, equal to the recording, of which it may leave the layers out."""
    want = RECORDED[name][str(run)]
    assert {stage: record.digest(rows) for stage, rows in got.items()} == {stage: want[stage] for stage in got}, run
    assert set(want) - set(got) <= {stage for stage in want if stage.startswith("l_out")}


@pytest.mark.parametrize("name", MODELS)
def test_every_row_is_the_references(name, reference, opened, folder):
    weights = opened(name)
    with ReferenceModel(models.build(name, folder), n_ctx=models.CONTEXT, cache="q8_0") as model:
        for run in RUNS:
            if "q2_0" in name and run.prompt > 500:
                continue  # the reference takes seconds there in Q2_0; the recording has these too
            want, got = joined(models.reference_stages(model, name, run)), joined(stages(weights, name, run))
            for stage in compare(want.items(), ((stage, got[stage]) for stage in want)):
                assert stage.same, f"{name}, {run}: {stage.as_dict()}"


@pytest.mark.parametrize("name", MODELS)
def test_every_row_is_the_recorded_one(name, opened, folder):
    assert models.sha256(models.build(name, folder)) == RECORDED[name]["model"], "not the recorded model"
    weights = opened(name)
    for run in RUNS:
        hold_recorded(name, run, joined(stages(weights, name, run)))


@pytest.mark.parametrize("level", OTHER_LEVELS)
def test_levels_change_nothing(level):
    rerun_at(level, __file__, "-k", f"recorded_one and ({' or '.join(THREE)})")


@pytest.mark.parametrize("threads", [1, 3, 8, 64])
@pytest.mark.parametrize("name", THREE)
def test_threads_and_drivers_change_nothing(name, threads, opened):
    weights = opened(name, threads)
    for run in (models.Run(65), models.Run(240, forced=30), models.Run(64, "all")):
        hold_recorded(name, run, joined(stages(weights, name, run, whole)))


@pytest.mark.parametrize("llama_threads", [1, 2, 7])
def test_the_references_threads_change_nothing(llama_threads, opened):
    """There is no split over a q8_0 cache."""
    weights = opened(THREE[0])
    weights.llama_threads = llama_threads
    hold_recorded(THREE[0], models.Run(495, forced=30), joined(stages(weights, THREE[0], models.Run(495, forced=30))))


@pytest.mark.parametrize("name", [name for name in MODELS if "f16" not in name])
def test_micro_batches_change_nothing(name, opened):
    """Not even across 64 rows, where an f16 cache takes another kernel."""
    weights = opened(name)
    tokens, answers = models.prompt(name, 130, weights.shape.n_vocab), []
    for n_ubatch in (1, 7, 63, 64, 129, 512):
        caches = weights.caches(KvType.Q8_0, n_ctx=256)
        answers.append(weights.logits(weights.prefill(caches, tokens, n_ubatch=n_ubatch)).view(np.uint32))
    assert all((answer == answers[0]).all() for answer in answers)


@pytest.mark.parametrize("n_ubatch", [64, 96])
def test_micro_batches_are_the_references(n_ubatch, opened, folder, reference):
    """F16 weights, for which a micro-batch of one row (the last of 129 by 64) differs."""
    weights = opened("llama-f16-tied")
    tokens = models.prompt("llama-f16-tied", 129, weights.shape.n_vocab)
    caches = weights.caches(KvType.Q8_0, n_ctx=256)
    got = weights.logits(weights.prefill(caches, tokens, n_ubatch=n_ubatch))
    path = models.build("llama-f16-tied", folder)
    with ReferenceModel(path, n_ctx=256, cache="q8_0", n_ubatch=n_ubatch) as model:
        want = model.decode(tokens, watch=()).logits[-1]
    assert (got.view("u4") == want.view("u4")).all()


@pytest.mark.parametrize("name", THREE)
def test_the_pieces_make_the_layer(name, opened):
    weights = opened(name)
    tokens, rows = models.prompt(name, 20, weights.shape.n_vocab), {}
    caches = weights.caches(KvType.Q8_0, n_ctx=256)
    weights.prefill_with(caches, tokens, Outputs.ALL, each=lambda il, first, x: rows.setdefault(il, x))
    caches, x = weights.caches(KvType.Q8_0, n_ctx=256), weights.embed(tokens)
    for il in range(weights.shape.n_layer):
        q = weights.qkv(il, caches, weights.norm(x, f"blk.{il}.attn_norm"))
        attended = weights.attention(il, caches, q, Kernel.reference())
        x = weights.ffn(il, x + weights.mm(f"blk.{il}.attn_output.weight", attended))
        assert (x.view("u4") == rows[il].view("u4")).all(), f"layer {il}"


def test_both_kinds_take_turns(opened):
    """One driver serves caches of both kinds."""
    weights = opened(THREE[0])
    tokens = models.prompt(THREE[0], 40, weights.shape.n_vocab)
    both, first = {kind: weights.caches(kind, n_ctx=256) for kind in KvType}, {}
    for _ in range(2):
        for kind, caches in both.items():
            for cache in caches:
                cache.truncate(0)
            answer = weights.logits(weights.prefill(caches, tokens)).view(np.uint32)
            assert (answer == first.setdefault(kind, answer)).all()
    assert (first[KvType.F16] != first[KvType.Q8_0]).any()


def test_a_cell_takes_34_bytes_per_32_values_and_stays_where_it_is(opened):
    weights = opened("llama-q2_0-tied")
    caches = weights.caches(KvType.Q8_0, n_ctx=1024)
    width = weights.shape.n_head_kv * weights.shape.head_dim
    tokens = models.prompt("llama-q2_0-tied", 700, weights.shape.n_vocab)
    weights.prefill(caches, tokens[:30])
    before, places = [side.copy() for side in caches[0].rows()], (caches[0].k_address, caches[0].v_address)
    assert caches[0].row_bytes == width * 34 // 32 and before[0].shape == (30, caches[0].row_bytes)
    want = weights.decode(caches, 7)
    weights.prefill(caches, tokens[30:])
    assert caches[0].bytes == 2 * 768 * width * 34 // 32
    assert (caches[0].k_address, caches[0].v_address) == places
    assert all((side[:30] == old).all() for side, old in zip(caches[0].rows(), before, strict=True))
    for cache in caches:
        cache.truncate(30)
    assert caches[0].bytes == 2 * 256 * width * 34 // 32
    assert all((side == old).all() for side, old in zip(caches[0].rows(), before, strict=True))
    assert (weights.decode(caches, 7).view("u4") == want.view("u4")).all()


@pytest.mark.parametrize("width", [32, 64, 96, 160])
def test_what_a_cut_leaves_behind_is_given_back(width):
    """Whole pages only: cells that stay may share one with cells that go."""
    cache = KvCache(width, 2048, KvType.Q8_0)
    cache.length = 2048
    rows = [np.frombuffer(memory, np.uint8) for memory in (cache._k, cache._v)]
    for row in rows:
        row[:] = 1
    cache.truncate(300)
    kept = 512 * cache.row_bytes
    for row in rows:
        assert row[:kept].all() and not row[-(-kept // 4096) * 4096 :].any()


@pytest.mark.parametrize(
    ("flag", "variable", "kind"),
    [(None, "", "f16"), (None, "q8_0", "q8_0"), ("q8_0", "", "q8_0"), ("f16", "q8_0", "f16"), ("q8_0", "f16", "q8_0")],
)
def test_a_flag_beats_the_environment(flag, variable, kind, monkeypatch):
    monkeypatch.setenv("BANKML_CACHE_TYPE", variable)
    assert KvType.from_environment(flag) is KvType(kind)


def test_a_bad_variable_is_refused_beside_a_flag(monkeypatch):
    monkeypatch.setenv("BANKML_CACHE_TYPE", "q5_1")
    with pytest.raises(UsageError, match="BANKML_CACHE_TYPE: cache type 'q5_1' is unknown; it is one of f16, q8_0"):
        KvType.from_environment("q8_0")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w: w.prefill([*w.caches(KvType.Q8_0)[:1], *w.caches()[1:]], [1]), "unequal type"),
        (lambda w: w.step_with(w.caches(KvType.Q8_0), 1, Kernel.tiled()), "the tiled attention kernel takes an f16"),
        (lambda w: w.step_with(w.caches(KvType.Q8_0), 1, Kernel.split(512, 2)), "the split attention kernel"),
        (lambda w: KvCache(48, 256, KvType.Q8_0), "multiples of 32"),
    ],
)
def test_mistakes_are_sentences(call, words, opened):
    with pytest.raises(UsageError, match=words):
        call(opened(THREE[0]))
