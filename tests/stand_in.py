"""The `bankml` command with a stand-in for the forward pass, run as a program: what it answers is known beforehand.

    STAND_IN='{"answer": "text"}' python tests/stand_in.py generate -m MODEL ...

MODEL is a file of `write_model`: 256 tokens for the bytes, then two control tokens. STAND_IN may also hold `load_s`,
`prompt_s` and `token_s`, the seconds that each takes; "loading" and "prompting" are then told on stderr. `fail` is a
mistake that the forward pass finds; `lines_s` the seconds between the lines of a dashboard without a terminal.
"""

import json
import os
import sys
import time
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
START, END, VOCABULARY = 256, 257, 258


def vocabulary() -> dict:
    """Keys of a header: the tokens are the bytes, then two control tokens."""
    from tests.vocab import CONTROL, NORMAL, byte_characters

    return {
        "tokenizer.ggml.tokens": ("arr[str]", [*byte_characters(), "<|im_start|>", "<|im_end|>"]),
        "tokenizer.ggml.token_type": ("arr[i32]", [NORMAL] * 256 + [CONTROL] * 2),
        "tokenizer.ggml.merges": ("arr[str]", []),
        "tokenizer.ggml.eos_token_id": ("u32", END),
    }


def write_model(path, context=512) -> Path:
    """A whole tiny model with that vocabulary; its weights are of no consequence here."""
    from tests.gguf_writer import gguf, model

    kv, tensors = model(vocab=VOCABULARY)
    Path(path).write_bytes(gguf(kv | vocabulary() | {"qwen3.context_length": ("u32", context)}, tensors))
    return Path(path)


class Cells(list):
    """A cache that holds the tokens themselves."""

    kind, row_bytes = None, 4

    def truncate(self, n):
        del self[n:]

    def raw(self):
        import numpy as np

        return (np.array(self, np.int32).view(np.uint8).reshape(-1, 4),) * 2

    def fill(self, k, v):
        self[:] = k.copy().view("i4").ravel().tolist()


class Weights:
    """Logits that spell the answer, then the end token."""

    devices, threads, card_notes = ["cpu"], 2, ["0: a device is asked"]

    def __init__(self, answer, load_s=0.0, prompt_s=0.0, token_s=0.0, flat=False, fail=None):
        self.fail = fail
        self.answer, self.flat = [*answer.encode("utf-8", "surrogateescape"), END], flat
        self.prompt_s, self.token_s, self.batches = prompt_s, token_s, []
        self._tell("loading", load_s)

    @staticmethod
    def _tell(what, seconds):
        if seconds:
            print(what, file=sys.stderr, flush=True)
            time.sleep(seconds)

    def caches(self, kind=None, n_ctx=None):
        return [Cells()]

    def card_report(self):
        return None

    def close(self):
        pass

    def path(self, rows, cells, kind):
        return 0

    def prefill_with(self, caches, tokens, outputs, each=None, n_ubatch=512):
        self._tell("prompting", self.prompt_s)
        if self.fail:
            from bankml.errors import UsageError

            raise UsageError(self.fail)
        caches[0].extend(tokens)
        if log := os.environ.get("STAND_IN_LOG"):
            self.batches.append(len(tokens))
            Path(log).write_text(json.dumps({"prompt": caches[0], "batches": self.batches}))
        self.done = 0
        return [None]

    def decode(self, caches, token):
        time.sleep(self.token_s)
        caches[0].append(token)
        self.done += 1

    def logits(self, result_norm):
        import numpy as np

        row = np.zeros(VOCABULARY, np.float32)
        row[self.answer[self.done]] = 0 if self.flat else 50
        row[END] = row[END] if row[END] else -50
        return row


def main():
    sys.path.insert(0, str(ROOT))
    from bankml.cli.main import console

    script = json.loads(os.environ["STAND_IN"])
    if "lines_s" in script:
        from bankml.dashboard import live

        live.LINES_S = script.pop("lines_s")
    forward = ModuleType("bankml.forward")
    forward.N_UBATCH, forward.Outputs = 512, Enum("Outputs", "NONE LAST ALL")
    forward.Weights = SimpleNamespace(open=lambda path, gpu=None, threads=None: Weights(**script))
    sys.modules["bankml.forward"] = forward
    console()


if __name__ == "__main__":
    main()
