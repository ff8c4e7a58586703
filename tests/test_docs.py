"""The pages: every command on them is run, or listed here with its reason; links lead somewhere; named files exist."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bankml.cli.examples import EXAMPLES
from bankml.convert import convert
from tests import conversations, vocab

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(\.venv/bin/)?(bankml|python3?|pip|testing/gate|\.ci/run)\b")

# Commands that this test does not run, each with what does, or why nothing can.
ELSEWHERE = {
    r"python3 -m venv": "tests/test_package.py builds and runs the wheel; .ci/run is the test command, from a clone",
    r"\.venv/bin/(python|ruff)": "the suite itself, and the linter: .ci/run",
    r"pip install": "tests/test_package.py",
    r"bankml serve": "it runs until it is ended: tests/serve/",
    r"bankml chat$|bankml chat --live": "for a terminal: tests/test_chat_command.py, tests/test_dashboard.py",
    r"bankml bench$|bankml bench --live": "minutes with the default model: the gate's speed stages",
    r"bankml bench -m MODEL.gguf$": "half a minute; the same with --rounds 3 is run",
    r"bankml generate --live .Tell me a story": "a minute's answer; the same with another question is run",
    r"bankml bench --shape": "a gigabyte of weights: the gate's speed stages",
    r"bankml pull": "fetches 93 MB: tests/test_models.py, and the gate",
    r"bankml oracle fetch": "fetches with npm: tests/test_oracle.py",
    r"bankml gpu --verify": "seconds a card, and only where there is one: tests/gpu/, and CI's drivers",
    r"python -m testing\.record_": "recorders: what they made is in tests/golden/, and the gate computes it anew",
    r"testing/gate": "tests/test_gate.py runs its frame; the whole takes an hour",
    r"python -m testing\.(mutations|fuzz_)": "tests/test_mutations.py, tests/test_fuzz.py, and the gate",
    r"python -m testing\.": "minutes: a record on the page names the run",
}


def commands(page: Path) -> list[str]:
    """Every command line in the page's blocks, comments and doubled blanks taken off."""
    text = page.read_text()
    fence = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    found = [line.strip() for line in re.findall(r"^    (.*)$", fence.sub("", text), re.MULTILINE)]
    found = [line for line in found if COMMAND.match(line)]
    for kind, block in fence.findall(text):
        if kind == "sh" or (kind == "text" and not block.startswith("$ ")):
            lines = [re.sub(r"\s+#.*", "", line).strip() for line in block.splitlines()]
            found += [line for line in lines if line and (kind == "sh" or COMMAND.match(line))]
    return found


ALL = list(dict.fromkeys([*(line for page in PAGES for line in commands(page)), *sum(EXAMPLES.values(), ())]))
RUN = [line for line in ALL if not any(re.match(pattern, line) for pattern in ELSEWHERE)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the pages' commands name: MODEL, MODEL.gguf, prompt.txt, messages.json, the default model."""
    folder = tmp_path_factory.mktemp("place")
    conversations.write_tiny(folder / "MODEL.gguf")
    for name in ("MODEL", "MY.gguf", "IN.gguf"):
        (folder / name).symlink_to("MODEL.gguf")
    (folder / "prompt.txt").write_text("Hello\n")
    (folder / "messages.json").write_text(json.dumps([{"role": "user", "content": "Hello"}]))
    f16 = vocab.cached("SmolLM2-135M-Instruct.F16.gguf", lambda made: convert(vocab.smollm2_gguf(), made, "F16"))
    models = folder / "home" / "models"
    models.mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct-F16.gguf").symlink_to(f16)
    return folder


@pytest.mark.parametrize("line", RUN)
def test_the_command_runs(line, place, reference, monkeypatch):
    monkeypatch.setenv("BANKML_HOME", str(place / "home"))
    words = re.sub(r"^(\.venv/bin/)?bankml", f"{shlex.quote(sys.executable)} -m bankml", line)
    done = subprocess.run(
        ["sh", "-c", words],
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    wanted = (0, 1) if line == "bankml gpu" else (0,)
    assert done.returncode in wanted, f"{line}: {done.stderr[-400:]}"
    if 'generate "What is the capital of France?"' in line:
        assert done.stdout.strip() == "The capital of France is Paris."


def test_the_programs_of_the_pages_run(place):
    """The Python blocks; docs/api.md's are doctests of tests/test_api.py, which has prompts in them."""
    ran = 0
    for page in PAGES:
        for program in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            if ">>>" in program:
                assert page.name == "api.md"
                continue
            whole = program
            if "engine.snapshot" in program:  # docs/dashboard.md's has an engine of the reader's
                whole = f"import bankml\nengine = bankml.load('MODEL.gguf', gpu=False)\n{program}\nengine.close()"
            done = subprocess.run(
                [sys.executable, "-c", whole], cwd=place, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, f"{page.name}: {done.stderr[-400:]}"
            ran += 1
    assert ran >= 2


def test_the_commands_of_the_readme_are_seen():
    """CI takes its test command from there, by the indent."""
    assert len([line for line in commands(ROOT / "README.md") if ".venv" in line]) == 2


def test_every_reason_is_of_use():
    for pattern in ELSEWHERE:
        assert any(re.match(pattern, line) for line in ALL), f"no page has a command like {pattern}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            heads = {
                re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")
                for head in re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            }
            assert anchor in heads, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    for name in re.findall(r"\b(?:tests|testing|docs|bankml)/[\w/.-]+\.(?:py|md|json|svg)\b", page.read_text()):
        if not re.search(r"[A-Z]{3,}", name):  # VERSION.md, NAME.json stand for others
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_every_page_is_reached_from_the_readme():
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert {page.name for page in PAGES if page.parent.name == "docs"} <= linked


def test_the_gates_stages_that_numerics_names_exist():
    from testing.stages import table

    stages = {stage.name for stage in table.STAGES}
    text = (ROOT / "docs" / "numerics.md").read_text()
    shown = re.findall(r"^\*Shown by\*.*?gate:\s*(.*?)\.$", text, re.MULTILINE | re.DOTALL)
    named = [name for line in shown for name in re.findall(r"`([^`]+)`", line)]
    assert len(shown) >= 13 and set(named) <= stages, set(named) - stages
