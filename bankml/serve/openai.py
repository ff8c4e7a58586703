"""OpenAI's interface, as llama-server b11192 gives it."""

from starlette.routing import Route

from bankml.serve.service import Service


def routes(service: Service) -> list[Route]:
    """/v1/models, /v1/completions, /v1/chat/completions."""
    return []
