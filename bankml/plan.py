"""What a model file is, from its header alone: architecture, weight type, shape; or every reason why bankml refuses it.

Keys, defaults and required tensors are those of llama.cpp b11192 (`load_hparams` in llama-model.cpp, qwen3.cpp and
llama.cpp under models/, and llama-context.cpp for RoPE). What lies outside the reproduced graph is refused by name.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from bankml.blocks import CONVERTIBLE, F32, RUNNABLE, TYPES, names
from bankml.errors import Refused
from bankml.gguf import Header, Tensor, printable

MAX_LAYERS = 512  # the reference's own limit


class Arch(StrEnum):
    """The architectures whose graphs bankml reproduces, by their GGUF names."""

    QWEN3 = "qwen3"
    LLAMA = "llama"


class RopeMode(StrEnum):
    """Which elements of a head RoPE turns together: NORM adjacent pairs, NEOX i and i + head_dim / 2."""

    NORM = "norm"
    NEOX = "neox"


@dataclass(frozen=True)
class Shape:
    """The hyper-parameters, as the reference reads them."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    rms_eps: float  # a float32 value
    rope_base: float  # a float32 value
    rope_mode: RopeMode
    yarn_factor: float  # a float32 value of 1 or more; 0 means no YaRN
    n_ctx_orig: int  # the context before YaRN stretched it
    n_ctx_train: int
    tied: bool  # no output.weight: the logits read token_embd.weight

    @property
    def qk_norm(self) -> bool:
        """Whether Q and K heads are normed: in Qwen3, not in Llama."""
        return self.rope_mode is RopeMode.NEOX


@dataclass(frozen=True)
class Plan:
    """What the forward pass runs: `wtype` is the one type of every matrix, `output` the matrix of the logits."""

    arch: Arch
    wtype: int
    output: str
    shape: Shape | None = None


def plan(header: Header) -> Plan:
    """Decide from the header what the file is; raises Refused with every reason, each naming a tensor or a key."""
    arch = header.arch
    reasons = _unsupported_types(header)
    if arch not in tuple(Arch):
        raise Refused(_wrong_arch(header), *reasons)
    keys = _Keys(header, reasons)
    shape = _shape(keys, Arch(arch))
    if shape is not None:
        _check_tensors(header, shape, reasons)
    if reasons:
        raise Refused(*reasons)
    output = "token_embd.weight" if shape.tied else "output.weight"
    return Plan(Arch(arch), header.tensors["token_embd.weight"].type, output, shape)


def _wrong_arch(header: Header) -> str:
    if header.arch is None:
        kind = header.kv.kind("general.architecture")
        return f"general.architecture is {kind}, not a string" if kind else "general.architecture is missing"
    return (
        f"general.architecture is '{printable(header.arch[:64])}', an unsupported architecture; "
        f"bankml runs {', '.join(Arch)}"
    )


def _named(tensors: list[str]) -> str:
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return f"tensor '{tensors[0]}'{more}"


def _unsupported_types(header: Header) -> list[str]:
    """One reason per type that no tensor of a model may have."""
    found = defaultdict(list)
    for tensor in header.tensors.values():
        if tensor.type not in (*RUNNABLE, F32):
            found[tensor.type].append(tensor.name)
    reasons = [
        f"{_named(tensors)}: {TYPES[kind].name} (type {kind}) is not supported; bankml runs {names(RUNNABLE)}"
        for kind, tensors in found.items()
    ]
    if reasons and all(tensor.type in CONVERTIBLE for tensor in header.tensors.values()):
        reasons[-1] += "; 'bankml convert' can rewrite it"
    return reasons


class _Keys:
    """Reads `<arch>.*` keys with the reference's types and defaults; what is wrong goes to `reasons`."""

    def __init__(self, header: Header, reasons: list[str]):
        self.kv, self.tensors, self.arch, self.reasons = header.kv, header.tensors, header.arch, reasons

    def refuse(self, key: str, reason: str):
        self.reasons.append(f"{self.arch}.{key} {reason}")

    def get(self, key: str, kind: str, default=None):
        """The value; `default` where the key is missing, and a missing key without default is a reason."""
        name = f"{self.arch}.{key}"
        stored = self.kv.kind(name)
        if stored == kind:
            return self.kv[name]
        if stored is not None:
            self.refuse(key, f"is {stored}; it must be {kind}")
        elif default is None:
            self.refuse(key, "is missing")
        return default

    def per_layer(self, key: str, n_layer: int, default=None):
        """A u32, or an array with one equal u32 or i32 for each layer."""
        name = f"{self.arch}.{key}"
        if self.kv.kind(name) not in ("arr[u32]", "arr[i32]"):
            return self.get(key, "u32", default)
        values = self.kv[name]
        if n_layer is not None and len(values) != n_layer:
            self.refuse(key, f"has {len(values)} values for {n_layer} layers")
        elif len(values) and (values != values[0]).any():
            self.refuse(key, "differs between layers, which is not supported")
        elif len(values):
            return int(values[0])
        return None

    def positive(self, key: str, value):
        """The value if it is above 0; otherwise None, and a reason unless it was missing."""
        if value is not None and not value > 0:
            self.refuse(key, f"is {value}; it must be above 0")
        return value if value is not None and value > 0 else None


def _shape(keys: _Keys, arch: Arch) -> Shape | None:
    """The hyper-parameters; None, with reasons, where some are missing or out of scope."""
    before = len(keys.reasons)
    n_layer = keys.positive("block_count", keys.get("block_count", "u32"))
    n_embd = keys.positive("embedding_length", keys.get("embedding_length", "u32"))
    n_ctx = keys.positive("context_length", keys.get("context_length", "u32"))
    if n_layer is not None and n_layer > MAX_LAYERS:
        keys.refuse("block_count", f"is {n_layer}; {MAX_LAYERS} is the most")
    n_ff = keys.positive("feed_forward_length", keys.per_layer("feed_forward_length", n_layer))
    n_head = keys.positive("attention.head_count", keys.per_layer("attention.head_count", n_layer))
    n_head_kv = keys.per_layer("attention.head_count_kv", n_layer, default=n_head or 1)
    n_head_kv = keys.positive("attention.head_count_kv", n_head_kv)
    if n_head and n_head_kv and n_head % n_head_kv:
        keys.refuse("attention.head_count_kv", f"is {n_head_kv}, which does not divide the {n_head} heads")
    head_dim = _head_dim(keys, n_embd, n_head) if n_embd and n_head else None
    eps = keys.get("attention.layer_norm_rms_epsilon", "f32")
    if eps is not None and not 0 <= eps < math.inf:
        keys.refuse("attention.layer_norm_rms_epsilon", f"is {eps}")
    base = keys.get("rope.freq_base", "f32", 10000.0)
    if not 0 < base < math.inf:
        keys.refuse("rope.freq_base", f"is {base}")
    factor = _yarn_factor(keys, arch)
    _check_graph_keys(keys, n_embd)
    n_ctx_orig = keys.get("rope.scaling.original_context_length", "u32", 0) or n_ctx
    n_vocab = _vocabulary(keys)
    if len(keys.reasons) > before:
        return None
    return Shape(
        n_layer,
        n_embd,
        n_ff,
        n_head,
        n_head_kv,
        head_dim,
        n_vocab,
        rms_eps=eps,
        rope_base=base,
        rope_mode=RopeMode.NEOX if arch is Arch.QWEN3 else RopeMode.NORM,
        yarn_factor=factor,
        n_ctx_orig=n_ctx_orig,
        n_ctx_train=n_ctx,
        tied="output.weight" not in keys.tensors,
    )


def _head_dim(keys: _Keys, n_embd: int, n_head: int) -> int:
    """Width of a head; K, V and the rotated part must have the same."""
    default = n_embd // n_head
    head_dim = keys.get("attention.key_length", "u32", default)
    value_dim = keys.get("attention.value_length", "u32", default)
    rotated = keys.get("rope.dimension_count", "u32", head_dim)
    if head_dim == 0 or head_dim % 32:
        keys.refuse("attention.key_length", f"is {head_dim}; a head width must be a multiple of 32")
    if value_dim != head_dim:
        keys.refuse("attention.value_length", f"is {value_dim}, not the key head width {head_dim}")
    if rotated != head_dim:
        keys.refuse("rope.dimension_count", f"is {rotated} of {head_dim}: partial RoPE is not supported")
    return head_dim


def _yarn_factor(keys: _Keys, arch: Arch) -> float:
    """YaRN's factor, 0 for no scaling; every other scaling is refused."""
    explicit = f"{keys.arch}.rope.scaling.type" in keys.kv
    kind = keys.get("rope.scaling.type", "str", "linear")
    factor = keys.get("rope.scaling.factor", "f32", -1.0)
    factor = keys.get("rope.scale_linear", "f32", 0.0) if factor == -1.0 else factor
    if keys.get("rope.scaling.attn_factor", "f32", 1.0) != 1.0:
        keys.refuse("rope.scaling.attn_factor", "other than 1 is not supported")
    if kind == "none":
        return 0.0
    if kind == "linear" and factor in (0.0, 1.0) and not (explicit and arch is Arch.LLAMA):
        return 0.0
    if kind == "yarn" and arch is Arch.QWEN3:
        factor = factor or 1.0
        if not 1.0 <= factor < math.inf:
            keys.refuse("rope.scaling.factor", f"is {factor}; YaRN stretches by 1 or more")
        return factor
    if explicit:
        keys.refuse("rope.scaling.type", f"is '{printable(kind[:32])}': this RoPE scaling is not supported on {arch}")
    else:
        keys.refuse("rope.scaling.factor", f"is {factor}: linear RoPE scaling is not supported")
    return 0.0


def _check_graph_keys(keys: _Keys, n_embd: int | None):
    """Keys that would change the graph."""
    if keys.get("expert_count", "u32", 0):
        keys.refuse("expert_count", "is not 0: experts are not supported")
    if keys.get("nextn_predict_layers", "u32", 0):
        keys.refuse("nextn_predict_layers", "is not 0: layers that predict further tokens are not supported")
    if keys.get("attention.scale", "f32", 0.0) != 0.0:
        keys.refuse("attention.scale", "is set: an attention scale is not supported")
    if keys.get("attention.causal", "bool", True) is not True:
        keys.refuse("attention.causal", "is false: only causal attention is supported")
    if keys.get("embedding_length_out", "u32", n_embd or 1) not in (0, n_embd or 1):
        keys.refuse("embedding_length_out", "differs from embedding_length, which is not supported")
    for key in keys.kv:
        if key.startswith("general.tensor_extra"):
            keys.reasons.append(f"{printable(key[:80])} is set: a precision chosen by tensor is not supported")


def _vocabulary(keys: _Keys) -> int:
    """Rows of the embedding: the token list's length, else `vocab_size`, else what the embedding has."""
    kind = keys.kv.kind("tokenizer.ggml.tokens")
    if keys.kv.get("tokenizer.ggml.model") not in ("none", "no_vocab") and kind is not None:
        if kind == "arr[str]":
            return len(keys.kv["tokenizer.ggml.tokens"])
        keys.reasons.append(f"tokenizer.ggml.tokens is {kind}; it must be an array of strings")
    embedding = keys.tensors.get("token_embd.weight")
    return keys.get("vocab_size", "u32", 0) or (embedding.rows if embedding else 0)


def _expected(shape: Shape) -> dict[str, tuple[int, ...]]:
    """name -> dims of every tensor the graph reads, matrices with two dims and norms with one."""
    q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    embd, ff = shape.n_embd, shape.n_ff
    layer = {
        "attn_norm": (embd,),
        "attn_q": (embd, q),
        "attn_k": (embd, kv),
        "attn_v": (embd, kv),
        "attn_output": (q, embd),
        "ffn_norm": (embd,),
        "ffn_gate": (embd, ff),
        "ffn_up": (embd, ff),
        "ffn_down": (ff, embd),
    }
    if shape.qk_norm:
        layer |= {"attn_q_norm": (shape.head_dim,), "attn_k_norm": (shape.head_dim,)}
    expected = {"token_embd.weight": (embd, shape.n_vocab), "output_norm.weight": (embd,)}
    if not shape.tied:
        expected["output.weight"] = (embd, shape.n_vocab)
    return expected | {f"blk.{i}.{name}.weight": dims for i in range(shape.n_layer) for name, dims in layer.items()}


# How the tensors that bankml never reads are called in a refusal: the first pattern found in the name decides.
_FOREIGN = {
    "attn_qkv": "fused QKV is not supported",
    "rope_freqs": "RoPE frequency factors are not supported",
    "rope_factors": "RoPE frequency factors are not supported",
    "exp": "experts are not supported",
    "gate_inp": "experts are not supported",
    ".bias": "biases are not supported",
    "q_norm": "Q/K norms are not supported on this architecture",
    "k_norm": "Q/K norms are not supported on this architecture",
    "scale": "scales beside a matrix are not supported",
    "": "this tensor is not part of the graph",
}


def _foreign(name: str, n_layer: int) -> str:
    layer = re.match(r"blk\.(\d+)\.", name)
    if layer and int(layer[1]) >= n_layer:
        return f"this layer is beyond the block_count of {n_layer}"
    return next(reason for pattern, reason in _FOREIGN.items() if pattern in name)


def _check_tensors(header: Header, shape: Shape, reasons: list[str]):
    """Every tensor of the graph is there with its shape and type, and no other is."""
    expected, found = _expected(shape), defaultdict(list)
    for name in header.tensors:
        if name not in expected:
            found[_foreign(name, shape.n_layer)].append(name)
    for name, dims in expected.items():
        tensor = header.tensors.get(name)
        if tensor is None:
            found["missing"].append(name)
        elif tensor.dims + (1,) * (4 - len(tensor.dims)) != dims + (1,) * (4 - len(dims)):
            found[f"shape {list(tensor.dims)} where {list(dims)} was expected"].append(name)
        elif len(dims) == 1 and tensor.type != F32:
            found[f"{tensor.block}; norms must be F32"].append(name)
        elif len(dims) == 2 and tensor.offset % 2:
            found["starts at an odd byte; its file needs an alignment of 2 or more"].append(name)
    reasons += [f"{_named(tensors)}: {reason}" for reason, tensors in found.items()]
    _check_matrix_types(
        [header.tensors[n] for n, dims in expected.items() if len(dims) == 2 and n in header.tensors], reasons
    )


def _check_matrix_types(matrices: list[Tensor], reasons: list[str]):
    """All matrices have one type, and it is one that bankml runs."""
    by_type = defaultdict(list)
    for tensor in matrices:
        by_type[tensor.type].append(tensor.name)
    if not by_type:
        return
    main = max(by_type, key=lambda kind: len(by_type[kind]))
    for kind, tensors in by_type.items():
        if kind != main:
            reasons.append(f"{_named(tensors)}: {TYPES[kind]} among {TYPES[main]}: all matrices must have one type")
    if main == F32:
        reasons.append(
            f"{_named(by_type[F32])}: matrices in {TYPES[F32]} are not supported; bankml runs {names(RUNNABLE)}"
        )
