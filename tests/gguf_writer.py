"""A small GGUF writer for tests, right or wrong on purpose; it knows nothing of bankml.

`gguf(kv, tensors)` gives the bytes of a file. `kv` maps a key to (kind, value), or is a list of (key, kind, value)
where a key comes twice: kinds are "u32", "f32", "str", ... and "arr[u32]", "arr[str]", ... `tensors` are `T`s.
"""

import random
import struct
from dataclasses import dataclass

KINDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "arr": 9}
KINDS |= {"u64": 10, "i64": 11, "f64": 12}
CODES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?"}
CODES |= {"u64": "Q", "i64": "q", "f64": "d"}

F32, F16, Q4_0, Q8_0, Q4_K, Q1_0, Q2_0 = 0, 1, 2, 8, 12, 41, 42
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), 3: (32, 20), Q8_0: (32, 34), Q4_K: (256, 144)}
BLOCKS |= {Q1_0: (128, 18), Q2_0: (64, 18), 30: (1, 2)}


@dataclass
class T:
    """A tensor: `dims[0]` is the row length. `offset` is where it claims to be, its place in the file by default."""

    name: str | bytes
    dims: tuple
    type: int = F32
    data: bytes | None = None
    offset: int | None = None

    def bytes(self) -> bytes:
        if self.data is not None:
            return self.data
        size, width = 1, BLOCKS.get(self.type, (1, 1))
        for dim in self.dims:
            size *= dim
        return bytes(size // width[0] * width[1])


def text(value) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, content) -> bytes:
    """A value with its type in front."""
    if kind == "str":
        return struct.pack("<i", 8) + text(content)
    if not kind.startswith("arr"):
        return struct.pack("<i" + CODES[kind], KINDS[kind], content)
    item = kind[4:-1]
    head = struct.pack("<iiQ", 9, KINDS[item], len(content))
    if item == "str":
        return head + b"".join(map(text, content))
    return head + struct.pack(f"<{len(content)}{CODES[item]}", *content)


def announce(tensor: T, offset: int) -> bytes:
    at = offset if tensor.offset is None else tensor.offset
    dims = struct.pack(f"<I{len(tensor.dims)}q", len(tensor.dims), *tensor.dims)
    return text(tensor.name) + dims + struct.pack("<iQ", tensor.type, at)


def pad(data: bytes, alignment: int) -> bytes:
    return data + bytes(-len(data) % alignment)


def gguf(kv=(), tensors=(), *, version=3, align=32, n_kv=None, n_tensors=None, magic=b"GGUF") -> bytes:
    """A file's bytes; `version` may be bytes. The header claims `n_kv` and `n_tensors`, the truth by default."""
    triples = [(key, *pair) for key, pair in kv.items()] if isinstance(kv, dict) else list(kv)
    out = magic + (version if isinstance(version, bytes) else struct.pack("<I", version))
    out += struct.pack("<QQ", len(tensors) if n_tensors is None else n_tensors, len(triples) if n_kv is None else n_kv)
    out += b"".join(text(key) + value(kind, content) for key, kind, content in triples)
    data = b""
    for tensor in tensors:
        out += announce(tensor, len(data))
        data = pad(data + tensor.bytes(), align)
    return pad(out, align) + data if tensors else out


def model(
    arch="qwen3", wtype=Q1_0, *, tied=True, n_layer=2, embd=128, ff=256, heads=4, kv_heads=2, head_dim=32, vocab=40
):
    """(kv, tensors) of a whole tiny model that llama.cpp's loader would take: for tests to change something in."""
    kv = {
        "general.architecture": ("str", arch),
        f"{arch}.block_count": ("u32", n_layer),
        f"{arch}.context_length": ("u32", 512),
        f"{arch}.embedding_length": ("u32", embd),
        f"{arch}.feed_forward_length": ("u32", ff),
        f"{arch}.attention.head_count": ("u32", heads),
        f"{arch}.attention.head_count_kv": ("u32", kv_heads),
        f"{arch}.attention.key_length": ("u32", head_dim),
        f"{arch}.attention.value_length": ("u32", head_dim),
        f"{arch}.attention.layer_norm_rms_epsilon": ("f32", 1e-6),
        f"{arch}.rope.freq_base": ("f32", 1e6),
        "tokenizer.ggml.model": ("str", "gpt2"),
        "tokenizer.ggml.pre": ("str", "qwen2"),
        "tokenizer.ggml.tokens": ("arr[str]", [f"t{i}" for i in range(vocab)]),
        "tokenizer.ggml.token_type": ("arr[i32]", [1] * vocab),
        "tokenizer.ggml.merges": ("arr[str]", ["t 1"]),
    }
    q, k = heads * head_dim, kv_heads * head_dim
    tensors = [T("token_embd.weight", (embd, vocab), wtype), T("output_norm.weight", (embd,))]
    tensors += [] if tied else [T("output.weight", (embd, vocab), wtype)]
    matrices = {"attn_q": (embd, q), "attn_k": (embd, k), "attn_v": (embd, k), "attn_output": (q, embd)}
    matrices |= {"ffn_gate": (embd, ff), "ffn_up": (embd, ff), "ffn_down": (ff, embd)}
    norms = {"attn_norm": embd, "ffn_norm": embd}
    norms |= {"attn_q_norm": head_dim, "attn_k_norm": head_dim} if arch == "qwen3" else {}
    for i in range(n_layer):
        tensors += [T(f"blk.{i}.{name}.weight", dims, wtype) for name, dims in matrices.items()]
        tensors += [T(f"blk.{i}.{name}.weight", (width,)) for name, width in norms.items()]
    return kv, tensors


def split(kv, tensors, count: int) -> list[bytes]:
    """The same model in `count` files, as llama-gguf-split writes them: the first has all keys."""
    share = -(-len(tensors) // count)
    parts = []
    for i in range(count):
        own = {"split.no": ("u16", i), "split.count": ("u16", count), "split.tensors.count": ("i32", len(tensors))}
        parts.append(gguf((kv if i == 0 else {}) | own, tensors[i * share : (i + 1) * share]))
    return parts


def filled(tensors):
    """The tensors with bytes of their own, from a seed."""
    source = random.Random(5)
    return [T(t.name, t.dims, t.type, source.randbytes(len(t.bytes()))) for t in tensors]
