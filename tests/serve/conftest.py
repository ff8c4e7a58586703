"""Servers that several tests share."""

import pytest

from bankml.convert import convert
from tests import stand_in, vocab
from tests.serve.served import Served


@pytest.fixture(scope="session")
def smollm2_path():
    """SmolLM2 in F16."""
    return vocab.cached("SmolLM2-135M-Instruct.F16.gguf", lambda made: convert(vocab.smollm2_gguf(), made, "F16"))


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """A server over SmolLM2; Numba's weakest threading layer, which aborts where two threads enter it (D3)."""
    with Served(smollm2_path, "--ctx", "8192", NUMBA_THREADING_LAYER="workqueue") as served:
        yield served


@pytest.fixture(scope="session")
def bytes_path(tmp_path_factory):
    """The stand-in's model file."""
    return stand_in.write_model(tmp_path_factory.mktemp("bytes") / "bytes.gguf")


@pytest.fixture(scope="module")
def slow(bytes_path):
    """A server whose model always answers the alphabet, 50 ms a letter; two requests may wait."""
    script = {"answer": "abcdefghijklmnopqrstuvwxyz" * 4, "token_s": 0.05}
    with Served(bytes_path, "--queue", "2", stand_in=script) as served:
        yield served
