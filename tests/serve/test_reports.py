"""What users of engines like this one reported (streams, stops, threads), as far as no other test has it."""

import json
import os
import subprocess
import sys

import pytest

from tests import conversations
from tests.serve.served import ROOT, Served

TEXT = "日本語 é 👩‍🚀🚀."
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
PLAIN = {"prompt": "Hi", "temperature": 0}
ASKS = {"/v1/chat/completions": CHAT, "/v1/completions": PLAIN, "/completion": PLAIN}


@pytest.fixture(scope="module")
def served(bytes_path):
    with Served(bytes_path, stand_in={"answer": TEXT}) as served:
        yield served


def events(served, path, body) -> list[dict]:
    """The objects of a stream."""
    reply = served.post(path, body | {"stream": True})
    assert reply.status_code == 200, reply.text
    found = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
    if path != "/completion":
        assert found.pop() == "[DONE]"
    return [json.loads(event) for event in found]


def pieces(found) -> list[str]:
    """The texts of a stream, or of a whole reply, one by one."""
    choices = [choice for event in found for choice in event.get("choices", [event])]
    contents = [choice.get("delta") or choice.get("message") or choice for choice in choices]
    return [text for text in (content.get("content") or content.get("text") for content in contents) if text]


def reason(event):
    return event["choices"][0]["finish_reason"] if "choices" in event else event["stop_type"]


@pytest.mark.parametrize("path", ASKS)
def test_streams_have_whole_characters(served, path):
    """H2: each as soon as it is whole, the parts of a joined emoji as the reference streams them."""
    assert pieces(events(served, path, ASKS[path])) == list(TEXT)


@pytest.mark.parametrize("path", ASKS)
def test_a_stop_string_within_characters(served, path):
    """H2: nothing of the stop string is streamed, though each of its characters is a token or several."""
    found = events(served, path, ASKS[path] | {"stop": ["no such", "é 👩"]})
    assert pieces(found) == list("日本語 ") and reason(found[-1]) in ("stop", "word")
    whole = served.post(path, ASKS[path] | {"stop": "é 👩"}).json()
    assert pieces([whole]) == ["日本語 "] and reason(whole) in ("stop", "word")


@pytest.mark.parametrize("path", ASKS)
def test_no_tokens_are_no_tokens(served, path):
    """H6: streamed and not, in every interface."""
    ask = ASKS[path] | {"n_predict" if path == "/completion" else "max_tokens": 0}
    found = events(served, path, ask)
    assert pieces(found) == [] and reason(found[-1]) in ("length", "limit")
    whole = served.post(path, ask).json()
    assert reason(whole) in ("length", "limit")
    assert whole.get("tokens_predicted", whole.get("usage", {}).get("completion_tokens")) == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_usage_comes_in_a_last_chunk_of_its_own(served, path):
    """H1: asked for it is the last event before [DONE], with the counts of the whole reply."""
    *rest, last = events(served, path, ASKS[path] | {"stream_options": {"include_usage": True}})
    whole = served.post(path, ASKS[path]).json()["usage"]
    counts = [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in (last["usage"], whole)]
    assert last["choices"] == [] and counts[0] == counts[1] and counts[0][1] == len(TEXT.encode()) + 1
    assert all(event["choices"] and "usage" not in event for event in rest)


def test_more_threads_than_numba_has(tmp_path):
    """D3: what NUMBA_NUM_THREADS says is no limit and no error."""
    model, texts = conversations.write_tiny(tmp_path / "tiny.gguf"), []
    for threads, more in (("1", {}), ("8", {"NUMBA_NUM_THREADS": "1"})):
        command = ["generate", "-m", model, "--no-gpu", "--threads", threads, "--max", "8", "--temp", "0", "A bank"]
        command = [sys.executable, "-m", "bankml", *command]
        ended = subprocess.run(command, check=False, env=os.environ | more, capture_output=True, cwd=ROOT)
        assert ended.returncode == 0 and b"Traceback" not in ended.stderr, ended.stderr
        texts.append(ended.stdout)
    assert texts[0] == texts[1] != b""
