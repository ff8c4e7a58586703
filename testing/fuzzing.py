"""What the fuzzers share: seeded inputs for a number of seconds, a limit for each, and what was found, kept as a file.

A finding is an exception other than the documented ones, a hang, or a disagreement; it is shortened and saved by its
hash. Files of tests/found/NAME are run again by tests/test_fuzz.py.
"""

import argparse
import base64
import hashlib
import json
import math
import random
import signal
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

FOUND = Path(__file__).parent.parent / "tests" / "found"
LIMIT_S = 10.0  # of processor time, for one input


class Hang(BaseException):
    """An input took longer than its limit; no `except Exception` of the tested code can hide it."""


@contextmanager
def limited(seconds):
    """Raise Hang in the main thread once it has computed for `seconds`: a busy machine is no hang."""

    def ring(*_):
        raise Hang(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fault(run, case) -> str:
    """What is wrong with `run(case)`, a line; empty if nothing. `run` raises for a disagreement (AssertionError)."""
    try:
        with limited(LIMIT_S):
            run(case)
    except (Exception, Hang) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}"[:500]
    return ""


def shorter(case: bytes, wrong, tries=400) -> bytes:
    """A shorter input for which `wrong` still holds: parts are cut out, halves first."""
    size = len(case) // 2
    while size and tries > 0:
        at = 0
        while at < len(case) and tries > 0:
            candidate = case[:at] + case[at + size :]
            tries -= 1
            if wrong(candidate):
                case = candidate
            else:
                at += size
        size //= 2
    return case


def fuzz(name: str, generate, run, seconds: float, seed: int, most=20, inputs: int | None = None) -> list[str]:
    """Run `run(generate(rng))` for so long, or for so many inputs; generate gives bytes.

    Returns the faults, each saved once per place.
    """
    rng, faults, count, ends = random.Random(seed), {}, 0, time.monotonic() + seconds
    while time.monotonic() < ends and len(faults) < most and count != inputs:
        case, count = generate(rng), count + 1
        if (complaint := fault(run, case)) and (place := complaint.partition(": ")[0]) not in faults:
            case = shorter(case, lambda candidate, place=place: fault(run, candidate).partition(": ")[0] == place)
            faults[place] = f"{save(name, case, complaint)}: {complaint}"
    print(f"fuzz_{name}: seed {seed}, {count} inputs, {len(faults)} faults")
    return list(faults.values())


def save(name: str, case: bytes, complaint: str) -> Path:
    """Keep a found input beside the others; returns its path."""
    folder = FOUND / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(case).hexdigest()[:12]}.json"
    path.write_text(json.dumps({"input": base64.b64encode(case).decode(), "found": complaint}) + "\n")
    return path


def found(name: str) -> list[tuple[str, bytes]]:
    """(file name, input) of what was found before."""
    paths = sorted((FOUND / name).glob("*.json"))
    return [(path.stem, base64.b64decode(json.loads(path.read_text())["input"])) for path in paths]


def command(name: str, generate, run) -> int:
    """The command line of a fuzzer: exit code 1 if it found something."""
    given = arguments(name)
    return told(fuzz(name, generate, run, given.seconds, given.seed, inputs=given.count))


def arguments(name: str) -> argparse.Namespace:
    """What the command line of a fuzzer gives; with a count and no seconds, the count alone ends it."""
    parser = argparse.ArgumentParser(prog=f"python -m testing.fuzz_{name}")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--count", type=int, help="so many inputs")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.seconds is None:
        given.seconds = 180 if given.count is None else math.inf
    return given


def told(faults: list[str]) -> int:
    """The exit code; the faults go to stderr."""
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0
