"""Fuzz `bankml serve`: whatever bytes come as a request, the reply is one its client understands.

    python -m testing.fuzz_serve --seconds 180 --seed 1        # or --count 5000

The server runs as a process over a small model. Requests are valid ones of every interface (`serve_cases.py`), changed
in structure, in values and in bytes. A reply is 2xx, 4xx or 503 and whole, in the form of its interface, an error one
sentence without Python's words; it comes within REPLY_S, and nothing is logged. In between and at the end a known
question has its known answer; at the end the server holds no more threads and files than before.
"""

import http.client
import json
import re
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from testing.serve_cases import generate
from tests import conversations
from tests.serve.served import Served

REPLY_S = 20.0
EXPECTED = re.compile("compiling kernels|stop")  # lines of the log
NO_HTTP = "this is not an HTTP/1.1 request"  # told in one form: whose path it was is not known
EVERY = 250  # requests between two known questions
SAID = "bankml: compiling kernels"
QUESTION = {"prompt": "The bank of a river", "n_predict": 12, "temperature": 0, "cache_prompt": False}
PYTHON = re.compile(
    r"\b[A-Z][a-z]\w*(Error|Exception|Warning)\b|Traceback|NoneType|<class |<\w+ object|object is not|has no attribute"
    r"|unexpected keyword|positional argument|\bdict\b|inside bankml"
)

__all__ = ["Target", "generate"]


class Target:
    """A server to be asked; a block that ends it. `run` is one request, `settle` looks at what is left of all."""

    def __enter__(self) -> "Target":
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "slots").mkdir()
        model = conversations.write_tiny(folder / "tiny.gguf")
        self.served = Served(model, "--ctx", "256", "--slot-save-path", folder / "slots")
        self.asked, self.lines = 0, len(self.served.lines)
        self.answer = self._known()
        self.served.post("/api/show", {"model": "tiny"})  # its header is kept
        self.before = settled(self.served)
        return self

    def __exit__(self, *exception):
        self.served.close()
        self._folder.cleanup()

    def run(self, case: bytes):
        """Send a request; raises AssertionError where the reply, or the log, is not as it must be."""
        data, method, path = request(case)
        status, kind, body = self._ask(data, method)
        said = body[:300]
        assert status < 500 or status == 503, f"{status}: {said!r}"
        assert not (logged := self._new_lines()), f"{status}, logged: {logged}"
        if method != "HEAD":
            check(status, kind, body, path)
        self.asked += 1
        if self.asked % EVERY == 0:
            assert self._known() == self.answer, "a known question has another answer"

    def settle(self) -> list[str]:
        """What is wrong at the end."""
        try:
            faults = [] if self._known() == self.answer else ["a known question has another answer"]
        except (OSError, http.client.HTTPException, AssertionError) as error:
            faults = [f"a known question: {error}"]
        after = min((settled(self.served) for _ in range(3)), key=lambda found: found["files"])
        kept = [name for name in ("threads", "files") if after[name] > self.before[name]]
        faults += [f"{after[name]} {name}, {self.before[name]} before" for name in kept]
        code = self.served.stop()
        return faults + [f"the server exited with {code}"] * (code != 0) + self._new_lines()

    def _new_lines(self):
        """What was logged since; each line once."""
        lines, self.lines = self.served.lines[self.lines :], len(self.served.lines)
        return [f"log: {line}" for line in lines if not EXPECTED.search(line)]

    def _ask(self, data: bytes, method: str):
        """(status, content type, body) of the reply; raises AssertionError if there is none, or more than one."""
        with socket.create_connection(self.served.address, timeout=REPLY_S) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent; the reply tells
                connection.sendall(data)
            reply = http.client.HTTPResponse(connection, method=method)
            try:
                reply.begin()
                body = reply.read()
                rest = connection.recv(1000)
            except TimeoutError:
                raise AssertionError(f"no whole reply within {REPLY_S:g} s") from None
            except (http.client.HTTPException, ConnectionResetError) as error:
                raise AssertionError(f"no reply: {type(error).__name__}: {error}") from None
            finally:
                reply.close()
        assert not rest, f"more than one reply: {rest[:100]!r}"
        return reply.status, reply.headers.get("Content-Type", ""), body

    def _known(self):
        data, method, _ = request(b"POST /completion HTTP/1.1\r\n\r\n" + json.dumps(QUESTION).encode())
        status, _, body = self._ask(data, method)
        assert status == 200, f"{status}: {body[:300]!r}"
        return json.loads(body)["content"]


def settled(served) -> dict[str, int]:
    """What the server holds when nobody is connected and it had a moment to notice."""
    served.client.close()
    time.sleep(1.0)
    return served.held()


def request(case: bytes) -> tuple[bytes, str, str]:
    """(a request's bytes, its method and path). A case lacks what every request has: host, length, the end."""
    head, _, body = case.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    head += b"\r\nHost: localhost\r\nConnection: close"
    if re.search(rb"\r\ntransfer-encoding: *chunked", head, re.I):
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    if not re.search(rb"\r\n(content-length|transfer-encoding) *:", head, re.I):
        head += b"\r\nContent-Length: %d" % len(body)
    return head + b"\r\n\r\n" + body, words[0], words[1] if len(words) > 1 else ""


def check(status: int, kind: str, body: bytes, path: str):
    """Raises AssertionError for a body that is not what this status, content type and path have."""
    kind = kind.partition(";")[0]
    if kind == "text/event-stream":
        values = events(body, path)
    elif kind == "application/x-ndjson":
        assert body.endswith(b"\n"), "the lines are cut"
        values = [parsed(line) for line in body.splitlines()]
    elif kind == "application/json":
        values = [parsed(body)]
    else:
        assert status == 200 and kind in ("text/plain", "text/html"), f"{status} as {kind}: {body[:100]!r}"
        return
    for value in values:
        if status >= 400 or (isinstance(value, dict) and value.get("error")):
            check_error(status, value, path.startswith("/api/"))


def events(body: bytes, path: str) -> list:
    """The objects of a stream of events."""
    *found, rest = body.decode().split("\n\n")
    assert found and not rest and all(event.startswith("data: ") for event in found), "the stream is cut"
    if not path.startswith(("/completion?", "/completions")) and path != "/completion":
        assert found[-1] == "data: [DONE]" or '"error"' in found[-1], "the stream has no end"
        found = [event for event in found if event != "data: [DONE]"]
    return [parsed(event.removeprefix("data: ")) for event in found]


def parsed(text: bytes | str):
    """JSON without what JSON has not: NaN and the infinities."""

    def refuse(word):
        raise AssertionError(f"{word} in a reply")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise AssertionError(f"the reply is not JSON ({error}): {text[:200]!r}") from None


def check_error(status: int, value, ollama: bool):
    """Raises AssertionError for an error that is not in its interface's form, or no sentence."""
    assert isinstance(value, dict) and list(value) == ["error"], f"no error's form: {value}"
    message = value["error"]
    if not ollama or (status == 400 and NO_HTTP in str(message)):
        told = value["error"]
        assert isinstance(told, dict) and isinstance(told.get("type"), str), f"no error's form: {value}"
        assert status == 200 or told.get("code") == status, f"code {told.get('code')} in a {status}"
        message = told.get("message")
    assert isinstance(message, str) and message.strip(), f"no sentence: {value}"
    assert not PYTHON.search(message), f"Python's words: {message[:300]!r}"


if __name__ == "__main__":
    from testing.fuzzing import arguments, fuzz, told

    given = arguments("serve")
    with Target() as target:
        faults = fuzz("serve", generate, target.run, given.seconds, given.seed, inputs=given.count)
        if left := target.settle():
            faults += left
            print(f"fuzz_serve: {target.asked} inputs, {len(faults)} faults, those at the end included")
    sys.exit(told(faults))
