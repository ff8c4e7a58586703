"""Models of known shapes with random weights: what speed is measured on where the real files are not at hand.

The weights are seeded noise, scaled so that activations keep their size from layer to layer; the tokenizer is left out
(`tokenizer.ggml.model` is "none"), so such a file can be measured and compared, not talked to.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bankml import blocks
from bankml.errors import UsageError

SEED = 20260101
CHUNK_BLOCKS = 1 << 18
ALIGNMENT = 32
U32, F32, STRING = 4, 6, 8


@dataclass(frozen=True)
class Shape:
    """Hyper-parameters of a model to make, by their GGUF meaning."""

    arch: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    tied: bool
    yarn: bool = False
    rope_base: float = 1e6
    n_ctx: int = 65536


SHAPES = {
    "bonsai-1.7b": Shape("qwen3", 28, 2048, 6144, 16, 8, 128, 151669, tied=True, yarn=True),
    "bonsai-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151669, tied=False, yarn=True),
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49152, tied=True, rope_base=1e5, n_ctx=8192),
}
TYPES = {"q1_0": blocks.Q1_0, "q2_0": blocks.Q2_0, "f16": blocks.F16}


def parse(text: str) -> tuple[str, Shape, int]:
    """(name, shape, weight type) of "bonsai-1.7b:q1_0" and its like; UsageError names what there is."""
    name, _, kind = text.partition(":")
    if name not in SHAPES or kind not in TYPES:
        raise UsageError(f"shape {text!r} is unknown; it is one of {', '.join(SHAPES)} with :{', :'.join(TYPES)}")
    return text, SHAPES[name], TYPES[kind]


def write_model(path, shape: Shape, wtype: int, n_layer: int | None = None):
    """Write a model of that shape and weight type to `path`, whole or not at all. n_layer: fewer layers than it has."""
    path, layers = Path(path), n_layer or shape.n_layer
    tensors = list(_tensors(shape, wtype, layers))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(_head(shape, layers, tensors))
            rng = np.random.default_rng(SEED)
            for _, dims, kind in tensors:
                file.write(bytes(-file.tell() % ALIGNMENT))
                for chunk in _noise(rng, dims, kind):
                    file.write(chunk)
            file.write(bytes(-file.tell() % ALIGNMENT))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _tensors(shape, wtype, layers):
    """(name, dims, type) of every tensor, in file order."""
    heads, heads_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    yield "token_embd.weight", (shape.n_embd, shape.n_vocab), wtype
    yield "output_norm.weight", (shape.n_embd,), blocks.F32
    if not shape.tied:
        yield "output.weight", (shape.n_embd, shape.n_vocab), wtype
    for i in range(layers):
        yield f"blk.{i}.attn_norm.weight", (shape.n_embd,), blocks.F32
        yield f"blk.{i}.attn_q.weight", (shape.n_embd, heads), wtype
        yield f"blk.{i}.attn_k.weight", (shape.n_embd, heads_kv), wtype
        yield f"blk.{i}.attn_v.weight", (shape.n_embd, heads_kv), wtype
        if shape.arch == "qwen3":
            yield f"blk.{i}.attn_q_norm.weight", (shape.head_dim,), blocks.F32
            yield f"blk.{i}.attn_k_norm.weight", (shape.head_dim,), blocks.F32
        yield f"blk.{i}.attn_output.weight", (heads, shape.n_embd), wtype
        yield f"blk.{i}.ffn_norm.weight", (shape.n_embd,), blocks.F32
        yield f"blk.{i}.ffn_gate.weight", (shape.n_embd, shape.n_ff), wtype
        yield f"blk.{i}.ffn_up.weight", (shape.n_embd, shape.n_ff), wtype
        yield f"blk.{i}.ffn_down.weight", (shape.n_ff, shape.n_embd), wtype


def _head(shape, layers, tensors) -> bytes:
    arch = shape.arch
    keys = {
        "general.architecture": arch,
        f"{arch}.block_count": layers,
        f"{arch}.context_length": shape.n_ctx,
        f"{arch}.embedding_length": shape.n_embd,
        f"{arch}.feed_forward_length": shape.n_ff,
        f"{arch}.attention.head_count": shape.n_head,
        f"{arch}.attention.head_count_kv": shape.n_head_kv,
        f"{arch}.attention.key_length": shape.head_dim,
        f"{arch}.attention.value_length": shape.head_dim,
        f"{arch}.rope.dimension_count": shape.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{arch}.rope.freq_base": shape.rope_base,
        f"{arch}.vocab_size": shape.n_vocab,
        "tokenizer.ggml.model": "none",
    }
    if shape.yarn:
        keys |= {
            f"{arch}.rope.scaling.type": "yarn",
            f"{arch}.rope.scaling.factor": 4.0,
            f"{arch}.rope.scaling.original_context_length": 16384,
        }
    out = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))]
    out += [_text(key) + _value(value) for key, value in keys.items()]
    offset = 0
    for name, dims, kind in tensors:
        out.append(_text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        offset += -(-_size(dims, kind) // ALIGNMENT) * ALIGNMENT
    return b"".join(out)


def _text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value):
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    return struct.pack("<If", F32, value) if isinstance(value, float) else struct.pack("<II", U32, value)


def _size(dims, kind):
    rows = 1 if len(dims) == 1 else dims[1]
    return rows * blocks.TYPES[kind].row_bytes(dims[0])


def _noise(rng, dims, kind):
    """The tensor's data in chunks: norms around one; matrices with rows of about unit length."""
    if kind == blocks.F32:
        yield rng.uniform(0.8, 1.2, dims[0]).astype(np.float32)
        return
    scale, left = dims[0] ** -0.5, _size(dims, kind) // blocks.TYPES[kind].block_bytes
    while left:
        n = min(left, CHUNK_BLOCKS * (1 if kind != blocks.F16 else 16))
        left -= n
        if kind == blocks.F16:
            yield (rng.standard_normal(n, np.float32) * np.float32(scale)).astype(np.float16)
            continue
        chunk = np.empty(n, blocks.TYPES[kind].dtype)
        chunk["d"] = (rng.uniform(0.5, 1.5, n) * scale).astype(np.float16).view(np.uint16)
        qs = np.frombuffer(rng.bytes(chunk["qs"].nbytes), np.uint8).reshape(chunk["qs"].shape)
        if kind == blocks.Q2_0:  # codes 0, 1, 2: code 3 does not occur in ternary weights
            qs = qs & ~((qs & 0x55) & ((qs >> 1) & 0x55))
        chunk["qs"] = qs
        yield chunk
