"""Fuzz the GGUF parser and the guard: broken headers must be refused in a sentence, and at once.

    python -m testing.fuzz_gguf --seconds 180 --seed 1

Files of a small writer are damaged: bytes, lengths and numbers set to hard values, parts cut, doubled, or taken from
another file. What the reference's own parser accepts is compared in tests/test_gguf.py, on damage of another kind.
"""

import random
import struct
import sys
import tempfile
from pathlib import Path

from bankml.errors import BankmlError
from bankml.gguf import read_header
from bankml.guard import guard
from tests import gguf_writer
from tests.gguf_writer import F16, F32, Q1_0, Q2_0, T

HARD = (0, 1, 2, 7, 8, 9, 12, 13, 31, 32, 63, 64, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
HARD += (2**63, 2**64 - 1, 41, 42, 142)
ARCHES = ("llama", "qwen3", "gpt2", "", "llama\0", "é" * 40)
TEMPLATES = ("{{ messages }}", "{% for %}", "{{ ''.__class__ }}", "{{" * 200, "{#", "{% if a %}" * 50)


def seed_file(rng: random.Random) -> bytes:
    """A small file, mostly well-formed."""
    arch = rng.choice(ARCHES[:2])
    if rng.random() < 0.4:
        kv, tensors = gguf_writer.model(
            arch, rng.choice((Q1_0, Q2_0, F16)), tied=rng.random() < 0.5, n_layer=1, vocab=6
        )
        template = {"tokenizer.chat_template": ("str", rng.choice(TEMPLATES))} if rng.random() < 0.5 else {}
        return gguf_writer.gguf(kv | template, tensors)
    kv = [("general.architecture", "str", rng.choice((arch, arch, arch, *ARCHES)))]
    counts = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count")
    for key in (*counts, "attention.head_count_kv", "attention.key_length", "vocab_size", "rope.dimension_count"):
        kind = rng.choice(("u32", "u32", "u32", "i32", "u64", "f32", "str", "arr[u32]", "bool"))
        number = rng.choice((1, 2, 32, 64, 128, 4096, rng.choice(HARD) % 2**31))
        values = {"f32": float(number), "str": str(number), "arr[u32]": [number] * rng.randrange(4), "bool": True}
        kv.append((f"{arch}.{key}", kind, values.get(kind, number)))
    floats = ("rope.freq_base", "attention.layer_norm_rms_epsilon", "rope.scaling.factor")
    for key in floats:
        kv.append((f"{arch}.{key}", "f32", rng.choice((1e-6, 1e4, 0.0, -1.0, float("nan"), float("inf"), 1e38))))
    kv.append(("tokenizer.ggml.model", "str", rng.choice(("gpt2", "none", "llama"))))
    kv.append(("tokenizer.ggml.tokens", "arr[str]", [rng.choice(("a", "b", "", b"\xff")) for _ in range(9)]))
    kv.append(("tokenizer.chat_template", "str", rng.choice(TEMPLATES)))
    if rng.random() < 0.3:
        kv.append(("general.alignment", "u32", 32))
    rng.shuffle(kv)
    kinds, names = (F32, F16, Q1_0, Q2_0), ("token_embd.weight", "output.weight", "output_norm.weight")
    names += tuple(f"blk.{i}.{part}.weight" for i in range(2) for part in ("attn_q", "attn_k", "ffn_up", "attn_norm"))
    tensors = [T(name, (128, rng.randrange(1, 5)), rng.choice(kinds)) for name in names[: rng.randrange(len(names))]]
    return gguf_writer.gguf(kv[rng.randrange(2) :], tensors)


def damage(rng: random.Random, raw: bytes) -> bytes:
    """One change."""
    data = bytearray(raw)
    at, kind = rng.randrange(max(1, min(len(data), rng.choice((64, 600, 10**6))))), rng.randrange(8)
    if kind == 0 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at : at + 8] = struct.pack("<Q", rng.choice(HARD))
    elif kind == 2:
        data[at : at + 4] = struct.pack("<I", rng.choice(HARD) & 0xFFFFFFFF)
    elif kind == 3:
        del data[at:]
    elif kind == 4:
        del data[at : at + rng.randrange(1, 40)]
    elif kind == 5:
        data[at:at] = data[at : at + rng.randrange(1, 200)]
    elif kind == 6:
        data[at : at + 16] = rng.randbytes(16)
    else:
        other = seed_file(rng)
        data[at:] = other[min(at, len(other)) :]
    return bytes(data)


def generate(rng: random.Random) -> bytes:
    """A file, whole or damaged up to four times."""
    raw = seed_file(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 4))):
        raw = damage(rng, raw)
    return raw


def run(raw: bytes):
    """Read a file and judge it; the verdict must agree with the reading."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(raw)
        try:
            read_header(path)
            whole = True
        except BankmlError as error:
            whole = False
            _check_sentence(str(error))
        verdict = guard(path)
        assert (verdict.header is not None) == whole, "the guard and the parser disagree"
        assert verdict.verdict in ("play", "refuse", "need_more") and bool(verdict.reasons) == (
            verdict.verdict != "play"
        )
        for reason in verdict.reasons + verdict.notes:
            _check_sentence(reason)


def _check_sentence(text):
    assert text and text.isprintable() and len(text) < 4000, f"no sentence: {text[:200]!r}"


if __name__ == "__main__":
    from testing.fuzzing import command

    sys.exit(command("gguf", generate, run))
