"""Calls that a program gets wrong: each is an error that says what, and none reaches a kernel with it."""

import threading

import numpy as np
import pytest

from bankml import KvCache, KvType, Outputs, UsageError, Weights, kernel_for
from tests import models

NAME = "qwen3-q1_0-tied"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return models.build(NAME, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def weights(path):
    with Weights.open(path, gpu=False, threads=2) as opened:
        yield opened


def zeros(*shape):
    return np.zeros(shape, np.float32)


def other_width(w):
    return [KvCache(w.shape.head_dim * w.shape.n_head_kv // 2, 256) for _ in range(w.shape.n_layer)]


def one_is_shorter(w):
    return [*w.caches(n_ctx=512)[1:], *w.caches(n_ctx=256)[:1]]


def length_set(w, length):
    caches = w.caches(n_ctx=256)
    for cache in caches:
        cache.length = length
    return caches


MATRIX = "blk.0.attn_q.weight"
WRONG = {
    "fractions": (lambda w: w.prefill(w.caches(n_ctx=256), [1.7]), "whole numbers"),
    "no number": (lambda w: w.prefill(w.caches(n_ctx=256), [float("nan")]), "whole numbers"),
    "text": (lambda w: w.prefill(w.caches(n_ctx=256), "abc"), "whole numbers"),
    "nothing": (lambda w: w.prefill(w.caches(n_ctx=256), None), "whole numbers"),
    "beyond 64 bits": (lambda w: w.prefill(w.caches(n_ctx=256), [2**70]), "whole numbers"),
    "unsigned": (lambda w: w.prefill(w.caches(n_ctx=256), np.array([2**64 - 1], np.uint64)), "outside"),
    "a table": (lambda w: w.prefill(w.caches(n_ctx=256), [[1, 2], [3, 4]]), "shape"),
    "step outside": (lambda w: w.step(w.caches(n_ctx=256), 10**9), "outside the vocabulary"),
    "half a micro-batch": (lambda w: w.prefill(w.caches(n_ctx=256), [1], n_ubatch=1.5), "micro-batch of 1.5"),
    "no micro-batch": (lambda w: w.logits_rows(zeros(3, w.shape.n_embd), 0), "micro-batch of 0"),
    "one cache for all": (lambda w: w.prefill(w.caches(n_ctx=256)[:1] * w.shape.n_layer, [1]), "4 layers"),
    "narrow caches": (lambda w: w.prefill(other_width(w), [1, 2, 3]), "not this model's caches"),
    "no caches": (lambda w: w.prefill([[]] * w.shape.n_layer, [1]), "layers"),
    "a short cache": (lambda w: w.prefill(one_is_shorter(w), [1] * 400), "do not fit a context of 256"),
    "a length below 0": (lambda w: w.prefill(length_set(w, -9), [1]), "after -9 do not fit"),
    "a length too long": (lambda w: w.prefill(length_set(w, 999), [1]), "after 999 do not fit"),
    "a context of nothing": (lambda w: w.caches(n_ctx=0), "1 or more"),
    "an endless context": (lambda w: w.caches(n_ctx=2**62), "use a smaller context"),
    "a cache's type as text": (lambda w: w.caches("f16"), "KvType"),
    "logits of less": (lambda w: w.logits(zeros(3)), "rows of 384 values"),
    "logits of more": (lambda w: w.logits(zeros(2, w.shape.n_embd)), "rows of 384 values"),
    "embed outside": (lambda w: w.embed([10**6]), "outside the vocabulary"),
    "norm of less": (lambda w: w.norm(zeros(1, 3), "blk.0.attn_norm"), "rows of 384 values"),
    "norm of no name": (lambda w: w.norm(zeros(1, 384), "blk.99.attn_norm"), "blk.99.attn_norm"),
    "a matrix times more": (lambda w: w.mv(MATRIX, zeros(512)), "rows of 384 values"),
    "a matrix times a row": (lambda w: w.mm(MATRIX, zeros(2, 3)), "rows of 384 values"),
    "no such matrix": (lambda w: w.mv("blk.99.attn_q.weight", zeros(384)), "no matrix blk.99"),
    "a norm as a matrix": (lambda w: w.mv("blk.0.attn_norm.weight", zeros(384)), "no matrix"),
    "half a block": (lambda w: w.quantize(zeros(1, 33)), "multiple of 128"),
    "no layer": (lambda w: w.ffn(-1, zeros(1, 384)), "no layer -1"),
    "qkv of too many": (lambda w: w.qkv(0, w.caches(n_ctx=256), zeros(300, 384)), "do not fit"),
    "attention of less": (lambda w: w.attention(0, w.caches(n_ctx=256), zeros(1, 3), kernel_for(1, 1, 3)), "rows of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_would_lead_a_kernel_astray_is_refused(weights, name):
    call, words = WRONG[name]
    with pytest.raises(UsageError, match=words):
        call(weights)


@pytest.mark.parametrize("value", ["x", None, 1.5])
def test_lengths_are_whole_numbers(weights, value):
    with pytest.raises(TypeError):
        weights.caches(n_ctx=256)[0].truncate(value)
    with pytest.raises((TypeError, ValueError)):
        weights.prefill_with(weights.caches(n_ctx=256), [1], value)


def test_a_callback_that_calls_back(weights):
    """The buffers are in use: the answer would be another's."""
    want = weights.prefill(weights.caches(n_ctx=256), [1, 2, 3])
    for call in (lambda: weights.prefill(weights.caches(n_ctx=256), [5]), weights.close, lambda: weights.logits(want)):
        caches = weights.caches(n_ctx=256)
        with pytest.raises(UsageError, match="in the midst of a call"):
            weights.prefill(caches, [1, 2, 3], each=lambda *_, call=call: call())
        assert [len(cache) for cache in caches] == [0] * weights.shape.n_layer
    assert (weights.prefill(weights.caches(n_ctx=256), [1, 2, 3]) == want).all()


def test_threads_that_call_at_once(weights):
    """Each waits for its turn, with caches of its own as with shared ones."""
    want = weights.prefill(weights.caches(n_ctx=256), [1, 2, 3])
    shared, wrong = weights.caches(n_ctx=256), []

    def work():
        for _ in range(8):
            wrong.append((weights.prefill(weights.caches(n_ctx=256), [1, 2, 3]) != want).any())
            weights.prefill_with(shared, [1, 2, 3], Outputs.NONE)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(wrong) == 32 and not any(wrong)
    assert {len(cache) for cache in shared} == {32 * 3}


def test_closed_weights(path):
    weights = Weights.open(path, gpu=False, threads=2)
    caches, view = weights.caches(n_ctx=256), weights.map.f32("output_norm.weight")
    weights.close()
    weights.close()
    calls = (
        lambda: weights.prefill(caches, [1]),
        lambda: weights.decode(caches, 1),
        lambda: weights.step(caches, 1),
        lambda: weights.logits(zeros(384)),
        lambda: weights.embed([1]),
        lambda: weights.mv(MATRIX, zeros(384)),
        lambda: weights.quantize(zeros(1, 128)),
        lambda: weights.map.tensor(MATRIX),
        lambda: weights.map.address(MATRIX),
    )
    for call in calls:
        with pytest.raises(UsageError, match="closed"):
            call()
    assert np.isfinite(view).all()  # an array that was handed out keeps what it shows


def test_names_of_files(path):
    with Weights.open(bytes(path), gpu=False, threads=1) as weights:
        assert weights.caches(KvType.F16, n_ctx=1)[0].capacity == 256
    with pytest.raises(UsageError, match=r"null (byte|character)"):  # the words of Python 3.11 and 3.13
        Weights.open("a\0b")
