"""The application: every interface's routes, one shape of errors each, behind the limits.

An interface is a module with `routes(service) -> list[starlette.routing.Route]`, named in INTERFACES; its endpoints
are `async def endpoint(request: starlette.requests.Request) -> Response`, and raise ApiError. Errors of paths below
/api/ are told as Ollama words them, all others as OpenAI does.
"""

import logging
from importlib import import_module

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request

from bankml.errors import BankmlError
from bankml.serve import openapi
from bankml.serve.errors import ApiError, api_error
from bankml.serve.limits import Limits
from bankml.serve.service import Service
from bankml.serve.stream import Json

INTERFACES = ("openai", "ollama", "llama_server", "metrics", "status")
log = logging.getLogger("bankml.serve")


def create_app(service: Service, *, api_key: str | None = None, hosts: tuple[str, ...] | None = None):
    """An ASGI application. hosts: the Host names that are accepted, None for any; api_key: asked of every request."""
    routes = [route for name in INTERFACES for route in import_module(f"bankml.serve.{name}").routes(service)]
    inner = Starlette(routes=[*routes, openapi.route(routes)], exception_handlers=HANDLERS)
    inner.router.redirect_slashes = False  # a path with one slash more is another path; Host would name the place
    return Limits(inner, told, api_key=api_key, hosts=hosts)


async def _refused(request: Request, error: Exception) -> Json:
    return told(api_error(error), request.url.path)


async def _not_there(request: Request, error: HTTPException) -> Json:
    words = {404: f"there is nothing at {request.url.path}", 405: f"{request.method} is not for this path"}
    return told(ApiError(error.status_code, words.get(error.status_code, error.detail)), request.url.path)


# What is an Exception is raised again by Starlette when it was told; `Limits` notes it.
HANDLERS = {ApiError: _refused, BankmlError: _refused, MemoryError: _refused, Exception: _refused}
HANDLERS |= {HTTPException: _not_there}


def told(error: Exception, path: str) -> Json:
    """The reply that tells of an error; one line in the log for what nobody foresaw."""
    if not isinstance(error, ApiError):
        log.error("%r: %s: %s", path, type(error).__name__, error)
        error = api_error(error)
    return Json(error.body(ollama=path.startswith("/api/")), error.status, error.headers)
