"""oclgrind finds no data race, no uninitialised read and no access out of bounds in any kernel, and would find them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bankml.blocks import RUNNABLE, TYPES
from bankml.gpu import program
from tests.gpu import under_oclgrind

ROOT = Path(__file__).parents[2]
MISTAKES = {
    "Write-write data race": ("lanes[64u * c + item] =", "lanes[64u * c + item / 2u] ="),
    "uninitialized value": ("acc[c] = 0.0f;", ""),
    "Invalid read": ("min(row, rows - 1u)", "row"),
    "Invalid write": ("if (row < rows && first + c <= last)", "if (row >= rows || first + c <= last)"),
}


def watched(folder: Path, text: str | None = None) -> tuple[dict[str, np.ndarray], str]:
    """The results of every kernel, and what oclgrind has to say."""
    oclgrind = shutil.which("oclgrind")
    if oclgrind is None:
        complaint = "needs oclgrind (Debian's package of that name)"
        pytest.fail(complaint) if os.environ.get("CI") else pytest.skip(complaint)
    log, results = folder / "log", folder / "results.npz"
    command = [oclgrind, "--data-races", "--uninitialized", "--max-errors", "20", "--log", str(log)]
    command += [sys.executable, "-m", "tests.gpu.under_oclgrind", str(results)]
    if text is not None:
        (folder / "source.cl").write_text(text)
        command.append(str(folder / "source.cl"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(results)), log.read_text()


def test_every_kernel_is_clean_and_right(tmp_path, expected):
    results, said = watched(tmp_path)
    assert said == ""
    for wtype in RUNNABLE:
        for way, case, weights, _ in under_oclgrind.cases(wtype):
            want = expected(wtype, weights, case.activation)
            for software in (0, 1):
                got = results.pop(f"{TYPES[wtype].name} {way} {software}")
                assert (got.view("u4") == want.view("u4")).all(), (case.name, way, software)
    assert results == {}


@pytest.mark.parametrize("complaint", MISTAKES)
def test_mistakes_are_noticed(complaint, tmp_path):
    there, instead = MISTAKES[complaint]
    assert there in program.source()
    assert complaint in watched(tmp_path, program.source().replace(there, instead))[1]
