"""`bankml top` against a running server, and against what is none."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from bankml.cli.top import POLL_S, Asked
from tests import stand_in
from tests.serve.served import Served
from tests.serve.test_queue import Client
from tests.terminal import Terminal

KEY = "a key"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = stand_in.write_model(tmp_path_factory.mktemp("bytes") / "bytes.gguf")
    with Served(path, "--api-key", KEY, stand_in={"answer": "Hello."}) as served:
        yield served


def top(*words, **environment):
    command = [sys.executable, "-m", "bankml", "top", *words]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=30, env=os.environ | environment
    )


def test_a_snapshot_and_a_line(served):
    found = top(served.url, "--json", "--api-key", KEY)
    assert found.returncode == 0 and json.loads(found.stdout)["queue"] == 0
    found = top(served.url, "--once", BANKML_API_KEY=KEY)
    assert (found.returncode, found.stdout) == (0, "idle\n")


def test_what_is_wrong_is_one_line(served):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for url, words in ((served.url, "needs an API key"), (nobody, "refused"), ("x", "not a URL"),
                           (f"{served.url}/health?", "needs an API key"), ("http://a:b", "not a URL")):  # fmt: skip
            found = top(url)
            assert found.returncode == 1 and words in found.stderr and len(found.stderr.splitlines()) == 1


def test_ctrl_c_leaves(served):
    command = [sys.executable, "-m", "bankml", "top", served.url, "--api-key", KEY]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10) == ("idle\n", "") and process.returncode == 130


def test_a_server_that_is_away_is_asked_again(served):
    look = Asked(served.url, KEY)
    port, look.port = look.port, 1
    assert "refused" in look.again().state
    look.port, look._at = port, look._at - POLL_S
    assert look.again().state == "idle"


@pytest.fixture
def other():
    """A server that is none of bankml's: it answers with `other.reply`, (status, body)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = self.server.reply
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "reply", [(404, b"<h1>Not Found</h1>"), (200, b"<p>Hello"), (200, b"[1]"), (200, b"\xff"), (500, b"{}")]
)
def test_another_server_is_one_line(other, reply):
    other.reply = reply
    for words in ((), ("--once",), ("--json",)):
        found = top(other.url, *words)
        assert (found.returncode, found.stdout) == (1, "") and len(found.stderr.splitlines()) == 1
        assert f"{other.url}: not a bankml server (status {reply[0]})" in found.stderr


def test_a_snapshot_of_another_shape_is_one_line(other):
    other.reply = 200, b'{"state": "idle", "rate": "fast"}'
    found = top(other.url)
    assert found.returncode == 1 and "snapshot.rate" in found.stderr and len(found.stderr.splitlines()) == 1


def test_a_key_of_any_letters(tmp_path):
    path = stand_in.write_model(tmp_path / "bytes.gguf")
    with Served(path, "--api-key", "cl\u00e9 \u9375", stand_in={"answer": "Hello."}) as served:
        assert top(served.url, "--once", "--api-key", "cl\u00e9 \u9375").stdout == "idle\n"


def test_the_picture_follows_a_server_and_its_next_one(tmp_path):
    path, slow = stand_in.write_model(tmp_path / "bytes.gguf"), {"answer": "abcdefgh" * 20, "token_s": 0.05}
    with Served(path, stand_in=slow) as served:
        command = [sys.executable, "-m", "bankml", "top", served.url]
        with Terminal(command, 100, 30) as terminal:
            terminal.until("bytes", "idle", "100% of the rows")
            clients = [Client(served, {"prompt": "xyz", "n_predict": 30, "temperature": 0}) for _ in range(2)]
            terminal.until("decoding", "of 30 tokens", "1 waiting", "3 of 3 tokens", "last minute")
            for client in clients:
                client.join()
            terminal.until("idle", "30 of 30 tokens")
            served.close()
            terminal.until("Connection refused")
            with Served(path, "--port", str(urlsplit(served.url).port), stand_in=slow):
                terminal.until("bytes", "idle", "100% of the rows")
                assert "refused" not in terminal.text and "30 tokens" not in terminal.text
                terminal.press(b"\x03")
                assert terminal.end() == 130 and terminal.is_as_before()
