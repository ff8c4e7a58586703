"""Ollama's interface by raw requests to a stand-in model: lines of JSON, options, what is refused, keep_alive."""

import json
import threading
import time

import pytest

from bankml.serve.errors import ApiError
from bankml.serve.ollama_alive import seconds
from tests.serve.served import Served

TEXT = "日本語 é 🚀."
HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def served(bytes_path):
    with Served(bytes_path, "--ctx", "256", stand_in={"answer": TEXT}) as served:
        yield served


def ask(served, path="/api/chat", **body):
    prompt = {"prompt": "Hi"} if path == "/api/generate" else {"messages": HI}
    return served.post(path, {"model": "bytes", "options": GREEDY, **prompt, **body})


def running(served) -> list[dict]:
    return served.client.get("/api/ps").json()["models"]


def until(condition, most_s=10.0):
    end = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("name", ["bytes", "bytes:latest"])
def test_lines_of_json_by_default(served, path, name):
    """H7"""
    reply = ask(served, path, model=name)
    assert reply.headers["content-type"] == "application/x-ndjson" and reply.text.endswith("\n")
    *pieces, last = [json.loads(line) for line in reply.text.splitlines()]
    texts = [piece["message"]["content"] if path == "/api/chat" else piece["response"] for piece in pieces]
    assert texts == list(TEXT)
    assert {piece["done"] for piece in pieces} == {False} and {piece["model"] for piece in pieces} == {name}
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", len(TEXT.encode()) + 1)
    for key in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count"):
        assert type(last[key]) is int and last[key] >= 0
    whole = ask(served, path, model=name, stream=False)
    assert whole.headers["content-type"] == "application/json"
    assert (whole.json().get("message", {}).get("content") or whole.json()["response"]) == TEXT
    assert whole.json()["eval_count"] == last["eval_count"]


def test_eight_at_once_are_not_interleaved(served):
    """H7"""
    replies = [None] * 8

    def one(i):
        replies[i] = ask(served, ("/api/chat", "/api/generate")[i % 2], stream=i % 3 == 0)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reply in replies:
        lines = [json.loads(line) for line in reply.text.splitlines()]
        assert "".join(line.get("message", {}).get("content") or line.get("response", "") for line in lines) == TEXT


def test_lengths_and_stops(served):
    for most, made in ((0, 0), (3, 3)):
        last = json.loads(ask(served, options={"num_predict": most}).text.splitlines()[-1])
        assert (last["done_reason"], last["eval_count"]) == ("length", made)
    got = ask(served, options={"num_predict": -1, "stop": ["é"]}, stream=False).json()
    assert (got["message"]["content"], got["done_reason"]) == ("日本語 ", "stop")


def test_a_smaller_context_ends_the_answer_and_a_larger_one_is_refused(served):
    counted = ask(served, "/api/generate", raw=True, prompt="x" * 60, stream=False).json()["prompt_eval_count"]
    assert counted == 60

    def at(n_ctx):
        return ask(served, "/api/generate", raw=True, prompt="x" * 60, options={"num_ctx": n_ctx}, stream=False)

    last = at(64).json()
    assert (last["done_reason"], last["eval_count"]) == ("length", 4)
    assert at(256).json()["done_reason"] == "stop"
    assert at(60).status_code == 400 and "60 tokens" in at(60).json()["error"]
    assert at(257).status_code == 400 and "--ctx" in at(257).json()["error"]
    assert at(0).status_code == at("big").status_code == 400


OPTIONS = {
    "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9, "seed": -1, "repeat_penalty": 1.1,
    "repeat_last_n": -1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "num_thread": 2, "num_gpu": 99,
    "mirostat": 0, "tfs_z": 1.0, "penalize_newline": True, "use_mmap": True, "num_keep": 4, "num_batch": 64,
    "top_n_sigma": -1,
}  # fmt: skip


def test_options_are_taken(served):
    assert ask(served, options=OPTIONS, stream=False).json()["message"]["content"] == TEXT
    assert ask(served, options=dict.fromkeys(OPTIONS), stream=False).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"options": {"mirostat": 1}}, "mirostat"),
        ({"options": {"tfs_z": 0.5}}, "tail-free"),
        ({"options": {"penalize_newline": False}}, "penalties"),
        ({"options": {"rope_frequency_base": 1e6}}, "rope_frequency_base"),
        ({"options": {"temperature": "warm"}}, "temperature"),
        ({"options": {"top_p": 2}}, "top_p"),
        ({"options": {"seed": 2**40}}, "seed"),
        ({"options": []}, "options"),
        ({"format": "json"}, "grammars"),
        ({"format": {"type": "object"}}, "grammars"),
        ({"think": True}, "does not support thinking"),
        ({"think": "deep"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be between 0 and 20"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, "content"),
        ({"messages": [{"role": "user", "content": "Hi", "images": ["aGk="]}]}, "images"),
        ({"messages": ["Hi"]}, "object"),
        ({"messages": [{"content": "Hi"}]}, "role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool call"),
        ({"tools": [{"type": "function"}]}, "tool"),
        ({"model": ""}, "model is required"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_what_chats_refuse(served, body, words):
    reply = ask(served, **body)
    assert reply.status_code == 400 and list(reply.json()) == ["error"] and words in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"images": ["aGk="]}, "images"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"raw": True, "system": "x"}, "raw mode does not support template, system, or context"),
        ({"context": ["x"]}, "context"),
        ({"context": [99999]}, "vocabulary"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "x" * 300}, "context"),
    ],
)
def test_what_texts_refuse(served, body, words):
    reply = ask(served, "/api/generate", **body)
    assert reply.status_code == 400 and list(reply.json()) == ["error"] and words in reply.json()["error"]


def test_what_is_not_there(served):
    for path in ("/api/chat", "/api/generate", "/api/show", "/api/embed", "/api/embeddings"):
        for name in ("nothing", "../bytes", "/etc/passwd", "bytes:7b"):
            reply = served.post(path, {"model": name, "prompt": "x", "messages": HI})
            assert (reply.status_code, reply.json()) == (404, {"error": f"model '{name}' not found"})
    for path in ("/api/pull", "/api/push", "/api/create", "/api/copy"):
        assert served.post(path, {"model": "bytes"}).status_code == 400
    assert served.client.delete("/api/delete").status_code == 400
    reply = served.client.post("/api/chat", content=b"{")
    assert reply.status_code == 400 and list(reply.json()) == ["error"]
    assert served.client.get("/api/chat").status_code == 405


def test_tools_and_their_calls_go_through(served):
    call = {"function": {"name": "warmth", "arguments": {"city": "Rome"}}}
    said = [*HI, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_name": "warmth", "content": "31"}]
    tool = {"type": "function", "function": {"name": "warmth", "description": "", "parameters": {}}}
    assert ask(served, messages=said, tools=[tool], stream=False).json()["message"]["content"] == TEXT


def test_version_and_line(served):
    import bankml

    assert served.client.get("/api/version").json() == {"version": bankml.__version__}
    assert served.client.get("/").text == "Ollama is running" and served.client.head("/").status_code == 200


@pytest.mark.parametrize(
    ("given", "want"),
    [(None, None), (0, 0), ("0", 0), (1.5, 1.5), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400),
     ("90", 90), (-1, float("inf")), ("-1", float("inf")), ("-1m", float("inf")), ("999999h", float("inf"))],
)  # fmt: skip
def test_durations(given, want):
    assert seconds(given) == want


@pytest.mark.parametrize("given", ["", "m", "5 m", "5x", "--5m", "-+5m", "1h-5m", True, [], {}, "9" * 30])
def test_durations_that_are_none(given):
    with pytest.raises(ApiError, match="keep_alive"):
        seconds(given)


def test_a_model_is_loaded_and_let_go(bytes_path):
    with Served(bytes_path, stand_in={"answer": TEXT}) as served:
        assert [each["name"] for each in running(served)] == ["bytes:latest"]
        assert running(served)[0]["expires_at"].startswith("9999")  # nobody gave it a time
        for path in ("/api/generate", "/api/chat"):
            empty = {"prompt": ""} if path == "/api/generate" else {"messages": []}
            got = served.post(path, {"model": "bytes", "keep_alive": 0} | empty).json()
            assert (got["done"], got["done_reason"]) == (True, "unload") and running(served) == []
            got = served.post(path, {"model": "bytes"} | empty).json()
            assert (got["done"], got["done_reason"]) == (True, "load") and len(running(served)) == 1
        assert ask(served, keep_alive=0, stream=False).json()["message"]["content"] == TEXT
        until(lambda: running(served) == [])
        assert ask(served, stream=False, keep_alive="10m").json()["message"]["content"] == TEXT  # loads it again
        assert not running(served)[0]["expires_at"].startswith("9999")
        ask(served, keep_alive=0.3)
        assert len(running(served)) == 1
        until(lambda: running(served) == [])
        # other interfaces count as use, and load it
        chat = {"messages": HI, "temperature": 0}
        assert served.post("/v1/chat/completions", chat).json()["choices"][0]["message"]["content"] == TEXT
        ask(served, keep_alive=-1)
        assert running(served)[0]["expires_at"].startswith("9999")
        assert served.stop() == 0 and len(served.lines) <= 2, served.lines


def test_a_receipt_is_the_one_of_the_other_interfaces(served):
    body = {"bankml_receipt": True, "cache_prompt": False}
    *_, last = ask(served, options=GREEDY | {"seed": 1}, **body).text.splitlines()
    streamed, whole = json.loads(last), ask(served, options=GREEDY | {"seed": 1}, stream=False, **body).json()
    theirs = served.post("/v1/chat/completions", {"messages": HI, "temperature": 0, "seed": 1} | body).json()
    assert len(theirs["bankml_receipt"]["response_sha256"]) == 64
    assert streamed["bankml_receipt"] == whole["bankml_receipt"] == theirs["bankml_receipt"]
    assert "bankml_receipt" not in ask(served, stream=False).json()
