"""What stands before every endpoint: who may ask, how much and how slowly, and what ends when a client goes away."""

import asyncio
import hmac
from urllib.parse import urlsplit

from bankml.serve.errors import ApiError, stopping

MAX_BODY, MAX_HEAD = 16 << 20, 16 << 10  # bytes
BODY_S, PIECE_S = 60.0, 10.0  # for a whole body, and for each piece of it to come
SEND_S = 30.0  # for a client to take what is sent to it
OPEN_PATHS = ("/health", "/v1/health", "/", "/bankml/page.css", "/bankml/page.js")  # need no key, hold no data
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Limits:
    """ASGI middleware. hosts: the names a Host or Origin header may hold, None for any.

    A request reaches the application when its body is complete, and the task that serves it is cancelled when its
    client goes away.
    """

    def __init__(self, app, told, *, api_key: str | None = None, hosts: tuple[str, ...] | None = None):
        self.app, self.told, self.key, self.hosts = app, told, api_key and api_key.encode(), hosts

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begun = False

        async def sending(message):
            nonlocal begun
            begun = True
            async with asyncio.timeout(SEND_S):
                await send(message)

        try:
            self._admit(scope)
            body = await _body(scope, receive)
        except _Gone:
            return
        except ApiError as error:
            error.headers["Connection"] = "close"  # the rest of the body is not waited for
            await self.told(error, scope["path"])(scope, receive, sending)
            return
        try:
            await self._serve(scope, body, receive, sending)
        except TimeoutError:
            return
        except asyncio.CancelledError:  # the server ends at once
            if not begun:
                await self.told(stopping(), scope["path"])(scope, receive, sending)
        except Exception as error:
            reply = self.told(error, scope["path"])
            if not begun:
                await reply(scope, receive, sending)

    def _admit(self, scope):
        headers = scope["headers"]
        head = len(scope["raw_path"]) + len(scope["query_string"])
        if head + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD:
            raise ApiError(431, f"the head of the request is larger than {MAX_HEAD} bytes")
        if scope["http_version"] not in ("1.0", "1.1"):
            raise ApiError(400, "this server speaks HTTP/1.1")
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
            raise ApiError(400, "a body has a length or comes in chunks; a proxy could read one with both another way")
        if self.hosts is not None:
            found = [value.decode("latin-1") for name, value in headers if name == b"host"]
            if len(found) != 1 or _host(f"//{found[0]}") not in self.hosts:
                raise ApiError(403, "this server answers to the name it was started with only (Host header)")
            origin = next((value.decode("latin-1") for name, value in headers if name == b"origin"), None)
            if origin is not None and _host(origin) not in self.hosts:
                raise ApiError(403, "pages of other hosts may not ask this server (Origin header)")
        if self.key is not None and scope["path"] not in OPEN_PATHS and not self._has_key(headers):
            raise ApiError(401, "this server needs an API key: Authorization: Bearer KEY")

    def _has_key(self, headers) -> bool:
        given = [value for name, value in headers if name == b"x-api-key"]
        given += [value[7:] for name, value in headers if name == b"authorization" and value[:7].lower() == b"bearer "]
        return any([hmac.compare_digest(value.strip(), self.key) for value in given])

    async def _serve(self, scope, body, receive, send):
        """Run the application until it is done, or the client is gone."""
        given, gone = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

        async def receive_body():
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        task = asyncio.ensure_future(self.app(scope, receive_body, send))
        watch = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            watch.cancel()
            task.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)


class _Gone(Exception):
    """The client went away before its request was complete."""


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


async def _until_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(scope, receive) -> bytes:
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    too_large = ApiError(413, f"the body of the request is larger than {MAX_BODY} bytes")
    if int(announced) > MAX_BODY:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                async with asyncio.timeout(PIECE_S):
                    message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_BODY:
                    raise too_large
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(408, "the body of the request came too slowly") from None
