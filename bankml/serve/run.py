"""The HTTP server around the application: connections, slow clients, and a stop that lets answers finish."""

import asyncio
import logging
import signal
import socket
from contextlib import contextmanager, suppress
from http import HTTPStatus

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bankml.errors import UsageError
from bankml.serve.errors import ApiError
from bankml.serve.limits import MAX_HEAD, SEND_S
from bankml.serve.service import Service
from bankml.serve.stream import dumped

MAX_CONNECTIONS = 64
HEAD_S, IDLE_S = 5.0, 30.0  # for the head of a request to come, and for a connection without one
BACKLOG = 128
LAST_S = 0.2  # after a second signal, for the answer that is cut to say so
PART_S = 1.0  # for a client to take the last reply, which it cannot while it is still sending


class Transport:
    """A connection's transport. Closed after a request, it first sends what is left and takes what comes until the
    client closes, PART_S at most: if more came after that, the client would see a reset in the place of its reply.
    """

    def __init__(self, transport, protocol):
        self._transport, self._protocol, self.parting = transport, protocol, False

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Also while it is parting."""
        return self.parting or self._transport.is_closing()

    def close(self):
        """At once where nothing was asked, else in a moment."""
        if self._protocol.conn.their_state in (h11.IDLE, h11.CLOSED):
            self._transport.close()
        elif not self.is_closing():
            self.part()

    def part(self):
        """Send what is left, and take what comes for a moment."""
        self.parting = True
        self._transport.resume_reading()
        with suppress(OSError):  # the client is gone
            self._transport.write_eof()
        self._protocol.loop.call_later(PART_S, self._transport.close)


class Protocol(H11Protocol):
    """A connection. One too many is told so; one whose request's head comes too slowly is closed."""

    surplus, deadline, sweep = False, None, None

    def connection_made(self, transport):
        super().connection_made(Transport(transport, self))
        self.surplus = len(self.connections) > MAX_CONNECTIONS
        self._wait_for_head()
        self._sweep()

    def _sweep(self):
        """A closed connection whose client takes nothing of what is left to send is not kept."""
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self.sweep = self.loop.call_later(SEND_S, self._sweep)

    def data_received(self, data: bytes):
        if self.transport.parting or self.conn.their_state in (h11.MUST_CLOSE, h11.ERROR):
            return  # the last request has come
        if self.surplus:
            self._head_is_there()
            self._refuse(ApiError(503, f"{MAX_CONNECTIONS} connections are open already", retry_after=1))
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_is_there()
        elif self.deadline is None:
            self._wait_for_head()

    def connection_lost(self, exc):
        self._head_is_there()
        self.sweep.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self):
        self.deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def _head_is_there(self):
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def send_400_response(self, msg: str):
        """What came is no HTTP. A whole request before it is answered; a reply that is under way is the last one."""
        self._head_is_there()
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        self._refuse(ApiError(400, "this is not an HTTP/1.1 request that bankml can read"))

    def _refuse(self, error: ApiError):
        """The last reply of a connection; what else comes is not looked at."""
        body = dumped(error.body())
        more = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{more}"
        head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.part()


class Server(uvicorn.Server):
    """Stops at SIGTERM or SIGINT: those who wait are sent away, the answer under way has `grace` seconds.

    A second signal ends it at once. `signal` is the first one that came.
    """

    def __init__(self, app, service: Service, grace: float):
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(IDLE_S),
            timeout_graceful_shutdown=int(grace) + 5,
            h11_max_incomplete_event_size=MAX_HEAD,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self.service, self.grace, self.signal = service, grace, None

    @contextmanager
    def capture_signals(self):
        """In the place of uvicorn's own: it would raise the signal again at the end."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.stop, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def stop(self, number=signal.SIGTERM):
        """Stop; a second time, at once."""
        if self.should_exit:
            self.service.cut()
            asyncio.get_running_loop().call_later(LAST_S, setattr, self, "force_exit", True)
            return
        self.signal, self.should_exit = number, True
        self.service.stop()
        asyncio.get_running_loop().call_later(self.grace, self.service.cut)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError where the address cannot be had."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Named, so that asyncio takes its connections for TCP's and switches the delay of small packets off (40 ms).
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: {getattr(error, 'strerror', None) or error}") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise UsageError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    return made


def serve(app, service: Service, listening: socket.socket, grace: float) -> int | None:
    """Serve until a signal comes; which one it was."""
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    server = Server(app, service, grace)
    server.run(sockets=[listening])
    return server.signal
