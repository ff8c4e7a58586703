"""What is handed to the commands wrongly, or without end, and signals that come twice: one line, one exit code."""

import io
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bankml.cli import given
from bankml.cli.main import main
from bankml.errors import UsageError
from tests import conversion_models, stand_in
from tests.test_generate import generate, start


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return stand_in.write_model(tmp_path_factory.mktemp("model") / "bytes.gguf")


def run(arguments, **options):
    command = [sys.executable, "-m", "bankml", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False, **options)


def refused(capsys, *arguments) -> str:
    """Run a command in this process; it must leave with 1 and one line, which is returned."""
    try:
        code = main(list(map(str, arguments)))
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (1, "", 1) and err.startswith("bankml"), err
    return err


NAMELESS = (
    ["generate", "-m", "", "hi"],
    ["generate", "-f", ""],
    *([command, ""] for command in ("guard", "info", "verify", "tokenize", "chat-template", "pull")),
    ["convert", "", "out", "--type", "f16"],
    ["convert", "in", "", "--type", "f16"],
    ["oracle", "check", ""],
    ["bench", "-m", ""],
    ["bench", "--shape", ""],
)


@pytest.mark.parametrize("arguments", NAMELESS, ids=" ".join)
def test_an_empty_name_is_no_name(capsys, arguments):
    assert "not empty" in refused(capsys, *arguments)


@pytest.mark.parametrize("number", ["1_0", " 5", "5 ", "٣"])
def test_numbers_are_digits(capsys, number):
    assert "whole number" in refused(capsys, "generate", "--max", number, "hi")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--reference-threads", ""], "nothing to measure"),
        (["--prompt", "", "--decode", ""], "nothing to measure"),
        (["--reference-threads", "65"], "1 to 64"),
        (["--prompt", "513"], "513 tokens do not fit the model's context of 512"),
        (["--rounds", "0"], "1 to 1000"),
        (["--threads", "0"], "1 to 64"),
    ],
)
def test_bench_says_what_it_cannot_measure(capsys, model, flags, words):
    assert words in refused(capsys, "bench", "-m", model, *flags)


def test_an_empty_prompt(model, tmp_path):
    """However it is given: an unset variable is the likeliest reason."""
    empty = tmp_path / "p.txt"
    empty.write_bytes(b"\n")
    for arguments in ([""], ["--raw", ""], ["-f", str(empty)]):
        assert generate(model, *arguments) == (1, b"", "bankml: the prompt is empty\n")


def test_what_has_no_end_is_not_read_to_it(model):
    code, out, err = generate(model, "-f", "/dev/zero")
    assert (code, out, err) == (1, b"", "bankml: /dev/zero has more than 32 MB, the most that is read\n")
    assert given.read(io.BytesIO(b"abc"), "it", 3) == b"abc"
    with pytest.raises(UsageError, match="it has more than"):
        given.read(io.BytesIO(b"abcd"), "it", 3)


@pytest.mark.parametrize("command", ["tokenize", "chat-template"])
def test_a_closed_stdin(model, command):
    for close, words in ((lambda: os.close(0), b"stdin is closed"), (write_only, b"stdin: ")):
        done = run([command, model], stdout=subprocess.PIPE, preexec_fn=close)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1), done.stderr
        assert words in done.stderr


def write_only():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 0)


def test_half_a_character_in_json(model):
    for text, code in ((rb"\ud800", 1), (rb"\ud83d\ude80", 0)):
        given = b'[{"role": "user", "content": "%s"}]' % text
        done = run(["chat-template", model], input=given, stdout=subprocess.PIPE)
        assert (done.returncode, done.stderr.count(b"\n"), "🚀".encode() in done.stdout) == (code, code, not code)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["guard", "--help"], ["models"], ["guard"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout(model, arguments, unbuffered):
    arguments = [*arguments, model] if arguments == ["guard"] else arguments
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "BANKML_HOME": str(model.parent.parent)}
    (model.parent.parent / "models").mkdir(exist_ok=True)
    (model.parent.parent / "models" / "m.gguf").write_bytes(b"")
    with open("/dev/full", "wb") as full:
        done = run(arguments, stdout=full, env=env)
    assert (done.returncode, done.stderr) == (1, b"bankml: stdout: No space left on device\n")


def test_a_full_disk_behind_a_file_is_not_called_stdout(tmp_path):
    source, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
    source.write_bytes(conversion_models.case("q8_0-256"))

    def few_bytes():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = run(["convert", source, target, "--type", "f16"], preexec_fn=few_bytes)
    assert (done.returncode, done.stderr) == (1, f"bankml: {target}: File too large\n".encode())
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_a_target_that_is_a_folder_to_be(capsys, tmp_path):
    source = tmp_path / "in.gguf"
    source.write_bytes(conversion_models.case("q8_0-256"))
    assert "names a folder" in refused(capsys, "convert", source, f"{tmp_path}/new/", "--type", "f16")
    assert not Path(tmp_path, "new").exists()


@pytest.mark.parametrize("gap", [0.0, 0.003, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_changes_nothing(model, gap, number):
    """The first one is being dealt with: the exit code stays, and no traceback comes of it."""
    process = start(model, "hi", answer="and so on " * 100, token_s=0.01)
    assert process.stdout.read(1) == b"a"
    for wait in (gap, 0):
        process.send_signal(number)
        time.sleep(wait)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err.count(b"\n")) == (128 + number, 1) and b"interrupted" in err, err


CUT = """
import mmap, os, sys, threading
import numpy as np
from bankml.cli.signals import tell_of_lost_data
tell_of_lost_data("some\\nmodel")
with open(sys.argv[1], "r+b") as file:
    data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    os.truncate(sys.argv[1], 4096)
print("cut", flush=True)
work = lambda: print(data.sum())
for _ in range(int(sys.argv[2])):
    threading.Thread(target=work).start()
work()
"""


@pytest.mark.parametrize("threads", ["0", "3"])
def test_a_model_that_is_cut_while_it_runs(tmp_path, threads):
    """The kernel's SIGBUS would end the process without a word."""
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(1 << 20))
    done = subprocess.run([sys.executable, "-c", CUT, str(path), threads], capture_output=True, timeout=60, check=False)
    line = b"bankml: some?model: its data cannot be read any more; was the file cut while it was in use?\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, b"cut\n", line)
