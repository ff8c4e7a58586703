"""Conversion against the reference's llama_model_quantize, whole files: recorded, and live."""

import ctypes
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bankml import blocks, quantizers
from bankml import convert as module
from bankml.cli.main import main
from bankml.convert import convert
from bankml.errors import BankmlError, NeedMore, Refused, UsageError
from bankml.gguf import Map, read_header
from bankml.oracle import record
from testing.record_convert import reference_convert
from tests import conversion_models as models
from tests.vocab import smollm2_gguf

GOLDEN = record.read(Path(__file__).parent / "golden" / "convert_files.json")["cases"]


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(folder, name):
    """The model file of a case, written into `folder`; the first part for the split one."""
    if name == "smollm2":
        return smollm2_gguf()
    if name != "split":
        path = folder / "in.gguf"
        path.write_bytes(models.case(name))
        return path
    paths = [folder / f"in-{i:05}-of-00002.gguf" for i in (1, 2)]
    for path, raw in zip(paths, models.split_case(), strict=True):
        path.write_bytes(raw)
    return paths[0]


@pytest.mark.parametrize("name", list(GOLDEN))
def test_recorded_files(tmp_path, name):
    source, expected = write(tmp_path, name), GOLDEN[name]
    assert sha256(source) == expected["input"], "the model made here is not the one recorded"
    before = sorted(tmp_path.iterdir())
    for kind in models.TARGETS:
        out = tmp_path / f"out-{kind}.gguf"
        if expected[kind] is None:
            with pytest.raises(
                Refused, match=r"tensor '.+' has rows of 576 weights, not a multiple of Q1_0's group of 128"
            ):
                convert(source, out, kind)
            assert sorted(tmp_path.iterdir()) == before
        else:
            _, size = convert(source, out, kind)
            assert out.stat().st_size == size
            assert sha256(out) == expected[kind]
            out.unlink()


def tensors(path):
    """name -> (type, dims, bytes) of a model file."""
    header = read_header(path)
    with Map(header) as weights:
        return {name: (t.type, t.dims, weights.tensor(name).tobytes()) for name, t in header.tensors.items()}


@pytest.mark.parametrize("kind", list(models.TARGETS))
@pytest.mark.parametrize("name", [name for name in GOLDEN if name != "smollm2"])
def test_live_files(reference, tmp_path, name, kind):
    source = write(tmp_path, name)
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    if not reference_convert(source, theirs, kind):
        assert name.endswith("-576") and kind == "Q1_0"
        with pytest.raises(Refused):
            convert(source, ours, kind)
        return
    convert(source, ours, kind)
    got, want = tensors(ours), tensors(theirs)
    assert list(got) == list(want)
    assert [name for name in want if got[name] != want[name]] == []
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(("kind", "count"), [("F16", 211), ("Q2_0", 211)])
def test_live_smollm2(reference, tmp_path, kind, count):
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    assert reference_convert(smollm2_gguf(), theirs, kind)
    assert convert(smollm2_gguf(), ours, kind)[0] == count
    with open(ours, "rb") as a, open(theirs, "rb") as b:
        while chunk := a.read(1 << 24):
            assert chunk == b.read(1 << 24)
        assert not b.read(1)


def hard_floats():
    """name -> float32 (n,): data on which float order, rounding and clamping show."""
    draw = np.random.default_rng(7)
    n = 128 * 400
    signs = draw.integers(0, 2, n, dtype="u4") << 31
    with np.errstate(under="ignore"):
        yield "normal", draw.standard_normal(n, dtype="f4")
        yield "wide", draw.standard_normal(n, dtype="f4") * np.exp2(draw.integers(-149, 15, n)).astype("f4")
        groups = np.repeat(np.exp2(draw.integers(-149, 15, n // 64)), 64).astype("f4")
        yield "wide groups", draw.standard_normal(n, dtype="f4") * groups
    yield "zeros", signs.view("f4")
    yield "denormals", (draw.integers(0, 1 << 23, n, dtype="u4") | signs).view("f4")
    yield "tiny", (draw.integers(0, 1 << 9, n, dtype="u4") | signs).view("f4")
    scale = np.repeat(draw.random(n // 64, dtype="f4") + np.float32(0.1), 64)
    near = scale * draw.choice(np.array([-1, -0.5, 0, 0.5, 1], "f4"), n)
    yield "ties", near
    yield "near ties", np.nextafter(near, draw.choice(np.array([-9, 0, 9], "f4"), n))
    yield "f16 ties", (draw.integers(0, 4096, n) * np.exp2(draw.integers(-26, 4, n))).astype("f4")
    yield "large", (draw.random(n, dtype="f4") - np.float32(0.5)) * np.float32(131000)


@pytest.mark.parametrize(("name", "data"), [pytest.param(*pair, id=pair[0]) for pair in hard_floats()])
def test_live_quantizers(reference, name, data):
    handle = ctypes.CDLL(str(reference.paths["base"]))
    calls = {
        blocks.F16: "ggml_fp32_to_fp16_row",  # void (const float *, ggml_fp16_t *, int64_t);
        blocks.Q1_0: "quantize_row_q1_0_ref",  # void (const float * x, block_q1_0 * y, int64_t k);
        blocks.Q2_0: "quantize_row_q2_0_ref",  # void (const float * x, block_q2_0 * y, int64_t k);
    }
    data = np.ascontiguousarray(data)
    for kind, call in calls.items():
        want = np.zeros(blocks.TYPES[kind].row_bytes(len(data)), "u1")
        getattr(handle, call)(
            data.ctypes.data_as(ctypes.c_void_p), want.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(data))
        )
        got = np.ascontiguousarray(quantizers.from_float(kind, data)).view("u1").reshape(-1)
        assert np.flatnonzero(got != want).tolist() == [], blocks.TYPES[kind].name


def half_model(tmp_path, values, kind="F32"):
    """A model whose one matrix starts with `values` in raw bytes."""
    raw = values + models.weights("x", kind, 4, 256)[len(values) :]
    path = tmp_path / "in.gguf"
    path.write_bytes(models.gguf(models.keys(256), [("token_embd.weight", (256, 4), kind, raw)]))
    return path


UNFIT = [
    ("F32", np.array([np.nan], "<f4"), "F16", "NaN or an infinity"),
    ("F32", np.array([-np.inf], "<f4"), "Q2_0", "NaN or an infinity"),
    ("BF16", np.array([0xFF80], "<u2"), "Q2_0", "NaN or an infinity"),
    ("F16", np.array([0x7E00], "<u2"), "F16", "NaN or an infinity"),
    ("Q8_0", np.array([0x7C00], "<u2"), "F16", "NaN or an infinity"),
    ("Q4_1", np.array([0, 0xFC00], "<u2"), "F16", "NaN or an infinity"),
    ("F32", np.array([65520], "<f4"), "F16", "too large for F16"),
    ("F32", np.array([-7e4], "<f4"), "Q2_0", "too large for Q2_0"),
    ("F32", np.array([3e38] * 128, "<f4"), "Q1_0", "too large for Q1_0"),
]


@pytest.mark.parametrize(("kind", "first", "target", "words"), UNFIT)
def test_values_that_do_not_fit(tmp_path, kind, first, target, words):
    source = half_model(tmp_path, first.tobytes(), kind)
    with pytest.raises(Refused, match=rf"tensor 'token_embd.weight' .*{words}"):
        convert(source, tmp_path / "out.gguf", target)
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


@pytest.mark.parametrize(("kind", "first", "target", "words"), UNFIT)
def test_the_reference_refuses_them_too(reference, tmp_path, kind, first, target, words):
    assert not reference_convert(half_model(tmp_path, first.tobytes(), kind), tmp_path / "out.gguf", target)


def test_largest_that_fits(tmp_path):
    source = half_model(tmp_path, np.array([65519.996, -65519.996], "<f4").tobytes())
    convert(source, tmp_path / "out.gguf", "F16")
    raw = tensors(tmp_path / "out.gguf")["token_embd.weight"][2]
    assert np.frombuffer(raw, "<u2", 2).tolist() == [0x7BFF, 0xFBFF]  # 65504, IEEE 754's largest half


def test_alignment_of_the_file_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "ALIGNMENT", 64)
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    source.write_bytes(
        models.gguf({**models.keys(256), "general.alignment": 64}, list(models.tensors("q8_0-256", "Q8_0", 256)))
    )
    convert(source, out, "Q1_0")
    header = read_header(out)
    assert header.alignment == 64
    assert all(tensor.offset % 64 == 0 for tensor in header.tensors.values())
    monkeypatch.setattr(models, "ALIGNMENT", 32)
    plain, other = write(tmp_path, "q8_0-256"), tmp_path / "other.gguf"
    convert(plain, other, "Q1_0")
    assert tensors(out) == tensors(other)


def test_types_that_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setitem(models.TYPES, "Q6_K", (14, 256, 210, 0))
    source = tmp_path / "in.gguf"
    listed = [
        ("token_embd.weight", (256, 4), "Q6_K", bytes(4 * 210)),
        ("output.weight", (256, 4), "Q6_K", bytes(4 * 210)),
    ]
    source.write_bytes(models.gguf(models.keys(256), listed))
    with pytest.raises(Refused, match=r"tensor 'output.weight' is q6_K \(type 14\), which convert does not read"):
        convert(source, tmp_path / "out.gguf", "F16")


def test_other_architecture(tmp_path):
    source = tmp_path / "in.gguf"
    source.write_bytes(models.gguf({**models.keys(256), "general.architecture": "gpt2"}, []))
    with pytest.raises(Refused, match="the architecture is gpt2; bankml converts qwen3, llama"):
        convert(source, tmp_path / "out.gguf", "F16")


def test_bad_targets(tmp_path):
    source = write(tmp_path, "q8_0-256")
    before = source.read_bytes()
    os.link(source, tmp_path / "hard.gguf")
    (tmp_path / "link.gguf").symlink_to(source)
    for target in (source, tmp_path / "hard.gguf", tmp_path / "link.gguf", tmp_path / "." / "in.gguf"):
        with pytest.raises(UsageError, match="written over what it is made from"):
            convert(source, target, "F16")
    with pytest.raises(UsageError, match="not a regular file"):
        convert(source, tmp_path, "F16")
    with pytest.raises(UsageError, match="not a regular file"):
        convert(source, "/dev/null", "F16")
    with pytest.raises(UsageError, match="no such folder"):
        convert(source, tmp_path / "none" / "out.gguf", "F16")
    with pytest.raises(UsageError, match="cannot convert to q8_0"):
        convert(source, tmp_path / "out.gguf", "q8_0")
    first = write(tmp_path, "split")
    with pytest.raises(UsageError, match="written over what it is made from"):
        convert(first, tmp_path / "in-00002-of-00002.gguf", "F16")
    assert source.read_bytes() == before


def test_unwritable_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**12))
    with pytest.raises(UsageError, match="/proc: cannot write there"):  # true for root as well
        convert(write(tmp_path, "q8_0-256"), "/proc/out.gguf", "F16")


def test_bad_sources(tmp_path):
    out = tmp_path / "out.gguf"
    with pytest.raises(UsageError, match="No such file"):
        convert(tmp_path / "none.gguf", out, "F16")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(models.case("q8_0-256")[:-40])
    with pytest.raises(NeedMore, match=r"tensor 'blk.0.ffn_up_exps.weight' needs the file to have"):
        convert(cut, out, "F16")
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<html>")
    with pytest.raises(Refused, match="not GGUF; starts with '<htm'"):
        convert(page, out, "F16")
    assert not out.exists()


def test_a_source_that_is_cut_while_it_is_read(tmp_path, monkeypatch):
    source = write(tmp_path, "q8_0-256")
    check = module.check_spans
    monkeypatch.setattr(module, "check_spans", lambda header: (check(header), os.truncate(source, 20_000)))
    with pytest.raises(NeedMore, match=r"in.gguf: the file ends \d+ bytes early"):
        convert(source, tmp_path / "out.gguf", "F16")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_full_disk(tmp_path, monkeypatch):
    source = write(tmp_path, "q8_0-256")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=17_000_000))
    with pytest.raises(BankmlError, match=r"writing out.gguf takes \d+ MB, and the disk of .* has 17 MB left"):
        convert(source, tmp_path / "out.gguf", "F16")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), MemoryError])
def test_interrupted_conversion_leaves_what_was_there(tmp_path, monkeypatch, error):
    source, out = write(tmp_path, "q8_0-256"), tmp_path / "out.gguf"
    out.write_bytes(b"what was there")
    left = iter(range(5))

    def fail_later(kind, values):
        if next(left, None) is None:
            raise error
        return quantizers.from_float(kind, values)

    monkeypatch.setattr(module, "from_float", fail_later)
    with pytest.raises(error if isinstance(error, type) else OSError):
        convert(source, out, "F16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]
    assert out.read_bytes() == b"what was there"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_to_the_command(tmp_path, number, code):
    out = tmp_path / "out.gguf"
    command = [sys.executable, "-m", "bankml", "convert", str(smollm2_gguf()), str(out), "--type", "f16"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob(".bankml-*.part")) and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(number)
    _, said = child.communicate(timeout=20)
    assert child.returncode == code
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_command(tmp_path, capsys):
    source, out = write(tmp_path, "q4_1-256"), tmp_path / "out.gguf"
    out.write_bytes(b"old")
    assert main(["convert", str(source), str(out), "--type", "q2_0"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "24 matrices as Q2_0" in shown.err
    assert sha256(out) == GOLDEN["q4_1-256"]["Q2_0"]
    assert out.stat().st_mode & 0o777 == 0o666 & ~umask()
    assert main(["convert", str(source), str(source), "--type", "f16"]) == 1
    assert main(["convert", str(write(tmp_path, "f16-576")), str(tmp_path / "no.gguf"), "--type", "q1_0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("bankml: ") for line in lines)
    with pytest.raises(SystemExit) as left:
        main(["convert", str(source), str(out), "--type", "q8_0"])
    assert left.value.code == 1


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_memory_and_time(tmp_path):
    """SmolLM2 to F16: at most 150 MB over the mapped file, and a matter of seconds."""
    script = (
        "import re, sys; from bankml.convert import convert; convert(sys.argv[1], sys.argv[2], 'F16');"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, "-c", script, str(smollm2_gguf()), str(tmp_path / "out.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < smollm2_gguf().stat().st_size + 150_000_000
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 8  # s; 0.6 when measured alone
