"""Whole continuations: model, sampler and seed together give llama-server b11192's tokens and probabilities."""

import codecs
from pathlib import Path

import numpy as np
import pytest

from bankml.convert import convert
from bankml.errors import Refused, UsageError
from bankml.forward import Weights
from bankml.gguf import read_header
from bankml.oracle import record
from bankml.params import CHAIN, Params
from bankml.sampler import Sampler
from bankml.tokenizer import Tokenizer
from tests import continuations as cases
from tests import models

GOLDEN = record.read(Path(__file__).parent / "golden" / "sampling.json")


class Model:
    """A model that goes on from the prompts, each computed once: the caches are cut back to it."""

    def __init__(self, path):
        self.tokenizer = Tokenizer.from_gguf(path)
        self.weights = Weights.open(path, gpu=False, threads=2)
        self._prompts = {}

    def prompt(self, name):
        """Its tokens, caches that hold it, and the result_norm of its last token."""
        if name not in self._prompts:
            tokens = self.tokenizer.encode(cases.PROMPTS[name], add_special=True)
            caches = self.weights.caches(n_ctx=1024)
            self._prompts[name] = tokens, caches, self.weights.prefill(caches, tokens)
        tokens, caches, result_norm = self._prompts[name]
        for cache in caches:
            cache.truncate(len(tokens))
        return tokens, caches, result_norm

    def steps(self, name, count, settings):
        """(token, its logits, the sampler) `count` times, or until an end token."""
        tokens, caches, result_norm = self.prompt(name)
        sampler = Sampler(params(settings), self.tokenizer)
        sampler.begin(tokens)
        for _ in range(count):
            logits = self.weights.logits(result_norm)
            token = sampler.sample(logits)
            yield token, logits, sampler
            if token in self.tokenizer.eog:
                return
            sampler.accept(token)
            result_norm = self.weights.decode(caches, token)

    def drawn(self, *case):
        """The tokens of a continuation."""
        return [token for token, _, _ in self.steps(*case)]


def params(settings) -> Params:
    """The server's fields as Params."""
    known = dict(settings)
    if "logit_bias" in known:
        known["logit_bias"] = [(token, -np.inf if bias is False else bias) for token, bias in known["logit_bias"]]
    return Params(**known)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """opened(name): one of the models, with what was recorded of it as `.want`."""
    made = {}

    def get(name):
        if name not in made:
            path = cases.build(name, tmp_path_factory.mktemp(name), convert)
            want = GOLDEN["models"][name]
            assert models.sha256(path) == want["sha256"]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("BANKML_LLAMA_THREADS", "2")
                made[name] = Model(path)
            made[name].want = want
        return made[name]

    yield get
    for model in made.values():
        model.weights.close()


@pytest.fixture(params=cases.MODELS)
def model(request, opened):
    return opened(request.param)


def test_seeded_continuations_are_the_servers(model):
    """At least 40 a model: temperature 0-1.5, top-k 1-128, top-p, min-p."""
    wrong, checked = [], 0
    for (prompt, settings), (n_prompt, want) in zip(cases.grid(), model.want["grid"], strict=True):
        assert len(model.prompt(prompt)[0]) == n_prompt
        got = model.drawn(prompt, cases.N_TOKENS, settings)
        checked += 1
        if got != want:
            wrong.append((prompt, settings, got, want))
    assert not wrong, f"{len(wrong)} of {checked}, first: {wrong[0]}"
    assert checked >= 40


@pytest.mark.parametrize("case", cases.PROBS)
def test_probabilities_are_the_servers_floats(model, case):
    """The server tells nothing of a token that leaves a character unfinished."""
    prompt, count, settings = cases.PROBS[case]
    got, text = [], codecs.getincrementaldecoder("utf-8")("replace")
    for token, logits, sampler in model.steps(prompt, count, cases.DEFAULTS | settings):
        told = sampler.probs(logits)
        assert told.token == token
        text.decode(model.tokenizer.decode([token]))
        if not text.getstate()[0]:
            got.append([told.token, told.value, [list(pair) for pair in told.top]])
    want = model.want["probs"][case]
    assert [[float(np.float32(p)) for p in _numbers(step)] for step in want] == [_numbers(step) for step in got]
    assert [_ids(step) for step in want] == [_ids(step) for step in got]


def _numbers(step):
    return [step[1], *(value for _, value in step[2])]


def _ids(step):
    return [step[0], *(token for token, _ in step[2])]


@pytest.mark.parametrize("variant", cases.VARIANTS)
def test_variants_of_the_chain_draw_the_servers_tokens(opened, variant):
    """Penalties and the other samplers, over four prompts."""
    model = opened(cases.VARIANT_MODEL)
    settings = cases.DEFAULTS | cases.VARIANTS[variant]
    want = model.want["variants"][variant]
    got = {prompt: model.drawn(prompt, cases.N_VARIANT_TOKENS, settings) for prompt in cases.VARIANT_PROMPTS}
    assert got == want


def test_the_variants_make_a_difference():
    """Nearly all of them draw other tokens than the default chain does, for one prompt at least."""
    drawn = GOLDEN["models"][cases.VARIANT_MODEL]["variants"]
    assert len(drawn) >= 23 and all(len(prompts) == 4 for prompts in drawn.values())
    assert len({str(prompts) for prompts in drawn.values()}) >= len(drawn) - 2


@pytest.mark.parametrize("name", cases.RECOMMENDED)
def test_a_files_recommendations_are_taken_as_the_server_takes_them(tmp_path, name):
    want = GOLDEN["recommended"][name]
    got = Params.from_gguf(read_header(cases.recommending(name, tmp_path)).kv)
    ends = {"temperature": 0.0, "top_k": 0, "repeat_last_n": 0}  # what lies below means the same
    for field, value in want.items():
        if field == "samplers":
            assert list(got.samplers) == value
        else:
            assert np.float32(getattr(got, field)) == np.float32(max(value, ends.get(field, value))), field


def test_given_values_go_over_a_files(tmp_path):
    kv = read_header(cases.recommending("numbers", tmp_path)).kv
    got = Params.from_gguf(kv, top_k=3, seed=5)
    assert (got.top_k, got.seed, got.repeat_last_n) == (3, 5, 33)


def test_a_file_that_wants_mirostat_is_refused_unless_greedy():
    kv = {"general.sampling.mirostat": 2}
    with pytest.raises(Refused, match="mirostat is 2; bankml has no mirostat"):
        Params.from_gguf(kv)
    assert Params.from_gguf(kv, temperature=0).samplers == CHAIN


@pytest.mark.parametrize("field", cases.REFUSED, ids=str)
def test_what_the_server_refuses_is_refused(field):
    status, message = GOLDEN["refused"][cases.REFUSED.index(field)]
    assert status == 400
    name, value = next(iter(field.items()))
    assert name.replace("repeat_penalty", "penalty_repeat") in message
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        Params(**field)
