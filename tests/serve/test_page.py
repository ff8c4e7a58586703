"""The page at `/`, in a browser: what it shows of a server, what it does without one, and what it must not do."""

import json
import re
import shutil
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bankml import serve
from bankml.dashboard import figures
from tests.serve.browser import Browser
from tests.serve.served import Served
from tests.serve.test_queue import Client
from tests.test_dashboard import SIGNS, WHOLE

SLOW = {"answer": "abcdefghijklmnopqrstuvwxyz" * 4, "token_s": 0.05}
EVIL = "<img src=x onerror=alert(1)>"
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = ("/", "/bankml/page.css", "/bankml/page.js")
KEY = "clé of ours"


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(browser):
    with browser.page() as page:
        yield page


@pytest.fixture(scope="module")
def locked(bytes_path):
    with Served(bytes_path, "--api-key", KEY, stand_in={"answer": "Hello."}) as served:
        yield served


@pytest.fixture(scope="module")
def evil(bytes_path, tmp_path_factory):
    """A server whose model is named as a page would not want it."""
    path = tmp_path_factory.mktemp("evil") / f"{EVIL}.gguf"
    shutil.copy(bytes_path, path)
    with Served(path, stand_in={"answer": "Hello."}) as served:
        yield served


def given(page, snapshot):
    """From now on the page gets this in the place of the server's snapshot."""
    page.value(f"void (fetch = async () => new Response({json.dumps(json.dumps(snapshot))}))")


def served_file(path) -> bytes:
    """What the package holds for this path: the same for everybody."""
    return (Path(serve.__file__).parent / (path.rpartition("/")[2] or "page.html")).read_bytes()


def width(page) -> int:
    return page.value("document.documentElement.scrollWidth")


def test_only_browsers_get_the_page(slow):
    for accept, kind in (
        (HTML["Accept"], "text/html"),
        ("text/html", "text/html"),
        ("application/json, Text/HTML;q=0.5", "text/html"),
        ("*/*", "text/plain"),
        ("application/json", "text/plain"),
        ("text/htmlx", "text/plain"),
    ):
        reply = slow.client.get("/", headers={"Accept": accept})
        assert reply.headers["content-type"].split(";")[0] == kind and reply.headers["vary"] == "Accept"
        assert (reply.text == "Ollama is running") == (kind == "text/plain")
    for path in FILES:
        whole, head = slow.client.get(path, headers=HTML), slow.client.head(path, headers=HTML)
        assert head.status_code == 200 and head.content == b""
        assert head.headers["content-length"] == whole.headers["content-length"] == str(len(whole.content))
        rules = dict(rule.strip().split(" ", 1) for rule in whole.headers["content-security-policy"].split(";"))
        assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert whole.headers["x-content-type-options"] == "nosniff"
        assert whole.headers["referrer-policy"] == "no-referrer"
    assert slow.client.get("/", headers=HTML | {"Host": "evil.example"}).status_code == 403
    assert slow.client.post("/", headers=HTML).status_code == 405


def test_it_follows_an_answer(slow, page):
    page.open(slow.url)
    text = page.until("bytes", "● idle", "100% of the rows")
    assert "waiting" not in text
    clients = [Client(slow, {"prompt": "xyz", "n_predict": 30, "temperature": 0}) for _ in range(2)]
    text = page.until("● decoding", "of 30 tokens", "1 waiting", "tokens/s now", "3 of 3 tokens", "first token")
    made = int(re.search(r"(\d+) of 30 tokens", text)[1])
    time.sleep(0.6)
    text = page.until("decoding")
    assert int(re.search(r"(\d+) of 30 tokens", text)[1]) > made
    assert 5 < float(re.search(r"([\d.]+) tokens/s now", text)[1]) < 21  # a token takes 50 ms and a little
    for client in clients:
        client.join()
    page.until("● idle", "30 of 30 tokens", "peak", without=("waiting", "tokens/s now"))
    assert page.value("document.getElementById('curve').getAttribute('d')").count("L") >= 3
    assert page.complaints() == []
    server = urlsplit(slow.url).netloc
    assert {urlsplit(url).netloc for url in page.requests() if not url.startswith("data:")} == {server}
    assert {urlsplit(url).path for url in page.requests()} >= {*FILES, "/bankml/snapshot"}


def test_it_shows_all_that_the_terminal_shows(evil, page):
    page.open(evil.url)
    page.until("idle")
    given(page, WHOLE.to_dict() | {"answer": None})
    page.until("decoding")
    text = " ".join(page.text.split())
    for name, signs in SIGNS.items():
        for sign in signs if name not in ("rate", "answer") else ():
            assert sign in text, f"{name}: {sign}\n{text}"
    assert text.count("137.4") == 2 and "NaN" not in text and "undefined" not in text
    given(page, {"state": "something new", "queue": 0, "unheard_of": 1})
    text = page.until("● something new")
    for sign in ("tokens", "cells", "prompts", "Radeon", "ffn", "2 threads", "peak", "0", "null", "undefined"):
        assert sign not in text.replace("tokens/s", ""), text
    given(page, {"state": "idle", "devices": [{"name": EVIL, "note": EVIL}], "budget": {EVIL: 1.0, "toString": 2.0}})
    text = page.until("● idle", EVIL, "toString")
    assert page.value("document.querySelectorAll('img').length") == 0 and page.complaints() == []


def test_numbers_read_as_in_the_terminal(evil, page):
    """Ties included, which JavaScript would round the other way."""
    page.open(evil.url)
    page.until("idle")
    values = [0, 0.5, 1.5, 2.5, 0.125, 12.25, 999.4, 999.5, 1000.5, 9.994, 9.995, 0.9995, 99.95, 99.949, 3599, 7170]
    values += [m * 10.0**e for e in range(-4, 13) for m in (1, 1.25, 2.345, 4.9996, 9.9951, 9.99499)]
    for name in ("rate", "seconds", "milliseconds", "short", "percent", "count", "size"):
        found = page.value(f"{json.dumps(values)}.map((value) => figures.{name}(value))")
        want = [getattr(figures, name)(value) for value in values]
        assert [pair for pair in zip(values, found, want, strict=True) if pair[1] != pair[2]] == [], name


def test_a_models_name_is_text(evil, page):
    page.open(evil.url)
    page.until(EVIL, "idle")
    assert page.value("document.title") == f"{EVIL} - bankml" and page.value("document.images.length") == 0
    assert page.complaints() == [] and not page.events("Page.javascriptDialogOpening")


def test_a_key_is_asked_for(locked, page):
    assert locked.client.get("/bankml/snapshot").status_code == 401
    for path in FILES:
        reply = locked.client.get(path, headers=HTML)
        assert reply.status_code == 200 and reply.content == served_file(path)
    page.open(locked.url)
    text = page.until("needs its API key")
    assert "bytes" not in text and "speed" not in text
    asked = len(page.requests())
    time.sleep(0.8)
    assert len(page.requests()) == asked  # it does not try without one
    page.type("a wrong key")
    page.until("This is not the server's key.")
    page.type(KEY)
    page.until("bytes", "idle", "100% of the rows", without=("API key", "not the server's key"))
    page.open(locked.url + "/?again")
    page.until("bytes", "idle", without=("API key",))
    assert not [url for url in page.requests() if "cl" in urlsplit(url).query]


def test_it_goes_on_when_the_server_is_back(bytes_path, page):
    with Served(bytes_path, stand_in=SLOW) as served:
        page.open(served.url)
        page.until("bytes", "idle")
        port = str(urlsplit(served.url).port)
    page.until("● away", "No snapshot from the server (no connection); it is asked again every", without=("idle",))
    with Served(bytes_path, "--port", port, stand_in=SLOW):
        page.until("bytes", "idle", "100% of the rows", without=("away", "No snapshot"))
        given(page, [])
        page.value("void (fetch = async () => new Response('', {status: 503}))")
        page.until("● away", "status 503")


@pytest.mark.parametrize("columns", [320, 360, 1400])
def test_nothing_is_cut_off(evil, page, columns):
    page.resize(columns, 700, dark=columns == 360)
    page.open(evil.url)
    page.until("idle")
    assert width(page) == columns
    name = "a-very-long-name-of-a-model-without-a-place-to-break" * 3
    given(page, WHOLE.to_dict() | {"model": name, "threads": [0.5] * 24})
    page.until("24 threads")
    assert width(page) == columns


def test_lines_keep_their_places(evil, page):
    """What comes and goes within one picture moves nothing else."""
    page.open(evil.url)
    page.until("idle")
    given(page, WHOLE.to_dict())
    page.until("decoding")
    where = (
        "JSON.stringify([...document.querySelectorAll('section, dl, #chart')].map((e) => e.getBoundingClientRect()))"
    )
    before = page.value(where)
    rest = {"model": "SmolLM2", "state": "idle", "cache": WHOLE.to_dict()["cache"]}
    given(page, rest)
    page.until("idle", without=("decoding", "of the rows"))
    assert page.value(where) == before


def test_a_hidden_page_asks_more_rarely(evil, page):
    page.open(evil.url)
    page.until("idle")
    page.value("void Object.defineProperty(document, 'hidden', {get: () => window.out, configurable: true})")
    page.value("void (window.out = true)")
    time.sleep(0.6)
    asked = len(page.requests())
    time.sleep(0.8)
    assert len(page.requests()) == asked
    page.value("void (window.out = false, document.dispatchEvent(new Event('visibilitychange')))")
    end = time.monotonic() + 2
    while len(page.requests()) < asked + 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(page.requests()) >= asked + 2


def test_without_chromium_there_is_a_clear_sentence(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="need Chromium: apt-get install chromium"):
        Browser()
