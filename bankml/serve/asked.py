"""Fields that the interfaces of llama-server and OpenAI share: what is asked of the engine, and how it is told."""

from dataclasses import dataclass, fields
from typing import Any

from bankml.params import CHAIN, MAX_SEED, MISSING, Params
from bankml.serve.answer import Request
from bankml.serve.errors import ApiError
from bankml.serve.fields import Fields

FLOATS = [field.name for field in fields(Params) if field.type is float]
WHOLES = [field.name for field in fields(Params) if field.type is int and field.name != "n_probs"]
MAX_PROBS, MAX_STOPS, MAX_STOP = 100, 64, 1024
LETTERS = dict(zip("dskypmxte", ("dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
                                 "penalties"), strict=True))  # fmt: skip
assert sorted(LETTERS.values()) == sorted(CHAIN)


@dataclass(frozen=True)
class Asked:
    """request: for the engine. The rest is how the answer is to be told.

    model: the name that the client gave. n_top: of the likeliest tokens, so many are told. echo: the prompt's text in
    front. receipt: add a `bankml_receipt`.
    """

    request: Request
    model: str | None
    n_top: int
    stream: bool
    include_usage: bool
    return_tokens: bool
    post_sampling_probs: bool
    timings_per_token: bool
    echo: bool
    receipt: bool

    @property
    def n_probs(self) -> int:
        """How many probabilities of each token are told."""
        return self.request.sampling.get("n_probs", 0)


def asked(body: Fields, prompt, *, n_probs: int = 0, n_top: int | None = None, template: dict | None = None) -> Asked:
    """What a body asks, for this prompt. Raises ApiError 400 for what bankml does not do."""
    _refuse(body)
    model, options = body.text("model"), body.object("stream_options", {})
    if body.get("stream_options") is not None and not body.flag("stream"):
        raise ApiError(400, "'stream_options' is for streams only", param="stream_options")
    receipt, reuse = kept(body)
    request = Request(
        prompt,
        _sampling(body, n_probs),
        max_tokens=_max_tokens(body),
        stop=stops(body),
        reuse=reuse,
        template=template,
        model=model or None,
    )
    return Asked(
        request,
        model,
        n_top=n_probs if n_top is None else n_top,
        stream=body.flag("stream"),
        include_usage=Fields(options).flag("include_usage"),
        return_tokens=body.flag("return_tokens"),
        post_sampling_probs=body.flag("post_sampling_probs"),
        timings_per_token=body.flag("timings_per_token"),
        echo=body.flag("echo"),
        receipt=receipt,
    )


def kept(body: Fields) -> tuple[bool, str]:
    """Whether a receipt is asked for, and what of earlier prompts may be used (`Request.reuse`): for a receipt only
    what changes no bit."""
    receipt = body.flag("bankml_receipt")
    return receipt, ("exact" if receipt else "prefix") if body.flag("cache_prompt", True) else "off"


def _refuse(body):
    """What cannot be done is refused rather than left out."""
    for name in ("grammar", "json_schema"):
        if body.get(name):
            raise ApiError(400, f"'{name}': {MISSING[name]} yet", param=name)
    kind = body.object("response_format", Fields(type="text")).get("type", "text")
    if kind != "text":
        raise ApiError(
            400, f"response_format {kind!r} needs grammars, which bankml has not yet; 'text' is what there is",
            param="response_format",
        )  # fmt: skip
    for name in ("n", "n_cmpl", "best_of"):
        if body.whole(name, 1) != 1:
            raise ApiError(400, f"'{name}' is {body[name]}; bankml has one slot and gives one answer (1)", param=name)
    for name, off in (("mirostat", 0), ("n_indent", 0), ("adaptive_target", -1)):
        if body.number(name, off) > off:
            raise ApiError(400, f"'{name}': {MISSING.get(name, 'bankml does not have it')}", param=name)
    for name in ("t_max_predict_ms",):
        if body.whole(name, -1) > 0:
            raise ApiError(400, f"'{name}': bankml has no time limit; close the connection instead", param=name)
    for name in ("lora", "suffix", "audio"):
        if body.get(name):
            raise ApiError(400, f"'{name}' is not supported", param=name)


def _max_tokens(body) -> int | None:
    """The first of llama-server's three names for it that is given; None for no limit."""
    given = [body.whole(name, None, low=-1) for name in ("n_predict", "max_completion_tokens", "max_tokens")]
    most = next((value for value in given if value is not None), -1)
    return None if most < 0 else most


def stops(body: Fields) -> tuple[str, ...]:
    """The stop strings."""
    found = body.texts("stop")
    if len(found) > MAX_STOPS or any(len(stop) > MAX_STOP for stop in found):
        raise ApiError(400, f"'stop' takes up to {MAX_STOPS} strings of up to {MAX_STOP} characters", param="stop")
    return tuple(filter(None, found))


def _sampling(body, n_probs) -> dict[str, Any]:
    """Fields of `Params` as far as they are given, beside what needs the model (`meaning.py`)."""
    given: dict[str, Any] = {name: body.number(name) for name in FLOATS}
    given |= {name: body.whole(name) for name in WHOLES}
    given["seed"] = _seed(body)
    if given["dry_base"] is not None and given["dry_base"] < 1:
        given["dry_base"] = None  # as the reference: the default then
    given["n_probs"] = n_probs or None
    given["post_sampling_probs"] = body.flag("post_sampling_probs") or None
    breakers = body.texts("dry_sequence_breakers")
    if body.get("dry_sequence_breakers") is not None and not breakers:
        raise ApiError(400, "'dry_sequence_breakers' takes one string or more", param="dry_sequence_breakers")
    given["dry_sequence_breakers"] = breakers or None
    given["samplers"] = _samplers(body)
    given["logit_bias"] = body.get("logit_bias") or None
    given["ignore_eos"] = body.flag("ignore_eos") or None
    return {name: value for name, value in given.items() if value is not None}


def _seed(body) -> int | None:
    """-1, and the same as 32 bits, is any seed."""
    seed = body.whole("seed", -1, low=-1, high=MAX_SEED + 1)
    return None if seed in (-1, MAX_SEED + 1) else seed


def _samplers(body):
    if isinstance(letters := body.get("samplers"), str):
        return tuple(LETTERS[letter] for letter in letters if letter in LETTERS)
    return body.texts("samplers") if body.get("samplers") is not None else None


def probs(body: Fields, name: str) -> int:
    """How many probabilities a field asks for."""
    return body.whole(name, 0, low=0, high=MAX_PROBS)
