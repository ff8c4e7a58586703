"""Replies: JSON, server-sent events, and lines of JSON."""

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from bankml.serve.errors import ApiError, api_error


def dumped(value: Any) -> bytes:
    """Compact JSON in UTF-8; half of a surrogate pair, which a client may have sent, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Json(Response):
    """A JSON reply."""

    media_type = "application/json"

    def __init__(self, value: Any, status: int = 200, headers: dict | None = None):
        super().__init__(dumped(value), status, headers)


async def events(values: AsyncIterator[Any], end: str | None = "[DONE]") -> StreamingResponse:
    """Server-sent events, `data: JSON` each, and `end` as the last one; an error in the midst is an `error` object."""
    return await _streamed(values, "text/event-stream", b"data: %b\n\n", end and f"data: {end}\n\n".encode(), False)


async def lines(values: AsyncIterator[Any]) -> StreamingResponse:
    """One JSON object per line, as Ollama streams; an error in the midst is `{"error": ...}`."""
    return await _streamed(values, "application/x-ndjson", b"%b\n", None, True)


async def _streamed(values, media_type, form, end, ollama) -> StreamingResponse:
    """The head is sent once the first value is there, so that an error before it has its own status."""
    try:
        first = await anext(values)
    except StopAsyncIteration:
        raise ApiError(500, "nothing to stream") from None

    async def frames():
        try:
            yield form % dumped(first)
            async for value in values:
                yield form % dumped(value)
        except Exception as error:
            yield form % dumped(api_error(error).body(ollama))
        else:
            if end:
                yield end
        finally:
            await values.aclose()

    return StreamingResponse(frames(), media_type=media_type, headers={"Cache-Control": "no-cache"})
