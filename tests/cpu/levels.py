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
    _pytest(["-m", "pytest"], {"BANKML_CPU": name}, file, *options)


WITHOUT_EXTRAS = """
import sys, pytest
from bankml.cpu import level
flags = level.cpu_flags() - set(level.EXTRAS)
level.cpu_flags = lambda: flags
level.has.cache_clear()
assert not any(map(level.has, level.EXTRAS))
sys.exit(pytest.main(sys.argv[1:]))
"""


def rerun_without_extras(home, file: str, *options: str, at: str = "avx512"):
    """Run tests at a level as on a machine without its VNNI and GFNI, with a kernel cache of its own."""
    missing = NEEDS[at] - cpu_flags()
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}, so it cannot run the {at} level")
    _pytest(["-c", WITHOUT_EXTRAS], {"BANKML_HOME": str(home), "BANKML_CPU": at}, file, *options)


def _pytest(start, variables, file, *options):
    command = [sys.executable, *start, "-q", "-p", "no:cacheprovider", file, *options]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
