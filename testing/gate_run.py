"""Stages run, each in a process of its own, two at a time where they can; the first unequal one ends it all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from testing.stages.stage import Count, Given, Stage

ROOT = Path(__file__).resolve().parent.parent
HEARTBEAT_S = 60.0
LOOK_S = 0.2
ENDING_S = 15.0
ENDED_BY = (signal.SIGINT, signal.SIGTERM)
UNSET = ("BANKML_CACHE_TYPE", "BANKML_CACHE_RAM", "BANKML_LLAMA_THREADS", "BANKML_GPU", "BANKML_GPU_SHARE")


class Unequal(Exception):
    """A stage whose two sides are not equal, or that could not be run; the text says which and why."""


@dataclass
class Done:
    """A stage's outcome: its count and the seconds it took."""

    count: Count
    seconds: float

    def as_dict(self) -> dict:
        """For the kept outcomes of a run."""
        return {
            "equal": self.count.equal,
            "total": self.count.total,
            "facts": self.count.facts,
            "seconds": round(self.seconds, 1),
        }


class _Running:
    """A stage under way."""

    def __init__(self, stage: Stage, given: Given):
        self.stage, self.began, self.told = stage, time.monotonic(), time.monotonic()
        name = "".join(c if c.isalnum() else "-" for c in stage.name)
        self.log, self.result = given.own / f"{name}.log", given.own / f"{name}.json"
        command = [
            sys.executable,
            "-m",
            "testing.stages",
            stage.name,
            "--folder",
            given.folder,
            "--result",
            self.result,
        ]
        command += ["--quick"] if given.quick else []
        command += ["--model", given.model] if given.model else []
        environment = {name: value for name, value in os.environ.items() if name not in UNSET}
        environment["PYTHONPATH"] = str(ROOT)  # this checkout's bankml, whatever is installed
        if not stage.alone:
            environment["BANKML_THREADS"] = "1"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
            )

    def outcome(self) -> Done:
        """Of a stage that has ended. Raises Unequal."""
        seconds = time.monotonic() - self.began
        if self.process.returncode not in (0, 2) or not self.result.exists():
            lines = self.log.read_text(errors="replace").strip().splitlines()[-12:]
            raise Unequal("\n    ".join([f"{self.stage.name} ended with {self.process.returncode}", *lines]))
        told = json.loads(self.result.read_text())
        count = Count(told["equal"], told["total"], told["first"], told["facts"])
        if not count.same:
            equal = f"{count.equal:,} of {count.total:,} {self.stage.unit} equal"
            raise Unequal(f"{self.stage.name}: {equal}; {count.first}")
        return Done(count, seconds)

    def tell(self, say, words):
        """Say a few words of it, of a stage that takes its time."""
        self.told = time.monotonic()
        if self.stage.seconds >= HEARTBEAT_S:
            say(f"{self.stage.name}: {words}; takes about {self.stage.seconds / 60:.0f} min")

    def end(self):
        """Interrupt it and all it started, and kill what does not end."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDING_S)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def _signals_kept():
    """Yields a list that SIGINT and SIGTERM are put into while the block runs, to be looked at between two steps.

    An exception in the midst of a start would leave a process behind that nobody knows.
    """
    kept = []
    before = {number: signal.signal(number, lambda number, frame: kept.append(number)) for number in ENDED_BY}
    try:
        yield kept
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(stages: list[Stage], given: Given, done: Callable[[Stage, Done], None], say: Callable[[str], None]):
    """Run the stages in their order; done(stage, outcome) is called as each ends. Logs go to `given.own`.

    Raises Unequal at the first that is not equal or has fewer comparisons than it must; KeyboardInterrupt or SystemExit
    after a signal. What is running is ended then.
    """
    waiting, running = list(stages), []
    given.own.mkdir(exist_ok=True)
    room = min(2, len(os.sched_getaffinity(0)))
    with _signals_kept() as signals:
        try:
            while waiting or running:
                while waiting and _fits(waiting[0], running, room):
                    running.append(_Running(waiting.pop(0), given))
                    running[-1].tell(say, "started")
                time.sleep(LOOK_S)
                if signals:
                    raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])
                for one in [one for one in running if one.process.poll() is not None]:
                    outcome = one.outcome()
                    running.remove(one)
                    if not given.quick and not given.model and outcome.count.total < one.stage.least:
                        raise Unequal(f"{one.stage.name}: {outcome.count.total:,} compared, not {one.stage.least:,}")
                    done(one.stage, outcome)
                for one in running:
                    if time.monotonic() - one.told > HEARTBEAT_S:
                        one.tell(say, f"{(time.monotonic() - one.began) / 60:.0f} min so far")
        finally:
            for one in running:
                one.end()


def _fits(stage, running, room):
    return not running or (len(running) < room and not stage.alone and not any(one.stage.alone for one in running))
