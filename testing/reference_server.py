"""The reference's `llama-server` (b11192) on 127.0.0.1 for the recorders: no bankml code is involved.

`BANKML_REFERENCE_SERVER` names the folder of the built package's `bin`: `llama-server`, its libraries and
`_symlinks.json`.
"""

import hashlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path


def server_stamp() -> dict:
    path = Path(os.environ["BANKML_REFERENCE_SERVER"]) / "libllama-common.so.0.5.0"
    return {"library": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "build": "b11192"}


class Server:
    """A running server over one model; use as a context manager. `flags` are added to its command line."""

    def __init__(self, model, *flags):
        self.model, self.flags = model, flags

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        here, there = Path(os.environ["BANKML_REFERENCE_SERVER"]), Path(self._folder.name)
        for path in here.iterdir():
            (there / path.name).symlink_to(path)
        for link, target in json.loads((here / "_symlinks.json").read_text()).items():
            if not (there / link).exists():
                (there / link).symlink_to(target)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [there / "llama-server", "-m", self.model, "--host", "127.0.0.1", "--port", str(port), "-t", "1"]
        command += ["-c", "256", "-np", "1", "--no-warmup", *self.flags]
        self.log = open(there / "log", "w+b")
        environment = os.environ | {"LD_LIBRARY_PATH": str(there)}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env=environment)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self):
        for _ in range(600):
            try:
                with urllib.request.urlopen(self.url + "/health") as reply:
                    if reply.status == 200:
                        return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError(f"the server did not start: {self.tail()}")

    def tail(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text(errors="replace")[-3000:]

    def get(self, path) -> dict:
        """The reply's JSON."""
        with urllib.request.urlopen(self.url + path) as reply:
            return json.load(reply)

    def post(self, path, body) -> tuple[int, dict]:
        """(HTTP status, the reply's JSON)."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        self._folder.cleanup()
