"""`bankml top`: what a server does now, as the dashboard draws it."""

import http.client
import json
import threading
import time
from urllib.parse import urlsplit

from bankml import environment
from bankml.cli import flags
from bankml.dashboard.live import LINES_S, Live, line
from bankml.errors import UsageError
from bankml.snapshot import Snapshot

POLL_S, TIMEOUT_S = 0.5, 5.0
MAX_REPLY = 1 << 20  # bytes
NOTES = """\
URL is where `bankml serve` says that it listens. Ctrl-C ends it. While the server is
away it is asked again. --json prints one snapshot, --once one line, and no more.
"""


def arguments(parser):
    """What the command takes."""
    parser.epilog = NOTES
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080", metavar="URL", type=flags.text,
                        help="(default: http://127.0.0.1:8080)")  # fmt: skip
    parser.add_argument("--api-key", type=flags.text, metavar="KEY", help="(default: BANKML_API_KEY)")
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--once", action="store_true", help="print one line and leave")
    once.add_argument("--json", action="store_true", help="print one snapshot as JSON and leave")


def run(args) -> int:
    """Show it until Ctrl-C (exit 130); --once and --json: exit 0."""
    look = Asked(args.url, args.api_key or environment.api_key())
    first = look()  # what is wrong with the URL or the key is told at once
    if args.json:
        print(json.dumps(first.to_dict()))
    elif args.once:
        print(_line(first))
    else:
        _show(look)
    return 0


def _show(look: "Asked"):
    """The picture where stderr is a terminal, else a line on stdout every LINES_S."""
    live = Live(look.again)
    if live.terminal:
        with live:
            threading.Event().wait()
    while True:
        print(_line(look.again()), flush=True)
        time.sleep(LINES_S)


def _line(snapshot: Snapshot) -> str:
    return line(snapshot) or snapshot.state or "idle"


class Asked:
    """Snapshots of the server at a URL. Raises UsageError, in one line, for what is wrong."""

    def __init__(self, url: str, key: str | None):
        try:
            parts = urlsplit(url)
            self.host, self.port = parts.hostname, parts.port
        except ValueError:
            raise UsageError(f"{url}: not a URL such as http://127.0.0.1:8080") from None
        if parts.scheme not in ("http", "https") or not self.host:
            raise UsageError(f"{url}: not a URL such as http://127.0.0.1:8080")
        self.url, self.path = url, f"{parts.path.rstrip('/')}/bankml/snapshot"
        self.kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.headers = {"Authorization": f"Bearer {key}".encode("utf-8", "surrogateescape")} if key else {}
        self._last, self._at = None, -POLL_S

    def __call__(self) -> Snapshot:
        connection = self.kind(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", self.path, headers=self.headers)
            reply = connection.getresponse()
            body = reply.read(MAX_REPLY)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UsageError(f"{self.url}: {getattr(error, 'strerror', None) or type(error).__name__}") from None
        finally:
            connection.close()
        if reply.status == 401:
            raise UsageError(f"{self.url}: this server needs an API key: --api-key, or BANKML_API_KEY")
        try:
            values = json.loads(body) if reply.status == 200 else None
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise UsageError(f"{self.url}: not a bankml server (status {reply.status})")
        return Snapshot.from_dict(values)

    def again(self) -> Snapshot:
        """The newest snapshot, asked for every POLL_S at most; one that says so while the server is away."""
        now = time.monotonic()
        if now - self._at >= POLL_S:
            self._at = now
            try:
                self._last = self()
            except UsageError as error:
                self._last = Snapshot(state=str(error))
        return self._last
