"""`bankml oracle check` and `fetch`, as a user runs them."""

import json
import os
import re

import numpy as np
import pytest

from bankml.cli import check, oracle
from bankml.cli import main as frame
from bankml.cli.main import main
from bankml.oracle import library, words
from tests import conversations, documented, gguf_writer, models, vocab
from tests.gpu import drivers

NAME = "llama-q1_0-untied"
STAGES = ["l_out-0", "l_out-1", "l_out-2", "result_norm", "logits"]


@pytest.fixture(scope="module")
def pocl():
    return drivers.driver("pocl")


RUNS = ["cpu, f16 cache", "cpu, q8_0 cache"]
SHORT = ["--tokens", "4", "--decode", "1", "--greedy", "4", "--no-gpu"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]


@pytest.fixture
def path(reference, tmp_path):
    return models.build(NAME, tmp_path)


def written(path, *, tokens=None, change=None, **more):
    """A model of NAME's weights in `path`, with a small vocabulary; `change` turns a bit of one tensor."""
    shape = models.shape_of(NAME)
    kv = models.metadata(shape) | {f"llama.{key}": ("u32", value) for key, value in more.items()}
    merged = ["".join(pair.split()) for pair in MERGES]
    marks = ["<|start|>", "<|end|>"]
    names = [*vocab.byte_characters(), *merged, *marks]
    names = tokens(names) if tokens else names
    names += [f"unused{i}" for i in range(shape.vocab - len(names))]
    types = [vocab.CONTROL if name in marks else vocab.NORMAL for name in names]
    kv |= {
        "tokenizer.ggml.model": ("str", "gpt2"),
        "tokenizer.ggml.pre": ("str", "smollm"),
        "tokenizer.ggml.tokens": ("arr[str]", names),
        "tokenizer.ggml.token_type": ("arr[i32]", types),
        "tokenizer.ggml.merges": ("arr[str]", MERGES),
        "tokenizer.ggml.eos_token_id": ("u32", 262),
        "tokenizer.ggml.bos_token_id": ("u32", 261),
    }
    tensors = list(models.tensors(NAME, shape))
    for tensor in tensors:
        if tensor.name == change:
            turned = bytearray(tensor.data)
            turned[2::18] = bytes(byte ^ 1 for byte in turned[2::18])  # a weight's sign in every block of Q1_0
            tensor.data = bytes(turned)
    path.write_bytes(gguf_writer.gguf(kv, tensors))
    return path


def test_an_equal_model_passes(path, capsys):
    assert main(["oracle", "check", str(path), "--tokens", "70", "--decode", "3", "--no-gpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    want = ["file: header: 6 of 6 equal"]
    for run in RUNS:
        want += [f"{run}: layers: 219 of 219 equal", f"{run}: result_norm: 73 of 73 equal"]
        want += [f"{run}: logits: 73 of 73 equal", f"{run}: greedy tokens: 16 of 16 equal"]
    assert lines[: len(want)] == want
    assert lines[len(want)].startswith("note: words: not compared; tokenizer.ggml.model is 'none'")
    assert lines[len(want) + 1 :] == ["everything compared has the reference's bits"]


def test_a_vocabulary_is_compared(reference, tmp_path, capsys):
    model = written(tmp_path / "m.gguf")
    assert main(["oracle", "check", str(model), *SHORT, "--cache-type", "f16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "file: header: 9 of 9 equal",
        f"file: token ids: {len(words.SAMPLE) + 2} of {len(words.SAMPLE) + 2} equal",
        "file: pieces: 4099 of 4099 equal",
    ]
    assert any(line.startswith("note: chat template: not compared") for line in lines)


def test_a_begin_token_that_the_file_does_not_name_is_no_difference(reference, tmp_path, capsys):
    model = conversations.write_tiny(tmp_path / "tiny.gguf")
    assert main(["oracle", "check", str(model), *SHORT, "--cache-type", "f16"]) == 0
    assert "file: header: 8 of 8 equal" in capsys.readouterr().out


def test_the_split_attention_follows_the_references_threads(path, monkeypatch):
    monkeypatch.setenv("BANKML_LLAMA_THREADS", "2")
    arguments = ["--tokens", "520", "--decode", "1", "--greedy", "2", "--cache-type", "f16", "--no-gpu"]
    assert main(["oracle", "check", str(path), *arguments]) == 0


def test_a_card_is_compared_too(path, pocl, capsys, monkeypatch):
    monkeypatch.delenv("BANKML_GPU_SHARE", raising=False)
    arguments = ["--tokens", "5", "--decode", "1", "--greedy", "2", "--cache-type", "f16"]
    assert main(["oracle", "check", str(path), *arguments, "--gpu", str(pocl[0].index), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    stages = answer["stages"]
    rows = [re.fullmatch(r".* computed (\d+) rows of products", note) for note in answer["notes"]]
    assert [int(found[1]) > 1000 for found in rows if found] == [True]
    runs = {stage["run"] for stage in stages}
    both = f"cpu and {pocl[0].name}"
    assert runs == {"file", "cpu, f16 cache", f"{both}, f16 cache", both}
    assert stages[-1] == {"name": "cards", "equal": 1, "total": 1, "first_difference": None, "run": both}
    assert os.environ.get("BANKML_GPU_SHARE") is None


def test_a_card_that_is_dropped_is_a_difference(path, pocl, capsys, monkeypatch):
    from bankml.forward import Weights

    report = Weights.card_report

    def dropped(weights):
        told = report(weights)
        return told and told | {"cards": [card | {"dropped": "wrong bits"} for card in told["cards"]]}

    monkeypatch.setattr(Weights, "card_report", dropped)
    arguments = [*SHORT[:-1], "--cache-type", "f16", "--gpu", str(pocl[0].index)]
    assert main(["oracle", "check", str(path), *arguments]) == 2
    assert "cards, row 0, column 0: 'wrong bits', where the reference has 'at work'" in capsys.readouterr().out


def test_a_card_that_is_not_there_exits_2(path, capsys):
    assert main(["oracle", "check", str(path), *SHORT[:-1], "--gpu", "nosuchcard"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "nosuchcard" in captured.err


def swapped(names):
    """The token names with two of them exchanged."""
    at = names.index("hell")
    return [*names[: at - 1], names[at], names[at - 1], *names[at + 1 :]]


@pytest.mark.parametrize(
    ("planted", "first", "equal_before"),
    [
        ({"context_length": 2048}, "header", []),
        ({"tokens": swapped}, "token ids", ["header"]),
        ({"change": "blk.0.attn_v.weight"}, "l_out-0", ["header", "token ids", "pieces"]),
        ({"change": "blk.1.ffn_down.weight"}, "l_out-1", ["header", "token ids", "pieces", "l_out-0"]),
        ({"change": "output.weight"}, "logits", ["pieces", "l_out-0", "l_out-1", "l_out-2", "result_norm"]),
    ],
    ids=["header", "vocabulary", "attention", "feed-forward", "logits"],
)
def test_what_is_planted_in_the_references_file_is_named(planted, first, equal_before, reference, tmp_path):
    """The reference reads another file than bankml: the stage that first differs is the one it was planted in."""
    ours, theirs = written(tmp_path / "ours.gguf"), written(tmp_path / "theirs.gguf", **planted)
    args = frame.parser("oracle").parse_args(["oracle", "check", str(ours), *SHORT])
    stages, _ = check.compare_model(args, expected=theirs)
    assert next(stage.name for stage in stages if not stage.same) == first
    seen = {stage.name: stage for stage in stages if stage.run in ("file", RUNS[0])}
    assert all(seen[name].same for name in equal_before)
    place = seen[first].first_difference
    assert place.expected != place.got
    if first == "header":
        assert (place.row, place.expected, place.got) == (4, "2048", "4096")
    if first == "token ids":
        assert not seen["pieces"].same and {place.expected, place.got} == {"257", "258"}


def test_a_file_that_is_no_model_exits_2(reference, capsys):
    assert main(["oracle", "check", __file__]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "GGUF" in captured.err and captured.err.count("\n") == 1


def test_a_model_that_the_reference_does_not_load(reference, tmp_path, capsys, monkeypatch):
    ours, theirs = written(tmp_path / "ours.gguf"), tmp_path / "theirs.gguf"
    theirs.write_bytes(ours.read_bytes().replace(b"blk.2.ffn_up.weight", b"blk.2.ffn_no.weight"))
    compare_model = check.compare_model
    monkeypatch.setattr(check, "compare_model", lambda args: compare_model(args, expected=theirs))
    assert main(["oracle", "check", str(ours), *SHORT]) == 2
    out = capsys.readouterr().out
    assert "file: header: 0 of 1 equal" in out and "the reference does not load this model" in out
    assert "column 0: 'it plays', where the reference has 'it does not load'" in out


def test_one_wrong_bit_is_named_and_exits_2(path, capsys, monkeypatch):
    engine_stages = oracle.engine_stages

    def spoiled(*arguments, **options):
        for name, rows in engine_stages(*arguments, **options):
            changed = rows.copy()
            changed.view(np.uint32)[-1, 5] ^= name == "l_out-1"
            yield name, changed

    monkeypatch.setattr(oracle, "engine_stages", spoiled)
    asked = ["oracle", "check", str(path), "--tokens", "4", "--decode", "0", "--greedy", "0", "--no-gpu"]
    assert main([*asked, "--cache-type", "q8_0", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    documented.check(answer, "bankml oracle check --json")
    stages = [stage for stage in answer["stages"] if stage["run"] == "cpu, q8_0 cache"]
    assert [stage["name"] for stage in stages] == STAGES
    assert [(stage["equal"], stage["total"]) for stage in stages] == [(4, 4), (3, 4), (4, 4), (4, 4), (4, 4)]
    assert stages[0]["first_difference"] is None
    place = stages[1]["first_difference"]
    assert (place["row"], place["column"]) == (3, 5)
    assert int(place["expected"], 16) ^ int(place["got"], 16) == 1

    assert main(asked) == 2
    out = capsys.readouterr().out
    assert [f"first difference ({run}): l_out-1, row 3, column 5: 0x" in out for run in RUNS] == [True, True]


def test_a_wrong_greedy_token_is_named(path, capsys, monkeypatch):
    chain = check.engine_greedy
    monkeypatch.setattr(check, "engine_greedy", lambda *arguments: [*chain(*arguments)[:-1], -5])
    assert main(["oracle", "check", str(path), *SHORT, "--cache-type", "f16"]) == 2
    out = capsys.readouterr().out
    assert "greedy tokens: 3 of 4 equal" in out
    assert "first difference (cpu, f16 cache): greedy tokens, row 3, column 0: -5, where the reference has " in out


def test_too_little_memory_is_one_line(path, capsys, monkeypatch):
    from bankml.gpu import limiter

    monkeypatch.setattr(limiter, "free_memory", lambda: 1000)
    assert main(["oracle", "check", str(path), *SHORT]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "memory" in captured.err and captured.err.count("\n") == 1


def test_without_the_reference_and_npm_one_line_says_so(path, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.delenv("BANKML_REFERENCE", raising=False)
    monkeypatch.setenv("BANKML_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["oracle", "check", str(path), *SHORT]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "npm" in captured.err and captured.err.count("\n") == 1


def test_ctrl_c_ends_it_quietly(path, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(oracle, "engine_stages", interrupted)
    assert main(["oracle", "check", str(path), *SHORT]) == 130
    assert capsys.readouterr() == ("", "")


def test_the_real_model(reference, tmp_path, capsys):
    from bankml.convert import convert

    model = models.build_real("smollm2-q2_0", vocab.smollm2_gguf(), tmp_path, convert)
    assert main(["oracle", "check", str(model), "--tokens", "12", "--decode", "1", "--greedy", "3", "--no-gpu"]) == 0
    out = capsys.readouterr().out
    assert "file: pieces: 49152 of 49152 equal\n" in out and "file: token ids: 31 of 31 equal\n" in out
    model.unlink()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "missing.gguf"], "missing.gguf"),
        (["check", "MODEL", "--greedy", "x"], "'x' is not a number"),
        (["check", "MODEL", "--tokens", "0"], "'0' is not a number of 1 or more"),
        (["check", "MODEL", "--decode", "-1"], "-1"),
        (["check", "MODEL", "--tokens", "5000"], "do not fit the model's context of 4096"),
        ([], "ACTION"),
        (["fetch", "more"], "more"),
    ],
)
def test_mistakes_are_one_line_and_exit_1(arguments, words, path, capsys):
    line = ["oracle", *(str(path) if word == "MODEL" else word for word in arguments)]
    try:
        code = main(line)
    except SystemExit as left:
        code = left.code
    captured = capsys.readouterr()
    assert (code, captured.out) == (1, "")
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1


def test_fetch_prints_the_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "fetch", lambda: tmp_path / "there")
    assert main(["oracle", "fetch"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'there'}\n"
