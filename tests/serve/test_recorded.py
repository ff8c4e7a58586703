"""`bankml serve` over SmolLM2 replies what llama-server b11192 replied: texts, counts, probabilities, errors.

Recorded by testing/record_serve.py with two threads of the reference, in this order of requests.
"""

from pathlib import Path

import pytest

from bankml.convert import convert
from bankml.oracle import record
from tests import models, vocab
from tests.serve import cases
from tests.serve.served import Served

GOLDEN = record.read(Path(__file__).parent.parent / "golden" / "serve.json")


@pytest.fixture(scope="module")
def replies():
    """Name of a case -> [status, reply], all of them asked in their order."""
    path = vocab.cached("SmolLM2-135M-Instruct.F16.gguf", lambda made: convert(vocab.smollm2_gguf(), made, "F16"))
    assert models.sha256(path) == GOLDEN["model"]
    with Served(path, "--ctx", "1024", BANKML_LLAMA_THREADS="2") as served:
        found = {}
        for name, (where, body) in cases.CASES.items():
            reply = served.post(where, body)
            found[name] = cases.reply(reply.status_code, reply.text)
        assert served.stop() == 0
        assert len(served.lines) <= 2, served.lines  # that kernels are compiled, and where it listens
    return found


def missing(got, want, at="$") -> str | None:
    """Where `got` lacks something of `want`; further keys of ours are none of the reference's business."""
    if isinstance(want, dict) and isinstance(got, dict):
        wrong = [missing(got.get(key), item, f"{at}.{key}") for key, item in want.items()]
        return next(filter(None, wrong), None)
    if isinstance(want, list) and isinstance(got, list) and len(got) == len(want):
        wrong = [missing(*pair, f"{at}[{i}]") for i, pair in enumerate(zip(got, want, strict=True))]
        return next(filter(None, wrong), None)
    return None if got == want and type(got) is type(want) else f"{at} is {got!r}, not {want!r}"


def told(events) -> dict:
    """What a stream tells, however it is cut into pieces: the reference sends none while a token may become a stop
    string, no role where the first token is not a whole character, and the usage of texts with the last piece."""
    pieces = [event for event in events if event != "[DONE]"]
    choices = [choice for piece in pieces for choice in piece.get("choices", [piece])]
    texts = [choice.get("delta", choice) for choice in choices]
    return {
        "text": "".join(text.get("content") or text.get("text") or "" for text in texts),
        "tokens": [token for choice in choices for token in choice.get("tokens", ())],
        "finish_reason": [choice["finish_reason"] for choice in choices if choice.get("finish_reason")],
        "usage": [piece["usage"] for piece in pieces if piece.get("usage")],
        "last": {key: value for key, value in pieces[-1].items() if key not in ("choices", "usage")},
        "done": events[-1] == "[DONE]",
    }


@pytest.mark.parametrize("name", cases.CASES)
def test_replies_are_the_servers(replies, name):
    (status, got), (want_status, want) = replies[name], GOLDEN["replies"][name]
    assert status == cases.BETTER.get(name, want_status)
    if isinstance(want, list):
        got, want = told(got), told(want)
    if status == 200:
        wrong = missing(got, want)
        assert wrong is None, wrong
    elif name not in cases.BETTER:
        assert got["error"]["type"] == want["error"]["type"]
