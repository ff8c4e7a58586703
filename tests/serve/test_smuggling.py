"""Requests that two programs could read in two ways: one reply at most, and the connection is closed."""

import re

import pytest

from tests.serve.served import Served
from tests.serve.test_limits import raw

SECOND = b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{"content":"a"}'
HOST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
FORMS = {
    "two lengths": HOST + b"Content-Length: 0\r\nContent-Length: 15\r\n\r\n" + SECOND,
    "a list of lengths": HOST + b"Content-Length: 0, 15\r\n\r\n" + SECOND,
    "length and chunks": HOST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunks in other words": HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunks twice": HOST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a signed length": HOST + b"Content-Length: +0\r\n\r\n" + SECOND,
    "an underscored length": HOST + b"Content-Length: 1_5\r\n\r\n" + SECOND,
    "a length in hexadecimal": HOST + b"Content-Length: 0x0\r\n\r\n" + SECOND,
    "a signed chunk": HOST + b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n" + SECOND,
    "a chunk of no size": HOST + b"Transfer-Encoding: chunked\r\n\r\n\r\n\r\n" + SECOND,
    "a space before the colon": HOST + b"Content-Length : 15\r\n\r\n" + SECOND,
    "a folded head": HOST + b"X: a\r\n Content-Length: 15\r\nContent-Length: x\r\n\r\n" + SECOND,
    "a lone CR": HOST + b"X: a\rContent-Length: 15\r\n\r\n" + SECOND,
    "a NUL": HOST + b"X: a\0b\r\nContent-Length: 0\r\n\r\n" + SECOND,
    "two hosts": HOST + b"Host: evil.example\r\nContent-Length: 0\r\n\r\n",
    "another version": b"POST /tokenize HTTP/2.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n" + SECOND,
}


@pytest.fixture(scope="module")
def served(bytes_path):
    with Served(bytes_path, stand_in={"answer": "Hello."}) as served:
        yield served
        assert served.client.get("/health").status_code == 200
        assert not [line for line in served.lines if "Traceback" in line or "Error" in line], served.lines


def replies(served, data: bytes) -> list[int]:
    """The statuses of all that comes back until the server closes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", raw(served, data))]


@pytest.mark.parametrize("form", FORMS)
def test_what_can_be_read_in_two_ways_is_refused(served, form):
    statuses = replies(served, FORMS[form])
    assert len(statuses) == 1 and 400 <= statuses[0] < 500, statuses


def test_requests_in_one_piece_are_answered_in_order(served):
    """Pipelining is no smuggling: each has its own reply."""
    last = SECOND.replace(b"Host:", b"Connection: close\r\nHost:")
    assert replies(served, SECOND + SECOND + last) == [200, 200, 200]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HOST + b"Connection: close\r\nContent-Length: 15\r\n\r\n" + SECOND[-15:], 200),
        (HOST + b"Connection: close\r\nContent-Length: 0\r\n\r\n", 400),
        (HOST + b"Origin: null\r\nContent-Length: 0\r\n\r\n", 403),
    ],
)
def test_what_comes_after_the_last_request_does_not_lose_its_reply(served, head, status):
    """The client is still sending when the connection is closed: no reset in the place of the reply."""
    for _ in range(5):
        assert replies(served, head + b"[" * 500_000) == [status]


def test_a_name_from_the_network_begins_no_header(served):
    for name in ("a\r\nX-Made: 1", "a\nX-Made: 1", "\r\n\r\nHTTP/1.1 200 OK"):
        for path, body in (("/v1/completions", {"prompt": "x", "model": name}), ("/api/show", {"model": name})):
            reply = served.post(path, body)
            assert reply.status_code == 404 and "x-made" not in reply.headers
