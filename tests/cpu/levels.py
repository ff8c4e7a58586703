"""Each CPU level is tested in a process of its own: the compiler's target is settled before Numba is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bankml.cpu.level import NEEDS, cpu_flags, level

ROOT = Path(__file__).parents[2]
OTHER_LEVELS = [name for name in NEEDS if name != level()]


def rerun_at(name: str, file: str, *options: str):
    """Run the tests of `file` at another level; the selection must leave out the test that calls this."""
    missing = NEEDS[name] - cpu_flags()
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}, so it cannot run the {name} level")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, *options]
    environment = {**os.environ, "BANKML_CPU": name}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
