"""bankml: 1-bit, ternary and F16 language models with exactly the bits of llama.cpp b11192.

The public names load on first use (PEP 562), so that `import bankml` costs next to nothing.
"""

from importlib import import_module

from bankml.version import __version__ as __version__

_EXPORTS = {
    "BankmlError": "errors",
    "NeedMore": "errors",
    "Refused": "errors",
    "UsageError": "errors",
    "Completion": "completions",
    "Engine": "engine",
    "Generation": "generation",
    "Model": "api",
    "Step": "generation",
    "load": "api",
    "Plan": "plan",
    "plan": "plan",
    "Tokenizer": "tokenizer",
    "KvCache": "kv_cache",
    "KvType": "kv_cache",
    "Outputs": "forward",
    "Weights": "forward",
    "Params": "sampler",
    "Sampler": "sampler",
    "Kernel": "cpu.attention",
    "Rope": "cpu.rope",
    "fwht": "cpu.fwht",
    "kernel_for": "cpu.attention",
    "padded_kv": "cpu.attention",
    "rms_norm_mul": "cpu.norm",
    "rot_k_size": "cpu.fwht",
    "swiglu": "cpu.swiglu",
    "v_expf": "cpu.swiglu",
    "vec_dot_q8_0_q8_0": "cpu.dot_q8_0",
}

__all__ = [  # noqa: PLE0604
    "__version__",
    *sorted(_EXPORTS),
]


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bankml.{_EXPORTS[name]}"), name)


def __dir__():
    return __all__
