"""Small models of every weight type that `convert` reads, for the recorder and the tests; nothing here imports bankml.

All bytes come from SHAKE-256 of a label, so the recorder and every test make the same files.
"""

import hashlib
import struct

import numpy as np

# type -> (ggml's id, weights in a block, bytes of a block, half-precision fields at its start)
TYPES = {
    "F32": (0, 1, 4, 0),
    "F16": (1, 1, 2, 1),
    "Q4_0": (2, 32, 18, 1),
    "Q4_1": (3, 32, 20, 2),
    "Q8_0": (8, 32, 34, 1),
    "BF16": (30, 1, 2, 0),
    "Q1_0": (41, 128, 18, 1),
    "Q2_0": (42, 64, 18, 1),
}
TARGETS = {"F16": 1, "Q1_0": 40, "Q2_0": 41}  # type -> llama_ftype
ALIGNMENT = 32
VOCAB = 37

# name -> (input type, row length); every name is also tried with every target
CASES = {
    **{f"{kind.lower()}-256": (kind, 256) for kind in TYPES},
    **{f"{kind.lower()}-576": (kind, 576) for kind in TYPES if kind != "Q1_0"},
}


def noise(label, count):
    """`count` bytes that depend on `label` alone."""
    return hashlib.shake_256(label.encode()).digest(count)


def floats(label, rows, width):
    """float32 (rows, width): by turns ordinary, all magnitudes below 2, zeros of both signs, ties, denormals, tiny."""
    raw = np.frombuffer(noise(label, 4 * rows * width), "<u4").reshape(rows, width)
    values = (raw.view("<i4") / np.float32(2**33)).astype("<f4")
    bits = values.view("<u4")
    turn = np.arange(rows) % 6
    bits[turn == 1] = raw[turn == 1] & 0xBFFFFFFF
    bits[turn == 2] = raw[turn == 2] & 0x80000000
    values[turn == 3] = (raw[turn == 3] % 9 - np.float32(4)) * np.float32(0.25)
    bits[turn == 4] = raw[turn == 4] & 0x807FFFFF
    bits[turn == 5] = raw[turn == 5] & 0x8000001F
    return values


def weights(label, kind, rows, width):
    """The bytes of a matrix of type `kind`: random blocks with finite scales."""
    _, size, block_bytes, halves = TYPES[kind]
    if kind == "F32":
        return floats(label, rows, width).tobytes()
    if kind == "BF16":
        return (floats(label, rows, width).view("<u4") >> 16).astype("<u2").tobytes()
    blocks = np.frombuffer(noise(label, rows * width // size * block_bytes), "u1").reshape(-1, block_bytes).copy()
    scales = blocks[:, : 2 * halves].copy().view("<u2")
    blocks[:, : 2 * halves] = (scales & 0xBFFF).view("u1")  # below 2, denormals and both signs among them
    return blocks.tobytes()


def tensors(label, kind, width):
    """[(name, dims, type, bytes)] of a small model, with tensors the reference leaves alone, in no order."""
    ff, kv = 2 * width, width // 2
    shapes = {"token_embd.weight": (width, VOCAB), "output.weight": (width, VOCAB), "output_norm.weight": (width,)}
    for layer in ("blk.1.", "blk.0.", "blk.10."):  # sorted by number, not by text
        matrices = {
            "attn_q": (width, width),
            "attn_k": (width, kv),
            "attn_v": (width, kv),
            "attn_output": (width, width),
        }
        matrices |= {"ffn_gate": (width, ff), "ffn_up": (width, ff), "ffn_down": (ff, width)}
        matrices |= {"attn_norm": (width,), "ffn_norm": (width,)}
        shapes |= {f"{layer}{name}.weight": shape for name, shape in matrices.items()}
    left = {"rope_freqs.weight": (32,), "blk.0.thin.weight": (width, 1), "blk.0.attn_q.bias": (width, 2)}
    left |= {"blk.0.attn_q_norm.weight": (width, 2), "blk.1.ffn_gate_inp.weight": (width, 4)}
    shapes |= left | {"blk.0.ffn_up_exps.weight": (width, 4, 3)}
    for name, dims in shapes.items():
        kept = name in left or len(dims) == 1
        rows = int(np.prod(dims[1:], dtype=int))
        stored = "F32" if kept else kind
        yield name, dims, stored, weights(f"{label} {name}", stored, rows, dims[0])


def _text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _record(key, value):
    """A key with its value: bool, int (u32), ("u16", n), ("i32", n), float, text or a list of texts."""
    match value:
        case bool():
            raw = struct.pack("<I?", 7, value)
        case int():
            raw = struct.pack("<II", 4, value)
        case ("u16", number):
            raw = struct.pack("<IH", 2, number)
        case ("i32", number):
            raw = struct.pack("<Ii", 5, number)
        case float():
            raw = struct.pack("<If", 6, value)
        case str():
            raw = struct.pack("<I", 8) + _text(value)
        case list():
            raw = struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return _text(key) + raw


def keys(width):
    """The metadata: file type and quantization version in the middle, where the reference moves them from."""
    return {
        "general.architecture": "llama",
        "general.file_type": 7,
        "general.name": "a model for tests",
        "llama.block_count": 11,
        "llama.context_length": 512,
        "llama.embedding_length": width,
        "llama.feed_forward_length": 2 * width,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "general.quantization_version": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"token {i} \u00e9" for i in range(VOCAB)],
        "tokenizer.ggml.add_bos_token": False,
    }


def gguf(metadata, listed):
    """A GGUF file's bytes from keys and [(name, dims, type, bytes)]."""
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(listed), len(metadata))]
    head += [_record(key, value) for key, value in metadata.items()]
    data, offset = [], 0
    for name, dims, kind, raw in listed:
        head.append(_text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[kind][0], offset))
        data += [raw, bytes(-len(raw) % ALIGNMENT)]
        offset += len(raw) + -len(raw) % ALIGNMENT
    start = b"".join(head)
    return start + bytes(-len(start) % ALIGNMENT) + b"".join(data)


def case(name):
    """The bytes of the model file of case `name`."""
    kind, width = CASES[name]
    return gguf(keys(width), list(tensors(name, kind, width)))


def split_case():
    """The bytes of the two files of a split model: Q8_0, rows of 256."""
    listed = list(tensors("split", "Q8_0", 256))
    middle = len(listed) // 2
    count = {"split.count": ("u16", 2), "split.tensors.count": ("i32", len(listed))}
    first = gguf({**keys(256), "split.no": ("u16", 0), **count}, listed[:middle])
    return first, gguf({"split.no": ("u16", 1), **count}, listed[middle:])
