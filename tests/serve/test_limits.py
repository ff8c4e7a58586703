"""What comes from the network and is not as it should be: refused in one reply, and the server goes on."""

import copy
import http.client
import json
import random
import socket
import time

import pytest

from bankml.serve import limits, run
from tests.serve.served import Served

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
KEY = "a key of ours"


@pytest.fixture(scope="module")
def served(bytes_path):
    with Served(bytes_path, stand_in={"answer": "Hello."}) as served:
        yield served
        assert served.post("/v1/chat/completions", CHAT).status_code == 200
        assert not [line for line in served.lines if "Traceback" in line or "Error" in line], served.lines


@pytest.fixture(scope="module")
def locked(bytes_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slots")
    with Served(bytes_path, "--api-key", KEY, "--slot-save-path", str(folder), stand_in={"answer": "Hello."}) as served:
        yield served


def raw(served, data: bytes, wait=5.0) -> bytes:
    """All that comes back for these bytes."""
    with socket.create_connection(served.address, timeout=wait) as connection:
        connection.sendall(data)
        found = b""
        while piece := connection.recv(65536):
            found += piece
    return found


def sent(served, body: bytes, path="/v1/chat/completions"):
    return served.client.post(path, content=body)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe{}", b'{"messages": NaN}', b"{'messages': []}", b"1" * 5000,
        b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}", b"[" * 100_000, b'{"a":' * 100_000,
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
    ],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
def test_broken_bodies_are_400(served, body):
    """H1: the reference calls broken JSON a 500."""
    for path in ("/v1/chat/completions", "/completion", "/tokenize"):
        reply = sent(served, body, path)
        assert reply.status_code == 400 and reply.json()["error"]["message"], reply.text


def test_nulls_and_unknown_fields_are_taken(served):
    nulls = dict.fromkeys(
        ("stop", "temperature", "tools", "seed", "top_p", "logprobs", "top_logprobs", "n", "stream", "stream_options",
         "response_format", "tool_choice", "logit_bias", "max_completion_tokens", "user", "frequency_penalty"),
    )  # fmt: skip
    reply = served.post("/v1/chat/completions", CHAT | nulls | {"temperature": 0, "no_such_field": [1, {"a": None}]})
    assert reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"] == "He"


def test_half_a_surrogate_pair_does_no_harm(served):
    body = b'{"model": null, "prompt": "\\ud800", "n_predict": 2, "temperature": 0, "stop": ["\\udfff"]}'
    reply = sent(served, body, "/completion")
    assert reply.status_code == 200 and reply.json()["content"] == "He"


def test_names_of_models_are_no_paths(served):
    for name in ("/etc/passwd", "../bytes", "x/../bytes", "bytes.gguf/", "\0", ".", "", "a" * 10_000, "%2e%2e/x"):
        reply = served.post("/v1/chat/completions", CHAT | {"model": name})
        assert reply.status_code == (200 if name == "" else 404), name
    assert served.client.get("/v1/models/bytes").json()["id"] == "bytes"
    assert served.client.get("/v1/models/..%2f..%2fetc%2fpasswd").status_code == 404


def test_too_large_a_body_is_not_read(served):
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {limits.MAX_BODY + 1}\r\n\r\n"
    assert raw(served, head.encode()).startswith(b"HTTP/1.1 413 ")
    chunk = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"413" in raw_until_refused(served, head, chunk, 18)


def raw_until_refused(served, head, chunk, times) -> bytes:
    """The first bytes of the reply that comes while chunks are sent."""
    with socket.create_connection(served.address, timeout=10) as connection:
        connection.sendall(head)
        try:
            for _ in range(times):
                connection.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return connection.recv(100)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
    ],
    ids=lambda head: repr(head[:30]),
)
def test_bad_heads_are_refused(served, head):
    assert raw(served, head + b"\r\n\r\n").split(b"\r\n")[0].split(b" ")[1][:1] == b"4"


def test_other_hosts_names_and_pages_are_refused(served):
    """Of a server on loopback: a page whose name was made to lead here cannot ask it."""
    for name, value in (
        ("Host", "evil.example"),
        ("Host", "localhost.evil.example"),
        ("Origin", "http://evil.example"),
    ):
        assert served.client.get("/health", headers={name: value}).status_code == 403
    for name, value in (("Host", "LOCALHOST:1"), ("Host", "[::1]:8080"), ("Origin", "http://localhost:3000")):
        assert served.client.get("/health", headers={name: value}).status_code == 200


def test_methods_and_paths_that_are_not_there(served):
    assert served.client.get("/v1/chat/completions").status_code == 405
    reply = served.client.get("/no/such/path")
    assert reply.status_code == 404 and reply.json()["error"]["code"] == 404


def test_the_description_names_every_path(served):
    about = served.client.get("/openapi.json").json()
    assert about["openapi"] == "3.1.0" and {"/v1/chat/completions", "/completion", "/health"} <= about["paths"].keys()
    for path, methods in about["paths"].items():
        for method in methods:
            assert served.client.request(method, path.replace("{", "").replace("}", "")).status_code not in (405, 500)


def test_a_slow_head_is_not_waited_for(served):
    with socket.create_connection(served.address, timeout=run.HEAD_S + 5) as connection:
        begun = time.monotonic()
        connection.sendall(b"GET /health HT")
        assert connection.recv(100) == b"" and time.monotonic() - begun > run.HEAD_S - 1


def test_one_connection_too_many_is_told_so(bytes_path):
    with Served(bytes_path, stand_in={"answer": "Hello."}) as served:
        held = [socket.create_connection(served.address) for _ in range(run.MAX_CONNECTIONS)]
        try:
            refused = raw(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert refused.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1" in refused
            held.pop().close()
            time.sleep(0.1)
            assert served.client.get("/health").status_code == 200
        finally:
            for connection in held:
                connection.close()


def test_a_key_is_asked_for(locked):
    assert locked.client.get("/health").status_code == 200
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": KEY}, {"Authorization": "Bearer é".encode()}):
        reply = locked.client.get("/v1/models", headers=headers)
        assert reply.status_code == 401 and reply.json()["error"]["type"] == "authentication_error"
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"X-Api-Key": KEY}, {"Authorization": f"bearer {KEY}"}):
        assert locked.client.get("/v1/models", headers=headers).status_code == 200


def test_slot_files_have_plain_names(locked):
    for name in ("../x", "/etc/passwd", "", ".hidden", "a/b", "x\0", None, 7):
        reply = locked.post("/slots/0?action=save", {"filename": name}, headers={"X-Api-Key": KEY})
        assert reply.status_code == 400, name
    missing = locked.post("/slots/0?action=restore", {"filename": "none"}, headers={"X-Api-Key": KEY})
    assert missing.status_code == 400


def test_slots_are_saved_and_restored(smollm2_path, tmp_path):
    with Served(smollm2_path, "--ctx", "256", "--slot-save-path", str(tmp_path)) as served:
        ask = {"prompt": "Once upon a time, in a", "n_predict": 3, "temperature": 0}
        served.post("/completion", ask)
        saved = served.post("/slots/0?action=save", {"filename": "a.slot"}).json()
        assert served.post("/slots/0?action=erase", {}).json() == {"id_slot": 0, "n_erased": saved["n_saved"]}
        restored = served.post("/slots/0?action=restore", {"filename": "a.slot"}).json()
        assert restored["n_restored"] == saved["n_saved"] > 0 and restored["n_read"] == saved["n_written"]
        assert served.post("/completion", ask).json()["timings"]["cache_n"] > 0
        (tmp_path / "link").symlink_to("/etc/passwd")
        assert served.post("/slots/0?action=restore", {"filename": "link"}).status_code == 400


ODD = [None, True, -1, 0, 2**31, 2**63, 1e308, 0.5, "", "x", "\0", [], [[]], {}, {"a": 1}, [None], "🚀", [1, "a"], -0.0]
VALID = [
    ("/v1/chat/completions", CHAT | {"stop": ["z"], "logprobs": True, "top_logprobs": 1, "tools": [], "stream": True,
                                     "chat_template_kwargs": {"a": 1}, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 2, "logprobs": 1, "seed": 1, "logit_bias": {"65": 1}, "n": 1}),
    ("/completion", {"prompt": ["x", 65], "n_predict": 2, "samplers": ["top_k"], "dry_multiplier": 1.0,
                     "dry_sequence_breakers": ["a"], "logit_bias": [[65, False]], "n_probs": 1, "stream": False}),
    ("/tokenize", {"content": "x", "with_pieces": True, "add_special": True}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/apply-template", {"messages": CHAT["messages"], "tools": [{"type": "function", "function": {"name": "f"}}]}),
]  # fmt: skip


def mutated(rng, value):
    """A copy with one thing changed, somewhere in it."""
    value = copy.deepcopy(value)
    at = value
    while True:
        key = rng.choice(sorted(at) if isinstance(at, dict) else range(len(at)))
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.6:
            at = at[key]
            continue
        if rng.random() < 0.2:
            del at[key]
        else:
            at[key] = rng.choice(ODD)
        return value


def test_a_thousand_mutations_are_answered(served):
    rng, connection = random.Random(6), http.client.HTTPConnection(*served.address, timeout=30)
    for _ in range(1000):
        path, body = rng.choice(VALID)
        for _ in range(rng.randint(1, 3)):
            body = mutated(rng, body) if body else body
        connection.request("POST", path, json.dumps(body))
        reply = connection.getresponse()
        text = reply.read()
        assert reply.status < 500, (path, body, text)
        if reply.status != 200:
            assert json.loads(text)["error"]["message"], (path, body)
    connection.close()
