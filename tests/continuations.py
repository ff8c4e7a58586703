"""What llama-server was asked to go on with, how it should draw, and the models: for the recorder and the test.

Every continuation is drawn from an uncached prompt by `/completion` with the settings of a case, `N_TOKENS` of them.
"""

import random
from pathlib import Path

from tests import gguf_writer, models, vocab

N_TOKENS, N_VARIANT_TOKENS = 20, 12
LONG = "It was a long road, and the traveller counted the milestones as he went: one, two, three, four. " * 13
PROMPTS = {
    "question": "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "fox": "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog. The quick brown",
    "list": '* "name": "Anna"\n* "age": 31\n* "city": "Rome"\n\n* "name": "Bob"\n* "age": 28\n* "city": "Oslo"\n\n* "n',
    "story": "Once upon a time, in a village by the sea, there",
    "long": LONG + "Then he",  # more than 256 cells, so that decoding is split over threads
}
VARIANT_PROMPTS = ("question", "fox", "list", "story")
_QWEN = {"n_embd": 256, "n_ff": 512, "heads": 4, "kv_heads": 2, "head_dim": 64, "layers": 3, "vocab": 151_669}
SHAPES = {
    "qwen3-q1_0": models.Shape("qwen3", "q1_0", False, **_QWEN),
    "qwen3-q2_0": models.Shape("qwen3", "q2_0", False, **_QWEN),
}
MODELS = ("smollm2-f16", "smollm2-q2_0", *SHAPES)
VARIANT_MODEL = "smollm2-f16"


def build(name: str, folder: Path, convert) -> Path:
    """Make a model's file; convert(source, target, type) makes SmolLM2's, the others are random with a vocabulary."""
    if name not in SHAPES:
        return models.build_real(name, vocab.smollm2_gguf(), folder, convert)
    path = folder / f"{name}.gguf"
    texts, types = vocab.qwen3_kv(), {str: "str", bool: "bool", int: "u32"}
    kv = models.metadata(SHAPES[name])
    for key, value in texts.items():
        if isinstance(value, list):
            kv[key] = ("arr[i32]" if isinstance(value[0], int) else "arr[str]", value)
        else:
            kv[key] = (types[type(value)], value)
    path.write_bytes(gguf_writer.gguf(kv, list(models.tensors(name, SHAPES[name]))))
    return path


def grid(count: int = 40):
    """(prompt, settings) of the seeded continuations of a model: temperature, top-k, top-p and min-p all over."""
    rng = random.Random(5)
    for i in range(count):
        settings = {
            "seed": rng.randrange(2**32 - 1),
            "temperature": rng.choice([0.0, 0.1, 0.4, 0.7, 0.8, 1.0, 1.2, 1.5, round(rng.uniform(0, 1.5), 3)]),
            "top_k": rng.choice([1, 2, 5, 20, 40, 64, 100, 128, rng.randint(1, 128)]),
            "top_p": rng.choice([0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0, round(rng.uniform(0, 1), 3)]),
            "min_p": rng.choice([0.0, 0.0, 0.01, 0.05, 0.1, 0.3, round(rng.uniform(0, 1), 3)]),
        }
        # the long prompt is rare, for it takes its time
        yield ("long" if i % 13 == 6 else ("question", "fox", "list")[i % 3]), settings


DEFAULTS = {"seed": 42, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
VARIANTS = {  # each over DEFAULTS, and over the four prompts
    "repeat 1.1": {"repeat_penalty": 1.1},
    "repeat 1.5": {"repeat_penalty": 1.5, "repeat_last_n": 256},
    "repeat 0.7": {"repeat_penalty": 0.7, "repeat_last_n": 16},
    "repeat, greedy": {"repeat_penalty": 1.3, "temperature": 0.0},
    "presence": {"presence_penalty": 1.0},
    "negative presence": {"presence_penalty": -1.0, "repeat_last_n": 20},
    "frequency": {"frequency_penalty": 0.5, "repeat_last_n": 128},
    "frequency, all of the vocabulary": {**OFF, "frequency_penalty": 0.9},
    "no window": {"repeat_penalty": 1.8, "presence_penalty": 2.0, "repeat_last_n": 0},
    "window of one": {"repeat_penalty": 2.0, "repeat_last_n": 1},
    "three penalties": {"repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "dry": {"dry_multiplier": 0.8},
    "dry, greedy": {"dry_multiplier": 1.2, "dry_allowed_length": 1, "dry_penalty_last_n": 512, "temperature": 0.0},
    "dry, strong": {"dry_multiplier": 4.0, "dry_base": 3.0, "dry_allowed_length": 1, "dry_penalty_last_n": 200},
    "dry, own breakers": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["he", "x jumps"]},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "top-n-sigma alone": {**OFF, "top_n_sigma": 1.5, "temperature": 1.5},
    "typical": {"typical_p": 0.5},
    "typical alone": {**OFF, "typical_p": 0.8},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "xtc always": {"xtc_probability": 1.0, "xtc_threshold": 0.03, "temperature": 1.0},
    "xtc, greedy": {"xtc_probability": 0.6, "xtc_threshold": 0.02, "temperature": 0.0},
    "dynamic temperature": {"dynatemp_range": 0.6},
    "dynamic temperature, exponent": {**OFF, "top_k": 128, "dynatemp_range": 1.2, "dynatemp_exponent": 0.3},
    "the draw alone": {**OFF, "temperature": 1.0},
    "min-p alone": {**OFF, "min_p": 0.1, "temperature": 1.4},
    "min-keep": {"min_keep": 8, "top_p": 0.2, "min_p": 0.5},
    "logit bias": {"logit_bias": [[253, 3.0], [260, False], [28, -2.5]]},
    "another order": {"samplers": ["temperature", "top_p", "top_k", "penalties"], "presence_penalty": 1.0},
    "all of it": {
        "repeat_penalty": 1.15, "presence_penalty": 0.2, "frequency_penalty": 0.1, "dry_multiplier": 0.7,
        "top_n_sigma": 2.0, "typical_p": 0.9, "xtc_probability": 0.3, "xtc_threshold": 0.08, "dynatemp_range": 0.3,
        "dynatemp_exponent": 1.7,
    },
}  # fmt: skip
# n_probs: (prompt, tokens, settings over DEFAULTS); with the whole vocabulary as candidates too
PROBS = {
    "before": ("question", 6, {"n_probs": 5}),
    "before, greedy": ("list", 4, {"n_probs": 1, "temperature": 0.0}),
    "before, many": ("fox", 2, {"n_probs": 40, "temperature": 1.3}),
    "after": ("question", 6, {"n_probs": 5, "post_sampling_probs": True}),
    "after, greedy": ("fox", 3, {"n_probs": 3, "post_sampling_probs": True, "temperature": 0.0}),
    "after, unsorted": ("list", 3, {**OFF, "typical_p": 0.7, "n_probs": 10, "post_sampling_probs": True}),
    "after, the draw alone": ("fox", 3, {**OFF, "n_probs": 4, "post_sampling_probs": True}),
}
# fields that the server refuses, each alone
REFUSED = [
    {"repeat_penalty": 0.0}, {"repeat_penalty": -1.0}, {"repeat_penalty": 1e-39}, {"repeat_last_n": -1},
    {"dry_penalty_last_n": -1}, {"dry_allowed_length": -1}, {"min_keep": -1},
]  # fmt: skip
# what a file recommends -> how the server takes it, told by /props
RECOMMENDED = {
    "numbers": {
        "top_k": ("i32", 17), "top_p": ("f32", 0.8123456789), "min_p": ("f32", 0.0123456789), "temp": ("f32", 0.61),
        "penalty_last_n": ("i32", 33), "penalty_repeat": ("f32", 1.0500001), "xtc_probability": ("f32", 0.25),
        "xtc_threshold": ("f32", 0.2),
    },
    "texts": {"top_k": ("str", " 12abc"), "top_p": ("str", "0.7x"), "min_p": ("str", "none"), "temp": ("str", "1e-1")},
    "other kinds": {"top_k": ("f32", 7.9), "temp": ("u32", 2), "min_p": ("f64", 1e-9), "xtc_threshold": ("bool", True)},
    "beyond": {"top_k": ("i32", -5), "penalty_last_n": ("u32", 2**32 - 1), "temp": ("f32", -1.0)},
    "order": {"sequence": ("str", "top_k;nonsense;temperature;top-p")},
}  # fmt: skip


def recommending(name: str, folder: Path) -> Path:
    """A tiny model over the bytes whose file recommends RECOMMENDED[name]."""
    shape = models.Shape("qwen3", "q1_0", True, layers=1, vocab=258)
    kv = models.metadata(shape) | {
        "tokenizer.ggml.model": ("str", "gpt2"),
        "tokenizer.ggml.pre": ("str", "qwen2"),
        "tokenizer.ggml.tokens": ("arr[str]", [*vocab.byte_characters(), "<|im_start|>", "<|im_end|>"]),
        "tokenizer.ggml.token_type": ("arr[i32]", [vocab.NORMAL] * 256 + [vocab.CONTROL] * 2),
        "tokenizer.ggml.merges": ("arr[str]", ["a b"]),
        "tokenizer.ggml.eos_token_id": ("u32", 257),
        **{f"general.sampling.{key}": value for key, value in RECOMMENDED[name].items()},
    }
    path = folder / f"{name}.gguf"
    path.write_bytes(gguf_writer.gguf(kv, list(models.tensors("recommending", shape))))
    return path
