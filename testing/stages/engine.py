"""The engine's side of the gate's stages: cases, runs and prompts in, arrays and tokens out."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from bankml.cpu.attention import attention, kernel_for
from bankml.cpu.dot_q8_0 import vec_dot_q8_0_q8_0
from bankml.cpu.embed import embed
from bankml.cpu.fwht import fwht
from bankml.cpu.norm import rms_norm_mul
from bankml.cpu.pool import Pool
from bankml.cpu.products import mm
from bankml.cpu.swiglu import swiglu
from bankml.engine import Engine
from bankml.forward import Outputs, Weights
from bankml.kv_cache import KvType
from bankml.params import Params
from bankml.sampler import Sampler
from bankml.tokenizer import Tokenizer
from tests.conversations import TALKS
from tests.cpu import test_products, test_quantize
from tests.cpu.test_dot_q8_0 import dots as q8_0_dots
from tests.cpu.test_rope import rope_of
from tests.models import CONTEXT, Run
from tests.test_conversations import turn

KINDS = test_products.KINDS


class Operations:
    """Answers to the cases of tests/inputs.py by operation, on a pool of its own; use it in a `with` block."""

    def __init__(self, threads: int | None = None):
        self.pool = Pool(threads)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.pool.close()

    def answer(self, case) -> np.ndarray:
        """What the kernels make of a case."""
        return getattr(self, case.operation)(**case.inputs())

    def get_rows(self, kind, table, ids, k):
        return embed(KINDS[kind], table, ids, k)

    def rms_norm_mul(self, x, weight, eps):
        return rms_norm_mul(x, weight, eps)

    def rope(self, x, positions, **parameters):
        return rope_of(x, **parameters).apply(x, positions)

    def swiglu(self, gate, up):
        return swiglu(gate, up)

    def attention(self, q, k, v, threads):
        return attention(q, k, v, kernel=kernel_for(len(q), len(k), threads), pool=self.pool)

    def rotated_attention(self, q, k, v, rot_k, rot_v):
        return attention(q, k, v, kernel=kernel_for(len(q), len(k), 1, "q8_0"), cache="q8_0", pool=self.pool)

    def mul_mat(self, kind, weights, activations):
        return mm(self.pool, KINDS[kind], weights, activations)

    def dot(self, kind, weights, activations, k):
        given = {"weights": weights, "activations": activations, "k": k}
        return q8_0_dots(given) if kind == "q8_0" else test_products.dots(self.pool, kind, **given)

    def quantize(self, x):
        return test_quantize.stored(self.pool, x)

    def quantized_activation(self, x):
        """The same rows as `quantize`, by the kernel that fills an activation rather than a cache."""
        return test_quantize.as_blocks(*test_quantize.quantized(self.pool, x))

    def projected(self, kind, weights, x, norm, eps, positions, rope):
        """Rows x through a matrix, a head norm and RoPE: float32 (rows, heads, head size)."""
        heads = mm(self.pool, KINDS[kind], weights, x).reshape(-1, len(norm))
        heads = rms_norm_mul(heads, norm, eps).reshape(len(x), -1, len(norm))
        return rope_of(heads, **rope).apply(heads, positions)

    def fwht(self, x, n):
        return fwht(x, n)


def row_pairs(x: np.ndarray, y: np.ndarray, k: int) -> np.ndarray:
    """The product of each pair of q8_0 rows, uint8 (n, bytes) of k values: float32 (n,)."""
    return vec_dot_q8_0_q8_0(k, x, y)


@contextmanager
def opened(path):
    """A model's `Weights` without a card."""
    with Weights.open(path, gpu=False) as weights:
        yield weights


def run_stages(weights, tokens, forced, run: Run, kind: str = "f16", n_ctx: int = CONTEXT) -> Iterator:
    """(stage, rows) of a run, as `tests.models.reference_stages` has them: layers, result_norm, logits."""
    caches = weights.caches(KvType(kind), n_ctx=n_ctx)
    weights.llama_threads = 1
    yield from _call(weights, caches, tokens, Outputs(run.outputs))
    weights.llama_threads = run.threads
    for token in forced:
        yield from _call(weights, caches, [token], Outputs.LAST)


def _call(weights, caches, tokens, outputs):
    seen = {}
    result_norm = weights.prefill_with(
        caches, tokens, outputs, lambda layer, first, rows: seen.setdefault(layer, []).append(rows)
    )
    for layer, parts in sorted(seen.items()):
        yield f"l_out-{layer}", np.concatenate(parts)
    yield "result_norm", result_norm
    yield "logits", weights.logits_rows(result_norm)


def pieces(weights, tokens, layer: int = 0) -> dict[str, np.ndarray]:
    """What `expected.pieces` has, from the engine: layers before are run as they are, this one piece by piece."""
    caches, rows = weights.caches(n_ctx=CONTEXT), {}
    weights.prefill_with(caches, tokens, Outputs.ALL, lambda il, first, x: rows.setdefault(il, x))
    for cache in caches:
        cache.truncate(0)
    normed = weights.norm(rows[layer - 1] if layer else weights.embed(tokens), f"blk.{layer}.attn_norm")
    q = weights.qkv(layer, caches, normed)
    cells = [side.view(np.uint16).reshape(-1, weights.shape.head_dim) for side in caches[layer].raw(len(tokens))]
    return {
        "inp_embd": weights.embed(tokens),
        "attn_norm": normed,
        "Q": q.reshape(-1, weights.shape.head_dim),
        "K": cells[0],
        "V": cells[1],
    }


class Continuing:
    """A model that goes on from texts, its sampler drawing; use it in a `with` block."""

    def __init__(self, path, *, llama_threads: int, n_ctx: int, kind: str = "f16"):
        self.tokenizer = Tokenizer.from_gguf(path)
        self.weights = Weights.open(path, gpu=False)
        self.weights.llama_threads = llama_threads
        self.kv = self.weights.header.kv
        self.caches = self.weights.caches(KvType(kind), n_ctx=n_ctx)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.weights.close()

    def drawn(self, text: str, count: int, settings: dict) -> list:
        """[prompt tokens, tokens drawn, an end token with them]."""
        prompt = self.tokenizer.encode(text, add_special=True)
        for cache in self.caches:
            cache.truncate(0)
        sampler, tokens = Sampler(_params(settings, self.tokenizer, self.kv), self.tokenizer), []
        sampler.begin(prompt)
        result_norm = self.weights.prefill(self.caches, prompt)
        while True:
            tokens.append(sampler.sample(self.weights.logits(result_norm)))
            if len(tokens) == count or tokens[-1] in self.tokenizer.eog:
                return [len(prompt), tokens]
            sampler.accept(tokens[-1])
            result_norm = self.weights.decode(self.caches, tokens[-1])


def _params(settings: dict, tokenizer, kv) -> Params:
    """The server's fields over what a file recommends; `ignore_eos` bars every end token, as the server does it."""
    settings = dict(settings)
    bias = [(token, -np.inf if value is False else value) for token, value in settings.pop("logit_bias", ())]
    if settings.pop("ignore_eos", False):
        bias += [(token, -np.inf) for token in sorted(tokenizer.eog)]
    return Params.from_gguf(kv, **settings, logit_bias=bias)


@contextmanager
def chatting(path, n_ctx: int, kind: str, llama_threads: int):
    """An engine with a model open: ask, as `expected.chatting` has it."""
    with Engine.open(path, n_ctx, False, kind=KvType(kind)) as engine:
        engine.weights.llama_threads = llama_threads

        def ask(messages, most, sampling):
            generation = engine.generate(
                messages, _params(sampling, engine.tokenizer, engine.header.kv), max_tokens=most
            )
            text = "".join(step.text for step in generation)
            return [text, generation.finish_reason, len(generation.prompt), generation.completion_tokens]

        yield ask


def conversations(path, setting, llama_threads: int) -> list[list[dict]]:
    """The talks of tests/conversations.py as the engine holds them in a setting, turn by turn."""
    messages, turns = [talk.opening() for talk in TALKS], [[] for _ in TALKS]
    options = {} if setting.cache_ram is None else {"cache_ram": setting.cache_ram}
    with Engine.open(path, setting.n_ctx, False, kind=KvType(setting.kind), **options) as engine:
        engine.weights.llama_threads = llama_threads
        for i in setting.order():
            talk = TALKS[i]
            messages[i].append({"role": "user", "content": talk.says[len(turns[i])]})
            turns[i].append(turn(engine, messages[i], talk, setting.most or talk.most))
            messages[i].append({"role": "assistant", "content": turns[i][-1].get("text", "")})
    return turns
