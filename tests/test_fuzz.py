"""Short runs of the fuzzers of testing/, and what longer ones found. `BANKML_FUZZ_S` sets the seconds of each."""

import os

import pytest

from testing import fuzz_gguf, fuzz_template, fuzz_tokenizer, fuzzing

SECONDS = float(os.environ.get("BANKML_FUZZ_S", "4"))
FUZZERS = {"gguf": fuzz_gguf, "tokenizer": fuzz_tokenizer, "template": fuzz_template}
FOUND = [(name, *case) for name in FUZZERS for case in fuzzing.found(name)]


@pytest.mark.parametrize("name", FUZZERS)
def test_fuzz(name, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzing, "FOUND", tmp_path)
    module = FUZZERS[name]
    assert fuzzing.fuzz(name, module.generate, module.run, SECONDS, seed=7) == []


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, _, case in FOUND], ids=[f[1] for f in FOUND])
def test_found(name, case):
    assert fuzzing.fault(FUZZERS[name].run, case) == ""


def test_a_fault_is_seen(monkeypatch):
    monkeypatch.setattr(fuzzing, "LIMIT_S", 0.2)

    def hangs(case):
        while True:
            pass

    assert fuzzing.fault(lambda case: {}[case], b"x").startswith("KeyError at test_fuzz.py")
    assert fuzzing.fault(hangs, b"x").startswith("Hang at ")


def test_a_finding_is_shortened_and_kept(tmp_path, monkeypatch):
    def run(case):
        assert b"!" not in case

    monkeypatch.setattr(fuzzing, "FOUND", tmp_path)
    faults = fuzzing.fuzz("any", lambda rng: rng.randbytes(400), run, 5, seed=1, most=1)
    assert len(faults) == 1 and "AssertionError" in faults[0]
    assert [case for _, case in fuzzing.found("any")] == [b"!"]
