"""What the soak asks: questions with the engine's own answers, in each interface's words, and malformed requests."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bankml.api import Model

WORDS = ("bank", "river", "fox", "winter", "letter", "stone", "yellow", "seven", "market", "bread", "window")


@dataclass(frozen=True)
class Solo:
    """An answer: its text, why it ended ("stop" or "length"), and the tokens of the prompt and the answer."""

    text: str
    reason: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Ask:
    """A request as it is sent, and what must come back."""

    interface: str
    path: str
    body: dict[str, Any]
    want: Solo

    @property
    def data(self) -> bytes:
        """The body."""
        return json.dumps(self.body).encode()

    @property
    def long(self) -> bytes:
        """The body of the same with a long answer."""
        if "options" in self.body:
            return json.dumps(self.body | {"options": self.body["options"] | {"num_predict": 400}}).encode()
        return json.dumps(self.body | {name: 400 for name in ("max_tokens", "n_predict") if name in self.body}).encode()

    def said(self, reply: bytes) -> Solo:
        """What a complete reply says. Raises an error for one that is not complete."""
        return INTERFACES[self.interface].said(reply)


@dataclass(frozen=True)
class Interface:
    """path; chat: messages or a text; body(question, stream) and said(reply)."""

    path: str
    chat: bool
    body: Callable[[dict, bool], dict]
    said: Callable[[bytes], Solo]


def _events(reply: bytes) -> list[dict]:
    """The objects of a whole reply, one or those of a stream."""
    if not reply.startswith(b"data: "):
        return [json.loads(line) for line in reply.splitlines()]
    *events, rest = reply.decode().split("\n\n")
    assert not rest, "the stream is cut"
    return [json.loads(event.removeprefix("data: ")) for event in events if event != "data: [DONE]"]


def _openai_said(reply: bytes) -> Solo:
    streamed = reply.startswith(b"data: ")
    assert not streamed or reply.endswith(b"data: [DONE]\n\n"), "the stream has no end"
    text, reason, usage = "", None, {}
    for event in _events(reply):
        assert "error" not in event, event
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            content = choice.get("delta") or choice.get("message")
            text += (choice.get("text") if content is None else content.get("content")) or ""
            reason = choice["finish_reason"] or reason
    return Solo(text, reason, usage["prompt_tokens"], usage["completion_tokens"])


def _own_said(reply: bytes) -> Solo:
    events = _events(reply)
    last = events[-1]
    assert last["stop"] is True, last
    reason = "length" if last["stop_type"] == "limit" else "stop"
    text = "".join(event["content"] for event in events)
    return Solo(text, reason, last["tokens_evaluated"], last["tokens_predicted"])


def _ollama_said(reply: bytes) -> Solo:
    events = _events(reply)
    last = events[-1]
    assert last.get("done") is True, last
    text = "".join(event["message"]["content"] if "message" in event else event["response"] for event in events)
    return Solo(text, last["done_reason"], last["prompt_eval_count"], last["eval_count"])


def _openai_body(question, stream):
    given = question["sampling"] | {"max_tokens": question["most"], "stop": question["stop"], **question["exact"]}
    prompt = {"messages": question["messages"]} if question["chat"] else {"prompt": question["text"]}
    return prompt | given | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


def _own_body(question, stream):
    given = question["sampling"] | {"n_predict": question["most"], "stop": question["stop"], **question["exact"]}
    return {"prompt": question["text"], "stream": stream} | given


def _ollama_body(question, stream):
    options = question["sampling"] | {"num_predict": question["most"], "stop": question["stop"]}
    prompt = {"messages": question["messages"]} if question["chat"] else {"prompt": question["text"], "raw": True}
    given = {"model": question["model"], "options": options} | prompt | question["exact"]
    return given if stream else given | {"stream": False}


INTERFACES = {
    "OpenAI chat": Interface("/v1/chat/completions", True, _openai_body, _openai_said),
    "OpenAI text": Interface("/v1/completions", False, _openai_body, _openai_said),
    "llama-server": Interface("/completion", False, _own_body, _own_said),
    "Ollama chat": Interface("/api/chat", True, _ollama_body, _ollama_said),
    "Ollama generate": Interface("/api/generate", False, _ollama_body, _ollama_said),
}


def asks(model: Model, rng: random.Random, count: int) -> list[Ask]:
    """`count` requests over all interfaces, each answered by the engine alone first."""
    names = list(INTERFACES)
    return [_ask(model, rng, names[i % len(names)], i // len(names) % 2 == 0) for i in range(count)]


def _ask(model, rng, name, stream) -> Ask:
    interface = INTERFACES[name]
    text = " ".join(rng.choices(WORDS, k=rng.choice([2, 5, 9, 40])))
    question = {
        "model": model.name,
        "chat": interface.chat,
        "text": text,
        "messages": [{"role": "user", "content": text}],
        "most": rng.choice([1, 3, 12, 24, 48]),
        "stop": rng.choice([[], [], ["e"], ["ab", "no such"]]),
        "sampling": rng.choice(
            [
                {"temperature": 0.0, "seed": 1},
                {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": rng.randrange(2**32 - 1)},
                {"temperature": 1.2, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": rng.randrange(2**32 - 1)},
            ]
        ),
        # What an earlier prompt left is not taken over, or only where it changes no bit: the answer is the solo one's.
        "exact": rng.choice([{"cache_prompt": False}, {"bankml_receipt": True}]),
    }
    generation = model.generate(
        question["messages"] if interface.chat else text,
        model.sampling(**question["sampling"]),
        max_tokens=question["most"],
        stop=question["stop"],
        reuse="off",
    )
    text = "".join(step.text for step in generation)
    want = Solo(text, generation.finish_reason, len(generation.prompt), generation.completion_tokens)
    return Ask(name, interface.path, interface.body(question, stream), want)


def malformed(rng: random.Random, ask: Ask) -> bytes:
    """A whole request, head and body, that must get a status 4xx."""
    body, path, method, extra = ask.data, ask.path, "POST", ""
    kind = rng.randrange(8)
    if kind == 0:
        body = body[: rng.randrange(len(body))]
    elif kind == 1:
        body = b'{"messages":' + b"[" * 500 + b"]" * 500 + b"}"
    elif kind == 2:
        name = rng.choice(["messages", "prompt", "stream"])
        body = json.dumps(ask.body | {"messages": 7, "prompt": {"a": 1}, name: 3.5}).encode()
    elif kind == 3:
        body = rng.randbytes(rng.randrange(1, 400))
    elif kind == 4:
        path = "/no/such/path"
    elif kind == 5:
        method = "DELETE"
    elif kind == 6:
        extra = "X-Long: " + "a" * 20_000 + "\r\n"
    else:
        return rng.choice([b"\x16\x03\x01\x02\x00", b"POST /completion\r\n", b"GET / HTTP/1.1\r\n"]) + b"\r\n\r\n"
    return request(path, body, method, extra + "Connection: close\r\n")


def request(path: str, body: bytes, method="POST", extra="") -> bytes:
    """A request's bytes."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{extra}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
