"""Conversations as llama-server b11192 held them: text, finish reason and counts, turn by turn.

Recorded by testing/record_conversations.py with two threads of the reference.
"""

from pathlib import Path

import pytest

from bankml.convert import convert
from bankml.engine import Engine
from bankml.errors import UsageError
from bankml.kv_cache import KvType
from bankml.oracle import record
from bankml.params import Params
from tests import conversations, models, vocab

GOLDEN = record.read(Path(__file__).parent / "golden" / "conversations.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """model(name): the file that the conversations were recorded with."""
    made = {}

    def path(name):
        if name == "tiny" and name not in made:
            made[name] = conversations.write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
        elif name not in made:
            file = "SmolLM2-135M-Instruct.F16.gguf"
            made[name] = vocab.cached(file, lambda target: convert(vocab.smollm2_gguf(), target, "F16"))
        return made[name]

    return path


def turn(engine, messages, talk, most) -> dict:
    """One answer, as the recording tells of it."""
    try:
        generation = engine.generate(messages, Params(**talk.sampling), max_tokens=most)
    except UsageError:
        return {"error": "exceed_context_size_error"}
    return {
        "text": "".join(step.text for step in generation),
        "finish_reason": generation.finish_reason,
        "prompt_tokens": len(generation.prompt),
        "completion_tokens": generation.completion_tokens,
        "cached_tokens": generation.cached,
    }


@pytest.mark.parametrize("setting", conversations.SETTINGS, ids=str)
def test_every_turn_is_the_servers(setting, model, monkeypatch):
    monkeypatch.setenv("BANKML_LLAMA_THREADS", "2")
    path = model(setting.model)
    assert models.sha256(path) == GOLDEN["models"][setting.model]
    want = GOLDEN["settings"][str(setting)]
    messages = [talk.opening() for talk in conversations.TALKS]
    done = [0] * len(messages)
    options = {} if setting.cache_ram is None else {"cache_ram": setting.cache_ram}
    with Engine.open(path, setting.n_ctx, False, kind=KvType(setting.kind), **options) as engine:
        for i in setting.order():
            talk = conversations.TALKS[i]
            messages[i].append({"role": "user", "content": talk.says[done[i]]})
            got = turn(engine, messages[i], talk, setting.most or talk.most)
            assert got == want[i][done[i]], (i, done[i])
            messages[i].append({"role": "assistant", "content": got.get("text", "")})
            done[i] += 1
