"""The `ollama` client against a served SmolLM2: the engine's own answers, llama-server's recorded ones."""

import json

import ollama
import pytest

import bankml
from tests.serve import cases
from tests.serve.test_recorded import GOLDEN

REPLIES = GOLDEN["replies"]


@pytest.fixture(scope="module")
def client(smollm2):
    with ollama.Client(host=smollm2.url) as client:
        yield client


@pytest.fixture(scope="module")
def model(client):
    return client.list().models[0].model


@pytest.fixture(scope="module")
def engine(smollm2_path):
    with bankml.load(smollm2_path, gpu=False) as engine:
        yield engine


def test_chats_are_the_engines_and_the_recorded_ones(client, model, engine):
    recorded = REPLIES["chat"][1]
    want = recorded["choices"][0]["message"]["content"]
    options = {"temperature": 0, "seed": 1, "num_predict": 32}
    got = client.chat(model, cases.FRANCE, options=options)
    assert got.message.content == want == engine.chat(cases.FRANCE, temperature=0).text
    counts = (got.prompt_eval_count, got.eval_count)
    assert counts == (recorded["usage"]["prompt_tokens"], recorded["usage"]["completion_tokens"])
    assert (got.done, got.done_reason, got.message.role, got.model) == (True, "stop", "assistant", model)
    *pieces, last = client.chat(model, cases.FRANCE, options=options, stream=True)
    assert "".join(piece.message.content for piece in pieces) == want
    assert not any(piece.done for piece in pieces) and last.done and last.message.content == ""
    assert (last.done_reason, last.prompt_eval_count, last.eval_count) == ("stop", *counts)


@pytest.mark.parametrize("name", ["text", "text, seeded"])
def test_texts_are_the_recorded_ones(client, model, name):
    body, recorded = cases.CASES[name][1], REPLIES[name][1]
    options = {"temperature": body["temperature"], "seed": body["seed"], "num_predict": body["max_tokens"]}
    got = client.generate(model, body["prompt"], raw=True, options=options)
    assert got.response == recorded["choices"][0]["text"]
    assert (got.prompt_eval_count, got.eval_count) == tuple(
        recorded["usage"][key] for key in ("prompt_tokens", "completion_tokens")
    )
    assert got.done_reason == recorded["choices"][0]["finish_reason"] and got.context is None
    *pieces, _ = client.generate(model, body["prompt"], raw=True, options=options, stream=True)
    assert "".join(piece.response for piece in pieces) == got.response


def test_generate_is_a_chat_and_context_goes_on(client, model, engine):
    question = cases.FRANCE[0]["content"]
    first = client.generate(model, question, options={"temperature": 0})
    assert first.response == engine.chat(cases.FRANCE, temperature=0).text
    prompt = engine.prompts.tokens(cases.FRANCE)
    assert first.context[: len(prompt)] == prompt and len(first.context) == len(prompt) + first.eval_count - 1
    again = client.generate(model, "And of Italy?", context=first.context, options={"temperature": 0, "num_predict": 8})
    more = engine.prompts.tokens([{"role": "user", "content": "And of Italy?"}])
    assert again.prompt_eval_count == len(first.context) + len(more)
    assert again.response == engine([*first.context, *more], temperature=0, max_tokens=8).text
    system = client.generate(model, "Hi", system="Answer in French.", options={"temperature": 0, "num_predict": 8})
    said = [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Hi"}]
    assert system.response == engine.chat(said, temperature=0, max_tokens=8).text


def test_durations_are_nanoseconds(client, model):
    got = client.chat(model, cases.FRANCE, options={"num_predict": 4, "temperature": 0})
    assert 1_000_000 < got.prompt_eval_duration + got.eval_duration <= got.total_duration < 60_000_000_000
    assert got.done_reason == "length" and got.eval_count == 4 and 0 <= got.load_duration < got.total_duration


def test_models(client, model, smollm2_path):
    about = next(each for each in client.list().models if each.model == model)
    assert model == f"{smollm2_path.stem}:latest" and about.size == smollm2_path.stat().st_size
    assert (about.details.family, about.details.format) == ("llama", "gguf")
    assert (about.details.parameter_size, about.details.quantization_level) == ("134.52M", "F16")
    for name in (model, smollm2_path.stem):
        shown = client.show(name)
        assert shown.capabilities == ["completion"] and "<|im_start|>" in shown.template
        assert shown.modelinfo["general.architecture"] == "llama" and shown.modelinfo["llama.block_count"] == 30
        assert shown.details == about.details and shown.modelinfo["tokenizer.ggml.tokens"] is None
    client.chat(smollm2_path.stem, cases.FRANCE, options={"num_predict": 1})
    (running,) = client.ps().models
    assert (running.model, running.digest, running.context_length) == (model, about.digest, 8192)


def test_logprobs_are_the_recorded_ones(smollm2, smollm2_path):
    want = REPLIES["chat, logprobs"][1]["choices"][0]["logprobs"]["content"]
    body = {"model": smollm2_path.stem, "messages": cases.FRANCE, "logprobs": True, "top_logprobs": 3}
    for stream in (False, True):
        reply = smollm2.post("/api/chat", body | {"stream": stream, "options": cases.GREEDY})
        found = [item for line in reply.text.splitlines() for item in json.loads(line).get("logprobs", [])]
        for got, expected in zip(found, want, strict=False):
            assert got["token"] == expected["token"] and got["bytes"] == expected["bytes"]
            assert got["logprob"] == pytest.approx(expected["logprob"], rel=1e-5)
            assert [top["token"] for top in got["top_logprobs"]] == [top["token"] for top in expected["top_logprobs"]]
        assert len(found) == len(want) - stream  # a stream has no line for the end token


def test_errors_reach_the_client(client, model):
    for call in (client.chat, client.generate, client.show, client.embed):
        with pytest.raises(ollama.ResponseError) as caught:
            call("nothing")
        assert (caught.value.status_code, caught.value.error) == (404, "model 'nothing' not found")
    with pytest.raises(ollama.ResponseError, match="does not support embeddings") as caught:
        client.embed(model, "x")
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="grammars"):
        client.chat(model, cases.FRANCE, format="json")
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        client.chat(model, cases.FRANCE, think=True)
    with pytest.raises(ollama.ResponseError, match="over HTTP"):
        client.pull("x")
