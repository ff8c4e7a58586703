"""Record what the reference answers to tests/answers.py: tests/golden/answers.json.

    python -m testing.record_answers

Tokens, logits and draws are the shipped library's; no engine code takes part.
"""

import ctypes
import tempfile
from pathlib import Path

import numpy as np

from bankml.oracle import library, record
from bankml.oracle.model import ReferenceModel
from bankml.oracle.sampler import ReferenceSampler
from testing.record_convert import reference_convert
from tests import answers, models
from tests.vocab import smollm2_gguf

ROOT = Path(__file__).resolve().parent.parent


class Asked:
    """A model of the reference that answers."""

    def __init__(self, reference, model: ReferenceModel):
        self.reference, self.model = reference, model
        self.vocab = reference.api.llama_model_get_vocab(model.model)
        # bool llama_vocab_is_eog(const struct llama_vocab * vocab, llama_token token);
        self.is_end = ctypes.CDLL(str(reference.paths["llama"])).llama_vocab_is_eog
        self.is_end.restype, self.is_end.argtypes = ctypes.c_bool, [ctypes.c_void_p, ctypes.c_int32]

    def tokenize(self, text: str) -> np.ndarray:
        """Token ids (int32), special tokens parsed and added, as the server does it."""
        raw = text.encode()
        ids = np.zeros(len(raw) + 8, np.int32)
        count = self.reference.api.llama_tokenize(self.vocab, raw, len(raw), ids.ctypes.data, len(ids), True, True)
        assert count > 0, count
        return ids[:count]

    def answer(self, text: str, most: int, sampling: dict) -> tuple[int, list[int], str]:
        """(prompt tokens, answer without its end token, finish reason)."""
        self.model.forget()
        prompt, tokens = self.tokenize(text), []
        logits = self.model.decode(prompt, watch=()).logits[-1]
        with ReferenceSampler(self.reference, **sampling) as sampler:
            while True:
                token = sampler.sample(logits)
                if self.is_end(self.vocab, token):
                    return len(prompt), tokens, "stop"
                tokens.append(token)
                if len(tokens) == most:
                    return len(prompt), tokens, "length"
                logits = self.model.decode([token], watch=()).logits[-1]


def main():
    reference = library.load()
    with tempfile.TemporaryDirectory() as folder:
        path = models.build_real("smollm2-f16", smollm2_gguf(), folder, reference_convert)
        with ReferenceModel(path, n_ctx=512) as model:
            asked = Asked(reference, model)
            cases = {name: asked.answer(*case[:3]) for name, case in answers.CASES.items()}
        with ReferenceModel(path, n_ctx=512, cache="q8_0") as model:
            asked = Asked(reference, model)
            over_q8_0 = {name: asked.answer(*answers.CASES[name][:3]) for name in answers.OVER_Q8_0}
        recording = {"stamp": record.stamp(reference), "model": models.sha256(path), "cases": cases}
        recording["over_q8_0"] = over_q8_0
    record.write(ROOT / "tests" / "golden" / "answers.json", recording)
    print(f"{len(cases)} answers recorded")


if __name__ == "__main__":
    main()
