"""What a body of Ollama's /api/chat and /api/generate asks of the engine; what bankml cannot do is refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bankml.params import MAX_COUNT, MAX_SEED, MISSING
from bankml.serve.answer import Request
from bankml.serve.asked import FLOATS, WHOLES, kept, stops
from bankml.serve.errors import ApiError
from bankml.serve.fields import Fields
from bankml.serve.ollama_alive import seconds

MACHINE = ("numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "use_mmap", "use_mlock", "num_thread",
           "num_keep", "mirostat_tau", "mirostat_eta")  # fmt: skip
SWITCHES = {  # option -> (the value that means it is off, why it cannot be on)
    "mirostat": (0, MISSING["mirostat"]),
    "tfs_z": (1, "bankml has no tail-free sampling"),
    "penalize_newline": (True, "bankml's penalties leave no token out"),
    "logits_all": (False, "bankml does not have it"),
    "vocab_only": (False, "bankml does not have it"),
    "embedding_only": (False, "bankml does not have it"),
}
OPTIONS = {*FLOATS, *WHOLES, "seed", "stop", "num_predict", "num_ctx", *MACHINE, *SWITCHES}
MAX_TOP = 20


@dataclass(frozen=True)
class Asked:
    """request: for the engine; its prompt is empty where a model is only to be loaded, or let go.

    name: the model as the client calls it; path: its file. context: tokens in front of the prompt, None for a chat.
    keep_alive: seconds, infinite for ever, None where none were given. n_top: so many of the likeliest tokens are told.
    receipt: add a `bankml_receipt` to the last object.
    """

    request: Request
    name: str
    path: Path
    chat: bool
    stream: bool
    keep_alive: float | None
    n_top: int
    receipt: bool
    raw: bool = False
    context: list[int] | None = None

    @property
    def n_probs(self) -> int:
        """How many probabilities of each token are noted."""
        return self.request.sampling.get("n_probs", 0)


def chat(body: Fields, find) -> Asked:
    """Of /api/chat. find: a name -> the path of the model; raises ApiError as it does, and 400."""
    tools = body.array("tools")
    template = thinking(body) | ({"tools": tools} if tools else {})
    return _asked(body, find, messages(body), template=template, chat=True)


def generate(body: Fields, find) -> Asked:
    """Of /api/generate; raises as `chat` does."""
    text, system, raw, context = body.text("prompt", ""), body.text("system"), body.flag("raw"), body.array("context")
    for name in ("suffix", "images", "template"):
        if body.get(name):
            raise ApiError(400, f"'{name}': {REFUSED[name]}")
    if raw and (system or context):
        raise ApiError(400, "raw mode does not support template, system, or context")
    if context and not all(type(token) is int for token in context):
        raise body.wrong("context", "an array of tokens")
    template = thinking(body)
    user = [{"role": "user", "content": text}]
    prompt = text if raw or not text else [{"role": "system", "content": system}] * bool(system) + user
    return _asked(body, find, prompt, template=None if raw else template, chat=False, raw=raw, context=context)


REFUSED = {
    "suffix": "bankml does not fill in the middle",
    "images": "bankml takes text only",
    "template": 'the model\'s own chat template is the one; for another prompt, send it whole, with "raw": true',
}


def _asked(body, find, prompt, *, template, chat, **more) -> Asked:
    if body.get("format") not in (None, ""):
        raise ApiError(400, "'format' needs grammars, which bankml has not yet")
    n_top = body.whole("top_logprobs", 0)
    if not 0 <= n_top <= MAX_TOP:
        raise ApiError(400, f"top_logprobs must be between 0 and {MAX_TOP}")
    name, options = body.text("model", ""), options_of(body)
    path = find(name)
    n_probs = max(1, n_top) if body.flag("logprobs") else 0
    limit = options.whole("num_predict", -1)
    receipt, reuse = kept(body)
    request = Request(
        prompt,
        sampling(options, n_probs),
        max_tokens=limit if limit >= 0 else None,
        stop=stops(options),
        reuse=reuse,
        template=template,
        model=path.stem,
        n_ctx=options.whole("num_ctx", None, low=1),
    )
    stream, alive = body.flag("stream", True), seconds(body.get("keep_alive"))
    return Asked(request, name, path, chat, stream, alive, n_top, receipt, **more)


def messages(body: Fields) -> list[dict]:
    """The messages in the shape of the chat template: `tool_name`, `thinking` and tool calls in OpenAI's words."""
    return [_message(i, message) for i, message in enumerate(body.array("messages", []))]


def _message(i, message) -> dict:
    if not isinstance(message, dict):
        raise ApiError(400, f"message {i} must be an object")
    given = Fields(message)
    if given.get("images"):
        raise ApiError(400, f"message {i}: 'images': {REFUSED['images']}")
    made = {"role": given.text("role", ""), "content": given.text("content", "")}
    if not made["role"]:
        raise ApiError(400, f"message {i} needs a 'role'")
    made |= {"name": name} if (name := given.text("tool_name")) else {}
    made |= {"tool_call_id": call} if (call := given.text("tool_call_id")) else {}
    made |= {"reasoning_content": thought} if (thought := given.text("thinking")) else {}
    if calls := given.array("tool_calls"):
        made["tool_calls"] = [_call(i, call) for call in calls]
    return made


def _call(i, call) -> dict:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"message {i}: a tool call needs a 'function' with a name and arguments")
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def thinking(body: Fields) -> dict[str, Any]:
    """The template's variables for `think`: true, false, or an effort by name."""
    think = body.get("think")
    if think in (None, ""):
        return {}
    if isinstance(think, bool):
        return {"enable_thinking": think}
    if think in ("high", "medium", "low", "max"):
        return {"enable_thinking": True, "reasoning_effort": think}
    allowed = "must be true, false, or one of high, medium, low, max"
    raise ApiError(400, f"invalid think value: {str(think)[:50]!r} ({allowed})")


def options_of(body: Fields) -> Fields:
    """The options; raises ApiError 400 for those that bankml does not have."""
    options = body.object("options", Fields())
    for name, value in options.items():
        if name not in OPTIONS:
            raise ApiError(400, f"option {name[:50]!r}: bankml does not have it; it takes {', '.join(sorted(OPTIONS))}")
        if name in SWITCHES and value is not None and value != SWITCHES[name][0]:
            raise ApiError(400, f"option {name!r}: {SWITCHES[name][1]}")
    return options


def sampling(options: Fields, n_probs: int) -> dict[str, Any]:
    """Fields of `Params`, as far as they are given."""
    given: dict[str, Any] = {name: options.number(name) for name in FLOATS}
    given |= {name: options.whole(name) for name in WHOLES}
    given["seed"] = _seed(options)
    if given["repeat_last_n"] == -1:
        given["repeat_last_n"] = MAX_COUNT  # all of the context
    given["n_probs"] = n_probs or None
    return {name: value for name, value in given.items() if value is not None}


def _seed(options) -> int | None:
    """Below 0 is any seed."""
    seed = options.whole("seed", -1, high=MAX_SEED)
    return None if seed < 0 else seed
