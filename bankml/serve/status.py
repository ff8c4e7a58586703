"""What the server does now, as JSON, and one line of text at `/`, by which Ollama's clients know a server."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bankml.serve.service import Service
from bankml.serve.stream import Json

RUNNING = "Ollama is running"  # what its clients look for, word for word


def routes(service: Service) -> list[Route]:
    """`/` and `/bankml/snapshot`."""

    async def running(request: Request):
        return PlainTextResponse(RUNNING)

    async def snapshot(request: Request):
        return Json(service.snapshot().to_dict())

    return [Route("/", running), Route("/bankml/snapshot", snapshot)]
