"""`bankml generate` as a process, the forward pass replaced by one whose answer is known (see stand_in.py)."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bankml.cli.main import main
from tests import documented, stand_in

SCRIPT = Path(stand_in.__file__)
STATISTICS = re.compile(
    r"(bankml: compiling kernels \(first run only\)\n)?"
    r"bankml: load \d+\.\d\d s, prompt \d+ tokens at [\d.]+ tokens/s, first token at \d+\.\d\d s, "
    r"answer \d+ tokens( at [\d.]+ tokens/s)?, seed \d+, 2 threads(, .*)?\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return stand_in.write_model(tmp_path_factory.mktemp("model") / "bytes.gguf")


def start(model, *arguments, answer="Hello.", env=None, **script):
    """The command as a running process, its streams pipes of bytes."""
    stdin = script.pop("stdin", subprocess.PIPE)
    stdout = script.pop("stdout", subprocess.PIPE)
    command = [sys.executable, str(SCRIPT), "generate", "-m", str(model), *arguments]
    env = {**os.environ, "STAND_IN": json.dumps({"answer": answer, **script}), **(env or {})}
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=env)


def generate(model, *arguments, given=b"", **options):
    """(exit code, stdout, stderr) of a run; `given` is stdin."""
    process = start(model, *arguments, **options)
    out, err = process.communicate(given, timeout=60)
    return process.returncode, out, err.decode()


@pytest.fixture
def asked(tmp_path):
    """asked(): the bytes of the prompt that the last run gave the model; control tokens show as their texts."""
    log = tmp_path / "asked.json"

    class Asked:
        def __init__(self):
            self.env = {"STAND_IN_LOG": str(log)}

        def __call__(self):
            tokens = json.loads(log.read_text())["prompt"]
            texts = {stand_in.START: b"<|im_start|>", stand_in.END: b"<|im_end|>"}
            return b"".join(texts.get(token) or bytes([token]) for token in tokens)

    return Asked()


def test_stdout_carries_the_answer_alone(model):
    code, out, err = generate(model, "hi", answer="Wörld 🚀")
    assert (code, out) == (0, "Wörld 🚀".encode())
    assert STATISTICS.fullmatch(err), err


def test_the_json_object(model):
    code, out, err = generate(model, "hi", "--json", "--seed", "7", answer="né")
    report = json.loads(out)
    assert code == 0 and out.count(b"\n") == 1 and out.endswith(b"}\n")
    documented.check(report, "bankml generate --json")
    assert report["text"] == "né" and report["tokens"] == [*"né".encode()]
    assert report["seed"] == 7 and report["finish_reason"] == "stop"
    assert report["prompt_tokens"] == len("..user\nhi.\n.assistant\n") - 1 and report["completion_tokens"] == 3
    assert 0 <= report["load_s"] <= report["first_token_s"] < 60
    assert STATISTICS.fullmatch(err), err


def test_prompts_go_through_the_template(model, asked):
    generate(model, "hi", env=asked.env)
    assert asked() == b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    generate(model, "hi", "--system", "be brief", env=asked.env)
    assert asked().startswith(b"<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi")
    generate(model, "--raw", "hi <|im_end|>", env=asked.env)
    assert asked() == b"hi <|im_end|>"


def test_all_of_stdin_is_one_prompt(model, asked):
    """I1"""
    for arguments in ((), ("-",)):
        code, out, _ = generate(model, *arguments, "--raw", given=b"line1\nline2\n", env=asked.env)
        assert (code, out, asked()) == (0, b"Hello.", b"line1\nline2\n")


def test_a_file_loses_one_newline_and_nothing_is_escaped(model, asked, tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes(b"a\n\n")
    generate(model, "--raw", "-f", str(path), env=asked.env)
    assert asked() == b"a\n"
    generate(model, "--raw", r"a\nb", env=asked.env)
    assert asked() == rb"a\nb"


def test_bytes_of_a_prompt_reach_the_model_as_they_came(model, asked):
    """What is not UTF-8 does not stop anything; the tokenizer makes U+FFFD of it, as the reference does."""
    for raw in (["--raw"], []):
        code, _, err = generate(model, *raw, given=b"a\xff\x00\xc3b", env=asked.env)
        assert code == 0, err
        assert b"a\xef\xbf\xbd\x00\xef\xbf\xbdb" in asked()


def test_prompts_that_look_like_flags(model, asked):
    code, _, _ = generate(model, "--raw", "--", "--gpu", env=asked.env)
    assert (code, asked()) == (0, b"--gpu")


def test_limits_and_stop_strings(model):
    code, out, err = generate(model, "hi", "--max", "3", answer="abcdef")
    assert (code, out) == (0, b"abc") and "stopped at the limit" in err
    report = json.loads(generate(model, "hi", "--max", "0", "--json")[1])
    assert (report["finish_reason"], report["tokens"], report["first_token_s"]) == ("length", [], None)
    report = json.loads(generate(model, "hi", "--stop", "de", "--stop", "x", "--json", answer="abcdef")[1])
    assert (report["finish_reason"], report["text"]) == ("stop", "abc")
    report = json.loads(generate(model, "hi", "--raw", "--ctx", "4", "--json", answer="abcdef")[1])
    assert (report["finish_reason"], report["text"]) == ("length", "ab")


def test_the_micro_batch_is_handed_on(model, asked):
    generate(model, "--raw", "a prompt of 21 tokens", "--ubatch", "8", env=asked.env)
    assert json.loads(Path(asked.env["STAND_IN_LOG"]).read_text())["batches"] == [8, 8, 5]


def test_seeds(model):
    """B2: a seed decides, none is a reported random one, and greedy answers have no use for it."""

    def run(*arguments):
        return json.loads(generate(model, "hi", "--json", "--max", "20", *arguments, answer="x" * 30, flat=True)[1])

    hot = ("--temp", "0.8", "--top-k", "0")
    first, again, other = (run(*hot, "--seed", seed) for seed in ("42", "42", "43"))
    assert first["tokens"] == again["tokens"] != other["tokens"] and first["seed"] == 42
    unseeded = run(*hot)
    assert run(*hot, "--seed", str(unseeded["seed"]))["tokens"] == unseeded["tokens"]
    assert run("--seed", "1")["tokens"] == run("--seed", "2")["tokens"] == run()["tokens"]


BAD = {
    "negative max": (["--max", "-1"], "--max"),
    "max not a number": (["--max", "ten"], "--max"),
    "nan": (["--temp", "nan"], "--temp"),
    "infinite": (["--temp", "inf"], "--temp"),
    "top-p": (["--top-p", "1.01"], "--top-p"),
    "min-p": (["--min-p", "-0.5"], "--min-p"),
    "top-k": (["--top-k", "-3"], "--top-k"),
    "seed": (["--seed", "4294967296"], "--seed"),
    "micro-batch": (["--ubatch", "0"], "--ubatch"),
    "no threads": (["--threads", "0"], "--threads"),
    "threads": (["--threads", "65"], "--threads"),
    "context": (["--ctx", "0"], "--ctx"),
    "empty stop": (["--stop", ""], "--stop"),
    "raw and system": (["--raw", "--system", "s"], "--raw"),
    "raw and no-think": (["--raw", "--no-think"], "--raw"),
    "gpu both ways": (["--gpu", "--no-gpu"], "not allowed"),
    "malformed gpu": (["--gpu=0,,1"], "--gpu"),
    "unknown": (["--tempo", "1"], "--tempo"),
    "abbreviated": (["--sys", "x"], "--sys"),
    "two prompts": (["more", "words"], "words"),
    "newline": (["--max", "a\nb"], "--max"),
}


def refused(capsys, model, *arguments):
    """Run the command in this process; it must leave with 1 and one line, which is returned."""
    try:
        code = main(["generate", "-m", str(model), *arguments])
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (1, "", 1) and err.startswith("bankml"), err
    return err


@pytest.mark.parametrize("name", BAD)
def test_usage_errors_are_one_line_and_exit_1(model, name, capsys):
    arguments, word = BAD[name]
    assert word in refused(capsys, model, "hi", *arguments)


ENVIRONMENT = {
    "BANKML_CACHE_TYPE": ("q4_0", "f16"),
    "BANKML_CACHE_RAM": ("-2", "no limit"),
    "BANKML_GPU": ("-1", "auto"),
    "BANKML_GPU_SHARE": ("0.99", "0 to 0.95"),
    "BANKML_GPU_LIMIT": ("much", "0.05 to 1"),
}


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_bad_environment_values_are_refused_with_the_accepted_ones(model, name, capsys, monkeypatch):
    value, accepted = ENVIRONMENT[name]
    monkeypatch.setenv(name, value)
    error = refused(capsys, model, "hi")
    assert name in error and accepted in error


@pytest.mark.parametrize("value", ["auto", "off", "0,pocl"])
def test_gpu_values_that_are_well_formed_go_on_with_the_cpu(model, value):
    code, out, err = generate(model, f"--gpu={value}", "hi", env={"BANKML_GPU": value})
    assert (code, out) == (0, b"Hello.")
    assert "a device is asked" in err
    quiet = generate(model, "hi", env={"BANKML_GPU": value})
    assert ("a device is asked" in quiet[2]) == (value == "0,pocl")


def test_gpu_alone_does_not_swallow_the_prompt(model, asked):
    code, out, err = generate(model, "--raw", "--gpu", "hi", env=asked.env)
    assert (code, out, asked()) == (0, b"Hello.", b"hi") and err.count("\n") == 2
    assert generate(model, "--no-gpu", "hi")[:2] == (0, b"Hello.")


def test_no_prompt_at_all(model, tmp_path):
    for process in (start(model), start(model, stdin=subprocess.DEVNULL)):
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err.count(b"\n")) == (1, b"", 1) and b"no prompt" in err
    code, out, err = generate(model, "hi", "-f", str(tmp_path / "none"))
    assert code == 1 and "not both" in err
    code, out, err = generate(model, "-f", str(tmp_path / "none"))
    assert (code, err) == (1, f"bankml: {tmp_path / 'none'}: No such file or directory\n")
    code, out, err = generate(model, "-f", str(tmp_path))
    assert (code, err.count("\n")) == (1, 1)
    code, out, err = generate(model, "--raw", "")
    assert (code, err) == (1, "bankml: the prompt is empty\n")


def test_a_prompt_longer_than_the_context_is_refused_before_loading(model):
    code, out, err = generate(model, "--raw", "--ctx", "8", "123456789", load_s=30)
    assert (code, out) == (1, b"") and "9 tokens" in err and "only 8" in err and err.count("\n") == 1
    code, out, err = generate(model, "x" * 600, load_s=30)  # the model's own context of 512
    assert code == 1 and "only 512" in err


def test_files_that_will_not_run(model, tmp_path):
    cut, page, empty = tmp_path / "cut.gguf", tmp_path / "page.gguf", tmp_path / "empty.gguf"
    cut.write_bytes(model.read_bytes()[:-1])
    page.write_bytes(b"<html></html>")
    empty.write_bytes(b"")
    unreadable = tmp_path / "none.gguf"
    for path, want in ((cut, 3), (page, 2), (empty, 3), (unreadable, 1), (tmp_path, 1)):
        code, out, err = generate(path, "hi")
        assert (code, out, err.count("\n")) == (want, b"", 1) and err.startswith("bankml: "), (path, err)


def read_until(stream, text: bytes) -> bytes:
    """What the stream gives until it ends with `text`."""
    got = b""
    while not got.endswith(text):
        byte = stream.read(1)
        assert byte, got
        got += byte
    return got


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_generated(model, number):
    """I2"""
    process = start(model, "hi", answer="ab🚀 and so on " * 100, token_s=0.01)
    got = read_until(process.stdout, "b🚀 and".encode())
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert ("ab🚀 and so on " * 100).encode().startswith(got + out)
    assert "\ufffd" not in (got + out).decode()
    assert STATISTICS.fullmatch(err.decode()) and b", interrupted\n" in err


def test_text_held_back_for_a_stop_string_comes_with_the_interrupt(model):
    answer = b"aaabcd" + b"e" * 50
    process = start(model, "hi", "--stop", "bcdX", answer=answer.decode(), token_s=0.3)
    got = read_until(process.stdout, b"aaa")
    time.sleep(0.7)  # some of "bcd" is generated, and held back
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert len(out) > 0 and answer.startswith(got + out)


@pytest.mark.parametrize("phase", ["loading", "prompting"])
@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_while_loading_or_in_the_prompt(model, phase, as_json):
    times = {"load_s": 30} if phase == "loading" else {"prompt_s": 30}
    process = start(model, "hi", *(["--json"] if as_json else []), **times)
    read_until(process.stderr, phase.encode() + b"\n")
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - begun < 5
    assert process.returncode == 130 and err.count(b"\n") == 1 and b"interrupted" in err and b"load" in err
    if as_json:
        report = json.loads(out)
        documented.check(report, "bankml generate --json")
        assert (report["finish_reason"], report["text"], report["tokens"]) == ("interrupted", "", [])
        assert report["prompt_tokens"] > 0
    else:
        assert out == b""


def test_an_interrupted_json_run_tells_what_there_is(model):
    process = start(model, "hi", "--json", answer="x" * 500, prompt_s=0.01, token_s=0.01)
    read_until(process.stderr, b"prompting\n")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    report = json.loads(out)
    assert process.returncode == 130 and report["finish_reason"] == "interrupted"
    assert report["text"] == "x" * len(report["tokens"]) and 0 < len(report["tokens"]) < 500


def test_a_reader_that_leaves_is_no_error(model):
    """I2: as in `bankml generate ... | head -c 1`."""
    process = start(model, "hi", answer="abc " * 500, token_s=0.005)
    with process:
        assert process.stdout.read(1) == b"a"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_closed_and_full_streams(model):
    command = f"{sys.executable} {SCRIPT} generate -m {model} hi"
    env = {**os.environ, "STAND_IN": '{"answer": "Hello."}'}

    def shell(redirection):
        return subprocess.run(
            ["sh", "-c", f"{command} {redirection}"], capture_output=True, env=env, timeout=60, check=False
        )

    done = shell("2>&-")
    assert (done.returncode, done.stdout) == (0, b"Hello.")
    assert shell(">&- ").returncode in (0, 1) and b"Traceback" not in shell(">&-").stderr
    done = shell("<&-")
    assert (done.returncode, done.stdout) == (0, b"Hello.")
    done = shell(">/dev/full")
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"No space" in done.stderr


def test_on_a_terminal_control_characters_do_nothing(model):
    """A model's escape codes are not handed to the terminal, and the prompt of the shell gets a line of its own."""
    leader, follower = pty.openpty()
    process = start(model, "hi", answer="a\x1b[31m\x9b\tb\r\n!", stdout=follower)
    os.close(follower)
    process.communicate(timeout=60)
    shown = os.read(leader, 1000).decode()
    os.close(leader)
    assert shown == "a\ufffd[31m\ufffd\tb\ufffd\r\n!\r\n"  # the terminal turns \n into \r\n


def test_where_nothing_can_be_written(model, tmp_path):
    """D1: no home, no cache folder."""
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    for home in ("/proc/none", str(folder)):
        env = {"HOME": home, "XDG_CACHE_HOME": "", "XDG_DATA_HOME": "", "TMPDIR": str(folder)}
        assert generate(model, "hi", env=env)[:2] == (0, b"Hello.")
