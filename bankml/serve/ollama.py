"""Ollama's interface: chats and texts as lines of JSON, models, and how long they stay loaded."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.requests import Request
from starlette.routing import Route

from bankml.generation import Generation, Step
from bankml.serve import fields, ollama_asked, ollama_models, told
from bankml.serve.answer import Answer
from bankml.serve.errors import ApiError
from bankml.serve.ollama_alive import KeepAlive
from bankml.serve.ollama_asked import Asked
from bankml.serve.service import Service
from bankml.serve.stream import Json, lines
from bankml.version import __version__

NO_EMBEDDINGS = "this model does not support embeddings"
NO_CHANGES = "bankml does not change its models over HTTP; see `bankml pull`, `bankml convert`, `bankml models`"
CHANGES = ("pull", "push", "create", "copy")


def routes(service: Service) -> list[Route]:
    """/api/chat, /api/generate, /api/tags, /api/ps, /api/show, /api/version; what bankml has not says so."""
    alive = KeepAlive(service)

    def find(name):
        return ollama_models.find(service.names, name)

    async def chat(request: Request):
        return await _reply(service, alive, ollama_asked.chat(await fields.read(request), find))

    async def generate(request: Request):
        return await _reply(service, alive, ollama_asked.generate(await fields.read(request), find))

    async def tags(request: Request):
        paths = service.names.paths()
        return Json({"models": await service.aside(ollama_models.entries, paths)})

    async def running(request: Request):
        return Json({"models": await _running(service, alive)})

    async def show(request: Request):
        body = await fields.read(request)
        path = find(body.text("model") or body.text("name", ""))
        return Json(await service.aside(ollama_models.shown, path, body.flag("verbose")))

    async def version(request: Request):
        return Json({"version": __version__})

    async def embed(request: Request):
        body = await fields.read(request)
        find(body.text("model", ""))
        raise ApiError(400, NO_EMBEDDINGS)

    async def change(request: Request):
        raise ApiError(400, NO_CHANGES)

    return [
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/generate", generate, methods=["POST"]),
        Route("/api/tags", tags),
        Route("/api/ps", running),
        Route("/api/show", show, methods=["POST"]),
        Route("/api/version", version),
        Route("/api/embed", embed, methods=["POST"]),
        Route("/api/embeddings", embed, methods=["POST"]),
        *[Route(f"/api/{name}", change, methods=["POST"]) for name in CHANGES],
        Route("/api/delete", change, methods=["DELETE"]),
    ]


async def _running(service, alive) -> list[dict]:
    engine, path = service.engine, service.names.resident
    if engine is None:
        return []
    found = await service.aside(ollama_models.entries, [path])
    expires = ollama_models.instant(alive.expires_at)
    more = {"expires_at": expires, "size_vram": 0, "context_length": engine.n_ctx}
    return [{key: value for key, value in about.items() if key != "modified_at"} | more for about in found]


async def _reply(service: Service, alive: KeepAlive, asked: Asked):
    if not asked.request.prompt:
        return Json(await _loaded(service, alive, asked))
    if (asked.request.template or {}).get("enable_thinking") and not await service.aside(
        ollama_models.thinks, asked.path
    ):
        raise ApiError(400, f'"{asked.name}" does not support thinking')
    if asked.context:
        asked = await _continued(service, asked)
    answer = service.answer(asked.request)
    alive.ask(asked.path, asked.keep_alive)
    telling = Telling(answer, asked)
    if asked.stream:
        return await lines(telling.lines())
    async with answer:
        return Json(await telling.whole(await answer.text()))


async def _loaded(service, alive, asked) -> dict:
    """The reply to an empty prompt: the model is loaded, or let go where keep_alive is 0."""
    if asked.keep_alive == 0:
        await alive.unload(asked.path)
    else:
        await service.load(asked.path.stem)
        alive.ask(asked.path, asked.keep_alive)
        alive.used()
    return (
        _head(asked)
        | _content(asked, "")
        | {"done": True, "done_reason": "load" if asked.keep_alive != 0 else "unload"}
    )


async def _continued(service, asked: Asked) -> Asked:
    """With the tokens of an earlier answer in front of the prompt."""
    engine, request = await service.load(asked.path.stem), asked.request

    def made():
        text = engine.prompts.render(request.prompt, **(request.template or {}))
        return [*asked.context, *engine.tokenizer.encode(text)]

    return replace(asked, request=replace(request, prompt=await service.aside(made), template=None))


def _head(asked: Asked) -> dict:
    return {"model": asked.name, "created_at": ollama_models.instant(time.time())}


def _content(asked: Asked, text: str) -> dict:
    return {"message": {"role": "assistant", "content": text}} if asked.chat else {"response": text}


class Telling:
    """An answer in Ollama's words."""

    def __init__(self, answer: Answer, asked: Asked):
        self.answer, self.asked = answer, asked

    async def whole(self, text: str) -> dict:
        """The answer in one object."""
        return await self.last(text) | self.logprobs(told.all_probs(self.answer.generation))

    async def lines(self) -> AsyncIterator[list[dict] | dict]:
        """The answer as it comes, an object a line."""
        async with self.answer as answer:
            while steps := await answer.steps():
                if pieces := [self.piece(step) for step in steps if step.text or step.probs]:
                    yield pieces
            yield await self.last("")

    def piece(self, step: Step) -> dict:
        """A step's line."""
        probs = self.logprobs([step.probs] if step.probs else [])
        return _head(self.asked) | _content(self.asked, step.text) | {"done": False} | probs

    async def last(self, text: str) -> dict:
        """The object that ends it: counts, times in nanoseconds, the receipt where it was asked for."""
        generation = self.answer.generation
        last = _head(self.asked) | _content(self.asked, text) | {"done": True, "done_reason": generation.finish_reason}
        if not self.asked.chat and not self.asked.raw:
            last["context"] = generation.prompt + generation.tokens
        if self.asked.receipt:
            last["bankml_receipt"] = await told.receipt(self.answer)
        return last | self.times(generation)

    def times(self, generation: Generation) -> dict:
        """What /api/chat and /api/generate tell of the work."""
        begun, started = self.answer.started_at, generation.started_at
        return {
            "total_duration": _ns(time.monotonic() - self.answer.asked_at),
            "load_duration": _ns(started - begun if started and begun else 0.0),
            "prompt_eval_count": len(generation.prompt),
            "prompt_eval_duration": _ns(generation.prompt_s),
            "eval_count": generation.completion_tokens,
            "eval_duration": _ns(generation.decode_s),
        }

    def logprobs(self, noted) -> dict:
        """`logprobs` with the bytes and the likeliest tokens, where they are asked for."""
        if not self.asked.n_probs or not noted:
            return {}
        found = told.probabilities(noted, self.answer.generation.engine.tokenizer, self.asked.n_top)
        for item in found:
            for each in (item, *item["top_logprobs"]):
                del each["id"]
        return {"logprobs": found}


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
