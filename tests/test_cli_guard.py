"""The commands guard, info and verify as processes: exit codes, one line on stderr, nothing heavy imported."""

import hashlib
import json
import math
import subprocess
import sys
import time

import pytest

from bankml import gguf_header
from bankml.cli import info, verify
from bankml.cli.main import main
from bankml.gguf import read_header
from bankml.guard import guard
from tests.gguf_writer import F16, Q2_0, Q4_K, Q8_0, T, gguf, model, split

GOOD = gguf(*model())
G128 = gguf({}, [T("a", (128, 32), Q2_0, bytes(1088)), T("b", (128, 32), Q2_0, bytes(1088))])


def bankml(*arguments):
    command = [sys.executable, "-m", "bankml", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.gguf"


def one_line(result) -> str:
    """The only line on stderr, which is no traceback."""
    (line,) = result.stderr.splitlines()
    assert line.startswith("bankml: ") and "Traceback" not in line
    return line


def test_guard_plays(path):
    path.write_bytes(GOOD)
    result = bankml("guard", path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "play\n", "")
    result = bankml("guard", path, "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0 and result.stderr == ""
    assert report == {
        "verdict": "play",
        "reasons": [],
        "notes": [],
        "arch": "qwen3",
        "types": {"q1_0": 15, "f32": 9},
        "tensors": 24,
        "files": [str(path)],
        "bytes": len(GOOD),
    }


# name -> (bytes, verdict, exit code, words)
BAD = {
    "empty": (b"", "need_more", 3, "0 bytes"),
    "three bytes": (b"GGU", "need_more", 3, "3 bytes"),
    "cut header": (GOOD[:100], "need_more", 3, "header ends early"),
    "cut data": (GOOD[:-2], "need_more", 3, "tensor 'blk.1.attn_k_norm.weight' needs the file to have"),
    "HTML": (b"<html>\n<head>", "refuse", 2, "not GGUF; starts with '<htm'"),
    "group 128": (G128, "refuse", 2, "tensor 'b' is at offset 1088 where 1152 was expected: group-128 file"),
    "type 142": (gguf({}, [T("t", (64, 2), 142)]), "refuse", 2, "tensor 't' has the unknown type id 142"),
    "type 12": (gguf({}, [T("t", (256, 2), Q4_K)]), "refuse", 2, "tensor 't': q4_K (type 12) is not supported"),
    "control characters": (gguf({}, [T("a\n\x1b[2J", (64,), 99)]), "refuse", 2, r"tensor 'a\n\x1b[2J' has"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(path, name):
    content, verdict, code, words = BAD[name]
    path.write_bytes(content)
    result = bankml("guard", path)
    assert (result.returncode, result.stdout) == (code, f"{verdict}\n")
    assert words in one_line(result)
    report = bankml("guard", path, "--json")
    told = json.loads(report.stdout)
    assert (report.returncode, told["verdict"], report.stderr) == (code, verdict, "")
    assert any(words in reason for reason in told["reasons"])
    result = bankml("verify", path)
    assert (result.returncode, result.stdout) == (code, "") and words in one_line(result)


@pytest.mark.parametrize("command", ["guard", "info", "verify"])
def test_no_file(tmp_path, command):
    result = bankml(command, tmp_path / "none.gguf")
    assert (result.returncode, result.stdout) == (1, "") and "No such file" in one_line(result)
    result = bankml(command, tmp_path)
    assert (result.returncode, result.stdout) == (1, "") and "not a regular file" in one_line(result)
    assert bankml(command).returncode == 1


def test_unreadable_file(path, monkeypatch, capsys):
    """A file without permission, acted out: the tests may run as root, who can read every file."""

    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(gguf_header, "map_file", denied)
    path.write_bytes(GOOD)
    assert main(["guard", str(path)]) == 1
    assert capsys.readouterr() == ("", f"bankml: {path}: Permission denied\n")


def test_verify_prints_the_hash(path):
    path.write_bytes(GOOD)
    digest = hashlib.sha256(GOOD).hexdigest()
    for arguments in ([], ["--sha256", digest], ["--sha256", digest.upper()]):
        result = bankml("verify", path, *arguments)
        assert (result.returncode, result.stdout, result.stderr) == (0, f"{digest}  {path}\n", "")
    other = "0" * 64
    result = bankml("verify", path, "--sha256", other)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"SHA-256 is {digest}, expected {other}" in one_line(result)
    result = bankml("verify", path, "--sha256", "abc")
    assert result.returncode == 1 and "64 hexadecimal digits" in one_line(result)


def test_verify_knows_the_default_models_file(tmp_path):
    """A file of a known name must have the known hash."""
    path = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.write_bytes(GOOD)
    result = bankml("verify", path)
    assert result.returncode == 2 and f"expected {verify.PINS[path.name]}" in one_line(result)


def test_verify_passes_what_can_be_converted(path):
    """Whole files that do not play as they are: told on stderr, and the hash is printed all the same."""
    for kv, tensors in (model(wtype=Q8_0), ({}, [T("a", (128, 32), Q2_0), T("b", (128, 32), Q2_0)])):
        path.write_bytes(gguf(kv, tensors))
        result = bankml("verify", path)
        assert result.returncode == 0 and result.stdout.endswith(f"  {path}\n")
        assert one_line(result).startswith("bankml: note: whole, but not to be played as it is: ")


def test_verify_of_an_unsupported_architecture(path):
    kv, tensors = model()
    path.write_bytes(gguf(kv | {"general.architecture": ("str", "mamba")}, tensors))
    result = bankml("verify", path)
    assert result.returncode == 2 and "unsupported architecture" in one_line(result)


def test_verify_of_split_files(tmp_path):
    paths = [tmp_path / f"x-{i + 1:05d}-of-00003.gguf" for i in range(3)]
    for path, content in zip(paths, split(*model(), 3), strict=True):
        path.write_bytes(content)
    result = bankml("verify", paths[0])
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}" for path in paths]
    assert (result.returncode, result.stdout.splitlines()) == (0, lines)
    result = bankml("verify", paths[1])
    assert result.returncode == 2 and f"start from {paths[0].name}" in one_line(result)
    result = bankml("verify", paths[0], "--sha256", "0" * 64)
    assert result.returncode == 1 and "3 parts" in one_line(result)
    paths[2].unlink()
    result = bankml("verify", paths[0])
    assert result.returncode == 3 and f"{paths[2]} is missing" in one_line(result)


def test_info(path):
    kv, tensors = model("llama", F16, tied=False)
    kv |= {"general.name": ("str", "A \x1b[31mred\nmodel"), "tokenizer.chat_template": ("str", "{{ messages }}")}
    path.write_bytes(gguf(kv, tensors))
    result = bankml("info", path)
    assert result.returncode == 0 and result.stderr == "" and "\x1b" not in result.stdout
    lines = dict(line.split(":", 1) for line in result.stdout.splitlines())
    facts = {title: text.strip() for title, text in lines.items()}
    assert facts["name"] == r"A \x1b[31mred\nmodel" and facts["arch"] == "llama"
    assert facts["layers"] == "2" and facts["width"] == "128" and facts["heads"] == "4" and facts["kv heads"] == "2"
    assert facts["tensors"] == "16 f16, 5 f32" and facts["vocabulary"] == "40" and facts["context"] == "512"
    assert facts["chat template"] == "14 characters" and facts["verdict"] == "play" and facts["data"] == "complete"
    parsed = json.loads(bankml("info", path, "--json").stdout)
    assert parsed["layers"] == 2 and parsed["weights"] == sum(math.prod(t.dims) for t in tensors)


def test_info_of_what_does_not_play(path):
    kv, tensors = model()
    kv |= {"general.architecture": ("str", "mamba"), "mamba.rope.freq_base": ("f32", float("inf"))}
    path.write_bytes(gguf(kv, tensors)[:-200])
    header = read_header(path)
    facts = json.loads(json.dumps(info.summary(header, guard(path)), allow_nan=False))
    assert facts["verdict"] == "need_more" and facts["data"] == "incomplete" and facts["rope_base"] == "inf"
    assert any("mamba" in reason for reason in facts["reasons"]) and facts["chat_template"] == "none: ChatML"


@pytest.mark.parametrize("command", ["guard", "info", "verify"])
def test_nothing_heavy_is_imported_and_it_is_quick(path, command):
    """Against a Qwen3-sized vocabulary, 151,669 tokens."""
    kv, tensors = model(vocab=151_669)
    path.write_bytes(gguf(kv, tensors))
    code = (
        f"import sys; from bankml.cli.main import main; assert main(['{command}', {str(path)!r}]) == 0; "
        "heavy = {'numba', 'llvmlite', 'pyopencl', 'rich', 'tokenizers'} & set(sys.modules); assert not heavy, heavy"
    )
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 0.5, seconds
