"""`bankml chat` as a process, at a real pseudo-terminal and without one; the forward pass is a stand-in's."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bankml.conversation import Conversation
from bankml.errors import UsageError
from tests import stand_in
from tests.terminal import Terminal

SCRIPT = Path(stand_in.__file__)
HI = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return stand_in.write_model(tmp_path_factory.mktemp("model") / "bytes.gguf", 4096)


@pytest.fixture
def asked(tmp_path):
    """asked(): the last prompt that the model was given, as text; `asked.env` makes a run note it."""
    log = tmp_path / "asked.json"
    texts = {stand_in.START: b"<|im_start|>", stand_in.END: b"<|im_end|>"}

    def prompt():
        tokens = json.loads(log.read_text())["prompt"]
        return b"".join(texts.get(token) or bytes([token]) for token in tokens).decode("utf-8", "surrogateescape")

    prompt.env = {"STAND_IN_LOG": str(log)}
    return prompt


def command(model, *arguments):
    return [sys.executable, str(SCRIPT), "chat", "-m", str(model), *arguments]


def environment(answer="Hello.", env=None, **script):
    return {**os.environ, "STAND_IN": json.dumps({"answer": answer, **script}), **(env or {})}


def piped(model, text, *arguments, cwd=None, **options):
    """(exit code, stdout, stderr lines) of a run with this on stdin."""
    given = text if isinstance(text, bytes) else text.encode()
    done = subprocess.run(
        command(model, *arguments), input=given, capture_output=True, env=environment(**options), timeout=240, cwd=cwd,
        check=False,
    )  # fmt: skip
    lines = [line.removeprefix("bankml: ") for line in done.stderr.decode().splitlines()]
    return done.returncode, done.stdout.decode(), [line for line in lines if "compiling" not in line]


def test_each_line_of_a_pipe_is_answered_with_all_that_was_said_before(model, asked):
    code, out, err = piped(model, "hi\n\n  \nand you?\n", env=asked.env)
    assert (code, out, err) == (0, "Hello.\nHello.\n", [])
    assert asked() == HI + "<|im_start|>user\nand you?<|im_end|>\n<|im_start|>assistant\n"


def test_inputs_of_several_lines(model, asked):
    piped(model, "one\\\ntwo\\\nthree\n", env=asked.env)
    assert "user\none\ntwo\nthree<" in asked()
    piped(model, '"""\n/save is no command\n\nhere\\\n"""\n', env=asked.env)
    assert "user\n/save is no command\n\nhere\\<" in asked()
    code, out, _ = piped(model, '"""\nto the end', env=asked.env)
    assert (code, out) == (0, "Hello.\n") and "user\nto the end<" in asked()


def test_bytes_that_are_no_text(model, asked):
    code, out, _ = piped(model, b"a\xff\xc3b\n", env=asked.env)
    assert (code, out) == (0, "Hello.\n") and "user\na\ufffd\ufffdb<" in asked()


def test_system_and_reset(model, asked):
    code, _, err = piped(model, "/system\nhi\n/system be brief\n/reset\nagain\n/system\n", env=asked.env)
    assert code == 0
    assert asked().startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nagain<|im_end|>")
    assert err == [
        "no system message",
        "the system message is set",
        "the conversation begins anew",
        "the system message is: be brief",
    ]
    piped(model, 'x\n/system ""\ny\n', "--system", "S", env=asked.env)
    assert "system" not in asked()


def test_save_and_load(model, asked, tmp_path):
    code, _, err = piped(model, "hi\n/save talk.json\n", cwd=tmp_path)
    assert (code, err) == (0, ["talk.json: 1 turns saved"])
    code, _, err = piped(model, "/load talk.json\nmore\n/save talk.json\n", cwd=tmp_path, env=asked.env)
    assert (code, err) == (0, ["talk.json: 1 turns loaded", "talk.json: 2 turns saved"])
    assert asked() == HI + "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    done = subprocess.run(
        [sys.executable, "-m", "bankml", "chat-template", str(model)],
        input=(tmp_path / "talk.json").read_bytes(),
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().startswith(HI)


def test_what_is_wrong_is_one_line_and_goes_on(model, tmp_path):
    (tmp_path / "other.txt").write_text("precious")
    inputs = "/nope\n/load none.json\n/load other.txt\n/save other.txt\n/save\n/stats now\n" + "x" * 5000 + "\nhi\n"
    code, out, err = piped(model, inputs, cwd=tmp_path)
    assert (code, out) == (1, "Hello.\n")
    words = ["/nope", "none.json: No such file", "other.txt: it holds no", "other.txt exists", "/save takes", "/stats"]
    assert len(err) == 7 and all(word in line for word, line in zip([*words, "context only 4096"], err, strict=True))
    assert (tmp_path / "other.txt").read_text() == "precious"


def test_statistics_on_demand(model):
    code, _, err = piped(model, "/stats\nhi\n/stats\nhi again\n/stats\n", "--seed", "5")
    assert code == 0 and err[0] == "nothing was asked yet"
    assert (
        err[1].startswith("prompt 21 tokens, 0 of them cached") and "answer 6 tokens" in err[1] and "seed 5" in err[1]
    )
    assert "27 of them cached" in err[3]
    assert err[4] == "1 of 2 prompts found their beginning, which spared 27 tokens"


def test_flags_are_those_of_generate(model):
    code, out, err = piped(model, "hi\n", "--max", "3", "--stop", "x", "--temp", "0.5", "--top-k", "1")
    assert (code, out, err) == (0, "Hel\n", [])
    assert piped(model, "hi\n", "--stop", "lo")[1] == "Hel\n"
    assert piped(model, "hi\n", "--top-p", "2")[0] == 1


def test_the_end_of_the_context_is_told(model):
    code, out, err = piped(model, "hi\n", "--ctx", "23", answer="a long answer")
    assert (code, out) == (0, "a \n") and err[-1].startswith("the context is full")


def test_an_interrupt_without_a_terminal_ends_the_program(model):
    process = subprocess.Popen(
        command(model), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment("words " * 500, token_s=0.01),
    )  # fmt: skip
    process.stdin.write(b"hi\nmore\n")
    process.stdin.flush()
    assert process.stdout.read(6) == b"words "
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and b"Traceback" not in err and out.endswith(b"\n")


# -- at a terminal ---------------------------------------------------------------------------------------------------


def test_a_conversation_at_a_terminal(model, asked):
    env = environment("Hello, \x1b[31myou.", asked.env)
    with Terminal(command(model), env=env) as terminal:
        terminal.until("context of 4096 tokens", "\n>")
        terminal.press(b"hi\r")
        lines = terminal.until("Hello, \ufffd[31myou.\n>")
        assert any(line.startswith("> hi ") for line in lines)
        terminal.press(b"one\\\r")
        terminal.until("\n.")
        terminal.press(b"two\r")
        terminal.read(0.5)
        assert "user\none\ntwo<" in asked()
        terminal.press(b"/stats\r")
        terminal.until("seed", "spared")
        terminal.press(b"\x04")
        assert terminal.end() == 0
        assert terminal.is_as_before()


@pytest.mark.parametrize("where", ["prompt_s", "token_s"])
def test_ctrl_c_stops_the_answer_and_not_the_program(model, asked, where):
    times = {"prompt_s": 1.0} if where == "prompt_s" else {"token_s": 0.02}
    with Terminal(command(model), env=environment("word " * 200, asked.env, **times)) as terminal:
        terminal.until("\n>")
        terminal.press(b"hi\r")
        terminal.until("prompting" if where == "prompt_s" else "word word")
        terminal.press(b"\x03")
        terminal.until("stopped;")
        begun = time.monotonic()
        terminal.press(b"go on\r")
        if where == "token_s":
            terminal.read(0.5)
            assert "assistant\nword word" in asked() and "go on<" in asked()
        terminal.read(0.3)
        terminal.press(b"\x03")
        terminal.read(1.5)
        terminal.press(b"/exit\r")
        assert terminal.end() == 0 and time.monotonic() - begun < 20
        assert "Traceback" not in terminal.text and terminal.is_as_before()


def test_ctrl_c_at_the_prompt_drops_the_line(model, asked):
    with Terminal(command(model), env=environment(env=asked.env)) as terminal:
        terminal.until("\n>")
        terminal.press(b"not this")
        terminal.until("not this")
        terminal.press(b"\x03")
        terminal.until("Ctrl-D or /exit leaves")
        terminal.press(b"but this\r")
        terminal.until("Hello.")
        assert "not this" not in asked() and "but this" in asked()
        terminal.press(b"/exit\r")
        assert terminal.end() == 0


def test_sigterm_gives_the_terminal_back(model):
    with Terminal(command(model), env=environment()) as terminal:
        terminal.until("\n>")
        terminal.read(0.3)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert "Traceback" not in terminal.text and terminal.is_as_before()


def test_the_live_view_of_an_answer(model):
    with Terminal(command(model, "--live"), env=environment("word " * 60, token_s=0.02)) as terminal:
        terminal.until("\n>")
        terminal.press(b"hi\r")
        terminal.until("tokens/s")
        terminal.until("word word", "\n>")
        terminal.press(b"/exit\r")
        assert terminal.end() == 0 and terminal.is_as_before()


# -- the conversation ------------------------------------------------------------------------------------------------


def test_conversations_read_back(tmp_path):
    talk = Conversation("be brief")
    talk.add("ä\ud83d", "answer")
    talk.save(tmp_path / "t.json")
    again = Conversation.load(tmp_path / "t.json")
    assert again.messages == talk.messages and (again.system, again.turns) == ("be brief", 1)
    again.reset()
    assert again.messages == [{"role": "system", "content": "be brief"}]


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", '{"messages": 1}', '{"messages": [1]}', '{"messages": [{"role": "user", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": 1}, {"role": "assistant", "content": "x"}]}', "[" * 100_000,
        '{"messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}]}', '{"messages": [[]]}',
    ],
)  # fmt: skip
def test_other_files_are_no_conversations(text, tmp_path):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(UsageError, match="no conversation"):
        Conversation.load(tmp_path / "t.json")
