"""The HTTP server around the application: connections, slow clients, and a stop that lets answers finish."""

import asyncio
import logging
import signal
import socket
from contextlib import contextmanager

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


class Protocol(H11Protocol):
    """A connection. One too many is told so; one whose request's head comes too slowly is closed."""

    surplus, deadline, sweep = False, None, None

    def connection_made(self, transport):
        super().connection_made(transport)
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
        if self.surplus:
            self._refuse()
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

    def _refuse(self):
        """Once; what else comes on this connection is not looked at."""
        if self.deadline is None:
            return
        self._head_is_there()
        error = ApiError(503, f"{MAX_CONNECTIONS} connections are open already", retry_after=1)
        body = dumped(error.body())
        head = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body)
        self.transport.write_eof()
        self.loop.call_later(1.0, self.transport.close)


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
            self.force_exit = True
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
