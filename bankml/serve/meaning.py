"""What a request means for one model: texts in it as that model's tokens."""

import math
from typing import Any

from bankml.errors import PromptTooLong
from bankml.params import Params
from bankml.serve.errors import ApiError


def prompt(given, tokenizer):
    """An array of texts and tokens as tokens; only a text at its beginning gets the start token, as in llama-server."""
    if not isinstance(given, list) or not any(isinstance(item, str) for item in given):
        return given
    tokens = []
    for i, item in enumerate(given):
        tokens += tokenizer.encode(item, add_special=i == 0) if isinstance(item, str) else [item]
    return tokens


def params(given, engine) -> Params:
    """The sampling fields given, over what the model's file recommends."""
    return Params.from_gguf(engine.header.kv, **finished(given, engine.tokenizer))


def finished(sampling, tokenizer) -> dict[str, Any]:
    """The sampling fields for one model: what is added to logits, with texts as the model's tokens."""
    found = {name: value for name, value in sampling.items() if name not in ("logit_bias", "ignore_eos")}
    bias = list(_biases(sampling.get("logit_bias") or (), tokenizer))
    if sampling.get("ignore_eos"):
        bias += [(token, -math.inf) for token in sorted(tokenizer.eog)]
    return found | ({"logit_bias": tuple(bias)} if bias else {})


def _biases(given, tokenizer):
    """(token, number) of an array of pairs, or of an object; false is minus infinity, as in llama-server."""
    wrong = ApiError(400, "'logit_bias' takes [[token or text, number or false], ...] or an object", param="logit_bias")
    if not isinstance(given, dict | list | tuple):
        raise wrong
    for pair in given.items() if isinstance(given, dict) else given:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise wrong
        what, bias = pair
        if isinstance(what, str) and isinstance(given, dict) and what.isascii() and what.isdigit():
            what = int(what[:10])
        value = -math.inf if bias is False else bias
        if isinstance(what, bool) or not isinstance(what, int | str) or isinstance(value, bool):
            raise wrong
        if not isinstance(value, int | float) or (abs(value) > 1e300 and value != -math.inf):
            raise wrong
        for token in tokenizer.encode(what, parse_special=False) if isinstance(what, str) else [what]:
            if 0 <= token < tokenizer.n_vocab:
                yield token, float(value)


def bound(generation, n_ctx: int):
    """End an answer where a context of this size would end. Raises ApiError for one that the engine does not have."""
    engine, room = generation.engine, n_ctx - len(generation.prompt)
    if n_ctx > engine.n_ctx:
        words = f"a context of {n_ctx} tokens (num_ctx) is more than this server's {engine.n_ctx}"
        raise ApiError(400, f"{words}; start it with a larger --ctx, as far as the model was trained")
    if room < 1:
        count = len(generation.prompt)
        raise PromptTooLong(f"the prompt has {count} tokens, the context only {n_ctx} (num_ctx)", count, n_ctx)
    most = generation.max_tokens
    generation.max_tokens = room if most is None else min(most, room)
