"""The live view: its picture at many sizes, and the command at a real pseudo-terminal."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bankml.dashboard import draw, figures, render
from bankml.dashboard.answer import tail
from bankml.snapshot import Cache, Device, Prompt, PromptCache, Snapshot
from tests import gguf_writer, stand_in
from tests.models import build
from tests.terminal import Terminal

SCRIPT = Path(stand_in.__file__)
WHOLE = Snapshot(
    model="SmolLM2",
    state="decode",
    rate=137.44,
    rate_minute=135.1,
    rates=(0.0, 50.0, 137.4, 100.0),
    first_token_s=0.312,
    tokens=123,
    max_tokens=4000,
    prompt=Prompt(512, 256.0, 64, 1314.2, 0.195),
    budget={"ffn_gate_up": 0.0023, "logits": 0.0019, "attention": 0.0004, "sampling": 0.0001, "other": 0.0003},
    budget_of="decode",
    threads=(0.98, 0.5),
    devices=(
        Device("cpu", rows=3_000_000, share=0.7),
        Device("Radeon", 12_500, 0.3, 0.41, 0.8, True, 10**9, 2 * 10**9, "dropped: out of memory"),
    ),
    cache=Cache(635, 4096, 12_345_678, "f16"),
    prompt_cache=PromptCache(3, 5, 1000, 2, 10**7),
    queue=2,
    answer="First line.\nThe end of it.",
)
# What of the picture tells each value, and at which of the two sizes.
SIGNS = {
    "model": ("SmolLM2",),
    "state": ("decoding",),
    "rate": ("137.4 tokens/s", "▀█  ▀▀█ ▀▀█   █ █"),
    "rate_minute": ("135.1 last minute",),
    "rates": ("peak 137.4",),
    "first_token_s": ("first token 312 ms",),
    "tokens": ("123 of 4,000 tokens",),
    "prompt": ("256 of 512 tokens", "64 from cache", "1314 tokens/s", "195 ms left"),
    "budget": ("ffn gate, up", "2.30", "46%", "other"),
    "threads": ("2 threads", "98%", "50%"),
    "devices": ("70% of the rows", "Radeon", "30% of the rows", "busy 41%", "of 80%", "resting"),
    "cache": ("635 of 4,096 cells", "12.3 MB", "f16"),
    "prompt_cache": ("3 of 5 prompts", "1,000 tokens", "2 kept"),
    "queue": ("2 waiting",),
    "answer": ("First line.", "The end of it."),
}


def picture(snapshot, width, height, **options) -> list[str]:
    """The lines of a picture, as rich prints it."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(render(snapshot, width, height, **options), end="")
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (100, 40), (140, 30)])
def test_every_value_is_in_the_picture(width, height):
    text = "\n".join(picture(WHOLE, width, height))
    large = draw.large("137.4")[0][0].text in text
    for name, signs in SIGNS.items():
        for sign in signs if name != "rate" else signs[large : large + 1]:
            assert sign in text, f"{name}: {sign}\n{text}"
    assert "1.0 GB of 2.0 GB" in text and "dropped: out of memory" in text


@pytest.mark.parametrize("name", SIGNS)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_what_is_not_known_is_left_out(name, width, height):
    unknown = getattr(Snapshot(), name)
    partly = replace(WHOLE, **{name: unknown}, **({"max_tokens": None} if name == "tokens" else {}))
    text = "\n".join(picture(partly, width, height))
    own = [sign for sign in SIGNS[name] if not any(sign in s for n, s in SIGNS.items() if n != name)]
    found = [sign for sign in own if sign in text and sign not in ("other", "f16", "46%", "50%", "98%")]
    assert not found, f"{found}\n{text}"
    assert "None" not in text and "nan" not in text


def test_of_nothing_known_nothing_is_drawn():
    for width, height in ((80, 24), (200, 50), (40, 8)):
        assert "".join(picture(Snapshot(), width, height)).strip() == "bankml"


def test_parts_of_values_are_left_out_too():
    bare = Snapshot(prompt=Prompt(10, 0.0), devices=(Device("cpu"),), cache=Cache(1, 256))
    text = "\n".join(picture(bare, 80, 24))
    assert "0 of 10 tokens" in text and "1 of 256 cells" in text and "cpu" in text
    assert not re.search(r"tokens/s|left|rows|busy|B\b|None", text)


@pytest.mark.parametrize("width", [1, 7, 20, 59, 60, 79, 80, 140, 200, 300])
@pytest.mark.parametrize("height", [1, 3, 15, 16, 24, 30, 50, 90])
@pytest.mark.parametrize("snapshot", [WHOLE, Snapshot(), replace(WHOLE, threads=(0.5,) * 64, answer="漢字 🚀 " * 900)])
def test_a_picture_fills_its_size_exactly(snapshot, width, height):
    for note in ("", "bankml: a note"):
        lines = render(snapshot, width, height, note=note).lines
        assert len(lines) == height
        assert {draw.length(line) for line in lines} == {width}


def test_all_of_the_answer_that_fits_is_its_end():
    text = "".join(f"word{i} " for i in range(3000))
    for width, height in ((80, 24), (200, 50), (40, 12)):
        shown = "\n".join(picture(replace(WHOLE, answer=text), width, height))
        assert "word2999" in shown and "word0 " not in shown


def test_long_texts_are_wrapped_at_words():
    rows = ["".join(segment.text for segment in line) for line in tail("one two three\n\nfour漢字漢字漢字漢字", 9, 9)]
    assert [row.rstrip() for row in rows] == ["one two", "three", "", "four漢字", "漢字漢字漢", "字"][
        : len(rows)
    ] or rows
    assert tail("a\nb\nc", 10, 2) == tail("b\nc", 10, 2)
    assert "".join(row.replace(" ", "") for row in rows) == "onetwothreefour漢字漢字漢字漢字"


def test_control_characters_of_a_model_are_not_obeyed():
    text = "\n".join(picture(replace(WHOLE, answer="a\x1b[31mb\x9bc\u202ed", model="m\x07"), 80, 24))
    assert "a\ufffd[31mb\ufffdc\ufffdd" in text and "m\ufffd" in text and "\x1b" not in text


def test_rich_markup_is_text():
    assert "[red]x[/red] :smile:" in "\n".join(picture(replace(WHOLE, answer="[red]x[/red] :smile:"), 80, 24))


def test_figures():
    assert [figures.rate(x) for x in (0.123, 9.99, 12.34, 1314.2)] == ["0.12", "9.99", "12.3", "1314"]
    assert [figures.seconds(x) for x in (0.0123, 0.9996, 9.9, 12.34, 99.96, 7300)] == [
        "12 ms", "1.00 s", "9.90 s", "12.3 s", "2 min", "2 h",
    ]  # fmt: skip
    assert [figures.size(x) for x in (0, 999, 1000, 12_345_678, 10**9, 5 * 10**12)] == [
        "0 B", "999 B", "1.0 kB", "12.3 MB", "1.0 GB", "5.0 TB",
    ]  # fmt: skip
    assert [figures.short(x) for x in (7, 999, 1000, 12_500, 999_999, 3 * 10**9)] == [
        "7", "999", "1.00 k", "12.5 k", "1.00 M", "3.00 G",
    ]  # fmt: skip


# -- at a terminal ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return stand_in.write_model(tmp_path_factory.mktemp("model") / "bytes.gguf", context=16384)


def live(model, *arguments, width=80, height=24, stdout=None, env=None, **script):
    """`bankml generate --live`, its forward pass a stand-in that knows no times of work, threads or bytes."""
    command = [sys.executable, str(SCRIPT), "generate", "--live", "-m", str(model), "hi", *arguments]
    env = {"STAND_IN": json.dumps({"answer": "Hello.", **script}), **(env or {})}
    return Terminal(command, width, height, env=env, stdout=stdout)


STORY = "".join(f"Word {i} of a story. " for i in range(60))


def test_the_answer_scrolls_in_its_panel_and_stays_on_the_screen(model):
    with live(model, answer=STORY, token_s=0.002) as terminal:
        terminal.until("decoding", "tokens/s", "Word 12 of")
        assert terminal.screen.behind is not None and terminal.screen.cursor.hidden
        assert "cells" not in terminal.text and "thread" not in terminal.text  # the stand-in does not tell
        terminal.until("Word 55 of")
        assert "Word 3 of" not in terminal.text  # it went out of the panel
        assert terminal.end() == 0 and terminal.is_as_before()
        assert STORY[:-1] in terminal.running_text
        assert "bankml: load" in terminal.running_text.partition(STORY[:-1])[2]  # the statistics come after it


def test_a_picture_fits_80x24_200x50_and_what_the_window_becomes(model):
    with live(model, answer=STORY * 9, token_s=0.003) as terminal:
        lines = terminal.until("decoding", "tokens/s", "speed", "answer", "Word 5 of")
        assert lines[0].startswith(" bankml bytes") and lines[1].startswith("╭─ speed ─")
        assert any(line.startswith("╰") and line.endswith("╯") for line in lines[-2:])  # the last may be a note
        terminal.resize(200, 50)
        terminal.until("Word 30 of")
        terminal.read(0.4)
        lines = terminal.lines
        assert lines[1].startswith("╭─ speed ─") and "─╮╭─ answer ─" in lines[1] and lines[1].endswith("╮")
        assert "█" in lines[2] and len(lines) == 50 and any(line.endswith("╯") for line in lines[-2:])
        terminal.resize(50, 10)
        terminal.read(0.5)
        assert terminal.lines[0].startswith(" bankml bytes") and "╭" not in terminal.text
        terminal.press(b"\x03")
        assert terminal.end() == 130 and terminal.is_as_before()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["loading", "reading the prompt", "decoding"])
def test_an_interrupt_gives_the_terminal_back(model, number, when):
    times = {"loading": {"load_s": 30}, "reading the prompt": {"prompt_s": 30}}.get(when, {"token_s": 0.01})
    with live(model, answer=STORY, **times) as terminal:
        terminal.until(when, *(["Word 1 of"] if when == "decoding" else []))
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number and terminal.is_as_before()
        assert "interrupted" in terminal.running_text and "Traceback" not in terminal.text
        assert ("Word 0 of a story. Word 1 of" in terminal.text) == (when == "decoding")


def test_ctrl_c_of_the_terminal_itself_and_keys_that_are_not_shown(model):
    with live(model, answer=STORY, token_s=0.01) as terminal:
        terminal.until("decoding", "Word 1 of")
        terminal.press(b"zqzq\r")
        terminal.read(0.4)
        assert "zqzq" not in terminal.text
        terminal.press(b"\x03")
        assert terminal.end() == 130 and terminal.is_as_before()


def test_a_mistake_gives_the_terminal_back(model):
    with live(model, "--threads", "2", env={"BANKML_LLAMA_THREADS": "x"}, fail="out of order") as terminal:
        assert terminal.end() == 1 and terminal.is_as_before()
        assert "bankml: out of order" in terminal.text and "Traceback" not in terminal.text


def test_ctrl_z_and_the_shells_fg(model):
    """The terminal is the shell's for as long as the program stands still."""
    command = shlex.join([sys.executable, str(SCRIPT), "generate", "--live", "-m", str(model), "hi"])
    shell = f"{command}; code=$?; while [ $code = 148 ]; do echo STOPPED; read x; fg; code=$?; done; exit $code"
    env = {"STAND_IN": json.dumps({"answer": STORY, "token_s": 0.01})}
    with Terminal(["bash", "-mc", shell], env=env) as terminal:
        terminal.until("decoding", "Word 1 of")
        terminal.press(b"\x1a")
        terminal.until("STOPPED")
        assert terminal.is_as_before()
        terminal.press(b"\r")
        terminal.until("decoding", "speed")
        assert terminal.screen.behind is not None
        terminal.press(b"\x03")
        assert terminal.end() == 130 and terminal.is_as_before() and "Word 0 of a story. Word 1 of" in terminal.text


def test_in_the_background_there_are_plain_lines(model):
    command = shlex.join([sys.executable, str(SCRIPT), "generate", "--live", "-m", str(model), "hi"])
    env = {"STAND_IN": json.dumps({"answer": "x" * 20, "token_s": 0.03, "lines_s": 0.2})}
    with Terminal(["bash", "-mc", f"{command} & wait"], env=env) as terminal:
        assert terminal.end() == 0 and "tokens/s" in terminal.text
        assert b"\x1b" not in terminal.written


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGHUP])
def test_signals_that_end_it_at_once_give_the_terminal_back(model, number):
    with live(model, answer=STORY, token_s=0.01) as terminal:
        terminal.until("decoding", "Word 1 of")
        terminal.process.send_signal(number)
        assert terminal.end() == -number and terminal.is_as_before()


def test_stdout_elsewhere_gets_the_answer_as_it_comes(model, tmp_path):
    with (
        open(tmp_path / "answer", "wb") as file,
        live(model, answer=STORY, token_s=0.002, stdout=file) as terminal,
    ):
        terminal.until("decoding", "Word 9 of")
        assert (tmp_path / "answer").read_text().startswith("Word 0 of a story. Word 1")
        assert terminal.end() == 0 and terminal.is_as_before()
    assert (tmp_path / "answer").read_text() == STORY
    assert "Word" not in terminal.text


def test_json_comes_alone(model, tmp_path):
    with open(tmp_path / "out", "wb") as file, live(model, "--json", stdout=file) as terminal:
        assert terminal.end() == 0 and terminal.is_as_before()
    assert json.loads((tmp_path / "out").read_text())["text"] == "Hello."


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_plain_lines(model, term):
    with live(model, env={"TERM": term}) as terminal:
        assert terminal.end() == 0
    assert b"\x1b" not in terminal.written and terminal.written.startswith(b"Hello.\r\nbankml: load")


def test_without_a_terminal_there_are_plain_lines(model):
    command = [sys.executable, str(SCRIPT), "generate", "--live", "-m", str(model), "hi"]
    script = {"answer": "x" * 40, "prompt_s": 1.0, "token_s": 0.03, "lines_s": 0.2}
    env = {**os.environ, "STAND_IN": json.dumps(script)}
    done = subprocess.run(command, env=env, capture_output=True, check=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    assert done.stdout == "x" * 40 and "\x1b" not in done.stderr
    assert any(re.fullmatch(r"bankml: prompt 0 of 21 tokens", line) for line in lines), lines
    assert any(re.fullmatch(r"bankml: \d+ tokens, [\d.]+ tokens/s", line) for line in lines), lines


def test_no_colour_where_none_is_wanted(model):
    with live(model, answer=STORY, token_s=0.002, env={"NO_COLOR": "1"}) as terminal:
        terminal.until("decoding", "Word 9 of")
        assert not re.search(rb"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[;m]", terminal.written)


# -- a real model ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """A model of random weights whose tokens are bytes, of a size that takes a while."""
    kv, tensors = gguf_writer.model(
        vocab=stand_in.VOCABULARY, embd=512, ff=2048, n_layer=12, heads=8, kv_heads=4, head_dim=64
    )
    kv |= stand_in.vocabulary() | {"qwen3.context_length": ("u32", 8192)}
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    path.write_bytes(gguf_writer.gguf(kv, tensors))
    return path


def large_number(lines) -> float:
    """The number in large digits that the speed's panel begins with."""
    rows, digits = [line[2:40] for line in lines[2:5]], ""
    while True:
        for digit, shape in draw.DIGITS.items():
            if all(row.startswith(part) for row, part in zip(rows, shape, strict=True)):
                digits, rows = digits + digit, [row[len(shape[0]) + 1 :] for row in rows]
                break
        else:
            return float(digits)


def test_a_real_run_is_measured(small_model):
    """What the dashboard shows of a run is what the statistics tell of it in the end."""
    command = [sys.executable, "-m", "bankml", "generate", "--live", "-m", str(small_model), "--raw", "hello" * 200]
    with Terminal([*command, "--max", "1800", "--threads", "2"], 200, 50) as terminal:
        terminal.until("reading the prompt", "of 1,000 tokens")
        lines = terminal.until("decoding", "last minute", "peak", "time of a token", "2 threads", "of 4,096 cells")
        while terminal.screen.behind is not None:  # up to the last picture
            lines = terminal.lines
            terminal.read(0.02)
        text = "\n".join(lines)
        assert terminal.end() == 0 and terminal.is_as_before()
        told = terminal.running_text
    shown = float(re.search(r"([\d.]+) last minute", text)[1])
    assert shown == pytest.approx(float(re.search(r"answer 1800 tokens at ([\d.]+)", told)[1]), rel=0.5)
    rows = re.findall(r"│ ([a-z, ]+?) +[█▏▎▍▌▋▊▉·]+ +([\d.]+) +(\d+)%", text)
    assert {"ffn gate, up", "ffn down", "q, k, v", "attention", "other"} <= {row[0] for row in rows}, text
    assert sum(int(row[2]) for row in rows) == pytest.approx(100, abs=len(rows))
    assert sum(float(row[1]) for row in rows) == pytest.approx(1000 / large_number(lines), rel=0.25)
    assert "1,000 of 1,000 tokens" in text and "first token" in text and "100% of the rows" in text


def test_a_file_that_is_cut_while_it_is_in_use_gives_the_terminal_back(small_model, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(small_model.read_bytes())
    command = [sys.executable, "-m", "bankml", "generate", "--live", "-m", str(path), "--raw", "hello"]
    with Terminal(command) as terminal:
        terminal.until("decoding", "of 4,096 cells")
        os.truncate(path, 4096)
        assert terminal.end() == 1 and terminal.is_as_before()
        assert "was the file cut while it was in use?" in terminal.running_text


def test_ctrl_c_in_a_chat_ends_the_answer_and_its_view(model):
    command = [sys.executable, str(SCRIPT), "chat", "--live", "-m", str(model)]
    with Terminal(command, env={"STAND_IN": json.dumps({"answer": STORY, "token_s": 0.01})}) as terminal:
        terminal.until("/help")
        terminal.press(b"hi\r")
        terminal.until("decoding", "answer", "Word 3 of")
        terminal.press(b"\x03")
        terminal.until("Word 0 of a story. Word 1 of", "stopped")
        assert terminal.is_as_before() or terminal.screen.behind is None  # the line editor has settings of its own
        terminal.press(b"/exit\r")
        assert terminal.end() == 0 and terminal.is_as_before()


def test_the_bench_shows_its_rows(tmp_path):
    path = build("split-q1_0", tmp_path)
    command = [sys.executable, "-m", "bankml", "bench", "--live", "-m", str(path), "--rounds", "2"]
    with (
        open(tmp_path / "table", "wb") as table,
        Terminal([*command, "--prompt", "16", "--decode", "16", "--json"], stdout=table) as terminal,
    ):
        terminal.until("results, in tokens/s", "reference  ratio  bits")
        assert terminal.end() == 0 and terminal.is_as_before()
    rows = json.loads((tmp_path / "table").read_text())["rows"]
    assert [(row["work"], row["bits_equal"]) for row in rows] == [("prompt", True), ("decode", True)]
