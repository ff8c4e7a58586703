"""The gate: a wrong bit stops it, Ctrl-C leaves nothing behind, and the page shows what the record holds."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing import gate, gate_record, gate_run, mutation_table
from testing.stages import stage as stage_module
from testing.stages.stage import Count, Given
from testing.stages.table import BY_NAME, STAGES, USERS

ROOT = Path(__file__).parent.parent
SEED = {  # rows of the seed's table -> stages, and the counts recorded there
    "oracle_forward_embed_norm": ("embed and norm", 300),
    "oracle_forward_qkv_rope": ("q, k, v and rope", 140),
    "oracle_forward_attention": ("attention reference", 112),
    "oracle_forward_swiglu_sweep": ("swiglu sweep", 24_600),
    "oracle_forward_attention_tiled": ("attention tiled", 150),
    "oracle_forward_attention_split": ("attention split", 14),
    "oracle_forward_model": ("whole model: qwen3 q1_0", 1064),
    "oracle_forward_model_ternary": ("whole model: qwen3 q2_0", 1064),
    "oracle_forward_model_bonsai_1_7b": ("tied embeddings", 840),
    "oracle_forward_model_llama_f16": ("whole model: smollm2 f16", 800),
    "oracle_greedy_llama_server": ("greedy short", 164),
    "oracle_greedy_llama_server_long": ("greedy long", 140),
    "oracle_greedy_llama_server_deep": ("greedy deep", 600),
    "oracle_sample_llama_server": ("seeded", 1175),
    "oracle_ggml_b11192_q8_0_kv_kernels": ("q8_0 kernels", 8000),
    "kv_oracle_live": ("q8_0 live", 6),
}


@pytest.mark.parametrize("row", SEED)
def test_each_row_of_the_seed_has_its_stage(row):
    name, least = SEED[row]
    assert BY_NAME[name].least >= least


def test_it_fits_into_its_time():
    """80 minutes on two cores, 25 of them for the bench; the build of llama-server is among them."""

    def minutes(stages):
        return sum(stage.seconds if stage.alone else stage.seconds / 2 for stage in stages) / 60

    assert minutes(STAGES) < 75
    assert BY_NAME["bench"].seconds <= 25 * 60


def test_every_mutation_has_a_stage_of_the_gate():
    assert set(mutation_table.GATE) == set(mutation_table.STAGES)
    assert set(mutation_table.GATE.values()) <= set(BY_NAME)


# -- counting ---------------------------------------------------------------------------------------------------------


def test_rows_and_values_are_compared_as_bits():
    want = np.array([[0.0, 1.0], [2.0, np.nan]], np.float32)
    assert stage_module.rows("x", want, want.copy()) == Count(2, 2)
    got = want.copy()
    got[0, 0] = -0.0
    assert stage_module.rows("x", want, got) == Count(1, 2, "x at (0, 0): 0x80000000, not 0x0")
    assert stage_module.values("x", want, got).equal == 3
    assert not stage_module.rows("x", want, got[:1]).same
    assert not stage_module.rows("x", want, got.astype(np.float64)).same


def test_items_that_lack_or_are_too_many_count():
    assert stage_module.items("x", [1, 2], [1, 2]).same
    assert stage_module.items("x", [1, 2], [1]).equal == 1
    assert stage_module.items("x", [1, 2], [1, 2, 3]).total == 3
    assert not stage_module.answer("x", [5, [1, 2]], [6, [1, 2]]).same
    assert not Count().same  # nothing was compared


def test_counts_add_up():
    total = Count(1, 1, "", {"tokens": 2}) + Count(1, 2, "second", {"tokens": 3, "of": "b"}) + Count(0, 1, "third")
    assert total == Count(2, 4, "second", {"tokens": 5, "of": "b"})


# -- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ran(reference, tmp_path, monkeypatch):
    """ran(stages) runs them and gives the names of those done; the reference is found by the stages themselves."""
    monkeypatch.setenv("BANKML_REFERENCE", str(reference.paths["base"].parent))

    def run(*stages):
        done = []
        given = Given(tmp_path, tmp_path / "logs", quick=False)
        gate_run.run(list(stages), given, lambda stage, outcome: done.append((stage.name, outcome.count.total)), print)
        return done

    return run


def test_stages_run_in_processes(ran):
    sweep = BY_NAME["swiglu sweep"]
    ((name, total),) = ran(sweep)
    assert name == "swiglu sweep" and total >= sweep.least


def test_too_few_comparisons_stop_it(ran):
    with pytest.raises(gate_run.Unequal, match=r"swiglu sweep: [0-9,]+ compared, not 100,000,000"):
        ran(replace(BY_NAME["swiglu sweep"], least=10**8))


def test_a_stage_that_fails_is_said_with_its_last_lines(ran):
    with pytest.raises(gate_run.Unequal, match="there is no stage 'nonsense'"):
        ran(replace(BY_NAME["swiglu sweep"], name="nonsense"))


def test_an_unequal_count_stops_it(tmp_path, monkeypatch, capsys):
    """A stage whose engine was turned: exit code 2, and the first difference."""
    said = {"equal": 3, "total": 4, "first": "swiglu-sweep at (1, 2): 0x1, not 0x2", "facts": {}}
    script = "import json, sys; open(sys.argv[1], 'w').write(sys.argv[2]); sys.exit(2)"

    class Fake(gate_run._Running):
        def __init__(self, stage, given):
            self.stage, self.began, self.told = stage, time.monotonic(), time.monotonic()
            self.log, self.result = tmp_path / "log", tmp_path / "result"
            command = [sys.executable, "-c", script, self.result, json.dumps(said)]
            self.process = subprocess.Popen(command, start_new_session=True)

    monkeypatch.setattr(gate_run, "_Running", Fake)
    monkeypatch.setattr(gate, "prepare", lambda stages: None)
    assert gate.main(["--only", "swiglu sweep"]) == 2
    assert "gate: swiglu sweep: 3 of 4 values equal; swiglu-sweep at (1, 2): 0x1, not 0x2" in capsys.readouterr().err


def test_an_interrupt_ends_all(reference):
    command = [sys.executable, "-m", "testing.gate", "--only", "libm: expf"]
    environment = os.environ | {"BANKML_REFERENCE": str(reference.paths["base"].parent)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (children := _children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=40)
    assert process.returncode == 130 and err.decode().splitlines()[-1] == "gate: interrupted", err
    assert children and not any(Path("/proc", child).exists() for child in children)


def _children(pid) -> list[str]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--from", "nonsense"], ["--model", "/nothing.gguf"]])
def test_mistakes_are_sentences(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        gate.main(arguments)
    assert "nonsense" in str(ended.value) or "/nothing.gguf: no such file" in capsys.readouterr().err


def test_stages_are_listed(capsys):
    assert gate.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(stage.name in listed for stage in STAGES)
    assert gate.main(["--list", "--quick"]) == 0
    assert "bench" not in capsys.readouterr().out
    assert gate.main(["--list", "--model", __file__]) == 0
    assert all(stage.name in capsys.readouterr().out for stage in USERS[:1])


# -- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", gate_record.PAGES, ids=lambda page: page.stem)
def test_the_page_shows_what_the_record_holds(page):
    assert gate_record.updated(page) == page.read_text(), "python -m testing.gate_record"


def test_a_record_is_written_and_read(reference, tmp_path, monkeypatch):
    row = {"model": "m", "work": "decode", "n": 32, "ours": 2.0, "reference": 1.0, "ratio": 2.0, "spread": 0.1}
    row |= {"gb_s": 30.0, "floor_share": 0.7, "budget": {"logits": 0.97, "python": 0.03}, "bits_equal": True}
    outcomes = {
        "swiglu sweep": {"equal": 75_996, "total": 75_996, "facts": {"tokens": 1234}, "seconds": 2.0},
        "bench": {"equal": 1, "total": 1, "facts": {"speed": [row]}, "seconds": 3.0},
    }
    monkeypatch.setattr(gate_record, "ROOT", tmp_path)
    monkeypatch.setattr(gate_record, "RESULTS", tmp_path)
    path = gate_record.write(None, outcomes, [BY_NAME[name] for name in outcomes])
    text = path.read_text()
    speed = "| m | decode | 32 | 2.0 | 1.0 | 2.00 | 10% | 30.0 | 70% | equal |"
    assert f"{speed} logits 97.0%, python 3.0% |" in text
    assert "- swiglu sweep, tokens: 1,234" in text and reference.sha256["libggml-base.so"] in text
    stages, rates = (gate_record.table(gate_record.newest(), title) for title in ("Stages", "Speed"))
    assert f"| swiglu sweep | {BY_NAME['swiglu sweep'].what} | 75,996 of 75,996 values |\n" in stages
    assert rates.endswith(f"{speed}\n")
    assert not list(tmp_path.glob(".*"))


def test_outcomes_of_another_commit_are_not_taken_over(tmp_path, monkeypatch):
    monkeypatch.setenv("BANKML_HOME", str(tmp_path))
    monkeypatch.setattr(gate_record, "commit", lambda: "abc")
    assert gate_record.kept() == {}
    gate_record.keep({"bench": {}})
    assert gate_record.kept() == {"bench": {}}
    monkeypatch.setattr(gate_record, "commit", lambda: "def")
    assert gate_record.kept() == {}
    monkeypatch.setattr(gate_record, "commit", lambda: "def with uncommitted changes")
    gate_record.keep({"bench": {}})
    assert gate_record.kept() == {}


# -- two sides --------------------------------------------------------------------------------------------------------

ENGINE = re.compile(r"bankml\.(?!oracle|errors)|testing\.stages\.engine|tests\.(test_|cpu|gpu)")


@pytest.mark.parametrize("path", sorted((ROOT / "testing" / "stages").glob("*.py")), ids=lambda path: path.name)
def test_what_is_wanted_does_not_come_from_the_engine(path):
    """What a stage calls `want` is made without a name that is imported from the engine, or made with one."""
    tree = ast.parse(path.read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    engine = {alias.name for node in imported for alias in node.names if ENGINE.match(f"{node.module}.{alias.name}")}
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            for item in node.items:
                if item.optional_vars is not None and _names(item.context_expr) & engine:
                    engine |= _names(item.optional_vars) - {"ask"}
    wanted = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and "want" in _names(node.targets[0])]
    for node in wanted:
        assert not _names(node.value) & engine, f"{path.name}:{node.lineno}"


def _names(node) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
