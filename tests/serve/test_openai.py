"""The `openai` client against a served SmolLM2: what the engine answers, through the SDK."""

import threading

import httpx
import openai
import pytest

import bankml

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
QUESTIONS = [
    f"What is the capital of {name}?"
    for name in ("France", "Italy", "Spain", "Peru", "Egypt", "Japan", "Chile", "Iran")
]


@pytest.fixture(scope="module")
def client(smollm2):
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture(scope="module")
def engine(smollm2_path):
    """The engine itself."""
    with bankml.load(smollm2_path, gpu=False) as model:
        yield model


def asked(client, model, question, **more):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], max_tokens=12, temperature=0, **more
    )


def test_chats_are_the_engines(client, model, engine):
    want = engine.chat(FRANCE, temperature=0)
    got = client.chat.completions.create(model=model, messages=FRANCE, temperature=0)
    assert got.choices[0].message.content == want.text == "The capital of France is Paris."
    assert (got.choices[0].finish_reason, got.model, got.object) == ("stop", model, "chat.completion")
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (37, 8, 45)


def test_texts_are_the_engines(client, model, engine):
    want = engine("Once upon a time", max_tokens=16, seed=42, reuse="exact")
    got = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=16, seed=42, extra_body={"bankml_receipt": True}
    )
    assert got.choices[0].text == want.text
    assert got.model_extra["bankml_receipt"]["model_sha256"] == engine.model_sha256


@pytest.mark.parametrize("usage", [None, False, True])
def test_streams_tell_usage_only_if_asked(client, model, usage):
    """H1"""
    options = {} if usage is None else {"stream_options": {"include_usage": usage}}
    for chat in (True, False):
        asking = client.chat.completions if chat else client.completions
        prompt = {"messages": FRANCE} if chat else {"prompt": "The capital of France is"}
        whole = asking.create(model=model, max_tokens=8, temperature=0, **prompt)
        *chunks, last = asking.create(model=model, max_tokens=8, temperature=0, stream=True, **prompt, **options)
        if usage:
            assert last.choices == []
            counts = [(u.prompt_tokens, u.completion_tokens, u.total_tokens) for u in (last.usage, whole.usage)]
            assert counts[0] == counts[1]
        else:
            chunks.append(last)
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, whole.choices[0].finish_reason]
        if chat:
            assert chunks[0].choices[0].delta.role == "assistant"
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert text == whole.choices[0].message.content
        else:
            assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_the_last_event_is_done(smollm2):
    body = {"messages": FRANCE, "max_tokens": 2, "temperature": 0, "stream": True}
    reply = smollm2.post("/v1/chat/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""] and all(event.startswith("data: ") for event in events[:-1])


def test_a_stop_string_across_tokens_is_cut_out(client, model):
    """H2"""
    for stop in ("e is P", ["nonsense", "e is P"]):
        whole = client.chat.completions.create(model=model, messages=FRANCE, temperature=0, stop=stop)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("The capital of Franc", "stop")
        chunks = list(
            client.chat.completions.create(model=model, messages=FRANCE, temperature=0, stop=stop, stream=True)
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of Franc"


def test_logprobs(client, model):
    """H6: the likeliest are told only if they are asked for."""
    plain = asked(client, model, "Hi", logprobs=True)
    two = asked(client, model, "Hi", logprobs=True, top_logprobs=2)
    for reply, count in ((plain, 0), (two, 2)):
        tokens = reply.choices[0].logprobs.content
        assert {len(token.top_logprobs) for token in tokens} == {count}
        text = b"".join(bytes(token.bytes) for token in tokens).decode()
        assert text == reply.choices[0].message.content
        assert all(token.logprob <= 0 for token in tokens)
    streamed = asked(client, model, "Hi", logprobs=True, top_logprobs=2, stream=True)
    noted = [token for chunk in streamed if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    want = two.choices[0].logprobs.content
    assert [token.logprob for token in noted] == [token.logprob for token in want][: len(noted)]
    assert len(want) - len(noted) <= 1  # the end token has no text, and no piece of the stream
    texts = client.completions.create(model=model, prompt="Once", max_tokens=3, temperature=0, logprobs=2).choices[0]
    assert "".join(texts.logprobs.tokens) == texts.text
    assert [len(top) for top in texts.logprobs.top_logprobs] == [2, 2, 2]


def test_no_tokens_are_no_tokens(client, model):
    """H6: max_tokens 0 gives none; the reference gives one."""
    reply = client.completions.create(model=model, prompt="Once", max_tokens=0)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("", "length")
    assert (reply.usage.completion_tokens, reply.usage.prompt_tokens) == (0, 1)


def test_echo(client, model):
    reply = client.completions.create(model=model, prompt="Once upon", max_tokens=2, temperature=0, echo=True)
    assert reply.choices[0].text.startswith("Once upon ")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt="Once", max_tokens=2, echo=True, logprobs=1)


def test_errors_are_the_sdks_own(client, model):
    with pytest.raises(openai.NotFoundError, match="not found"):
        asked(client, "gpt-none", "Hi")
    for wrong in (
        {"n": 2},
        {"top_logprobs": 2},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"temperature": "hot"},
        {"stop": 7},
        {"seed": 1.5},
    ):
        with pytest.raises(openai.BadRequestError):
            asked(client, model, "Hi", **({} if "temperature" in wrong else wrong), extra_body=wrong)
    with pytest.raises(openai.BadRequestError, match="image_url"):
        parts = [{"type": "image_url", "image_url": {"url": "data:,"}}]
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": parts}])
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="word " * 9000)
    assert caught.value.body["type"] == "exceed_context_size_error" and caught.value.body["n_ctx"] == 8192


def test_eight_at_once_answer_as_alone(client, model, smollm2):
    """D3: complete, each as alone, and the server still there."""
    alone = [asked(client, model, question).choices[0].message.content for question in QUESTIONS]
    together = [None] * len(QUESTIONS)

    def one(i):
        together[i] = asked(client, model, QUESTIONS[i]).choices[0].message.content

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(QUESTIONS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert smollm2.client.get("/health").json() == {"status": "ok"}


def test_a_receipt_is_reproducible(smollm2):
    body = {"messages": FRANCE, "max_tokens": 12, "seed": 3, "temperature": 0.8, "bankml_receipt": True}
    first, other, again = (
        smollm2.post("/v1/chat/completions", body | more).json()["bankml_receipt"] for more in ({}, {"seed": 4}, {})
    )
    assert first["response_sha256"] == again["response_sha256"] and first["request_sha256"] == again["request_sha256"]
    assert first["request_sha256"] != other["request_sha256"]
    assert (first["seed"], first["prompt_tokens"], first["completion_tokens"]) == (3, 37, 8)


def test_a_client_that_leaves_during_its_prompt(smollm2):
    """H4 (iii): the next answer comes within about a micro-batch."""
    prompt = " ".join(str(i) for i in range(1700))  # 7,389 tokens, many seconds
    for _ in range(2):
        with pytest.raises(httpx.ReadTimeout):
            smollm2.post("/completion", {"prompt": prompt, "n_predict": 1, "cache_prompt": False}, timeout=0.7)
        reply = smollm2.post("/completion", {"prompt": "Hi", "n_predict": 1}, timeout=5)
        assert reply.json()["tokens_predicted"] == 1
