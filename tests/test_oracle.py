"""The oracle itself: does the library compute what it should, does a wrong bit show, and do failures say what to do?"""

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

from bankml.errors import BankmlError, Refused, UsageError
from bankml.oracle import compare, graph, kernels, library, record
from bankml.oracle.model import ReferenceModel
from testing.record_model import check_alive
from tests import inputs, models

GOLDEN = Path(__file__).parent / "golden"
LIBRARIES = ("libggml-base.so", "libggml.v0.5.0.so", "libllama.v0.5.0.so", "libggml-cpu-haswell.so")


@pytest.fixture(scope="session")
def small_model(reference, tmp_path_factory):
    return models.build("qwen3-q1_0-tied", tmp_path_factory.mktemp("oracle"))


# -- operations against arithmetic in float64 -----------------------------------------------------------------------


def close(got, want, tolerance):
    """`got` is within `tolerance` of the largest value of `want`."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


def test_products_are_products(reference):
    source = inputs.Source("products")
    x = source.bell(3, 256)
    for kind in ("q1_0", "q2_0", "f16"):
        weights = source.weights(kind, "random", 8, 256)
        dense = graph.get_rows(kind, weights, np.arange(8), 256).astype(float)
        close(graph.mul_mat(kind, weights, x), x.astype(float) @ dense.T, 0.02)


def test_a_block_holds_the_documented_values(reference):
    block = np.array([[0, 60] + [0b00000001] + [0] * 15], np.uint8)  # scale 1.0; Q1_0: the first bit set
    assert graph.get_rows("q1_0", block, [0], 128)[0, :3].tolist() == [1, -1, -1]
    block[0, 2] = 0b11_10_01_00  # Q2_0: codes 0, 1, 2, 3
    assert graph.get_rows("q2_0", block, [0], 64)[0, :5].tolist() == [-1, 0, 1, 2, -1]


def test_norm_swiglu_and_add(reference):
    source = inputs.Source("norm")
    x, y, weight = source.bell(4, 320), source.bell(4, 320), source.bell(320)
    scale = 1 / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-5)
    close(graph.rms_norm_mul(x, weight, 1e-5), x * scale * weight, 1e-6)
    close(graph.swiglu(x, y), x / (1 + np.exp(-x.astype(float))) * y, 1e-6)
    close(graph.add(x, y), x.astype(float) + y, 1e-7)


@pytest.mark.parametrize("mode", ["neox", "norm"])
def test_rope_turns_pairs(reference, mode):
    x, positions = inputs.Source("rope").bell(5, 2, 64), np.array([0, 1, 7, 100, 4000])
    angles = positions[:, None] * 10000.0 ** (-np.arange(32) / 32)  # (tokens, pairs)
    pairs = (slice(0, 32), slice(32, 64)) if mode == "neox" else (slice(0, 64, 2), slice(1, 64, 2))
    a, b = (x[..., part].astype(float) for part in pairs)
    want = np.empty(x.shape)
    want[..., pairs[0]] = a * np.cos(angles)[:, None] - b * np.sin(angles)[:, None]
    want[..., pairs[1]] = a * np.sin(angles)[:, None] + b * np.cos(angles)[:, None]
    close(graph.rope(x, positions, mode=mode, freq_base=1e4), want, 1e-3)


@pytest.mark.parametrize(("tokens", "cells", "threads"), [(1, 100, 1), (5, 300, 1), (70, 300, 1), (1, 700, 3)])
def test_attention_is_softmax(reference, tokens, cells, threads):
    source = inputs.Source("attention")
    q = source.bell(tokens, 6, 64)
    k, v = (source.bell(cells, 2, 64).astype(np.float16) for _ in "kv")
    scores = np.einsum("thd,chd->htc", q.astype(float), np.repeat(k, 3, axis=1).astype(float)) / 8
    hidden = np.arange(cells)[None] > np.arange(cells - tokens, cells)[:, None]
    shares = np.exp(np.where(hidden, -np.inf, scores))
    shares /= shares.sum(axis=-1, keepdims=True)
    want = np.einsum("htc,chd->thd", shares, np.repeat(v, 3, axis=1).astype(float))
    close(graph.attention(q, k.view(np.uint16), v.view(np.uint16), threads=threads), want, 0.01)


def test_halves_are_ieee(reference):
    halves = np.arange(65536, dtype=np.uint16)
    finite = halves[np.isfinite(halves.view(np.float16))]
    assert (kernels.from_f16(finite) == finite.view(np.float16).astype(np.float32)).all()
    x = inputs.Source("halves").values("wide", 1000)
    assert (kernels.to_f16(x) == x.astype(np.float16).view(np.uint16)).all()


def test_split_attention_depends_on_threads_and_nothing_else_does(reference):
    source = inputs.Source("threads")
    q, k, v = source.bell(1, 4, 64), *(source.bell(600, 2, 64).astype(np.float16).view(np.uint16) for _ in "kv")
    one, two = (graph.attention(q, k, v, threads=threads) for threads in (1, 2))
    assert (one != two).any()
    weights, x = source.weights("q1_0", "random", 64, 256), source.bell(3, 256)
    assert (graph.mul_mat("q1_0", weights, x, threads=2) == graph.mul_mat("q1_0", weights, x)).all()


# -- whole models ---------------------------------------------------------------------------------------------------


def test_a_model_shows_every_row(small_model):
    shape, tokens = models.MODELS["qwen3-q1_0-tied"], models.prompt("qwen3-q1_0-tied", 20, models.ODD_VOCAB)
    with ReferenceModel(small_model, n_ctx=256) as model:
        assert (model.n_layer, model.n_embd, model.n_vocab) == (shape.layers, shape.n_embd, shape.vocab)
        for outputs, count in (("none", 0), ("last", 1), ("all", 20)):
            model.forget()
            run = model.decode(tokens, outputs)
            assert run.logits.shape == (count, shape.vocab)
            assert run.result_norm.shape == (count, shape.n_embd)
            assert [len(run.layer(il)) for il in range(shape.layers)] == [20] * (shape.layers - 1) + [count]
        assert [stage for stage, _ in run.stages()] == [*model.stages(), "logits"]


def test_watching_changes_no_bit_and_the_result_is_repeatable(small_model):
    tokens = models.prompt("qwen3-q1_0-tied", 70, models.ODD_VOCAB)
    with ReferenceModel(small_model, n_ctx=256) as model:
        watched = model.decode(tokens, "all").logits
        model.forget()
        assert (model.decode(tokens, "all", watch=()).logits == watched).all()
        model.forget(keep=64)
        assert model.n_past == 64
        assert np.isfinite(model.decode(tokens[64:], "all").logits).all()


def test_ctrl_c_ends_a_decode(small_model, monkeypatch):
    with ReferenceModel(small_model, n_ctx=256) as model:
        seen = []

        def interrupted(tensor, ask):
            seen.append(ask)
            if len(seen) == 5:
                raise KeyboardInterrupt
            return False

        monkeypatch.setattr(model, "_observe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.decode([1, 2, 3])
        assert len(seen) == 5


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_at_the_edge_of_a_callback_is_not_lost(small_model, monkeypatch, number, raised):
    observe, seen = ReferenceModel._observe_safely, []

    def struck(model, *about):
        seen.append(about)
        if len(seen) == 5:
            signal.raise_signal(number)
        return observe(model, *about)

    monkeypatch.setattr(ReferenceModel, "_observe_safely", struck)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with ReferenceModel(small_model, n_ctx=256) as model:
            with pytest.raises(raised):
                model.decode([1, 2, 3])
            assert model.n_past == 0
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_a_missing_or_broken_model_is_said(reference, tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        ReferenceModel(tmp_path / "missing.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF broken")
    with pytest.raises(BankmlError, match=r"broken\.gguf: the reference does not load"):
        ReferenceModel(tmp_path / "broken.gguf")


# -- comparing ------------------------------------------------------------------------------------------------------


def test_equal_runs_are_equal_even_with_nan():
    rows = np.array([[1, np.nan], [-0.0, 2]], np.float32)
    (stage,) = compare.compare([("a", rows), ("a", rows)], [("a", rows.copy()), ("a", rows.copy())])
    assert (stage.name, stage.equal, stage.total, stage.first_difference) == ("a", 4, 4, None)
    assert stage.same


def test_one_ulp_shows_with_its_place():
    rows = inputs.Source("compare").bell(5, 7)
    changed = rows.copy()
    changed[3, 4] = np.nextafter(rows[3, 4], np.float32(np.inf))
    changed[4] += 1
    first, second = compare.compare(
        [("a", rows), ("b", rows)] * 2, [("a", rows), ("b", rows), ("a", rows), ("b", changed)]
    )
    assert first.same
    assert (second.equal, second.total) == (8, 10)
    sides = [f"0x{int(side.view(np.uint32)):08x}" for side in (rows[3, 4], changed[3, 4])]
    assert second.first_difference == compare.Difference(8, 4, *sides)
    assert second.as_dict()["first_difference"] == {"row": 8, "column": 4, "expected": sides[0], "got": sides[1]}


def test_minus_zero_is_not_zero():
    (stage,) = compare.compare([("a", np.zeros((1, 2), np.float32))], [("a", -np.zeros((1, 2), np.float32))])
    assert not stage.same


@pytest.mark.parametrize(
    "got",
    [[], [("b", np.zeros((1, 2), np.float32))], [("a", np.zeros((2, 2), np.float32))]],
    ids=["end", "name", "shape"],
)
def test_different_work_is_not_compared(got):
    with pytest.raises(ValueError, match="a"):
        compare.compare([("a", np.zeros((1, 2), np.float32))], got)


def test_the_check_fixture_notices_one_ulp(check, reference):
    case = next(inputs.norm_cases())
    right = inputs.expected(case)
    check(case, right)
    wrong = right.copy()
    wrong.flat[5] = np.nextafter(wrong.flat[5], np.float32(0))
    with pytest.raises((AssertionError, pytest.fail.Exception), match=str(case)):
        check(case, wrong)


# -- recordings -----------------------------------------------------------------------------------------------------


def test_a_recording_comes_back(tmp_path):
    rows = inputs.Source("record").bell(3, 5)
    recording = {"stamp": {"reference": "x"}, "cases": {"a": record.row_digests(rows)}, "n": 3}
    record.write(tmp_path / "new" / "r.json", recording)
    assert record.read(tmp_path / "new" / "r.json") == recording
    assert record.unequal_rows(recording["cases"]["a"], rows) == []
    rows[1, 2] = np.nextafter(rows[1, 2], np.float32(9))
    assert record.unequal_rows(recording["cases"]["a"], rows) == [1]
    assert record.unequal_rows(recording["cases"]["a"], rows[:2]) == [1, 2]
    with pytest.raises(BankmlError, match="no recording"):
        record.read(tmp_path / "missing.json")


def test_the_recorded_kernels_are_the_cases_of_today(reference):
    recording = record.read(GOLDEN / "kernels.json")
    assert list(recording["cases"]) == [str(case) for case in inputs.all_cases()]
    assert recording["stamp"]["sha256"] == reference.sha256


@pytest.mark.parametrize("name", models.MODELS)
def test_a_recorded_model_is_alive_and_its_file_is_the_same(name, tmp_path):
    recording = record.read(GOLDEN / "models" / f"{name}.json")
    check_alive(recording["alive"])
    assert recording["model"] == models.sha256(models.build(name, tmp_path))
    assert list(recording["runs"]) == [str(run) for run in models.runs(name)]
    assert recording["stamp"]["sha256"] == record.read(GOLDEN / "kernels.json")["stamp"]["sha256"]


def test_the_live_reference_still_gives_a_recorded_model(small_model):
    name = "qwen3-q1_0-tied"
    recorded = record.read(GOLDEN / "models" / f"{name}.json")["runs"]
    with ReferenceModel(small_model, n_ctx=models.CONTEXT) as model:
        for run in models.runs(name)[:6]:
            rows = dict(models.reference_stages(model, name, run))
            assert record.unequal_rows(recorded[str(run)]["logits"], rows["logits"]) == []


# -- finding and fetching the library -------------------------------------------------------------------------------


def in_a_process(**environment):
    """Load the reference in a fresh process; returns its output, in which an error is one line."""
    code = (
        "from bankml.errors import BankmlError\nfrom bankml.oracle import library\n"
        "try: print('loaded', library.load().paths['cpu'])\n"
        "except BankmlError as error: print(type(error).__name__, error)"
    )
    variables = {name: value for name, value in os.environ.items() if name != "BANKML_REFERENCE"} | environment
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def linked(reference, tmp_path):
    """A folder whose sub-folder `build/bin` holds links to the libraries."""
    folder = tmp_path / "release"
    (folder / "build" / "bin").mkdir(parents=True)
    for path in reference.paths.values():
        (folder / "build" / "bin" / path.name).symlink_to(path.resolve())
    return folder


def test_a_folder_of_libraries_is_searched(linked):
    assert in_a_process(BANKML_REFERENCE=str(linked)) == f"loaded {linked}/build/bin/libggml-cpu-haswell.so"


def test_a_folder_without_the_library_is_said(tmp_path):
    assert "is not a folder" in in_a_process(BANKML_REFERENCE=str(tmp_path / "no"))
    said = in_a_process(BANKML_REFERENCE=str(tmp_path))
    assert said.startswith("UsageError BANKML_REFERENCE") and "libggml-cpu-haswell" in said


def test_a_cut_library_is_said(linked):
    library_path = linked / "build" / "bin" / "libllama.v0.5.0.so"
    cut = library_path.read_bytes()[:100_000]
    library_path.unlink()
    library_path.write_bytes(cut)
    assert "is cut short" in in_a_process(BANKML_REFERENCE=str(linked))
    library_path.write_bytes(b"not a library")
    assert "is not an x86-64 library" in in_a_process(BANKML_REFERENCE=str(linked))


def test_another_library_is_said(linked):
    path = linked / "build" / "bin" / "libllama.v0.5.0.so"
    path.unlink()
    path.symlink_to((linked / "build" / "bin" / "libggml-base.so").resolve())
    assert "it is not the reference, llama.cpp b11192" in in_a_process(BANKML_REFERENCE=str(linked))


def test_one_variant_in_a_process(reference):
    assert library.load(reference.variant) is library.load(reference.variant)
    with pytest.raises(BankmlError, match=f"already runs the reference's {reference.variant}"):
        library.load("zen4")


def package_of(names):
    """A .tgz like npm's: `names` under package/bins/linux-x64, each holding its own name, and traps beside them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in (*(f"package/bins/linux-x64/{name}" for name in names), "../../outside.so", "package/readme.md"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
        link = tarfile.TarInfo("package/libggml-cpu-zen4.so")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return packed.getvalue()


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """npm(bytes) puts an npm first on the path that packs these bytes, counting its runs; returns the count's file."""

    def install(package, status=0):
        folder = tmp_path / "npm"
        folder.mkdir(exist_ok=True)
        (folder / "package.bin").write_bytes(package)
        script = f"#!/bin/sh\necho run >> {folder}/runs\ncp {folder}/package.bin packed.tgz\necho 'npm error no' >&2\n"
        (folder / "npm").write_text(f"{script}exit {status}\n")
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("BANKML_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(library, "SHA256", hashlib.sha256(package).hexdigest())
        return folder / "runs"

    return install


def test_fetching_takes_the_libraries_and_nothing_else(npm, tmp_path):
    npm(package_of(LIBRARIES))
    folder = library.fetch()
    assert folder == tmp_path / "home" / "reference" / "3.22.1-linux-x64"
    assert sorted(path.name for path in folder.iterdir()) == sorted(LIBRARIES)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["3.22.1-linux-x64", "lock"]
    assert not list(tmp_path.rglob("outside.so"))


def test_four_at_once_fetch_once(npm):
    runs = npm(package_of(LIBRARIES))
    threads = [threading.Thread(target=library.fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.parts(library.fetched())
    assert runs.read_text() == "run\n"


def test_a_wrong_package_is_refused_and_leaves_nothing(npm, monkeypatch):
    npm(package_of(LIBRARIES))
    monkeypatch.setattr(library, "SHA256", "0" * 64)
    with pytest.raises(Refused, match="not the pinned 0000"):
        library.fetch()
    assert not library.fetched().exists()
    npm(package_of(LIBRARIES[:2]))
    with pytest.raises(Refused, match="lacks libraries"):
        library.fetch()
    assert not library.fetched().exists()


def test_npm_failing_or_missing_is_said(npm, monkeypatch):
    npm(b"", status=1)
    with pytest.raises(UsageError, match=r"npm pack .* failed: npm error no"):
        library.fetch()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="npm is needed"):
        library.fetch()
