"""Chromium without a window, driven over its pipe: JSON messages that end with NUL, on its descriptors 3 and 4.

    python -m tests.serve.browser URL FILE [WIDTHxHEIGHT] [light|dark]

stores a picture of a page as WebP.
"""

import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-extensions", "--disable-sync", "--hide-scrollbars",
         "--remote-debugging-pipe")  # fmt: skip
ANSWER_S = 20


class Browser:
    """A running browser. Raises RuntimeError where there is none. `page()` opens an empty page."""

    def __init__(self):
        program = shutil.which("chromium")
        if program is None:
            raise RuntimeError("the page's tests need Chromium: apt-get install chromium")
        self.home = tempfile.mkdtemp(prefix="bankml-browser-")
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # The shell puts the pipes where the browser looks for them.
        line = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", line, program, *FLAGS, f"--user-data-dir={self.home}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._rest, self._answers, self.events = 0, b"", {}, []

    def call(self, method: str, session: str | None = None, **params) -> dict:
        """A command's result; RuntimeError says what the browser says."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_S
        while self._number not in self._answers:
            self.read(end - time.monotonic())
            if time.monotonic() > end:
                raise RuntimeError(f"Chromium does not answer to {method}")
        answer = self._answers.pop(self._number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def read(self, seconds: float = 0.0):
        """Take what it has told: events go to `events`."""
        while select.select([self._from], [], [], max(0.0, seconds))[0]:
            data = os.read(self._from, 1 << 20)
            if not data:
                raise RuntimeError(f"Chromium has ended (exit code {self.process.wait()})")
            *messages, self._rest = (self._rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self.events.append(message)
            if messages:
                return

    def page(self) -> "Page":
        """A page of its own, with a storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        return Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"], context)

    def close(self):
        """End it."""
        self.process.terminate()
        self.process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Page:
    """A page of a browser: `with browser.page() as page:`."""

    def __init__(self, browser: Browser, session: str, context: str):
        self.browser, self.session, self.context = browser, session, context
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def call(self, method, **params) -> dict:
        """A command to this page."""
        return self.browser.call(method, self.session, **params)

    def open(self, url: str):
        """Go there; what comes of it is to be waited for."""
        self.call("Page.navigate", url=url)

    def value(self, expression: str):
        """Of a JavaScript expression, as JSON has it. RuntimeError where it throws."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    @property
    def text(self) -> str:
        """What can be read on it."""
        return self.value("document.body?.innerText ?? ''")

    def until(self, *words: str, without: tuple[str, ...] = (), seconds: float = 10) -> str:
        """Wait until it shows all these words, and none of those; its text."""
        end = time.monotonic() + seconds
        while True:
            text = " ".join(self.text.split())
            if all(word in text for word in words) and not any(word in text for word in without):
                return text
            assert time.monotonic() < end, f"no {words} without {without} on the page:\n{text}"
            time.sleep(0.03)

    def events(self, method: str) -> list[dict]:
        """Those of this page so far."""
        self.browser.read()
        found = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in found if event["method"] == method]

    def complaints(self) -> list[str]:
        """Errors and warnings of its console, broken rules of its Content-Security-Policy among them."""
        logged = [event["entry"] for event in self.events("Log.entryAdded")]
        found = [
            f"{entry['text']} {entry.get('url', '')}" for entry in logged if entry["level"] in ("error", "warning")
        ]
        found += [str(event["exceptionDetails"]) for event in self.events("Runtime.exceptionThrown")]
        found += [str(event["args"]) for event in self.events("Runtime.consoleAPICalled")]
        return found

    def requests(self) -> list[str]:
        """The addresses that it has asked."""
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    def resize(self, width: int, height: int, dark: bool = False):
        """A window of that size, and the system's colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def picture(self) -> bytes:
        """What it looks like, as WebP."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="webp", quality=90)["data"])

    def type(self, text: str):
        """Into the field that has the focus; Enter at the end."""
        self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
            )


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.serve.browser", description="store a picture of a page")
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    parser.add_argument("size", nargs="?", default="1100x760")
    parser.add_argument("scheme", nargs="?", default="light", choices=("light", "dark"))
    given = parser.parse_args()
    with Browser() as browser, browser.page() as page:
        page.resize(*map(int, given.size.split("x")), dark=given.scheme == "dark")
        page.open(given.url)
        page.until("bankml")
        time.sleep(2)
        given.file.write_bytes(page.picture())


if __name__ == "__main__":
    main()
