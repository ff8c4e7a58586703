"""The expected side of the gate's stages: the shipped library's answers, and llama-server's. No engine code is used."""

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bankml.oracle import graph, kernels, library
from bankml.oracle.model import ReferenceModel
from testing.record_convert import reference_convert
from testing.reference_server import Server
from tests import continuations, models
from tests.inputs import Source
from tests.vocab import smollm2_gguf

SERVER_THREADS = 2  # they decide the split-KV chunks


def model_file(name: str, folder: Path) -> Path:
    """The file of a model of tests/models.py or tests/continuations.py, made once for all stages of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.gguf"
    with open(folder / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            making = folder / f"making-{os.getpid()}"
            making.mkdir()
            _make(name, making).rename(path)
            making.rmdir()
    return path


def _make(name, folder) -> Path:
    if name in models.REAL:
        library.load()
        return models.build_real(name, smollm2_gguf(), folder, reference_convert)
    if name in continuations.SHAPES:
        return continuations.build(name, folder, reference_convert)
    return models.build(name, folder)


def reference_model(path, *, n_ctx: int, kind: str = "f16", threads: int = 1) -> ReferenceModel:
    """The reference with a model open."""
    return ReferenceModel(path, n_ctx=n_ctx, cache=kind, n_threads=threads)


def run_stages(model: ReferenceModel, tokens, forced, run: models.Run):
    """(stage, rows) of a run on the reference, emptied first; see `tests.models.reference_stages`."""
    model.forget()
    model.set_threads(1)
    yield from model.decode(tokens, run.outputs).stages()
    model.set_threads(run.threads)
    for token in forced:
        yield from model.decode([token]).stages()


def pieces(model: ReferenceModel, tokens, shape: models.Shape, layer: int = 0) -> dict[str, np.ndarray]:
    """What layer `layer` makes of a prompt, piece by piece: its norm, Q after RoPE, and K and V as cells hold them.

    inp_embd and attn_norm float32 (rows, n_embd), Q float32 (rows * heads, head size), K and V as f16 bits, uint16
    (rows * KV heads, head size).
    """
    model.forget()
    watch = ["embd", f"attn_norm-{layer}", *(f"{side}cur-{layer}" for side in "QKV")]
    seen = model.decode(tokens, "all", watch=watch).rows
    last = {side: len(tokens) * (shape.heads if side == "Q" else shape.kv_heads) for side in "QKV"}
    heads = {side: seen[f"{side}cur-{layer}"].reshape(-1, shape.head_dim)[-count:] for side, count in last.items()}
    k, v = (kernels.to_f16(heads[side]) for side in "KV")  # RoPE's result is the last node of that name
    return {"inp_embd": seen["embd"], "attn_norm": seen[f"attn_norm-{layer}"], "Q": heads["Q"], "K": k, "V": v}


def any_rows() -> np.ndarray:
    """4,000 rows of any float32 but NaN: infinities, and denormals whose factor is infinite: quants saturate."""
    source = Source("gate: any rows")
    words = source.raw(4000, 128, 4).view(np.uint32)[..., 0]
    words[source.integers(0, 4, 4000) == 0] &= 0x807FFFFF
    words[source.integers(0, 2000, words.shape) == 0] = 0xFF800000
    return np.where(np.isnan(words.view(np.float32)), np.float32(1), words.view(np.float32))


def any_blocks(side: str) -> np.ndarray:
    """4,000 q8_0 rows of 128 values, uint8 (4000, bytes): any quants, -128 among them often, finite scales."""
    source = Source(f"gate: any blocks {side}")
    blocks = source.raw(4000, 4, 34)
    blocks[..., 2:][source.integers(0, 3, (4000, 4, 32)) == 0] = 128
    blocks[..., 1] &= 0xBF  # exponents below 16: neither infinity nor NaN
    return blocks.reshape(4000, -1)


def row_pairs(x: np.ndarray, y: np.ndarray, k: int) -> np.ndarray:
    """The reference's vec_dot of each pair of q8_0 rows: float32 (n,)."""
    return np.concatenate([kernels.dot("q8_0", a[None], b[None], k)[0] for a, b in zip(x, y, strict=True)])


def quantized(x: np.ndarray) -> np.ndarray:
    """float32 (rows, k) as the reference writes q8_0 rows, uint8 (rows, bytes)."""
    return kernels.quantize(x)


def projected(kind, weights, x, norm, eps, positions, rope) -> np.ndarray:
    """Rows x through a matrix, a head norm and RoPE: float32 (rows, heads, head size)."""
    heads = graph.mul_mat(kind, weights, x).reshape(len(x), -1, len(norm))
    return graph.rope(graph.rms_norm_mul(heads, norm, eps), positions, **rope)


def continued(path, asks, *, n_ctx: int, kind: str = "f16") -> list[list]:
    """[prompt tokens, tokens drawn] of llama-server for each (text, count, settings), nothing cached between them."""
    flags = ["-t", str(SERVER_THREADS), "-c", str(n_ctx), "--cache-type-k", kind, "--cache-type-v", kind]
    answers = []
    with Server(path, *flags) as server:
        for text, count, settings in asks:
            body = {"prompt": text, "n_predict": count, "cache_prompt": False, "return_tokens": True}
            status, reply = server.post("/completion", body | settings)
            assert status == 200, reply
            answers.append([reply["tokens_evaluated"], reply["tokens"]])
    return answers


@contextmanager
def chatting(path, n_ctx: int, kind: str):
    """llama-server with a model open; yields ask(messages, most tokens, sampling).

    ask gives [text, finish reason, prompt tokens, answer's tokens].
    """
    flags = ["-t", str(SERVER_THREADS), "-c", str(n_ctx), "--cache-type-k", kind, "--cache-type-v", kind]
    with Server(path, *flags) as server:

        def ask(messages, most, sampling):
            body = {"messages": messages, "max_tokens": most} | sampling
            status, reply = server.post("/v1/chat/completions", body)
            assert status == 200, reply
            (choice,), usage = reply["choices"], reply["usage"]
            counts = [usage["prompt_tokens"], usage["completion_tokens"]]
            return [choice["message"]["content"], choice["finish_reason"], *counts]

        yield ask
