"""A description of the endpoints in OpenAPI 3.1, at /openapi.json: paths, methods, and the fields that matter."""

from starlette.requests import Request
from starlette.routing import Route

from bankml.params import MAX_COUNT, MAX_FLOAT, MAX_SEED
from bankml.serve.asked import MAX_PROBS, MAX_STOPS
from bankml.serve.ollama_asked import MAX_TOP
from bankml.serve.stream import Json
from bankml.version import __version__

TEXT, WHOLE, NUMBER, FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
SOME = TEXT | {"minLength": 1}


def _whole(low: int, high: int) -> dict:
    return WHOLE | {"minimum": low, "maximum": high}


COUNT, FRACTION = _whole(-1, MAX_COUNT), NUMBER | {"minimum": 0, "maximum": 1}
TOKEN = _whole(0, MAX_COUNT)
MESSAGE = {"type": "object", "required": ["role", "content"], "properties": {"role": SOME, "content": TEXT}}
MESSAGES = {"type": "array", "minItems": 1, "items": MESSAGE}
STOP = {"oneOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": MAX_STOPS}]}
SAMPLING = {"temperature": NUMBER | {"minimum": -MAX_FLOAT, "maximum": MAX_FLOAT}, "top_k": _whole(-(2**31), MAX_COUNT),
            "top_p": FRACTION, "min_p": FRACTION, "seed": _whole(-1, MAX_SEED), "stop": STOP}  # fmt: skip
COMMON = {"model": TEXT, "max_tokens": COUNT, "stream": FLAG, "bankml_receipt": FLAG, "cache_prompt": FLAG, **SAMPLING}
PROMPT = {"oneOf": [SOME, {"type": "array", "minItems": 1, "items": {"oneOf": [SOME, TOKEN]}}]}
TOKENS = {"type": "array", "items": TOKEN}
OPTIONS = {"type": "object", "properties": {"num_predict": COUNT, "num_ctx": _whole(1, MAX_COUNT), **SAMPLING}}
OLLAMA = {"model": SOME, "stream": FLAG, "options": OPTIONS, "keep_alive": {"type": ["string", "number"]},
          "logprobs": FLAG, "top_logprobs": _whole(0, MAX_TOP), "bankml_receipt": FLAG,
          "cache_prompt": FLAG, "think": {"type": ["boolean", "string"]}}  # fmt: skip
PROBS = _whole(0, MAX_PROBS)
CHAT = {"messages": MESSAGES, "logprobs": FLAG, "top_logprobs": PROBS, **COMMON}
OWN = {"prompt": PROMPT, "n_predict": COUNT, "n_probs": PROBS, **COMMON}
NAMED = {"model": SOME}
BODIES = {  # path -> (fields, those that must be there)
    "/v1/chat/completions": (CHAT, ["messages"]),
    "/chat/completions": (CHAT, ["messages"]),
    "/v1/completions": ({"prompt": PROMPT, "logprobs": PROBS, "echo": FLAG, **COMMON}, ["prompt"]),
    "/completion": (OWN, ["prompt"]),
    "/completions": (OWN, ["prompt"]),
    "/tokenize": ({"content": PROMPT, "add_special": FLAG, "parse_special": FLAG, "with_pieces": FLAG}, []),
    "/detokenize": ({"tokens": TOKENS}, []),
    "/apply-template": ({"messages": MESSAGES}, ["messages"]),
    "/slots/{slot}": ({"filename": SOME}, []),
    "/api/chat": ({"messages": MESSAGES | {"minItems": 0}, **OLLAMA}, ["model"]),
    "/api/generate": ({"prompt": TEXT, "system": TEXT, "raw": FLAG, "context": TOKENS, **OLLAMA}, ["model"]),
    "/api/show": ({"model": SOME, "verbose": FLAG}, ["model"]),
    "/api/embed": (NAMED, ["model"]),
    "/api/embeddings": (NAMED, ["model"]),
}


def route(routes: list[Route]) -> Route:
    """The route that describes the others."""
    paths: dict[str, dict] = {}
    for each in routes:
        path = each.path.replace(":path}", "}")
        for method in sorted((each.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(path, method)
    about = {"openapi": "3.1.0", "info": {"title": "bankml", "version": __version__}, "paths": paths}

    async def described(request: Request):
        return Json(about)

    return Route("/openapi.json", described)


def _operation(path, method) -> dict:
    operation = {"responses": {"200": {"description": "the reply"}, "default": {"description": "an error, and why"}}}
    names = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    if method == "POST":
        fields, needed = BODIES.get(path, ({}, []))
        schema = {"type": "object", "properties": fields, "required": needed}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation
