"""The sampler against the reference's chain, token for token, live and recorded; and its parts against standards."""

import time
from pathlib import Path

import numpy as np
import pytest

from bankml.errors import BankmlError, UsageError
from bankml.oracle import record
from bankml.oracle.sampler import ReferenceSampler, ReferenceVocab
from bankml.sampler import MAX_SEED, MersenneTwister, Params, Sampler
from bankml.tokenizer import Tokenizer
from tests import sampler_cases, vocab

GOLDEN = Path(__file__).parent / "golden" / "sampler.json"
CASES = {name: (settings, logits) for name, settings, logits in sampler_cases.cases()}


def tokens(settings, rows):
    sampler = Sampler(Params(**settings))
    return [sampler.sample(row) for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_the_recorded_ones(name):
    settings, logits = CASES[name]
    rows = list(sampler_cases.rows(logits))
    input_digest, want = record.read(GOLDEN)["cases"][name]
    assert record.digest(*rows) == input_digest, "the logits are not the recorded ones"
    assert tokens(settings, rows) == want


@pytest.mark.parametrize("name", sampler_cases.SETTINGS)
def test_tokens_are_the_live_references(reference, name):
    settings = {**sampler_cases.DEFAULTS, **sampler_cases.SETTINGS[name]}
    for logits in ("small", "smollm2", "tied", "middling"):
        rows = list(sampler_cases.rows(logits, draws=25))
        with ReferenceSampler(reference, **settings) as chain:
            want = [chain.sample(row) for row in rows]
        assert tokens(settings, rows) == want, logits


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_gguf(vocab.smollm2_gguf())


@pytest.fixture(scope="module")
def reference_vocab(reference):
    with ReferenceVocab(reference, vocab.smollm2_gguf()) as made:
        yield made


@pytest.mark.parametrize("name", sampler_cases.VARIANTS)
def test_variants_draw_the_live_references_tokens(reference, reference_vocab, tokenizer, name):
    """Token for token over what was drawn before and a prompt; and the probabilities that are left, on bits."""
    settings = {**sampler_cases.DEFAULTS, **sampler_cases.VARIANTS[name]}
    for seed, steps, draws in ((1, 0, 40), (2, 4, 25)):
        rows = list(sampler_cases.chatter(tokenizer.n_vocab, draws, seed, steps))
        prompt = [int(np.argmax(row)) for row in rows[:20]]
        sampler = Sampler(Params(**settings, n_probs=200, post_sampling_probs=True), tokenizer)
        sampler.begin(prompt)
        with ReferenceSampler(reference, n_vocab=tokenizer.n_vocab, vocab=reference_vocab, **settings) as chain:
            chain.accept(prompt)
            for row in rows:
                want = chain.sample(row)
                assert sampler.sample(row) == want
                sampler.accept(want)
                found, left = sampler.probs(row), dict(zip(chain.left["id"].tolist(), chain.left["p"], strict=True))
                assert len(found.top) == min(200, sum(p != 0 for p in left.values()))
                assert all(left[token] == p for token, p in found.top)
                assert found.value == left[want]


def test_ties_fall_as_the_reference_lets_them_fall(reference):
    """Introsort's heap fallback too: a run that halves badly, every key twice, all in one bucket."""
    n = 2000
    killer = np.zeros(n, np.float32)
    order = [i for pair in zip(range(1, n, 2), range(n - 1, 0, -2), strict=True) for i in pair]
    killer[np.array(order) % n] = np.arange(n) // 2 * np.float32(1e-5)
    settings = {**sampler_cases.DEFAULTS, **sampler_cases.OFF, "top_p": 0.9999}
    rows = [killer, killer[::-1].copy(), np.sort(killer), np.sort(killer)[::-1].copy()] * 8
    with ReferenceSampler(reference, **settings) as chain:
        want = [chain.sample(row) for row in rows]
    assert tokens(settings, rows) == want


@pytest.mark.parametrize("name", ["much tied: default", "all equal: top-k 200"])
def test_ties_decide_something(name):
    """Where equal logits are told apart, so that they stand in vocabulary order, other tokens are drawn."""
    settings, logits = CASES[name]
    rows = [row - np.arange(len(row), dtype=np.float32) * np.float32(1e-6) for row in sampler_cases.rows(logits)]
    assert tokens(settings, rows) != record.read(GOLDEN)["cases"][name][1]


def test_mersenne_twister_is_the_standards():
    """C++ (rand.predef): the 10,000th output of a default-seeded mt19937 is 4123659995."""
    twister = MersenneTwister(5489)
    for _ in range(9_999):
        twister._random.getrandbits(32)
    assert twister._random.getrandbits(32) == 4_123_659_995


def test_greedy_takes_the_largest():
    logits = np.array([0, 3, 1, 2.5], np.float32)
    for temperature in (0.0, -1.0):
        assert tokens({"temperature": temperature, "seed": 7}, [logits] * 3) == [1, 1, 1]


def test_seeds():
    rows = list(sampler_cases.rows("flat", draws=20))
    assert tokens({"seed": 42}, rows) == tokens({"seed": 42}, rows)
    assert tokens({"seed": 42}, rows) != tokens({"seed": 43}, rows)
    assert tokens({"temperature": 0, "seed": 1}, rows) == tokens({"temperature": 0, "seed": 2}, rows)
    seeds = {Sampler().seed for _ in range(4)}
    assert len(seeds) > 1 and all(0 <= seed <= MAX_SEED for seed in seeds)
    assert Sampler(Params(seed=5)).seed == 5


def test_the_logits_are_left_alone_and_the_defaults_are_the_servers():
    logits = next(sampler_cases.rows("small"))
    before = logits.copy()
    Sampler().sample(logits)
    assert np.array_equal(logits, before)
    assert Params() == Params(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 1.5},
        {"top_p": -0.1},
        {"top_p": float("nan")},
        {"min_p": 2.0},
        {"seed": -1},
        {"seed": 2**32},
    ],
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Params(**wrong)


def test_logits_that_are_not_numbers_are_an_error():
    for bad in (np.nan, np.inf):
        with pytest.raises(BankmlError, match="not finite"):
            Sampler(Params(temperature=0)).sample(np.array([0, bad, 1], np.float32))


def test_tiny_temperatures_are_greedy_and_do_not_overflow():
    logits = next(sampler_cases.rows("smollm2"))
    for temperature in (1e-300, 1e-45, 1e-20, 1e-6):
        assert Sampler(Params(temperature=temperature)).sample(logits) == int(np.argmax(logits))


def test_the_default_chain_is_fast_over_qwen3s_vocabulary():
    logits = np.random.default_rng(1).normal(0, 3, 151_669).astype(np.float32)
    sampler, best = Sampler(), float("inf")
    for _ in range(20):
        start = time.perf_counter()
        sampler.sample(logits)
        best = min(best, time.perf_counter() - start)
    assert best < 0.0001  # 0.015 ms here, 0.06 right after a decoded token: testing/sampler_cost.py
