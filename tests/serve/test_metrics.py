"""`/metrics` as Prometheus' own parser reads it, the snapshot, and the line at `/`."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bankml.serve.metrics import Metrics
from bankml.snapshot import Device, Snapshot
from tests.serve.served import Served

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}


@pytest.fixture
def served(bytes_path):
    with Served(bytes_path, stand_in={"answer": "Hello."}) as served:
        yield served


def read(text: str) -> dict:
    """(name, labels) -> value."""
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(found, name, /, **labels):
    return found["bankml_" + name, frozenset(labels.items())]


def test_what_was_asked_is_counted(served):
    usages = [served.post("/v1/chat/completions", CHAT).json()["usage"] for _ in range(3)]
    reply = served.client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = read(reply.text)
    assert value(found, "requests_total", outcome="completed") == 3
    assert value(found, "requests_total", outcome="failed") == 0
    assert value(found, "prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert value(found, "generated_tokens_total") == sum(usage["completion_tokens"] for usage in usages) == 9
    for name in ("first_token_seconds", "queue_seconds"):
        assert value(found, f"{name}_count") == 3 == value(found, f"{name}_bucket", le="+Inf")
    assert value(found, "queue_requests") == 0
    assert value(found, "process_resident_memory_bytes") > 1e6


def test_names_of_devices_may_hold_anything():
    name = 'a "card"\\ of\nours'
    found = read(Metrics().text(Snapshot(devices=(Device(name, rows=5, share=0.25),))))
    assert value(found, "device_rows_total", device="0", name=name) == 5
    assert value(found, "device_row_share", device="0", name=name) == 0.25


def test_the_line_at_the_root_and_the_snapshot(served):
    assert served.client.get("/").text == "Ollama is running"
    assert served.client.head("/").status_code == 200
    snapshot = Snapshot.from_dict(served.client.get("/bankml/snapshot").json())
    assert snapshot.queue == 0
