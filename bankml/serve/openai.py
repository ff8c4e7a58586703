"""OpenAI's interface, as llama-server b11192 gives it: chat and text completions, models."""

import secrets
import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.routing import Route

from bankml.completions import usage
from bankml.generation import Step
from bankml.serve import fields, told
from bankml.serve.answer import Answer
from bankml.serve.asked import Asked, asked, probs
from bankml.serve.errors import ApiError
from bankml.serve.fields import Fields
from bankml.serve.service import Service
from bankml.serve.stream import Json, events
from bankml.version import __version__

FINGERPRINT = f"bankml-{__version__}"
OWN_VARIABLES = ("messages", "tools", "self", "add_generation_prompt")  # of a template, set by other fields


def routes(service: Service) -> list[Route]:
    """/v1/models, /v1/completions, /v1/chat/completions; also without /v1, where llama-server has them so."""

    async def models(request: Request):
        return Json({"object": "list", "data": [_model(service, path) for path in service.names.paths()]})

    async def model(request: Request):
        return Json(_model(service, service.names.find(request.path_params["name"])))

    async def chat(request: Request):
        return await _answered(service, chat_asked(await fields.read(request)), True)

    async def text(request: Request):
        return await _answered(service, text_asked(await fields.read(request)), False)

    return [
        Route("/v1/models", models),
        Route("/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", text, methods=["POST"]),
    ]


def _model(service, path) -> dict:
    about = {"id": path.stem, "object": "model", "created": int(path.stat().st_mtime), "owned_by": "bankml"}
    engine = service.engine
    if engine is not None and path == service.names.resident:
        shape = engine.weights.shape if hasattr(engine.weights, "shape") else None
        about["meta"] = {
            "n_vocab": engine.tokenizer.n_vocab,
            "n_ctx": engine.n_ctx,
            "n_ctx_train": shape.n_ctx_train if shape else None,
            "size": sum(engine.header.sizes),
        }
    return about


# -- what is asked -----------------------------------------------------------------------------------------------------


def chat_asked(body: Fields) -> Asked:
    """Of a chat completion's body."""
    if body.flag("logprobs"):
        n_top = probs(body, "top_logprobs")
        n_probs = max(1, n_top)  # 1 is what makes the engine note them; the list of the likeliest may stay empty
    elif body.get("top_logprobs") is not None:
        raise ApiError(400, "top_logprobs requires logprobs to be set to true", param="top_logprobs")
    else:
        n_probs = n_top = probs(body, "n_probs")
    if body.flag("echo"):
        raise ApiError(400, "'echo' is not for chats", param="echo")
    return asked(body, messages(body), n_probs=n_probs, n_top=n_top, template=template(body))


def messages(body: Fields) -> list[dict]:
    """The messages of a body; the chat template looks at what is in them."""
    found = body.array("messages")
    if found is None:
        raise ApiError(400, "'messages' is required", param="messages")
    for i, message in enumerate(found):
        if not isinstance(message, dict):
            raise ApiError(400, f"message {i} must be an object", param="messages")
    if not found:
        raise ApiError(400, "'messages' is empty", param="messages")
    return found


def template(body: Fields) -> dict:
    """The variables of the chat template: tools, `chat_template_kwargs`, the effort of reasoning."""
    variables = dict(body.object("chat_template_kwargs", {}))
    for name in OWN_VARIABLES:
        if name in variables:
            raise ApiError(400, f"chat_template_kwargs cannot set '{name}'", param="chat_template_kwargs")
    choice = body.get("tool_choice") or "auto"
    if choice not in ("auto", "none"):
        raise ApiError(400, "tool_choice can be 'auto' or 'none'; a forced call needs grammars", param="tool_choice")
    if not body.flag("add_generation_prompt", True):
        raise ApiError(400, "'add_generation_prompt' can only be true", param="add_generation_prompt")
    effort = body.text("reasoning_effort")
    if effort:
        variables |= {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    tools = body.array("tools")
    return variables | ({"tools": tools} if tools and choice != "none" else {})


def text_asked(body: Fields, name: str = "logprobs") -> Asked:
    """Of a text completion's body."""
    n_probs = probs(body, name if body.get(name) is not None else "n_probs")
    if body.flag("echo") and n_probs:
        raise ApiError(400, "'echo' with probabilities is not supported", param="echo")
    return asked(body, prompt(body), n_probs=n_probs)


def prompt(body: Fields):
    """A text, or a list of tokens and texts; an array that holds one such prompt counts as that one."""
    found = body.get("prompt")
    if found is None:
        raise ApiError(400, "'prompt' is required", param="prompt")
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    elif isinstance(found, list) and found and all(isinstance(item, str) for item in found):
        if len(found) > 1:
            raise ApiError(400, "bankml takes one prompt per request, not an array of them", param="prompt")
        found = found[0]
    if isinstance(found, str):
        return found
    if not isinstance(found, list) or not all(type(item) in (int, str) for item in found):
        raise body.wrong("prompt", "a string, or an array of tokens and strings")
    return found


# -- what is told ------------------------------------------------------------------------------------------------------


async def _answered(service: Service, asked: Asked, chat: bool):
    answer = service.answer(asked.request)
    telling = Telling(answer, asked, chat)
    if asked.stream:
        return await events(telling.chunks())
    async with answer:
        return Json(await telling.whole(await answer.text()))


class Telling:
    """An answer in OpenAI's words."""

    def __init__(self, answer: Answer, asked: Asked, chat: bool):
        self.answer, self.asked, self.chat = answer, asked, chat
        self.id, self.created = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(16), int(time.time())

    def head(self, kind: str) -> dict:
        """What every object begins with."""
        name = self.asked.model or self.answer.generation.engine.name
        head = {"id": self.id, "object": kind, "created": self.created, "model": name}
        return head | {"system_fingerprint": FINGERPRINT}

    async def whole(self, text: str) -> dict:
        """The answer in one object."""
        generation = self.answer.generation
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": self.echoed() + text}
        logprobs = self.logprobs(told.all_probs(generation))
        choice = {"index": 0, **content, "logprobs": logprobs, "finish_reason": generation.finish_reason}
        reply = self.head("chat.completion" if self.chat else "text_completion") | {"choices": [choice]}
        return reply | {"usage": usage(generation), "timings": told.timings(generation)} | await self.receipt()

    async def chunks(self) -> AsyncIterator[dict | list[dict]]:
        """The answer as it comes."""
        async with self.answer as answer:
            begun = False
            while steps := await answer.steps():
                chunks = [] if begun else self.begin()
                begun = True
                yield chunks + [self.piece(step) for step in steps if self.is_told(step)]
            generation = answer.generation
            last = self.chunk({} if self.chat else "", [], generation.finish_reason)
            last |= {"timings": told.timings(generation)} | await self.receipt()
            yield [last] if begun else [*self.begin(), last]
            if self.asked.include_usage:
                yield self.head(last["object"]) | {"choices": [], "usage": usage(generation)}

    def is_told(self, step: Step) -> bool:
        """Whether a step is a piece of its own."""
        return bool(step.text or (self.asked.n_probs and step.token is not None))

    def piece(self, step: Step) -> dict:
        """A step's chunk."""
        return self.chunk({"content": step.text} if self.chat else step.text, [step.probs] if step.probs else [])

    def begin(self) -> list[dict]:
        """The first chunk: the role, or the prompt that is to be echoed; none where there is neither."""
        if self.chat:
            return [self.chunk({"role": "assistant", "content": None}, [])]
        return [self.chunk(self.echoed(), [])] if self.asked.echo else []

    def chunk(self, delta, noted, reason: str | None = None) -> dict:
        """One piece; `noted` are the probabilities of its tokens."""
        content = {"delta": delta} if self.chat else {"text": delta}
        choice = {"index": 0, **content, "logprobs": self.logprobs(noted) if noted else None, "finish_reason": reason}
        return self.head("chat.completion.chunk" if self.chat else "text_completion") | {"choices": [choice]}

    def echoed(self) -> str:
        """The prompt's text, if it is to be told."""
        generation = self.answer.generation
        if not self.asked.echo:
            return ""
        return generation.engine.tokenizer.decode(generation.prompt, special=True).decode("utf-8", "replace")

    def logprobs(self, noted) -> dict | None:
        """As llama-server tells them; for texts with OpenAI's own older keys beside."""
        if not self.asked.n_probs:
            return None
        tokenizer, after = self.answer.generation.engine.tokenizer, self.asked.post_sampling_probs
        content = told.probabilities(noted, tokenizer, self.asked.n_top, after)
        if self.chat or after:
            return {"content": content}
        return {
            "content": content,
            "tokens": [item["token"] for item in content],
            "token_logprobs": [item["logprob"] for item in content],
            "top_logprobs": [{top["token"]: top["logprob"] for top in item["top_logprobs"]} for item in content],
        }

    async def receipt(self) -> dict:
        """The receipt, where it was asked for."""
        if not self.asked.receipt:
            return {}
        return {"bankml_receipt": await told.receipt(self.answer)}
