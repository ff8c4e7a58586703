"""`bankml oracle check` and `fetch`, as a user runs them."""

import json

import numpy as np
import pytest

from bankml.cli import oracle
from bankml.cli.main import main
from bankml.oracle import library
from tests import models

NAME = "llama-q1_0-untied"
STAGES = ["l_out-0", "l_out-1", "l_out-2", "result_norm", "logits"]


@pytest.fixture
def path(reference, tmp_path):
    return models.build(NAME, tmp_path)


def test_an_equal_model_passes(path, capsys):
    assert main(["oracle", "check", str(path), "--tokens", "70", "--decode", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "every row has the reference's bits"
    assert [line.split() for line in lines[:-1]] == [
        [stage, "73", "of", "73", "rows", "equal"]
        for stage in ("l_out-0", "l_out-1", "l_out-2", "result_norm", "logits")
    ]


def test_a_q8_0_cache(path, capsys):
    assert main(["oracle", "check", str(path), "--cache-type", "q8_0", "--decode", "2"]) == 0
    assert capsys.readouterr().out.endswith("every row has the reference's bits\n")


def test_the_split_attention_follows_the_references_threads(path, monkeypatch):
    monkeypatch.setenv("BANKML_LLAMA_THREADS", "2")
    assert main(["oracle", "check", str(path), "--tokens", "520", "--decode", "1"]) == 0


def test_one_wrong_bit_is_named_and_exits_2(path, capsys, monkeypatch):
    stages = oracle.engine_stages

    def spoiled(*arguments, **options):
        for name, rows in stages(*arguments, **options):
            changed = rows.copy()
            changed.view(np.uint32)[-1, 5] ^= name == "l_out-1"
            yield name, changed

    monkeypatch.setattr(oracle, "engine_stages", spoiled)
    assert main(["oracle", "check", str(path), "--tokens", "4", "--decode", "0", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in answer["stages"]] == STAGES
    assert [(stage["equal"], stage["total"]) for stage in answer["stages"]] == [(4, 4), (3, 4), (4, 4), (4, 4), (4, 4)]
    assert answer["stages"][0]["first_difference"] is None
    place = answer["stages"][1]["first_difference"]
    assert (place["row"], place["column"]) == (3, 5)
    assert int(place["expected"], 16) ^ int(place["got"], 16) == 1

    assert main(["oracle", "check", str(path), "--tokens", "4", "--decode", "0"]) == 2
    assert "first difference: l_out-1, row 3, column 5: 0x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "missing.gguf"], "missing.gguf"),
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
