"""`bankml serve` as a process of its own, with a model or with the stand-in of tests/stand_in.py."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 120  # a first run compiles


class Served:
    """A running server: `url`, `address` (host, port), `client` (httpx), `lines` of its stderr so far.

    stand_in: see tests/stand_in.py.
    """

    def __init__(self, model, *flags, stand_in: dict | None = None, **environment):
        command = ["-m", "bankml"] if stand_in is None else [ROOT / "tests" / "stand_in.py"]
        self.process = subprocess.Popen(
            [sys.executable, *command, "serve", "-m", model, "--port", "0", "--no-gpu", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "STAND_IN": json.dumps(stand_in), **environment},
            text=True,
            cwd=ROOT,
        )
        self.lines, self._ready = [], threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._ready.wait(START_S) or self.process.poll() is not None:
            self.close()
            raise RuntimeError(f"the server did not start: {self.lines}")
        self.url = re.search(r"http://\S+", self.lines[-1])[0]
        self.client = httpx.Client(base_url=self.url, timeout=60)
        self.address = self.client.base_url.host, self.client.base_url.port

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if " at http://" in line:
                self._ready.set()
        self._ready.set()

    def post(self, path, body, **options) -> httpx.Response:
        """One request."""
        return self.client.post(path, json=body, **options)

    def held(self) -> dict[str, int]:
        """What the process holds: bytes of memory, threads, open files."""
        folder = Path("/proc", str(self.process.pid))
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        memory = 1024 * int(status["VmRSS"].split()[0])
        return {"memory": memory, "threads": int(status["Threads"]), "files": len(os.listdir(folder / "fd"))}

    def stop(self, number=signal.SIGTERM, timeout=30) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def close(self):
        """End it, however it is."""
        if hasattr(self, "client"):
            self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
