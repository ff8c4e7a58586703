"""The command `bankml gpu`, as a user runs it and in this process."""

import json
import os
import subprocess
import sys

import numpy as np

from bankml.blocks import RUNNABLE
from bankml.cli import main as frame
from bankml.cpu.compile import source_digest
from bankml.gpu import canary_data, verdicts
from testing import write_gpu_table
from tests import documented
from tests.gpu import drivers


def bankml(*arguments, **environment):
    command = [sys.executable, "-m", "bankml", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment}
    )
    lines = [line for line in done.stderr.splitlines() if line != "bankml: compiling kernels (first run only)"]
    assert "Traceback" not in done.stderr and len(lines) <= 1, done.stderr
    return done.returncode, done.stdout, "".join(lines)


def test_no_platform():
    for arguments, want in ((["gpu"], 0), (["gpu", "--verify"], 2), (["gpu", "--device", "pocl"], 2)):
        code, out, err = bankml(*arguments, OCL_ICD_VENDORS="/nonexistent")
        assert (code, out) == (want, "") and "no OpenCL platform was found" in err and "OCL_ICD_VENDORS" in err
    code, out, err = bankml("gpu", "--json", OCL_ICD_VENDORS="/nonexistent")
    documented.check(json.loads(out), "bankml gpu --json")
    assert code == 0 and err == "" and json.loads(out)["devices"] == []


def test_pocl_proves_itself(pocl, tmp_path):
    """With build options that would break every bit."""
    environment = {
        **drivers.vendors("pocl", tmp_path),
        "PYOPENCL_BUILD_OPTIONS": "-cl-fast-relaxed-math -DTILE=3 -D__nonsense(",
        "BANKML_HOME": "",
        "XDG_DATA_HOME": str(tmp_path),
    }
    code, out, err = bankml("gpu", "--verify", "--device", "pocl", **environment)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("0: ") and "passed in " in lines[-1] and "fma() fused" in lines[-1]
    assert all(line.endswith(": ok") for line in lines[1:-1])
    assert len(lines) - 2 == 1 + 7 + 7 + 6 + 3 * 2 * len(canary_data.SHAPES)
    assert len(list((tmp_path / "bankml" / "cards").glob("*.json"))) == 3


def run(capsys, *arguments):
    code = frame.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_listing(pocl, capsys, monkeypatch):
    monkeypatch.delenv("BANKML_GPU", raising=False)
    index = pocl[0].index
    code, out, err = run(capsys, "gpu")
    assert (code, err) == (0, "") and f"{index}: {pocl[0].name}\n" in out
    assert f"not used: a CPU device is used only when it is named: BANKML_GPU={index}" in out
    for asked in ([], ["--device", str(index)]):
        code, out, _ = run(capsys, "gpu", "--json", *asked)
        said = json.loads(out)
        documented.check(said, "bankml gpu --json")
        assert code == 0 and said["devices"][index]["used"] == bool(asked) and said["verified"] is None
        assert said["devices"][index]["memory_bytes"] == pocl[0].memory


def test_which(pocl, capsys, monkeypatch):
    """A malformed value is a usage error, one that matches nothing lists the devices, and off verifies nothing."""
    monkeypatch.setenv("BANKML_GPU", "off")
    assert run(capsys, "gpu")[0] == 0
    code, out, err = run(capsys, "gpu", "--verify")
    assert (code, out) == (2, "") and "there is no card to verify: 0: " in err and "switched off" in err
    for word in ("99", "nothing"):
        code, out, err = run(capsys, "gpu", "--verify", "--device", word)
        assert (code, out) == (2, "") and "the devices are 0: " in err and err.count("\n") == 1
    for word in ("-1", "0,,1", "auto,0"):
        code, out, err = run(capsys, "gpu", f"--device={word}")
        assert (code, out) == (1, "") and "it takes auto, off" in err


def test_a_card_that_fails(pocl, capsys, monkeypatch, tmp_path):
    """Exit code 2, and the check is named; a card that fails leaves no verdict, an earlier one neither."""
    monkeypatch.setenv("BANKML_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for wtype in RUNNABLE:
        verdicts.write(verdicts.key(pocl[0], wtype, source_digest()), pocl[0], False)
    assert len(list(tmp_path.rglob("*.json"))) == 3
    monkeypatch.setattr("bankml.cards.expected_on", lambda pool: nothing)
    code, out, err = run(capsys, "gpu", "--verify", "--device", str(pocl[0].index))
    assert code == 2 and "q1_0 tie rows: 576 of 576 results of the tile kernel differ" in out
    assert "fails: fma() build: q1_0 tie rows" in err and err.count("\n") == 1
    assert list(tmp_path.rglob("*.json")) == []
    code, out, _ = run(capsys, "gpu", "--verify", "--json", "--device", str(pocl[0].index))
    said = json.loads(out)
    documented.check(said, "bankml gpu --json")
    assert code == 2 and not said["verified"][0]["passed"] and said["verified"][0]["build"] is None


def nothing(_wtype, weights, activation):
    return np.zeros((len(activation[0]), len(weights)), np.float32)


def test_the_table_of_verified_drivers_is_what_was_printed():
    """Of runs that are kept whole; the page says that no real card is among them as long as none is."""
    page = write_gpu_table.PAGE.read_text()
    assert write_gpu_table.updated(page) == page, "run python testing/write_gpu_table.py"
    reports = [json.loads(path.read_text()) for path in write_gpu_table.RESULTS.glob("*.json")]
    for report in reports:
        documented.check(report, "bankml gpu --json")
    types = {report["devices"][said["index"]]["type"] for report in reports for said in report["verified"]}
    assert ("No real card has been tried yet" in page) == (types == {"CPU"})
