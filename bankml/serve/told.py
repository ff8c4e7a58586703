"""What is told of an answer: counts, times, probabilities, and the receipt."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict

from bankml.cpu.level import level
from bankml.generation import Generation
from bankml.sampler_chain import TokenProbs
from bankml.serve.answer import Answer
from bankml.version import __version__

LOWEST = -(2 - 2**-23) * 2.0**127  # the lowest float32, which the reference tells for the logarithm of 0


def timings(generation: Generation) -> dict:
    """Counts and milliseconds, as llama-server names them."""
    cached, made = generation.cached or 0, generation.completion_tokens
    prompt, prompt_ms, ms = len(generation.prompt) - cached, 1000 * generation.prompt_s, 1000 * generation.decode_s
    return {
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt if prompt else 0.0,
        "prompt_per_second": 1000 * prompt / prompt_ms if prompt_ms else 0.0,
        "predicted_n": made,
        "predicted_ms": ms,
        "predicted_per_token_ms": ms / made if made else 0.0,
        "predicted_per_second": 1000 * made / ms if ms else 0.0,
    }


def stopping_word(generation: Generation) -> str:
    """The stop string that ended the answer; empty where something else did."""
    if generation.finish_reason != "stop" or not generation.stop:
        return ""
    text, whole = generation.text, generation.engine.tokenizer.decode(generation.tokens).decode("utf-8", "replace")
    return next((word for word in generation.stop if word and whole.startswith(text + word)), "")


def all_probs(generation: Generation) -> list[TokenProbs]:
    """Of every token that the reference tells: where a stop string ended the answer, the last ones are left out, as
    many as the string has tokens."""
    word = stopping_word(generation)
    count = len(generation.engine.tokenizer.encode(word)) if word else 0
    return generation.probs[: max(0, len(generation.probs) - count)]


def probabilities(probs: Iterable[TokenProbs], tokenizer, n_top: int, after_chain: bool = False) -> list[dict]:
    """One object for each token: its text, its bytes, its (log-)probability, and those of the `n_top` likeliest."""
    kind = "prob" if after_chain else "logprob"

    def of(token, value):
        piece = tokenizer.piece(token)
        number = value if math.isfinite(value) else LOWEST
        return {"id": token, "token": piece.decode("utf-8", "ignore"), "bytes": list(piece), kind: number}

    return [of(item.token, item.value) | {f"top_{kind}s": [of(*pair) for pair in item.top[:n_top]]} for item in probs]


async def receipt(answer: Answer) -> dict:
    """What was asked of which model, and what came of it, as hashes that any machine with the same model reproduces.

    For an answer with reuse "exact" or "off": its bits do not depend on what was asked before.
    """
    return await answer.service.aside(_receipt, answer.generation)


def _receipt(generation: Generation) -> dict:
    """Hashes the file's whole content the first time."""
    engine = generation.engine
    asked = {
        "model_sha256": engine.model_sha256,
        "tokens": generation.prompt,
        "sampling": asdict(generation.sampler.params) | {"seed": generation.sampler.seed},
        "max_tokens": generation.max_tokens,
        "stop": generation.stop,
        "n_ctx": engine.n_ctx,
        "n_ubatch": engine.n_ubatch,
        "cache": getattr(engine.slot.caches[0].kind, "value", None),
        "llama_threads": getattr(engine.weights, "llama_threads", None),
    }
    answer = {"text": generation.text, "tokens": generation.tokens, "finish_reason": generation.finish_reason}
    return {
        "model": engine.name,
        "model_sha256": engine.model_sha256,
        "request_sha256": _hashed(asked),
        "response_sha256": _hashed(answer),
        "engine": f"bankml {__version__}",
        "cpu_level": level(),
        "devices": list(engine.weights.devices),
        "seed": generation.sampler.seed,
        "prompt_tokens": len(generation.prompt),
        "cached_tokens": generation.cached or 0,
        "completion_tokens": generation.completion_tokens,
    }


def _hashed(value) -> str:
    """SHA-256 of canonical JSON: sorted keys, no white space, ASCII."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
