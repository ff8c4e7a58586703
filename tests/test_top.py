"""`bankml top` against a running server, and against what is none."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from bankml.cli.top import POLL_S, Asked
from tests import stand_in
from tests.serve.served import Served

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
