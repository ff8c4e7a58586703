"""Small living models for whole-model comparisons: random weights in real shapes, written as GGUF without bankml.

`build("qwen3-q1_0-untied", folder)` writes the file and returns its path; its bytes depend on the name. Weights are
scaled so that activations stay near 1 and attention looks at many cells; some block scales are f16 denormals, zero or
negative.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests import gguf_writer
from tests.inputs import BLOCKS, Source

TYPES = {"f32": gguf_writer.F32, "f16": gguf_writer.F16, "q1_0": gguf_writer.Q1_0, "q2_0": gguf_writer.Q2_0}
ODD_VOCAB, QWEN3_VOCAB = 4099, 151_669


@dataclass(frozen=True)
class Shape:
    """The hyper-parameters of a test model; `yarn` is (factor, original context)."""

    arch: str
    kind: str
    tied: bool
    n_embd: int = 256
    n_ff: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    layers: int = 3
    vocab: int = ODD_VOCAB
    rope_base: float = 1e6
    yarn: tuple[float, int] | None = None
    eps: float = 1e-6


MODELS = {
    "qwen3-q1_0-untied": Shape("qwen3", "q1_0", False, heads=4, kv_heads=1, head_dim=128, yarn=(4.0, 16384)),
    "qwen3-q1_0-tied": Shape("qwen3", "q1_0", True, n_embd=384, heads=6, kv_heads=2, layers=4),
    "qwen3-q2_0-untied": Shape("qwen3", "q2_0", False, n_embd=320, n_ff=576, heads=3, kv_heads=3, head_dim=128),
    "qwen3-q2_0-tied": Shape("qwen3", "q2_0", True, heads=8, kv_heads=1, yarn=(2.5, 1024), layers=4),
    "qwen3-f16-untied": Shape("qwen3", "f16", False, heads=4, kv_heads=2, head_dim=128, vocab=4100),
    "qwen3-f16-tied": Shape("qwen3", "f16", True, heads=5, kv_heads=1, yarn=(4.0, 16384), layers=4),
    "llama-q1_0-untied": Shape("llama", "q1_0", False, n_ff=640, heads=6, kv_heads=3, rope_base=1e5, eps=1e-5),
    "llama-q1_0-tied": Shape("llama", "q1_0", True, heads=7, kv_heads=1, head_dim=128, layers=4, eps=1e-5),
    "llama-q2_0-untied": Shape("llama", "q2_0", False, heads=4, kv_heads=4, head_dim=128, rope_base=1e4, eps=1e-5),
    "llama-q2_0-tied": Shape("llama", "q2_0", True, n_embd=576, n_ff=768, heads=9, kv_heads=3, rope_base=1e5, eps=1e-5),
    "llama-f16-untied": Shape("llama", "f16", False, heads=4, kv_heads=4, rope_base=1e4, layers=4, eps=1e-5),
    "llama-f16-tied": Shape("llama", "f16", True, n_embd=288, n_ff=480, heads=9, kv_heads=3, rope_base=1e5, eps=1e-5),
    # for runs on more threads than cores, which the reference's spinning barriers make very slow
    "split-q1_0": Shape("qwen3", "q1_0", False, layers=1, vocab=515, heads=4, kv_heads=1),
    "split-q2_0": Shape("qwen3", "q2_0", True, layers=1, vocab=515, heads=4, kv_heads=2, head_dim=128),
    "split-f16": Shape("llama", "f16", True, layers=1, vocab=516, heads=4, kv_heads=1, rope_base=1e4),
    "qwen3-q1_0-large-vocab": Shape("qwen3", "q1_0", True, head_dim=128, vocab=QWEN3_VOCAB, yarn=(4.0, 16384)),
}

_SMOLLM2 = {"n_embd": 576, "n_ff": 1536, "heads": 9, "kv_heads": 3, "layers": 30, "vocab": 49_152, "rope_base": 1e5}
REAL = {  # SmolLM2-135M-Instruct, converted; `build_real` makes the files
    "smollm2-f16": Shape("llama", "f16", True, eps=1e-5, **_SMOLLM2),
    "smollm2-q2_0": Shape("llama", "q2_0", True, eps=1e-5, **_SMOLLM2),
}


def shape_of(name: str) -> Shape:
    """The shape of a model of MODELS or REAL."""
    return (MODELS | REAL)[name]


def build_real(name: str, source: Path, folder, convert) -> Path:
    """Make model `name` of REAL of SmolLM2's file with convert(source, target, "F16" or "Q2_0"); returns its path."""
    path = Path(folder) / f"{name}.gguf"
    convert(source, path, REAL[name].kind.upper())
    return path


def build(name: str, folder) -> Path:
    """Write model `name` of MODELS into `folder`, unless it is there; returns its path."""
    path = Path(folder) / f"{name}.gguf"
    if not path.exists():
        shape = MODELS[name]
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(gguf_writer.gguf(metadata(shape), list(tensors(name, shape))))
        partial.replace(path)
    return path


def metadata(shape: Shape) -> dict:
    """Key -> (kind, value) of a header; the vocabulary is the reference's "none", so only its size counts."""
    arch = shape.arch
    pairs = {
        "general.architecture": ("str", arch),
        f"{arch}.block_count": ("u32", shape.layers),
        f"{arch}.context_length": ("u32", 4096),
        f"{arch}.embedding_length": ("u32", shape.n_embd),
        f"{arch}.feed_forward_length": ("u32", shape.n_ff),
        f"{arch}.attention.head_count": ("u32", shape.heads),
        f"{arch}.attention.head_count_kv": ("u32", shape.kv_heads),
        f"{arch}.attention.key_length": ("u32", shape.head_dim),
        f"{arch}.attention.value_length": ("u32", shape.head_dim),
        f"{arch}.attention.layer_norm_rms_epsilon": ("f32", shape.eps),
        f"{arch}.rope.dimension_count": ("u32", shape.head_dim),
        f"{arch}.rope.freq_base": ("f32", shape.rope_base),
        f"{arch}.vocab_size": ("u32", shape.vocab),
        "tokenizer.ggml.model": ("str", "none"),
    }
    if shape.yarn:
        factor, context = shape.yarn
        pairs |= {
            f"{arch}.rope.scaling.type": ("str", "yarn"),
            f"{arch}.rope.scaling.factor": ("f32", factor),
            f"{arch}.rope.scaling.original_context_length": ("u32", context),
        }
    return pairs


def tensors(name: str, shape: Shape):
    """Yields every tensor, for gguf_writer."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(tensor, rows, k, gain):
        data = matrix_bytes(Source(f"{name}/{tensor}"), shape.kind, rows, k, gain)
        return gguf_writer.T(tensor, (k, rows), TYPES[shape.kind], data)

    def norm(tensor, n):
        weight = Source(f"{name}/{tensor}").bell(n) / np.float32(5) + np.float32(1)
        return gguf_writer.T(tensor, (n,), TYPES["f32"], weight.tobytes())

    yield matrix("token_embd.weight", shape.vocab, shape.n_embd, shape.n_embd**0.5)
    yield norm("output_norm.weight", shape.n_embd)
    if not shape.tied:
        yield matrix("output.weight", shape.vocab, shape.n_embd, 2.0)
    for il in range(shape.layers):
        yield norm(f"blk.{il}.attn_norm.weight", shape.n_embd)
        yield matrix(f"blk.{il}.attn_q.weight", q, shape.n_embd, 1.25)
        yield matrix(f"blk.{il}.attn_k.weight", kv, shape.n_embd, 1.25)
        yield matrix(f"blk.{il}.attn_v.weight", kv, shape.n_embd, 1.0)
        yield matrix(f"blk.{il}.attn_output.weight", shape.n_embd, q, 2.0)
        if shape.arch == "qwen3":
            yield norm(f"blk.{il}.attn_q_norm.weight", shape.head_dim)
            yield norm(f"blk.{il}.attn_k_norm.weight", shape.head_dim)
        yield norm(f"blk.{il}.ffn_norm.weight", shape.n_embd)
        yield matrix(f"blk.{il}.ffn_gate.weight", shape.n_ff, shape.n_embd, 1.5)
        yield matrix(f"blk.{il}.ffn_up.weight", shape.n_ff, shape.n_embd, 1.5)
        yield matrix(f"blk.{il}.ffn_down.weight", shape.n_embd, shape.n_ff, 1.5)


def matrix_bytes(source: Source, kind: str, rows: int, k: int, gain: float) -> bytes:
    """A random matrix whose product with a unit-variance row has a deviation near `gain`."""
    size = np.float32(gain / k**0.5)
    if kind == "f16":
        values = (source.bell(rows, k) * size).astype(np.float16)
        chosen = source.integers(0, 100, (rows, k))
        values[chosen == 0] = 0
        values[chosen == 1] = np.float16(-0.0)
        denormal = chosen == 2
        values[denormal] = source.integers(0, 1024, int(denormal.sum())).astype(np.uint16).view(np.float16)
        return values.tobytes()
    count = k // BLOCKS[kind][0]
    blocks = np.empty((rows, count, BLOCKS[kind][1]), np.uint8)
    blocks[..., :2] = _scales(source, size, rows, count)[..., None].view(np.uint8)
    blocks[..., 2:] = source.raw(rows, count, 16) if kind == "q1_0" else _ternary(source, rows, count)
    return blocks.tobytes()


def _scales(source, size, rows, count):
    """float16 block scales around `size`; of a hundred, some are zero, negative or denormal."""
    d = (np.abs(source.bell(rows, count)) / np.float32(4) + np.float32(0.75)) * size
    d = d.astype(np.float16)
    chosen = source.integers(0, 100, (rows, count))
    d[chosen == 0] = 0
    d[chosen == 1] *= np.float16(-1)
    denormal = chosen == 2
    d[denormal] = source.integers(1, 1024, int(denormal.sum())).astype(np.uint16).view(np.float16)
    return d


def _ternary(source, rows, count):
    """Packed 2-bit codes: -1, 0 and 1 about equally often, with now and then a 2."""
    codes = np.array([0] * 10 + [1] * 11 + [2] * 10 + [3], np.uint8)[source.integers(0, 32, (rows, count, 16, 4))]
    return codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6


def prompt(name: str, count: int, vocab: int) -> np.ndarray:
    """`count` fixed token ids (int32) of a model; a longer prompt starts with the shorter ones."""
    return Source(f"{name}/prompt").integers(0, vocab, 4096).astype(np.int32)[:count]


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- what is run on them --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A prompt of `prompt` tokens with `outputs` (none, last, all), then `forced` tokens one at a time.

    threads: the reference's, for the forced tokens (the prompt runs on one).
    """

    prompt: int
    outputs: str = "last"
    forced: int = 0
    threads: int = 1

    def __str__(self):
        forced = f"-then-{self.forced}" if self.forced else ""
        return f"{self.outputs}-{self.prompt}{forced}" + (f"-t{self.threads}" if self.threads > 1 else "")

    def tokens(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The prompt and the forced tokens (int32) of this run on model `name`."""
        tokens = prompt(name, self.prompt + self.forced, shape_of(name).vocab)
        return tokens[: self.prompt], tokens[self.prompt :]


_PROMPTS = (
    *(Run(count) for count in (1, 2, 20, 63, 64, 65, 257, 511, 512, 513, 1100)),
    *(Run(count, "all") for count in (1, 2, 20, 64, 513)),
    Run(1, "none", forced=2),
)
_DECODES = (Run(240, forced=30), Run(495, forced=30))
_SPLITS = tuple(Run(cells - 1, "none", 4, threads) for cells in (257, 513, 1100) for threads in (2, 3, 4))
_REAL_RUNS = (Run(1), Run(20), Run(2, "all"), Run(20, "all"), Run(65, forced=4), Run(255, forced=3))
_LARGE_RUNS = (Run(1), Run(20), Run(2, "all"), Run(255, forced=3))


def runs(name: str) -> tuple[Run, ...]:
    """Every run of model `name`."""
    if name in REAL:
        return _REAL_RUNS if name == "smollm2-f16" else _REAL_RUNS[:-1]  # the reference is slow in Q2_0
    if name.startswith("split-"):
        return _SPLITS
    return _LARGE_RUNS if MODELS[name].vocab > 100_000 else (*_PROMPTS, *_DECODES)


def reference_stages(model, name: str, run: Run):
    """Yields (stage, rows) of a run on the reference's `model` (a ReferenceModel of this file), emptied first."""
    model.forget()
    model.set_threads(1)
    tokens, forced = run.tokens(name)
    yield from model.decode(tokens, run.outputs).stages()
    model.set_threads(run.threads)
    for token in forced:
        yield from model.decode([token]).stages()


def joined(stages):
    """Stage -> all its rows, of (stage, rows) in order."""
    rows = {}
    for stage, part in stages:
        rows.setdefault(stage, []).append(part)
    return {stage: np.concatenate(part) for stage, part in rows.items()}


CONTEXT = 1280  # cells that hold every run
