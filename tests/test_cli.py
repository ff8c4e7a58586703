"""The command's frame: help and its page, exit codes, one line per error, and how quickly it is there."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from bankml import benchmark
from bankml.cli import main as frame
from bankml.errors import BankmlError, NeedMore, Refused, UsageError
from bankml.oracle import compare
from testing import write_cli_docs
from tests import documented
from tests.gguf_writer import gguf, model


def bankml(*arguments, **options):
    command = [sys.executable, "-m", "bankml", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)


def test_the_page_shows_the_help_as_it_is():
    page = write_cli_docs.PAGE.read_text()
    assert words(write_cli_docs.updated(page)) == words(page), "run python testing/write_cli_docs.py"


def words(text):
    """The text without its white space: the columns of argparse differ between versions of Python."""
    return text.split()


@pytest.mark.parametrize("command", ["", *frame.COMMANDS, "oracle fetch", "oracle check"])
def test_every_command_is_on_the_page(command):
    heading = " ".join(["$ bankml", *command.split(), "--help"])
    assert f"```text\n{heading}\nusage: " in write_cli_docs.PAGE.read_text()


@pytest.mark.parametrize("command", ["generate", "guard", "oracle check", "bench"])
def test_every_schema_reads(command):
    assert documented.schema(f"bankml {command} --json")


def test_schemas_are_held_against_what_is_printed():
    want = {"a": ["integer"], "b": "x|y", "c": {"*": "number|null"}, "d": [{"e": "string"}, None], "f": "boolean"}
    good = {"a": [1, 2], "b": "y", "c": {"k": 1.5, "l": None}, "d": {"e": "s"}, "f": True}
    assert documented.misfit(good, want) is None
    assert documented.misfit(good | {"d": None}, want) is None
    for wrong in ({"a": [True]}, {"a": 1}, {"b": "z"}, {"c": {"k": "1"}}, {"d": {"e": 1}}, {"f": 1}, {"g": 0}):
        assert documented.misfit(good | wrong, want) is not None, wrong


def test_what_guard_bench_and_the_oracle_print_fits_their_schemas(tmp_path, capsys):
    for content in (gguf(*model()), gguf(*model("bert")), b"GGU"):
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        frame.main(["guard", "--json", str(path)])
        documented.check(json.loads(capsys.readouterr().out), "bankml guard --json")
    one = np.arange(4, dtype=np.float32).reshape(2, 2)
    stages = compare.compare([("l_out-0", one), ("logits", one)], [("l_out-0", one), ("logits", one + 1)])
    documented.check({"stages": [stage.as_dict() for stage in stages], "notes": ["x"]}, "bankml oracle check --json")
    row = benchmark.Row(
        "bonsai", "decode", 32, 40.5, 17.25, 2, 2.35, 0.01, True, 9.7, 0.25, {"qkv": 0.2, "python": 0.01}
    )
    documented.check(json.loads(json.dumps(benchmark.as_json([row]))), "bankml bench --json")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no such thing"), 1),
        (BankmlError("odd"), 1),
        (Refused("this", "that"), 2),
        (NeedMore("a cut file"), 3),
        (FileNotFoundError(2, "No such file or directory", "x\ny"), 1),
        (OSError("nothing known"), 1),
        (MemoryError(), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_an_exit_code(monkeypatch, capsys, error, code):
    def raise_it(argv):
        raise error

    monkeypatch.setattr(frame, "_run", raise_it)
    assert frame.main(["guard"]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == (0 if code == 130 else 1)
    assert code == 130 or err.startswith("bankml: ")


def test_names_in_messages_cannot_break_the_line_or_the_terminal(capsys):
    assert frame.main(["guard", "no\nsuch\x1b[31m\udcff.gguf"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "\x1b" not in err and r"no\nsuch\x1b[31m\udcff.gguf" in err


def test_no_command_shows_the_help_on_stderr():
    done = bankml()
    assert (done.returncode, done.stdout) == (1, b"") and done.stderr.startswith(b"usage: bankml")


def test_unknown_commands_and_flags():
    for arguments in (["nosuch"], ["guard"], ["guard", "x", "--nosuch"], ["--nosuch"]):
        done = bankml(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1), arguments


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["generate", "--help"], ["guard", "none.gguf"]])
def test_what_needs_no_model_is_there_in_half_a_second(arguments, tmp_path):
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        done = bankml(*arguments, cwd=tmp_path)
        best = min(best, time.perf_counter() - begun)
        if best < 0.5:
            break
    assert done.returncode == (1 if arguments[0] == "guard" else 0)
    assert best < 0.5


def test_flags_whose_value_is_optional_take_it_after_equals_only():
    parser = frame.parser("generate")
    assert parser.parse_args(["generate", "--gpu", "hi"]).gpu == ""
    assert parser.parse_args(["generate", "--gpu=1", "hi"]).gpu == "1"
    assert parser.parse_args(["generate", "hi", "--gpu"]).prompt == "hi"
    assert parser.parse_args(["generate", "hi"]).gpu is None
    assert parser.parse_args(["generate", "--", "--gpu"]).prompt == "--gpu"


def test_a_closed_reader_is_quiet():
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m bankml --help | true"], capture_output=True, timeout=60, check=False
    )
    assert done.stderr == b""
