"""llama-server's own interface, with the fields of b11192."""

import re
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

from starlette.requests import Request
from starlette.routing import Route

from bankml.generation import Step
from bankml.serve import fields, openai, told
from bankml.serve.answer import Answer
from bankml.serve.asked import Asked
from bankml.serve.errors import ApiError
from bankml.serve.fields import Fields
from bankml.serve.service import Service
from bankml.serve.stream import Json, events

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def routes(service: Service) -> list[Route]:
    """/health, /props, /tokenize, /detokenize, /apply-template, /completion, /slots."""

    async def health(request: Request):
        return Json({"status": "ok"})

    async def props(request: Request):
        return Json(_props(service, await _engine(service)))

    async def tokenize(request: Request):
        body = await fields.read(request)
        return Json({"tokens": await service.aside(_tokens, body, await _engine(service))})

    async def detokenize(request: Request):
        tokens = (await fields.read(request)).array("tokens", [])
        engine = await _engine(service)
        if not all(type(token) is int for token in tokens):
            raise ApiError(400, "'tokens' must be an array of whole numbers")
        return Json(
            {"content": (await service.aside(engine.tokenizer.decode, tokens, True)).decode("utf-8", "replace")}
        )

    async def apply_template(request: Request):
        body = await fields.read(request)
        messages, template = openai.messages(body), openai.template(body)
        engine = await _engine(service)
        prompt = await service.aside(lambda: engine.prompts.render(messages, **template))
        return Json({"prompt": prompt.decode("utf-8", "replace")})

    async def completion(request: Request):
        asked = openai.text_asked(await fields.read(request), "n_probs")
        answer = service.answer(asked.request)
        if asked.stream:
            return await events(_pieces(answer, asked), end=None)
        async with answer:
            return Json(await _whole(answer, asked, await answer.text()))

    async def slots(request: Request):
        return Json([_slot(service)])

    async def act_on_slot(request: Request):
        return Json(await _act(service, request))

    return [
        Route("/health", health),
        Route("/v1/health", health),
        Route("/props", props),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/apply-template", apply_template, methods=["POST"]),
        Route("/completion", completion, methods=["POST"]),
        Route("/completions", completion, methods=["POST"]),
        Route("/slots", slots),
        Route("/slots/{slot}", act_on_slot, methods=["POST"]),
    ]


async def _engine(service):
    """The resident engine, loaded if there is none."""
    return service.engine or await service.load()


def _tokens(body: Fields, engine) -> list:
    content = body.get("content", "")
    if isinstance(content, list) and all(type(item) in (int, str) for item in content):
        parts = content
    elif isinstance(content, str):
        parts = [content]
    else:
        raise body.wrong("content", "a string, or an array of tokens and strings")
    start, special = body.flag("add_special"), body.flag("parse_special", True)
    tokens = []
    for i, part in enumerate(parts):
        added = start and i == 0
        tokens += engine.tokenizer.encode(part, special, added) if isinstance(part, str) else [part]
    if not body.flag("with_pieces"):
        return tokens
    return [{"id": token, "piece": _text_or_bytes(engine.tokenizer.piece(token, True))} for token in tokens]


def _text_or_bytes(piece: bytes) -> str | list[int]:
    """A text, or its bytes where it is none."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _props(service, engine) -> dict:
    tokenizer = engine.tokenizer
    template = engine.prompts.template
    params = _settings(engine.params, engine.params.seed, None)
    return {
        "default_generation_settings": {"params": params, "n_ctx": engine.n_ctx},
        "total_slots": 1,
        "model_alias": engine.name,
        "model_path": Path(engine.header.path).name,  # where it lies is no business of the network's
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": template.text,
        "bos_token": template.bos,
        "eos_token": template.eos,
        "add_bos_token": tokenizer.add_bos,
        "build_info": openai.FINGERPRINT,
        "is_sleeping": service.engine is None,
    }


def _settings(params, seed, generation) -> dict:
    """The sampling that was used, under llama-server's names."""
    given = {name: value for name, value in asdict(params).items() if name not in ("logit_bias", "suppress_tokens")}
    most = -1 if generation is None or generation.max_tokens is None else generation.max_tokens
    stop = list(generation.stop) if generation else []
    bias = [{"token": token, "bias": max(value, told.LOWEST)} for token, value in params.logit_bias]
    return given | {
        "seed": 2**32 - 1 if seed is None else seed,
        "logit_bias": bias,
        "n_predict": most,
        "max_tokens": most,
        "stop": stop,
        "mirostat": 0,
        "grammar": "",
    }


# -- /completion -------------------------------------------------------------------------------------------------------


def _probabilities(noted, answer: Answer, asked: Asked) -> dict:
    if not asked.n_probs:
        return {}
    tokenizer = answer.generation.engine.tokenizer
    return {"completion_probabilities": told.probabilities(noted, tokenizer, asked.n_top, asked.post_sampling_probs)}


async def _whole(answer: Answer, asked: Asked, text: str, streamed=False) -> dict:
    """The last object: all of the answer, or all but its text where that was streamed."""
    generation = answer.generation
    engine, word = generation.engine, told.stopping_word(generation)
    reason = "word" if word else {"stop": "eos", "length": "limit"}.get(generation.finish_reason, "none")
    computed = len(generation.prompt) + len(generation.tokens) - (reason != "eos" and bool(generation.tokens))
    reply = {
        "index": 0,
        "content": "" if streamed else _echo(generation, asked) + text,
        "tokens": generation.tokens if asked.return_tokens and not streamed else [],
        "id_slot": 0,
        "stop": True,
        "model": asked.model or engine.name,
        "tokens_predicted": generation.completion_tokens,
        "tokens_evaluated": len(generation.prompt),
        "generation_settings": _settings(generation.sampler.params, generation.sampler.seed, generation),
        "prompt": engine.tokenizer.decode(generation.prompt, special=True).decode("utf-8", "replace"),
        "has_new_line": "\n" in generation.text,
        "truncated": False,
        "stop_type": reason,
        "stopping_word": word,
        "tokens_cached": computed,
        "timings": told.timings(generation),
    }
    if asked.n_probs and not streamed:
        reply |= _probabilities(told.all_probs(generation), answer, asked)
    if asked.receipt:
        reply["bankml_receipt"] = await told.receipt(answer)
    return reply


def _echo(generation, asked) -> str:
    if not asked.echo:
        return ""
    return generation.engine.tokenizer.decode(generation.prompt, special=True).decode("utf-8", "replace")


async def _pieces(answer: Answer, asked: Asked) -> AsyncIterator[dict | list[dict]]:
    async with answer:
        made, every = 0, asked.n_probs or asked.return_tokens  # every: of a token without text, too
        while steps := await answer.steps():
            if not made and asked.echo:
                steps[0] = replace(steps[0], text=_echo(answer.generation, asked) + steps[0].text)
            pieces = []
            for step in steps:
                made += step.token is not None
                if step.text or (every and step.token is not None):
                    pieces.append(_piece(step, made, answer, asked))
            yield pieces
        yield await _whole(answer, asked, "", streamed=True)


def _piece(step: Step, made: int, answer: Answer, asked: Asked) -> dict:
    """A step's object in a stream, after so many tokens."""
    generation = answer.generation
    piece = {
        "index": 0,
        "content": step.text,
        "tokens": [step.token] if step.token is not None and asked.return_tokens else [],
        "stop": False,
        "id_slot": 0,
        "tokens_predicted": made,
        "tokens_evaluated": len(generation.prompt),
    }
    piece |= {"timings": told.timings(generation)} if asked.timings_per_token else {}
    return piece | _probabilities([step.probs] if step.probs else [], answer, asked)


# -- /slots ------------------------------------------------------------------------------------------------------------


def _slot(service) -> dict:
    snapshot, engine = service.snapshot(), service.engine
    prompt = snapshot.prompt.total if snapshot.prompt else 0
    return {
        "id": 0,
        "n_ctx": engine.n_ctx if engine else None,
        "is_processing": service.busy,
        "n_prompt_tokens": prompt,
        "n_decoded": snapshot.tokens or 0,
    }


async def _act(service: Service, request: Request) -> dict:
    """Save, restore or erase the slot, in its turn."""
    if request.path_params["slot"] != "0":
        raise ApiError(400, "there is one slot, 0")
    action = request.query_params.get("action", "")
    if action == "erase":
        return {"id_slot": 0, "n_erased": await service.call(lambda engine: engine.erase())}
    if action not in ("save", "restore"):
        raise ApiError(400, f"action is {action!r}; it takes save, restore or erase")
    if service.slot_folder is None:
        raise ApiError(501, "slots are stored only where the server was started with --slot-save-path FOLDER")
    name = (await fields.read(request)).text("filename", "")
    if not FILE_NAME.fullmatch(name):
        raise ApiError(400, "'filename' takes letters, digits, and . _ - (100 of them, a letter or digit first)")
    path, begun = Path(service.slot_folder, name), time.monotonic()
    if path.is_symlink():
        raise ApiError(400, f"{name} is a link")
    stored = await service.call(lambda engine: getattr(engine, action)(path))
    told_ms = {"timings": {f"{action}_ms": 1000 * (time.monotonic() - begun)}}
    if action == "save":
        return {"id_slot": 0, "filename": name, "n_saved": stored.tokens, "n_written": stored.bytes} | told_ms
    return {"id_slot": 0, "filename": name, "n_restored": stored.tokens, "n_read": stored.bytes} | told_ms
