"""What the server does now: as JSON, and for a browser as a page at `/` that asks for it.

Others than browsers get one line of text at `/`, by which Ollama's clients know a server.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bankml.serve.service import Service
from bankml.serve.stream import Json

RUNNING = "Ollama is running"  # what its clients look for, word for word
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
FILES = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}


def routes(service: Service) -> list[Route]:
    """`/`, the page's files and `/bankml/snapshot`."""
    content = {name: Path(__file__).with_name(name).read_bytes() for name in FILES}

    def file(name, **more):
        return Response(content[name], headers=HEADERS | more, media_type=FILES[name])

    async def front(request: Request):
        if _is_browser(request):
            return file("page.html", Vary="Accept")
        return PlainTextResponse(RUNNING, headers={"Vary": "Accept"})

    async def style(request: Request):
        return file("page.css")

    async def script(request: Request):
        return file("page.js")

    async def snapshot(request: Request):
        return Json(service.snapshot().to_dict())

    return [
        Route("/", front),
        Route("/bankml/page.css", style),
        Route("/bankml/page.js", script),
        Route("/bankml/snapshot", snapshot),
    ]


def _is_browser(request) -> bool:
    """Whether it names text/html; `*/*` is what programs send."""
    kinds = ",".join(request.headers.getlist("accept")).split(",")
    return any(kind.partition(";")[0].strip().lower() == "text/html" for kind in kinds)
