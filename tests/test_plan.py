"""plan(): what plays, with the shape as the reference reads it, and every refusal, naming its tensor or key."""

import ctypes
import os
from dataclasses import replace

import numpy as np
import pytest

from bankml.errors import Refused
from bankml.gguf import read_header
from bankml.plan import Arch, RopeMode, plan
from tests.gguf_writer import F16, F32, Q1_0, Q2_0, Q4_K, Q8_0, T, gguf, model

TYPES = {"q1_0": Q1_0, "q2_0": Q2_0, "f16": F16}
NORM = T("blk.1.attn_norm.weight", (128,))


def planned(path, kv, tensors):
    path.write_bytes(gguf(kv, tensors))
    return plan(read_header(path))


def reasons(path, kv, tensors) -> list[str]:
    with pytest.raises(Refused) as caught:
        planned(path, kv, tensors)
    return caught.value.reasons


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.gguf"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("wtype", TYPES)
@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_what_plays(path, arch, wtype, tied):
    got = planned(path, *model(arch, TYPES[wtype], tied=tied))
    assert (got.arch, got.wtype) == (arch, TYPES[wtype]) and isinstance(got.arch, Arch)
    assert got.output == ("token_embd.weight" if tied else "output.weight") and got.shape.tied is tied
    assert got.shape.rope_mode is (RopeMode.NEOX if arch == "qwen3" else RopeMode.NORM)
    assert got.shape.qk_norm is (arch == "qwen3")


def test_shape(path):
    shape = planned(path, *model(n_layer=3, embd=256, ff=384, heads=6, kv_heads=3, head_dim=64, vocab=41)).shape
    assert (shape.n_layer, shape.n_embd, shape.n_ff, shape.n_vocab) == (3, 256, 384, 41)
    assert (shape.n_head, shape.n_head_kv, shape.head_dim) == (6, 3, 64)
    assert (shape.n_ctx_train, shape.n_ctx_orig, shape.yarn_factor) == (512, 512, 0.0)
    assert (shape.rms_eps, shape.rope_base) == (float(np.float32(1e-6)), 1e6)


def test_defaults(path):
    """Keys that may be missing, with the reference's defaults (llama-model.cpp, load_hparams)."""
    kv, tensors = model(head_dim=64, heads=2, kv_heads=2)
    for key in ("head_count_kv", "key_length", "value_length"):
        del kv[f"qwen3.attention.{key}"]
    del kv["qwen3.rope.freq_base"]
    shape = planned(path, kv, tensors).shape
    assert (shape.n_head_kv, shape.head_dim, shape.rope_base) == (2, 64, 10000.0)


def test_yarn(path):
    kv, tensors = model()
    kv |= {
        "qwen3.rope.scaling.type": ("str", "yarn"),
        "qwen3.rope.scaling.factor": ("f32", 4.0),
        "qwen3.rope.scaling.original_context_length": ("u32", 128),
    }
    shape = planned(path, kv, tensors).shape
    assert (shape.yarn_factor, shape.n_ctx_orig, shape.n_ctx_train) == (4.0, 128, 512)
    del kv["qwen3.rope.scaling.factor"], kv["qwen3.rope.scaling.original_context_length"]
    shape = planned(path, kv, tensors).shape
    assert (shape.yarn_factor, shape.n_ctx_orig) == (1.0, 512)


# Changes that keep a model playing: name -> (architecture, keys).
HARMLESS = {
    "no scaling, with a factor": (
        "llama",
        {"llama.rope.scaling.type": ("str", "none"), "llama.rope.scale_linear": ("f32", 4.0)},
    ),
    "a factor of 1 without a type": ("llama", {"llama.rope.scaling.factor": ("f32", 1.0)}),
    "no experts": ("llama", {"llama.expert_count": ("u32", 0)}),
    "whole RoPE": ("llama", {"llama.rope.dimension_count": ("u32", 32)}),
    "equal heads by layer": ("qwen3", {"qwen3.attention.head_count_kv": ("arr[i32]", [2, 2])}),
    "equal widths by layer": ("qwen3", {"qwen3.feed_forward_length": ("arr[u32]", [256, 256])}),
    "no vocabulary, but its size": (
        "qwen3",
        {"tokenizer.ggml.model": ("str", "none"), "qwen3.vocab_size": ("u32", 40), "tokenizer.ggml.tokens": None},
    ),
    "causal": ("qwen3", {"qwen3.attention.causal": ("bool", True)}),
}


def changed(kv, keys):
    return {key: pair for key, pair in (kv | keys).items() if pair is not None}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_keys(path, name):
    arch, keys = HARMLESS[name]
    kv, tensors = model(arch)
    assert planned(path, changed(kv, keys), tensors).shape == planned(path, kv, tensors).shape


# name -> (architecture, keys, words of the reason, whether the reference refuses too; None where it would abort)
KEYS = {
    "no architecture": ("qwen3", {"general.architecture": None}, "general.architecture is missing", True),
    "another architecture": ("qwen3", {"general.architecture": ("str", "gemma9")}, "'gemma9', an unsupported", True),
    "qwen2": ("qwen3", {"general.architecture": ("str", "qwen2")}, "general.architecture is 'qwen2'", True),
    "no layers": ("qwen3", {"qwen3.block_count": ("u32", 0)}, "qwen3.block_count is 0", None),
    "513 layers": ("qwen3", {"qwen3.block_count": ("u32", 513)}, "qwen3.block_count is 513; 512 is the most", None),
    "layers missing": ("qwen3", {"qwen3.block_count": None}, "qwen3.block_count is missing", True),
    "layers as i32": ("qwen3", {"qwen3.block_count": ("i32", 2)}, "qwen3.block_count is i32; it must be u32", True),
    "context missing": ("llama", {"llama.context_length": None}, "llama.context_length is missing", True),
    "width missing": ("llama", {"llama.embedding_length": None}, "llama.embedding_length is missing", True),
    "feed-forward missing": (
        "llama",
        {"llama.feed_forward_length": None},
        "llama.feed_forward_length is missing",
        True,
    ),
    "heads missing": ("llama", {"llama.attention.head_count": None}, "llama.attention.head_count is missing", None),
    "no heads": ("llama", {"llama.attention.head_count": ("u32", 0)}, "llama.attention.head_count is 0", None),
    "kv heads": ("llama", {"llama.attention.head_count_kv": ("u32", 3)}, "head_count_kv is 3, which does not", None),
    "no kv heads": ("llama", {"llama.attention.head_count_kv": ("u32", 0)}, "llama.attention.head_count_kv is 0", None),
    "heads by layer": ("qwen3", {"qwen3.attention.head_count": ("arr[u32]", [4, 2])}, "differs between layers", False),
    "heads for 3 layers": ("qwen3", {"qwen3.attention.head_count": ("arr[u32]", [4] * 3)}, "3 values for 2 la", True),
    "epsilon missing": ("qwen3", {"qwen3.attention.layer_norm_rms_epsilon": None}, "rms_epsilon is missing", True),
    "epsilon NaN": ("qwen3", {"qwen3.attention.layer_norm_rms_epsilon": ("f32", float("nan"))}, "is nan", None),
    "epsilon as f64": ("qwen3", {"qwen3.attention.layer_norm_rms_epsilon": ("f64", 1e-6)}, "f64; it must be f32", True),
    "head width": (
        "llama",
        {"llama.attention.key_length": ("u32", 48)},
        "key_length is 48; a head width must be a",
        True,
    ),
    "value width": (
        "llama",
        {"llama.attention.value_length": ("u32", 64)},
        "value_length is 64, not the key head",
        True,
    ),
    "partial RoPE": ("qwen3", {"qwen3.rope.dimension_count": ("u32", 16)}, "16 of 32: partial RoPE", False),
    "RoPE base": ("qwen3", {"qwen3.rope.freq_base": ("f32", 0.0)}, "qwen3.rope.freq_base is 0.0", None),
    "YaRN on Llama": ("llama", {"llama.rope.scaling.type": ("str", "yarn")}, "rope.scaling.type is 'yarn'", False),
    "linear": ("llama", {"llama.rope.scaling.type": ("str", "linear")}, "rope.scaling.type is 'linear'", False),
    "linear by default": ("llama", {"llama.rope.scaling.factor": ("f32", 2.0)}, "factor is 2.0: linear RoPE", False),
    "linear, the old key": ("qwen3", {"qwen3.rope.scale_linear": ("f32", 2.0)}, "is 2.0: linear RoPE scaling", False),
    "longrope": ("qwen3", {"qwen3.rope.scaling.type": ("str", "longrope")}, "rope.scaling.type is 'longrope'", False),
    "another scaling": ("qwen3", {"qwen3.rope.scaling.type": ("str", "magic")}, "rope.scaling.type is 'magic'", None),
    "attention factor": ("qwen3", {"qwen3.rope.scaling.attn_factor": ("f32", 0.5)}, "attn_factor other than 1", False),
    "attention scale": ("llama", {"llama.attention.scale": ("f32", 0.1)}, "llama.attention.scale is set", False),
    "not causal": ("qwen3", {"qwen3.attention.causal": ("bool", False)}, "attention.causal is false", False),
    "experts": ("qwen3", {"qwen3.expert_count": ("u32", 8)}, "qwen3.expert_count is not 0: experts", None),
    "next-token layers": ("qwen3", {"qwen3.nextn_predict_layers": ("u32", 1)}, "nextn_predict_layers is not 0", None),
    "precision by tensor": ("qwen3", {"general.tensor_extra.name": ("arr[str]", ["a"])}, "general.tensor_extra", None),
    "tokens as a number": ("qwen3", {"tokenizer.ggml.tokens": ("u32", 7)}, "tokenizer.ggml.tokens is u32", True),
    "one token more": ("qwen3", {"tokenizer.ggml.tokens": ("arr[str]", ["t"] * 41)}, "[128, 40] where [128, 41]", True),
}


@pytest.mark.parametrize("name", KEYS)
def test_refused_keys(path, name):
    arch, keys, words, _ = KEYS[name]
    kv, tensors = model(arch)
    assert any(words in reason for reason in reasons(path, changed(kv, keys), tensors))


def swap(name, **changes):
    """A change of tensors: those called `name` with other fields (None takes them out)."""

    def change(tensors):
        return [replace(t, **changes) if t.name == name else t for t in tensors]

    return change


def drop(name):
    return lambda tensors: [t for t in tensors if t.name != name]


def also(name, dims=(128,), kind=F32):
    return lambda tensors: [*tensors, T(name, dims, kind)]


def every(kind, only=lambda name: True):
    return lambda tensors: [replace(t, type=kind) if len(t.dims) == 2 and only(t.name) else t for t in tensors]


Q, DOWN = "blk.1.attn_q.weight", "blk.0.ffn_down.weight"

# name -> (architecture, change of the tensors, words of the reason, whether the reference refuses too)
TENSORS = {
    "Q4_K": ("qwen3", swap(DOWN, type=Q4_K), f"'{DOWN}': q4_K (type 12) is not supported; bankml runs Q1_0", False),
    "Q8_0 embedding": ("qwen3", swap("token_embd.weight", type=Q8_0), "'token_embd.weight': q8_0 (type 8)", False),
    "all Q8_0": ("llama", every(Q8_0), "'token_embd.weight' and 14 more: q8_0 (type 8) is not supported", False),
    "all F32": ("llama", every(F32), "'token_embd.weight' and 14 more: matrices in f32 (type 0)", False),
    "all BF16": ("llama", every(30), "bf16 (type 30) is not supported", False),
    "mixed": ("qwen3", swap(Q, type=F16), f"'{Q}': f16 (type 1) among q1_0 (type 41): all matrices must", False),
    "F16 norm": ("qwen3", swap(NORM.name, type=F16), f"'{NORM.name}': f16 (type 1); norms must be F32", False),
    "no embedding": ("qwen3", drop("token_embd.weight"), "tensor 'token_embd.weight': missing", True),
    "no output norm": ("llama", drop("output_norm.weight"), "tensor 'output_norm.weight': missing", True),
    "no query": ("llama", drop(Q), f"tensor '{Q}': missing", True),
    "no Q norm": ("qwen3", drop("blk.1.attn_q_norm.weight"), "tensor 'blk.1.attn_q_norm.weight': missing", True),
    "no K norm": ("qwen3", drop("blk.0.attn_k_norm.weight"), "tensor 'blk.0.attn_k_norm.weight': missing", True),
    "Q norm on Llama": ("llama", also("blk.0.attn_q_norm.weight", (32,)), "Q/K norms are not supported", True),
    "bias": ("llama", also("blk.0.attn_q.bias"), "tensor 'blk.0.attn_q.bias': biases are not supported", False),
    "feed-forward bias": ("llama", also("blk.1.ffn_down.bias"), "'blk.1.ffn_down.bias': biases are not", False),
    "fused QKV": ("qwen3", also("blk.0.attn_qkv.weight", (128, 256), Q1_0), "attn_qkv.weight': fused QKV", True),
    "RoPE factors": ("llama", also("rope_freqs.weight", (16,)), "'rope_freqs.weight': RoPE frequency factors", False),
    "long factors": ("llama", also("rope_factors_long.weight", (16,)), "RoPE frequency factors are not", True),
    "router": ("qwen3", also("blk.0.ffn_gate_inp.weight", (128, 8)), "ffn_gate_inp.weight': experts are not", True),
    "experts": ("llama", also("blk.0.ffn_up_exps.weight", (128, 256, 2), Q1_0), "experts are not supported", True),
    "scale": ("llama", also("blk.0.attn_q.scale", (1,)), "'blk.0.attn_q.scale': scales beside", None),
    "classifier": ("qwen3", also("cls.weight", (128, 2)), "tensor 'cls.weight': this tensor is not part", None),
    "layer too many": ("qwen3", also("blk.2.attn_norm.weight"), "layer is beyond the block_count of 2", True),
    "norm width": ("qwen3", swap(NORM.name, dims=(64,)), f"'{NORM.name}': shape [64] where [128] was", True),
    "matrix turned": ("qwen3", swap(DOWN, dims=(128, 256)), "shape [128, 256] where [256, 128] was expected", True),
    "matrix with three": ("qwen3", swap(DOWN, dims=(256, 64, 2)), "shape [256, 64, 2] where [256, 128]", True),
}


@pytest.mark.parametrize("name", TENSORS)
def test_refused_tensors(path, name):
    arch, change, words, _ = TENSORS[name]
    kv, tensors = model(arch)
    assert any(words in reason for reason in reasons(path, kv, change(tensors)))


def test_trailing_dimensions_of_one_are_no_difference(path):
    kv, tensors = model()
    planned(path, kv, swap(NORM.name, dims=(128, 1, 1))(tensors))


def test_matrices_at_odd_bytes(path):
    kv, tensors = model(wtype=F16)
    tensors.insert(0, T("odd", (1,), 24, b"x"))
    path.write_bytes(gguf(kv | {"general.alignment": ("u32", 1)}, tensors, align=1))
    with pytest.raises(Refused, match="starts at an odd byte"):
        plan(read_header(path))


def test_every_reason_is_told(path):
    kv, tensors = model("llama")
    kv |= {"llama.attention.scale": ("f32", 0.5), "llama.expert_count": ("u32", 2)}
    told = reasons(path, kv, swap(DOWN, type=Q4_K)(tensors))
    assert len(told) == 3
    kv = changed(kv, {"llama.attention.scale": None, "llama.expert_count": None})
    told = reasons(path, kv, also("blk.0.attn_q.bias")(drop(Q)(swap(NORM.name, type=F16)(tensors))))
    assert len(told) == 3


def test_an_unsupported_architecture_is_told_with_its_types(path):
    kv, tensors = model()
    told = reasons(path, kv | {"general.architecture": ("str", "gemma3")}, swap(DOWN, type=Q4_K)(tensors))
    assert "'gemma3', an unsupported architecture; bankml runs qwen3, llama" in told[0] and "q4_K" in told[1]


# Against the reference's loader


@pytest.fixture
def reference_loads(reference):
    """loads(path): the facts the reference reads from a model, None if it refuses it."""
    api = reference.api
    llama = ctypes.CDLL(str(reference.paths["llama"]))

    def number(name, model):
        function = getattr(llama, name)  # int32_t llama_model_...(const struct llama_model * model);
        function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p]
        return function(model)

    def loads(path):
        loaded = api.llama_model_load_from_file(os.fsencode(path), api.llama_model_default_params())
        if not loaded:
            return None
        facts = {
            "n_layer": number("llama_model_n_layer", loaded),
            "n_embd": number("llama_model_n_embd", loaded),
            "n_head": number("llama_model_n_head", loaded),
            "n_head_kv": number("llama_model_n_head_kv", loaded),
            "n_ctx_train": number("llama_model_n_ctx_train", loaded),
            "rope": number("llama_model_rope_type", loaded),
            "n_vocab": api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded)),
        }
        api.llama_model_free(loaded)
        return facts

    return loads


def test_the_reference_loads_what_plays_and_reads_the_same(path, reference_loads):
    for arch in Arch:
        for wtype in TYPES.values():
            for tied in (True, False):
                shape = planned(path, *model(arch, wtype, tied=tied)).shape
                facts = reference_loads(path)
                assert facts.pop("rope") == {"norm": 0, "neox": 2}[shape.rope_mode]  # enum llama_rope_type
                assert facts == {name: getattr(shape, name) for name in facts}
    for arch, keys in HARMLESS.values():
        kv, tensors = model(arch)
        path.write_bytes(gguf(changed(kv, keys), tensors))
        assert reference_loads(path)


def test_the_reference_refuses_what_is_broken(path, reference_loads):
    """Broken models are refused by both; what bankml alone refuses is a model whose graph it does not reproduce."""
    wrong = []
    cases = [(name, *KEYS[name]) for name in KEYS] + [(name, *TENSORS[name]) for name in TENSORS]
    for name, arch, change, _, refuses in cases:
        kv, tensors = model(arch)
        if refuses is None:
            continue
        path.write_bytes(gguf(kv, change(tensors)) if callable(change) else gguf(changed(kv, change), tensors))
        if (reference_loads(path) is None) is not refuses:
            wrong.append(name)
    assert not wrong
