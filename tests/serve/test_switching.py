"""Two models in the folder: a request by name swaps the resident one, through OpenAI's and Ollama's interfaces."""

import json
import threading

import ollama
import openai
import pytest

import bankml
from tests import conversations
from tests.serve.served import Served

MOST, OPTIONS = 8, {"temperature": 0, "num_predict": 8}
MESSAGES = [{"role": "user", "content": "A bank"}]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Two models of two types of weights, which answer differently, and a broken one."""
    folder = tmp_path_factory.mktemp("home") / "models"
    folder.mkdir()
    first = conversations.write_tiny(folder / "first.gguf")
    second = conversations.write_tiny(folder / "second.gguf", "q2_0")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    return first, second


@pytest.fixture(scope="module")
def answers(paths):
    """Name -> what the engine alone answers."""
    found = {}
    for path in paths:
        with bankml.load(path, n_ctx=512, gpu=False) as engine:
            found[path.stem] = engine.chat(MESSAGES, temperature=0, max_tokens=MOST).text
    assert len(set(found.values())) == 2, "the two models have to answer differently"
    return found


@pytest.fixture(scope="module")
def served(paths):
    with Served(paths[0], "--ctx", "512", "--queue", "64", BANKML_HOME=str(paths[0].parent.parent)) as served:
        yield served


def by_ollama(served, name) -> str:
    reply = served.post("/api/chat", {"model": name, "messages": MESSAGES, "options": OPTIONS, "stream": False})
    assert reply.status_code == 200, reply.text
    return reply.json()["message"]["content"]


def by_openai(served, name) -> str:
    ask = {"model": name, "messages": MESSAGES, "temperature": 0, "max_tokens": MOST}
    reply = served.post("/v1/chat/completions", ask)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def by_stream(served, name) -> str:
    reply = served.post("/api/chat", {"model": name, "messages": MESSAGES, "options": OPTIONS})
    return "".join(json.loads(line)["message"]["content"] for line in reply.text.splitlines())


WAYS = (by_ollama, by_openai, by_stream)


def resident(served) -> list[str]:
    return [each["name"] for each in served.client.get("/api/ps").json()["models"]]


def test_a_name_swaps_the_resident_model(served, answers):
    names = {each["name"] for each in served.client.get("/api/tags").json()["models"]}
    assert {"first:latest", "second:latest"} <= names
    for way in WAYS:
        for name in ("second", "first"):
            assert way(served, name) == answers[name] and resident(served) == [f"{name}:latest"]
    assert by_openai(served, "second") == answers["second"]
    unnamed = served.post("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0, "max_tokens": MOST})
    assert unnamed.json()["choices"][0]["message"]["content"] == answers["second"]


def test_the_clients_swap_it(served, answers):
    with (
        ollama.Client(host=served.url) as one,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as other,
    ):
        assert one.chat("first", MESSAGES, options=OPTIONS).message.content == answers["first"]
        got = other.chat.completions.create(model="second", messages=MESSAGES, temperature=0, max_tokens=MOST)
        assert got.choices[0].message.content == answers["second"]
        assert [each.model for each in one.ps().models] == ["second:latest"]
        with pytest.raises(openai.NotFoundError):
            other.chat.completions.create(model="third", messages=MESSAGES)
        with pytest.raises(ollama.ResponseError, match="model 'third' not found"):
            one.chat("third", MESSAGES)
        assert [each.model for each in one.ps().models] == ["second:latest"]  # as it was


def test_a_model_that_cannot_be_opened_harms_no_other(served, answers):
    for path in ("/api/chat", "/v1/chat/completions"):
        reply = served.post(path, {"model": "broken", "messages": MESSAGES})
        assert reply.status_code == 400 and "broken" in reply.text
        assert by_openai(served, "first") == answers["first"]


def test_many_at_once_swap_and_every_answer_is_its_models(served, answers):
    asks = [(WAYS[i % 3], ("first", "second", "first:latest", "second")[i % 4]) for i in range(24)]
    asks = [(by_ollama if ":" in name else way, name) for way, name in asks]
    got = [None] * len(asks)

    def one(i):
        way, name = asks[i]
        got[i] = way(served, name)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [answers[name.removesuffix(":latest")] for _, name in asks]


def test_unloading_another_model_leaves_the_resident_one(served, answers):
    assert by_ollama(served, "first") == answers["first"]
    assert served.post("/api/generate", {"model": "second", "keep_alive": 0}).json()["done_reason"] == "unload"
    assert resident(served) == ["first:latest"]
    assert served.post("/api/generate", {"model": "first", "keep_alive": 0}).json()["done_reason"] == "unload"
    assert resident(served) == []
    for way, name in zip(WAYS, ("second", "first", "second"), strict=True):
        assert way(served, name) == answers[name]


def test_nothing_unforeseen_was_logged(served):
    assert served.stop() == 0 and len(served.lines) <= 2, served.lines
