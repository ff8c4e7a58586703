"""`bankml generate` with real models: the reference's answers token for token, the start, and what may go wrong."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bankml.convert import convert
from bankml.oracle import record
from tests import answers, documented, models, vocab
from tests.gguf_writer import gguf

ROOT = Path(__file__).parent.parent
GOLDEN = record.read(ROOT / "tests" / "golden" / "answers.json")
COMPILING = b"bankml: compiling kernels (first run only)\n"
FLAGS = {"temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "seed": "--seed"}


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2 in F16, the file the answers were recorded with."""
    path = vocab.cached("SmolLM2-135M-Instruct.F16.gguf", lambda made: convert(vocab.smollm2_gguf(), made, "F16"))
    assert models.sha256(path) == GOLDEN["model"]
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A living Q1_0 model over the 256 bytes: it says nothing of sense, but always the same."""
    shape = models.Shape("qwen3", "q1_0", True, layers=2, vocab=258)
    kv = models.metadata(shape) | {
        "tokenizer.ggml.model": ("str", "gpt2"),
        "tokenizer.ggml.pre": ("str", "qwen2"),
        "tokenizer.ggml.tokens": ("arr[str]", [*vocab.byte_characters(), "<|im_start|>", "<|im_end|>"]),
        "tokenizer.ggml.token_type": ("arr[i32]", [vocab.NORMAL] * 256 + [vocab.CONTROL] * 2),
        "tokenizer.ggml.merges": ("arr[str]", []),
        "tokenizer.ggml.eos_token_id": ("u32", 257),
    }
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    path.write_bytes(gguf(kv, list(models.tensors("tiny", shape))))
    return path


def command(model, *arguments):
    return [sys.executable, "-m", "bankml", "generate", "-m", str(model), *arguments]


def generate(model, *arguments, **options):
    """The finished process, streams as bytes."""
    return subprocess.run(command(model, *arguments), capture_output=True, check=False, timeout=120, **options)


def was_interrupted(process, err: bytes) -> bool:
    """Whether it left with 130 and told its statistics, and nothing else but that kernels were compiled."""
    *others, statistics = err.removeprefix(COMPILING).splitlines()
    return process.returncode == 130 and not others and statistics.endswith(b", interrupted")


def report(model, *arguments, **options) -> dict:
    done = generate(model, "--json", *arguments, **options)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@functools.cache
def flags_of(name) -> list[str]:
    """The flags of a recorded answer."""
    _, most, sampling, _ = answers.CASES[name]
    return ["--max", str(most), *(word for key, value in sampling.items() for word in (FLAGS[key], str(value)))]


@functools.cache
def answered(model, name) -> dict:
    """The command's report on a recorded question."""
    return report(model, *flags_of(name), *answers.CASES[name][3])


@pytest.mark.parametrize("name", answers.CASES)
def test_answers_are_the_references_token_for_token(smollm2, name):
    got = answered(smollm2, name)
    documented.check(got, "bankml generate --json")
    assert [got["prompt_tokens"], got["tokens"], got["finish_reason"]] == GOLDEN["cases"][name]
    assert got["seed"] == answers.CASES[name][2]["seed"]


@pytest.mark.parametrize("name", answers.OVER_Q8_0)
def test_answers_over_a_q8_0_cache(smollm2, name):
    got = report(smollm2, "--cache-type", "q8_0", *flags_of(name), *answers.CASES[name][3])
    assert [got["prompt_tokens"], got["tokens"], got["finish_reason"]] == GOLDEN["over_q8_0"][name]


def test_the_first_question_of_the_readme(smollm2):
    done = generate(smollm2, "What is the capital of France?")
    assert (done.returncode, done.stdout) == (0, b"The capital of France is Paris.")
    assert done.stderr.removeprefix(COMPILING).count(b"\n") == 1 and b"tokens/s" in done.stderr


def test_piped_text_is_streamed_as_it_is_written_to_json(smollm2):
    """I1, and emoji whose bytes are cut between tokens."""
    done = generate(smollm2, *flags_of("emoji"), "-", input="Reply with emoji only: 🚀🎉".encode())
    assert done.stdout.decode() == answered(smollm2, "emoji")["text"]
    assert not set(done.stdout) & {0x1B, 0x0D} and b"\xef\xbf\xbd" not in done.stdout


def test_a_warm_start_has_its_first_token_within_two_and_a_half_seconds(smollm2):
    best = float("inf")
    for _ in range(4):
        begun = time.monotonic()
        process = subprocess.Popen(
            command(smollm2, "--max", "4", "What is the capital of France?"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with process:
            assert process.stdout.read(1) == b"T"
            best = min(best, time.monotonic() - begun)
        if best < 2.5:
            break
    assert best < 2.5


def test_a_stop_string_cut_by_tokens(smollm2):
    got = report(smollm2, "--stop", "e is P", "What is the capital of France?")
    assert (got["text"], got["finish_reason"]) == ("The capital of Franc", "stop")


def test_threads_and_micro_batches_change_nothing(tiny):
    """B1, through the flags."""
    prompt = "the same words again and again, " * 10
    want = report(tiny, "--max", "12", prompt)["tokens"]
    for flags in (["--threads", "1"], ["--ubatch", "1"], ["--threads", "5", "--ubatch", "7", "--ctx", "512"]):
        assert report(tiny, "--max", "12", *flags, prompt)["tokens"] == want, flags


@pytest.mark.parametrize(
    ("name", "value", "accepted", "code"),
    [
        ("BANKML_THREADS", "65", b"1 to 64", 1),
        ("BANKML_LLAMA_THREADS", "two", b"1 to 64", 1),
        ("BANKML_CPU", "sse9", b"avx512, avx2, generic", 1),
        ("BANKML_CACHE_TYPE", "q4_0", b"f16, q8_0", 1),
    ],
)
def test_environment_values_that_are_refused(tiny, name, value, accepted, code):
    done = generate(tiny, "hi", env={**os.environ, name: value})
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1), done.stderr
    assert accepted in done.stderr


def test_without_a_home(tiny):
    """D1: nothing can be made under /proc, whoever runs this."""
    want = report(tiny, "--max", "2", "hi")["tokens"]
    nowhere = {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none", "XDG_DATA_HOME": "/proc/none"}
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **nowhere}
    assert report(tiny, "--max", "2", "hi", env=bare, cwd="/")["tokens"] == want


def test_an_interrupt_while_kernels_are_compiled(tiny, tmp_path):
    """I2"""
    process = subprocess.Popen(
        command(tiny, "hi"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "BANKML_HOME": str(tmp_path)},
    )
    assert process.stderr.readline() == COMPILING
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out == b"" and was_interrupted(process, err), err


def test_an_interrupt_while_tokens_come(smollm2):
    process = subprocess.Popen(
        command(smollm2, "--raw", "Once upon a time"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    first = os.read(process.stdout.fileno(), 100)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert was_interrupted(process, err), err
    got, want = (first + out).decode(), answered(smollm2, "raw")["text"]
    assert len(got) > 1 and (got.startswith(want) or want.startswith(got))


def test_a_long_prompt_is_heard_interrupting(smollm2):
    process = subprocess.Popen(command(smollm2, "word " * 4000), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1.5)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - begun < 5
    assert out == b"" and was_interrupted(process, err), err
