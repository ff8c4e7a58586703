"""Replies: JSON, server-sent events, and lines of JSON."""

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response

from bankml.serve.errors import ApiError, api_error

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumped(value: Any) -> bytes:
    """Compact JSON in UTF-8; half of a surrogate pair, which a client may have sent, becomes a question mark."""
    return _encode(value).encode("utf-8", "replace")


class Json(Response):
    """A JSON reply."""

    media_type = "application/json"

    def __init__(self, value: Any, status: int = 200, headers: dict | None = None):
        super().__init__(dumped(value), status, headers)


async def events(values: AsyncIterator[Any], end: str | None = "[DONE]") -> "Streamed":
    """Server-sent events, `data: JSON` each, and `end` as the last one; an error in the midst is an `error` object.

    values: what is told; a list is several values, which are sent at once.
    """
    last = end and f"data: {end}\n\n".encode()
    return await Streamed(values, "text/event-stream; charset=utf-8", b"data: %b\n\n", last, False).begin()


async def lines(values: AsyncIterator[Any]) -> "Streamed":
    """One JSON object per line, as Ollama streams; an error in the midst is `{"error": ...}`. values as of `events`."""
    return await Streamed(values, "application/x-ndjson", b"%b\n", None, True).begin()


class Streamed:
    """A reply that is sent as it comes. Its head is sent with the first value: an error before has its own status."""

    def __init__(self, values, content_type: str, form: bytes, end: bytes | None, ollama: bool):
        self.values, self.form, self.end, self.ollama = values, form, end, ollama
        self.headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-cache")]
        self.first = None

    async def begin(self) -> "Streamed":
        """Wait for the first value. Raises what happened before it."""
        try:
            self.first = await anext(self.values)
        except StopAsyncIteration:
            raise ApiError(500, "nothing to stream") from None
        return self

    async def __call__(self, scope, receive, send):
        """As an ASGI application."""
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        try:
            async for body in self._bodies():
                await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            await self.values.aclose()
        await send({"type": "http.response.body", "body": b""})

    async def _bodies(self) -> AsyncIterator[bytes]:
        try:
            yield self._formed(self.first)
            async for value in self.values:
                if body := self._formed(value):
                    yield body
        except Exception as error:
            yield self._formed(api_error(error).body(self.ollama))
        else:
            if self.end:
                yield self.end

    def _formed(self, value) -> bytes:
        return b"".join([self.form % dumped(each) for each in (value if isinstance(value, list) else [value])])
