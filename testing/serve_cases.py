"""Requests for the fuzzer of `bankml serve`: valid ones of every interface, and what is changed in them.

A case is a request's head without host and length, an empty line, and the body.
"""

import json
import random
from typing import NamedTuple

from tests.serve import cases

MODEL = "tiny"
USER = [{"role": "user", "content": "A bank"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TALK = [{"role": "system", "content": "Short."}, *USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3"}]}]  # fmt: skip
OWN_CALL = {"function": {"name": "f", "arguments": {"a": 1}}}
CHAIN = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.9, "top_n_sigma": -1.0, "seed": 3,
         "repeat_penalty": 1.1, "repeat_last_n": 64, "presence_penalty": 0.1, "frequency_penalty": 0.1}  # fmt: skip
LESS_USED = {"xtc_probability": 0.1, "xtc_threshold": 0.1, "dynatemp_range": 0.2, "dynatemp_exponent": 1.0,
             "min_keep": 1, "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
             "dry_sequence_breakers": ["\n"], "samplers": ["penalties", "dry", "top_k", "temperature"],
             "ignore_eos": True, "logit_bias": [[65, 1.5], ["b", False]], "cache_prompt": False}  # fmt: skip
TOLD = {"stream": True, "stream_options": {"include_usage": True}, "bankml_receipt": True, "timings_per_token": True,
        "post_sampling_probs": True, "return_tokens": True}  # fmt: skip
REFUSED = {"grammar": "root ::= x", "json_schema": {}, "mirostat": 0, "n": 1, "response_format": {"type": "text"},
           "tool_choice": "auto", "chat_template_kwargs": {"a": 1}, "reasoning_effort": "none", "echo": True,
           "lora": [], "suffix": "", "n_cmpl": 1, "t_max_predict_ms": -1, "add_generation_prompt": True}  # fmt: skip
OPTIONS = CHAIN | {"num_predict": 6, "num_ctx": 128, "stop": ["z"], "num_thread": 2, "mirostat": 0, "tfs_z": 1.0}
SHORT = {"max_tokens": 6, "stop": ["zz"]}
POSTS = [
    ("/v1/chat/completions", {"messages": USER, **SHORT, **CHAIN}),
    ("/v1/chat/completions", {"messages": TALK, "tools": [TOOL], "logprobs": True, "top_logprobs": 2, **SHORT, **TOLD}),
    ("/chat/completions", {"model": MODEL, "messages": USER, "max_completion_tokens": 4, **LESS_USED}),
    ("/v1/completions", {"prompt": "The bank", "logprobs": 2, "echo": True, "user": "x", **SHORT, **LESS_USED}),
    ("/v1/completions", {"prompt": [65, 66, 67], "logit_bias": {"65": -100}, **SHORT, **TOLD}),
    ("/completion", {"prompt": ["A", 65, " b"], "n_predict": 5, "n_probs": 2, "id_slot": 0, **CHAIN}),
    ("/completion", {"prompt": "A", "n_predict": 5, **LESS_USED, **TOLD}),
    ("/completions", {"prompt": "A", "n_predict": 2, "temperature": 0}),
    ("/tokenize", {"content": "A <|im_end|> é", "with_pieces": True, "add_special": True, "parse_special": False}),
    ("/tokenize", {"content": ["A", 65, "b"]}),
    ("/detokenize", {"tokens": [65, 66, 256]}),
    ("/apply-template", {"messages": TALK, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}}),
    ("/slots/0?action=save", {"filename": "a.slot"}),
    ("/slots/0?action=restore", {"filename": "a.slot"}),
    ("/slots/0?action=erase", {}),
    ("/api/chat", {"model": MODEL, "messages": USER, "options": OPTIONS, "keep_alive": "5m"}),
    ("/api/chat", {"model": MODEL + ":latest", "messages": [*USER, {"role": "assistant", "tool_calls": [OWN_CALL]}],
                   "tools": [TOOL], "stream": False, "think": False, "options": OPTIONS}),
    ("/api/generate", {"model": MODEL, "prompt": "A bank", "system": "Short.", "logprobs": True, "top_logprobs": 2,
                       "context": [65, 66], "stream": False, "options": OPTIONS, "bankml_receipt": True}),
    ("/api/generate", {"model": MODEL, "prompt": "A bank", "raw": True, "options": OPTIONS, "keep_alive": -1}),
    ("/api/generate", {"model": MODEL, "prompt": "", "keep_alive": "10m"}),
    ("/api/show", {"model": MODEL, "verbose": True}),
    ("/api/embed", {"model": MODEL, "input": "x"}),
    ("/api/pull", {"model": MODEL}),
    *((path, {"max_tokens": 8, "n_predict": 8, **body}) for path, body in cases.CASES.values()),
]  # fmt: skip
GETS = ("/", "/health", "/v1/health", "/props", "/slots", "/v1/models", "/models", "/v1/models/tiny", "/metrics",
        "/openapi.json", "/api/tags", "/api/ps", "/api/version", "/bankml/snapshot", "/no/such/path")  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "QUERY", "get")
TARGETS = ("/%2e%2e/%2e%2e/etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/%00", "/v1/models/%ff", "//",
           "/slots/-1?action=erase", "/slots/0?action=%00", "/slots/0", "/slots/9999999999999999999?action=erase", "*",
           "/slots/0?action=erase&action=save", "/health?" + "a=b&" * 500, "/api/../health", "/?%",
           "/v1/models/" + "a" * 5000, "/v1//chat/completions", "/completion/", "/%", "/health#x",
           "http://localhost/health", "/\\", "/health?=&;=")  # fmt: skip
TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
         "application/json; charset=utf-16", "application/json; charset=no-such", "", "\u00ff",
         "application/" + "x" * 3000)  # fmt: skip
HEADERS = ("Accept: nonsense", "Accept-Encoding: gzip, br, *;q=0", "Content-Encoding: gzip", "Expect: 100-continue",
           "Expect: nonsense", "Range: bytes=0-1", "If-None-Match: *", "Upgrade: websocket\r\nConnection: Upgrade",
           "Upgrade: h2c", "X-Forwarded-Host: evil.example", "Cookie: " + "a=b; " * 200, "Authorization: Basic Og==",
           "Authorization: Bearer", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Content-Length: 0",
           "Content-Length: 99999999999999999999", "Content-Length: x", "Connection: close, keep-alive", "Te: trailers",
           "Forwarded: for=\"_x\"", "X: \u00ff", "Origin: null", "Origin: http://localhost", "Date: now")  # fmt: skip


class Raw(NamedTuple):
    """JSON, or what looks like it, as it is to be written."""

    text: str


class Pairs(list):
    """An object as a list of [key, value]: a key may come twice."""


RAWS = tuple(map(Raw, ("1e999", "-1e999", "-0", "-0.0", "1e-400", "1" + "0" * 400, "-1" + "0" * 400, "9" * 5000, "NaN",
                       "Infinity", "-Infinity", "1.0", "1E0", "0x10", "01", ".5", "1e309", "'a'", "undefined",
                       "[1,]", "{,}", "tru", "", '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\x"', '"\x01"',
                       "1e1000000")))  # fmt: skip
NUMBERS = (0, -1, 1, 2, 3.5, -0.5, 256, 257, 258, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 2**53 + 1,
           2**63 - 1, 2**63, 2**64, -(2**63), 1e38, -1e38, 3.5e38, 1e-46, 1e300, 1e308, 5e-324, 1e-3)  # fmt: skip
STRINGS = ("", " ", "\0", "a\0b", "\ud800", "\udfff\ud800", "\ud83d", "é", "🚀", "\u2028", "\ufeff", "../x",
           "/etc/passwd", "..", "a.slot", "a/b", "%2e%2e", "\r\nX: y", "<|im_start|>", "<|im_end|>", "{{ 7*7 }}",
           "true", "null", "0", "-1", "1e9", "5m", "9" * 40, "x" * 300, "x" * 20_000, "tiny", "tiny.gguf",
           "tiny:latest", "dktypmxe", "__class__", "\x7f\x1b[31m", "system", "user", "assistant", "tool", "none",
           "auto", "high", "json")  # fmt: skip
PLAIN = (None, True, False, [], {}, [[]], [None], [{}], {"": None}, [0, "a", None, 1.5], ["a"] * 64, ["a"] * 1000,
         [65] * 300, [[65, False]], [[65, None]], [[65]], [["a", 1e308]], {"65": 1}, {"a": "b"},
         {"type": "json_object"}, [[2**40, 1]], [[-1, 1]], {"type": "text", "text": "a"}, [{"type": "image_url",
         "image_url": {"url": "x"}}])  # fmt: skip
NAMES = sorted(
    {name for _, body in POSTS for name in body} | {*REFUSED, "images", "format", "suffix", "template", "options"}
)
NAMES += ["", "__class__", "self", "a" * 300, "\ud800", "\0"]


def generate(rng: random.Random) -> bytes:
    """A request."""
    if rng.random() < 0.08:
        return head("GET", rng.choice(GETS + TARGETS) + rng.choice(("", "", "?a=b", "?model=x&%00")), some_headers(rng))
    path, body = rng.choice(POSTS)
    tree = opened(body)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        tree = changed(rng, tree)
    data = encoded(tree)
    if rng.random() < 0.2:
        data = damaged(rng, data)
    method = "POST" if rng.random() < 0.97 else rng.choice(METHODS)
    path = path if rng.random() < 0.95 else rng.choice((*TARGETS, path + "?" + "x" * 50, path + "/", path[:-1], *GETS))
    return head(method, path, ["Content-Type: application/json"] if rng.random() < 0.9 else some_headers(rng)) + data


def head(method, path, headers) -> bytes:
    """A request's head, without what every one needs."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "", ""]).encode("latin-1", "replace")


def some_headers(rng) -> list[str]:
    """A few of the odd ones."""
    found = [f"Content-Type: {rng.choice(TYPES)}"] if rng.random() < 0.5 else []
    return found + rng.sample(HEADERS, rng.choice((0, 1, 1, 2)))


def opened(value):
    """JSON with its objects as Pairs."""
    if isinstance(value, dict):
        return Pairs([key, opened(item)] for key, item in value.items())
    return [opened(item) for item in value] if isinstance(value, list) else value


def encoded(value) -> bytes:
    """The text of an opened JSON value."""
    return _text(value).encode()


def _text(value) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)


def any_value(rng):
    """One that may be anywhere, opened."""
    kind = rng.randrange(12)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice(STRINGS)
    if kind < 9:
        return opened(rng.choice(PLAIN))
    if kind < 11:
        return rng.choice(RAWS)
    depth = rng.choice((5, 50, 99, 101, 3000, 200_000))
    return Raw(rng.choice(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth)))


def changed(rng, tree):
    """The value with one change, somewhere in it; what it was given is changed."""
    if not isinstance(tree, list) or not tree:
        return any_value(rng)
    at = rng.randrange(len(tree))
    here = isinstance(tree, Pairs)
    inner = tree[at][1] if here else tree[at]
    if isinstance(inner, list) and inner and rng.random() < 0.6:
        inner = changed(rng, inner)
        tree[at] = [tree[at][0], inner] if here else inner
        return tree
    kind = rng.randrange(10)
    if kind == 0:
        del tree[at]
    elif kind == 1:
        tree.insert(rng.randrange(len(tree) + 1), [tree[at][0], any_value(rng)] if here else inner)
    elif kind == 2:
        name = rng.choice(NAMES)
        tree[at : at + rng.randrange(2)] = [[name, inner]] if here else [Pairs([[name, inner]])]
    elif kind == 3:
        name, value = rng.choice(NAMES), any_value(rng)
        tree.append([name, value] if here else value)
    else:
        value = other(rng, inner) if rng.random() < 0.4 else any_value(rng)
        tree[at] = [tree[at][0], value] if here else value
    return tree


def other(rng, value):
    """A value of the same kind, or one that wraps it."""
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None, 0, 1, "true"))
    if isinstance(value, int | float):
        return rng.choice((*NUMBERS, -value, float(value), str(value)))
    if isinstance(value, str):
        return rng.choice((*STRINGS, value * 2, value + "\0", value[:1], [value], value.upper()))
    return rng.choice((value * 2, value[::-1], [value], list(value), Pairs([["a", value]]), value * 20))


def damaged(rng, data: bytes) -> bytes:
    """A change of bytes."""
    raw = bytearray(data)
    at, kind = rng.randrange(len(raw) + 1), rng.randrange(8)
    if kind == 0 and raw:
        raw[at % len(raw)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del raw[at:]
    elif kind == 2:
        del raw[at : at + rng.randrange(1, 20)]
    elif kind == 3:
        raw[at:at] = raw[at : at + rng.randrange(1, 100)]
    elif kind == 4:
        raw[at:at] = rng.choice(
            (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\0", b"\xf4\x90\x80\x80", b"\r\n\r\n", b"\xef\xbb\xbf")
        )
    elif kind == 5:
        return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b" \n", b"\0", b")]}'\n", b"data: ")) + data
    elif kind == 6:
        return data + rng.choice((b"x", data, b"\0", b"}", b"\n\n", b"GET / HTTP/1.1\r\n\r\n"))
    else:
        return data.decode().encode(rng.choice(("utf-16", "utf-32", "utf-7", "utf-16-be")), "replace")
    return bytes(raw)
