"""Requests that nobody's client sends: seeded changes of valid ones, and what schemathesis makes of the description."""

import pytest
import schemathesis
import schemathesis.checks
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.core.failures import FailureGroup

from testing import fuzz_serve, fuzzing

INPUTS, EXAMPLES = 1000, 25
CHECKS = [getattr(schemathesis.checks, name) for name in (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "unsupported_method", "allow_header_conformance")]  # fmt: skip
FOUND = fuzzing.found("serve")


@pytest.fixture(scope="module")
def target():
    with fuzz_serve.Target() as target:
        yield target
        assert target.settle() == []


def test_changed_requests_have_a_reply(target, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzing, "FOUND", tmp_path)
    assert fuzzing.fuzz("serve", fuzz_serve.generate, target.run, 120, seed=7, inputs=INPUTS) == []
    assert target.asked == INPUTS


@pytest.mark.parametrize("case", [case for _, case in FOUND], ids=[name for name, _ in FOUND])
def test_found(target, case):
    assert fuzzing.fault(target.run, case) == ""


def test_what_the_description_promises_holds(target):
    """schemathesis, over /openapi.json: statuses, content types and bodies, other methods; no 5xx."""
    description = schemathesis.openapi.from_url(f"{target.served.url}/openapi.json")
    operations = [found.ok() for found in description.get_all_operations()]
    faults = {operation.label: promised(operation) for operation in operations}
    assert len(faults) > 30 and not any(faults.values()), "\n\n".join(filter(None, faults.values()))


def promised(operation) -> str:
    """What is wrong with an operation; empty if nothing."""

    @seed(7)
    @settings(max_examples=EXAMPLES, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=operation.as_strategy())
    def asked(case):
        case.call_and_validate(checks=CHECKS)

    try:
        asked()
    except FailureGroup as found:
        return f"{operation.label}: {found}"
    return ""
