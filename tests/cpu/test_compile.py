"""The kernel cache: damaged, unwritable, shared by several first runs, it never keeps an answer from coming."""

import os
import subprocess
import sys

import pytest

from bankml.cpu import level
from bankml.errors import BankmlError

PROBE = """
import numpy as np
from bankml.cpu.pool import Pool, program
from tests.cpu.test_pool import count_items
counters = np.zeros(8, np.int64)
pool = Pool(2)
pool.run(program((count_items, True, (8, counters.ctypes.data))))
pool.close()
print(counters.sum())
"""


def probe(home, **environment):
    """Runs a small program in a process of its own; returns (stdout, stderr)."""
    env = {**os.environ, "BANKML_HOME": str(home), **environment}
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_cold_says_so_and_warm_is_silent(tmp_path):
    assert probe(tmp_path) == ("8", "bankml: compiling kernels (first run only)\n")
    assert probe(tmp_path) == ("8", "")


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_truncated_cache_is_compiled_anew(tmp_path, suffix, keep):
    probe(tmp_path)
    for path in tmp_path.rglob(f"*.{suffix}"):
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    assert probe(tmp_path)[0] == "8"
    assert probe(tmp_path) == ("8", "")


def test_an_unwritable_home_compiles_all_the_same(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    environment = {"XDG_CACHE_HOME": str(blocked), "TMPDIR": str(blocked), "HOME": str(blocked)}
    assert probe(blocked / "home", **environment)[0] == "8"


def test_four_first_runs_at_once(tmp_path):
    env = {**os.environ, "BANKML_HOME": str(tmp_path)}
    runs = [subprocess.Popen([sys.executable, "-c", PROBE], env=env, stdout=subprocess.PIPE) for _ in range(4)]
    assert [run.communicate(timeout=120)[0].strip() for run in runs] == [b"8"] * 4


@pytest.mark.parametrize(("asked", "code", "words"), [("sse9", 1, "avx512, avx2, generic"), ("avx2", 2, "lacks")])
def test_a_level_the_machine_cannot_do_is_a_sentence(monkeypatch, asked, code, words):
    monkeypatch.setattr(level, "cpu_flags", lambda: frozenset({"sse2"}))
    monkeypatch.setenv("BANKML_CPU", asked)
    with pytest.raises(BankmlError, match=words) as refused:
        level.level.__wrapped__()
    assert refused.value.exit_code == code
    monkeypatch.delenv("BANKML_CPU")
    assert level.level.__wrapped__() == "generic"
