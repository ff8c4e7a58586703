"""One slot and a queue in front of it: order, a full queue, clients that leave, and the end of the server."""

import signal
import threading
import time
from contextlib import suppress

import httpx
import pytest

from tests.serve.served import Served

TEXT = {"prompt": "x", "n_predict": 40, "temperature": 0}  # two seconds


class Client(threading.Thread):
    """A request on a thread of its own: `reply` (None where the connection ended without one), and its time `at`."""

    def __init__(self, served, body=TEXT, path="/completion"):
        super().__init__()
        self.served, self.body, self.path, self.reply, self.at = served, body, path, None, None
        self.start()

    def run(self):
        with httpx.Client(base_url=self.served.url, timeout=30) as client, suppress(httpx.RemoteProtocolError):
            self.reply = client.post(self.path, json=self.body)
        self.at = time.monotonic()


def until(condition, seconds=10):
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def processing(served):
    return served.client.get("/slots").json()[0]["is_processing"]


def tokens_made(served):
    return served.client.get("/slots").json()[0]["n_decoded"]


def is_quick(served):
    """A one-token request is answered within a few tokens' time."""
    begun = time.monotonic()
    assert served.post("/completion", TEXT | {"n_predict": 1}).json()["tokens_predicted"] == 1
    assert time.monotonic() - begun < 1


def test_answers_come_in_the_order_of_the_requests(slow):
    clients = []
    for _ in range(3):
        clients.append(Client(slow, TEXT | {"n_predict": 8}))
        time.sleep(0.1)
    for client in clients:
        client.join()
    assert [client.reply.json()["content"] for client in clients] == ["abcdefgh"] * 3
    assert sorted(clients, key=lambda client: client.at) == clients


def test_a_full_queue_says_when_to_come_back(slow):
    clients = [Client(slow, TEXT | {"n_predict": 20}) for _ in range(3)]
    time.sleep(0.3)
    begun = time.monotonic()
    refused = slow.post("/v1/completions", {"prompt": "x"})
    assert time.monotonic() - begun < 0.5
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["type"] == "unavailable_error"
    for client in clients:
        client.join()
        assert client.reply.status_code == 200


def test_a_bad_request_need_not_wait(slow):
    client = Client(slow)
    until(lambda: processing(slow))
    begun = time.monotonic()
    assert slow.post("/v1/completions", {"prompt": ""}).status_code == 400
    assert slow.post("/v1/completions", {"prompt": "x", "temperature": -1e300}).status_code == 400
    assert time.monotonic() - begun < 1 and client.at is None
    client.join()


def test_clients_that_leave_give_the_engine_back(slow):
    """H4 (i), (ii), (iv): after the first piece, while nothing is sent, and while queued."""
    with slow.client.stream("POST", "/completion", json=TEXT | {"n_predict": 100, "stream": True}) as reply:
        next(reply.iter_lines())
    is_quick(slow)
    with pytest.raises(httpx.ReadTimeout):
        slow.post("/completion", TEXT | {"n_predict": 100}, timeout=0.3)
    is_quick(slow)
    first = Client(slow, TEXT | {"n_predict": 20})
    until(lambda: processing(slow))
    with pytest.raises(httpx.ReadTimeout):
        slow.post("/completion", TEXT | {"n_predict": 90}, timeout=0.2)  # never has its turn
    first.join()
    assert first.reply.json()["content"] == "abcdefghijklmnopqrst"
    is_quick(slow)


@pytest.fixture
def served(bytes_path):
    """served(*flags, **script): a server of its own."""
    made = []

    def serve(*flags, answer="abcdefghijklmnopqrstuvwxyz" * 4, **script):
        made.append(Served(bytes_path, *flags, stand_in={"answer": answer, **script}))
        return made[-1]

    yield serve
    for each in made:
        each.close()


def test_sigterm_lets_the_answer_under_way_finish(served):
    server = served(token_s=0.05)
    running = Client(server, TEXT | {"n_predict": 20})
    until(lambda: processing(server))
    waiting = Client(server)
    time.sleep(0.2)
    assert server.stop() == 0
    running.join()
    waiting.join()
    assert running.reply.json()["content"] == "abcdefghijklmnopqrst"
    assert waiting.reply.status_code == 503 and "retry-after" in waiting.reply.headers
    assert len(server.lines) <= 2, server.lines


def test_the_grace_is_bounded(served):
    server = served("--grace", "0.3", token_s=0.05)
    whole = Client(server, TEXT | {"n_predict": 100})
    until(lambda: processing(server))
    begun = time.monotonic()
    assert server.stop() == 0 and time.monotonic() - begun < 5
    whole.join()
    assert whole.reply.status_code == 503


@pytest.mark.parametrize("token_s", [0.05, 1.0])
def test_a_second_signal_ends_it_at_once(served, token_s):
    server = served("--grace", "600", token_s=token_s)
    running = Client(server, TEXT | {"n_predict": 100})
    until(lambda: processing(server))
    server.process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    time.sleep(0.2)
    server.stop()
    assert time.monotonic() - begun < 3
    running.join()
    assert running.reply is None or running.reply.status_code == 503
    assert not [line for line in server.lines if "Traceback" in line], server.lines


def test_a_stream_that_is_cut_says_so(served):
    server = served("--grace", "0.2", token_s=0.05)
    with server.client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert '"unavailable_error"' in rest[-1] and "[DONE]" not in "".join(rest)
    assert server.process.wait(10) == 0


def test_ctrl_c_exits_with_130(served):
    server = served()
    assert server.stop(signal.SIGINT) == 130
    assert len(server.lines) <= 2, server.lines
