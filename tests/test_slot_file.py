"""The slot in a file: whole or not at all, checked, refused where it does not belong, and continued elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bankml.engine import Engine
from bankml.errors import Refused, UsageError
from bankml.kv_cache import KvType
from bankml.params import Params
from tests import conversations

ROOT = Path(__file__).parent.parent
GREEDY = Params(temperature=0)
FIRST = [{"role": "user", "content": "Tell me of the sea, of ships and of the wind."}]

CONTINUE = """
import json, sys
from bankml.engine import Engine
from bankml.params import Params
model, stored, messages, reuse = sys.argv[1:]
with Engine.open(model, 512, False) as engine:
    engine.restore(stored)
    generation = engine.generate(json.loads(messages), Params(temperature=0), max_tokens=24, reuse=reuse)
    list(generation)
    print(json.dumps([generation.tokens, generation.cached]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return conversations.write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def stored(model, tmp_path):
    """(engine that has answered FIRST, the file with its slot, the messages of the next turn)."""
    with Engine.open(model, 512, False, kind=KvType.F16) as engine:
        generation = engine.generate(FIRST, GREEDY, max_tokens=30)
        text = "".join(step.text for step in generation)
        path = tmp_path / "sea.slot"
        about = engine.save(path)
        assert about == (len(generation.prompt) + 29, path.stat().st_size)
        yield engine, path, [*FIRST, {"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]


@pytest.mark.parametrize("reuse", ["prefix", "exact"])
def test_a_new_process_goes_on_with_the_same_tokens(stored, model, reuse):
    engine, path, messages = stored
    generation = engine.generate(messages, GREEDY, max_tokens=24, reuse=reuse)
    list(generation)
    assert generation.cached > len(FIRST[0]["content"])
    command = [sys.executable, "-c", CONTINUE, str(model), str(path), json.dumps(messages), reuse]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    assert json.loads(done.stdout) == [generation.tokens, generation.cached]


def test_every_damage_is_seen_and_the_slot_stays(stored, tmp_path):
    engine, path, _ = stored
    whole, held = path.read_bytes(), list(engine.slot.tokens)
    bad = tmp_path / "bad.slot"
    places = [0, 14, 17, 18, 25, 90, 150, 200, len(whole) // 2, len(whole) - 40, len(whole) - 1]
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in places]
    damaged += [whole[:-1], whole + b"\0", whole[: len(whole) // 2], b"", whole[:14], whole[:16], b"bankml slot 2\n"]
    damaged += [whole[:14] + b"\xff\xff\xff\xff" + whole[18:]]
    for data in damaged:
        bad.write_bytes(data)
        with pytest.raises(Refused, match=r"bad\.slot"):
            engine.restore(bad)
        assert engine.slot.tokens == held


def test_what_another_model_cache_type_or_context_made_is_refused(stored, model, tmp_path):
    _, path, _ = stored
    other = tmp_path / "other.gguf"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with Engine.open(other, 512, False, kind=KvType.F16) as engine, pytest.raises(Refused, match="another model"):
        engine.restore(path)
    with Engine.open(model, 512, False, kind=KvType.Q8_0) as engine, pytest.raises(Refused, match=r"f16.*q8_0"):
        engine.restore(path)
    with Engine.open(model, 64, False, kind=KvType.F16) as engine, pytest.raises(UsageError, match="only 64"):
        engine.restore(path)


def test_a_file_that_cannot_be_written_or_read(stored, tmp_path):
    engine, _, _ = stored
    for path in (tmp_path / "none" / "x.slot", Path("/proc/x.slot")):
        with pytest.raises(UsageError, match="cannot write"):
            engine.save(path)
    with pytest.raises(UsageError, match="No such file"):
        engine.restore(tmp_path / "none.slot")
    folder = tmp_path / "folder"
    folder.mkdir()
    for call in (engine.save, engine.restore):
        with pytest.raises((OSError, UsageError), match=r"folder"):
            call(folder)
    assert os.listdir(folder) == [] and not list(tmp_path.glob(".bankml*"))


def test_an_erased_slot_begins_anew(stored):
    engine, path, messages = stored
    held = len(engine.slot)
    assert engine.erase() == held and len(engine.slot) == 0
    assert engine.save(path).tokens == 0
    assert engine.restore(path).tokens == 0
    generation = engine.generate(messages, GREEDY, max_tokens=1)
    list(generation)
    assert generation.cached == 0
