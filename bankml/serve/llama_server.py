"""llama-server's own interface."""

from starlette.routing import Route

from bankml.serve.service import Service
from bankml.serve.stream import Json


def routes(service: Service) -> list[Route]:
    """/health, /props, /tokenize, /detokenize, /apply-template, /completion, /slots."""

    async def health(request):
        return Json({"status": "ok"})

    return [Route("/health", health), Route("/v1/health", health)]
