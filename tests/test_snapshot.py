"""Snapshots travel as JSON: what is known arrives as it was, what is not known is not there at all."""

import json

import pytest

from bankml.errors import UsageError
from bankml.snapshot import Cache, Device, Prompt, PromptCache, Snapshot

WHOLE = Snapshot(
    model="bonsai",
    state="decode",
    rate=101.5,
    rate_minute=99.25,
    rates=(0.0, 98.0, 101.5),
    first_token_s=0.25,
    tokens=12,
    max_tokens=40,
    prompt=Prompt(512, 256.5, 100, 300.0, 0.85),
    budget={"qkv": 0.001, "logits": 0.002},
    budget_of="decode",
    threads=(0.9, 0.8),
    devices=(Device("cpu", 700, 0.7), Device("card", 300, 0.3, 0.5, 0.8, True, 10**9, 2 * 10**9, "spot check passed")),
    cache=Cache(524, 4096, 10**8, "f16"),
    prompt_cache=PromptCache(3, 5, 1000, 2, 10**7),
    queue=1,
    answer="né",
)


def test_a_snapshot_travels_as_json():
    assert Snapshot.from_dict(json.loads(json.dumps(WHOLE.to_dict()))) == WHOLE


def test_what_is_not_known_is_left_out():
    assert Snapshot().to_dict() == {}
    assert Snapshot(rate=0.0, devices=(Device("cpu"),)).to_dict() == {"rate": 0.0, "devices": [{"name": "cpu"}]}
    assert Snapshot.from_dict({"rate": 0}) == Snapshot(rate=0.0)


def test_keys_of_a_newer_server_are_passed_over():
    assert Snapshot.from_dict({"weather": "fine", "cache": {"cells": 1, "capacity": 2, "colour": 3}}).cache == Cache(
        1, 2
    )


BAD = [{"rate": "fast"}, {"rate": True}, {"rate": float("nan")}, {"tokens": 1.5}, {"cache": {"cells": 1}}, {"cache": 7}]
BAD += [{"rates": {}}, {"rates": [None]}, {"devices": ["cpu"]}, {"budget": []}, {"answer": 1}, [], None, "text"]


@pytest.mark.parametrize("value", BAD, ids=str)
def test_what_is_no_snapshot_is_refused(value):
    with pytest.raises(UsageError, match="snapshot"):
        Snapshot.from_dict(value)
