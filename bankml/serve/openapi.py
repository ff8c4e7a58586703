"""A description of the endpoints in OpenAPI 3.1, at /openapi.json: paths, methods, and the fields that matter."""

from starlette.requests import Request
from starlette.routing import Route

from bankml.serve.stream import Json
from bankml.version import __version__

TEXT, WHOLE, NUMBER, FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "object", "required": ["role"], "properties": {"role": TEXT, "content": {}}},
}
SAMPLING = {"temperature": NUMBER, "top_k": WHOLE, "top_p": NUMBER, "min_p": NUMBER, "seed": WHOLE, "stop": {}}
COMMON = {"model": TEXT, "max_tokens": WHOLE, "stream": FLAG, "bankml_receipt": FLAG, **SAMPLING}
PROMPT = {"oneOf": [TEXT, {"type": "array", "items": {"type": ["string", "integer"]}}]}
TOKENS = {"type": "array", "items": WHOLE}
OPTIONS = {"type": "object", "properties": {"num_predict": WHOLE, "num_ctx": WHOLE, **SAMPLING}}
OLLAMA = {"model": TEXT, "stream": FLAG, "options": OPTIONS, "keep_alive": {"type": ["string", "number"]},
          "logprobs": FLAG, "top_logprobs": WHOLE, "think": {"type": ["boolean", "string"]}}  # fmt: skip
BODIES = {  # path -> (fields, those that must be there)
    "/v1/chat/completions": ({"messages": MESSAGES, "logprobs": FLAG, "top_logprobs": WHOLE, **COMMON}, ["messages"]),
    "/v1/completions": ({"prompt": PROMPT, "logprobs": WHOLE, "echo": FLAG, **COMMON}, ["prompt"]),
    "/completion": ({"prompt": PROMPT, "n_predict": WHOLE, "n_probs": WHOLE, **COMMON}, ["prompt"]),
    "/tokenize": ({"content": PROMPT, "add_special": FLAG, "parse_special": FLAG, "with_pieces": FLAG}, []),
    "/detokenize": ({"tokens": TOKENS}, []),
    "/api/chat": ({"messages": MESSAGES | {"minItems": 0}, **OLLAMA}, ["model"]),
    "/api/generate": ({"prompt": TEXT, "system": TEXT, "raw": FLAG, "context": TOKENS, **OLLAMA}, ["model"]),
    "/api/show": ({"model": TEXT, "verbose": FLAG}, ["model"]),
    "/api/embed": ({"model": TEXT}, ["model"]),
    "/api/embeddings": ({"model": TEXT}, ["model"]),
    "/apply-template": ({"messages": MESSAGES}, ["messages"]),
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
