"""How tokens are drawn: llama-server's sampling fields, their defaults, and what a model file recommends."""

import math
import re
from dataclasses import dataclass, fields

from bankml.errors import Refused, UsageError

MAX_SEED = 2**32 - 2  # 2**32 - 1 means "any" to the reference
MAX_COUNT = 2**31 - 1
MAX_FLOAT = (2 - 2**-23) * 2.0**127  # the largest float32
BREAKERS = ("\n", ":", '"', "*")
CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
MISSING = {
    "mirostat": "bankml has no mirostat; top_k, top_p, min_p and temperature do without it",
    "grammar": "bankml has no grammars",
    "json_schema": "bankml has no grammars",
    "infill": "bankml has no infill sampler",
    "adaptive_p": "bankml has no adaptive-p sampler",
}
_OTHER_NAMES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}


@dataclass(frozen=True)
class Params:
    """The fields of llama-server's `/completion` that decide a token, with its names and defaults.

    `temperature` <= 0 takes the likeliest token, `seed` None is a random one. What switches a sampler off: `top_k` and
    `top_n_sigma` <= 0; `top_p`, `typical_p` and `repeat_penalty` 1; `min_p`, `presence_penalty`, `frequency_penalty`,
    `dry_multiplier`, `xtc_probability` and `dynatemp_range` 0. The windows `repeat_last_n` and `dry_penalty_last_n`
    reach back into the prompt. `logit_bias` has pairs (token, what is added), `samplers` is the order of the chain.
    `n_probs` asks for the probabilities of that many tokens, after the chain if `post_sampling_probs`. Values count as
    the reference takes them: as 32-bit floats. Raises UsageError for one that is out of range, Refused for a sampler
    that bankml lacks.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None  # 0 to MAX_SEED
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = BREAKERS
    top_n_sigma: float = -1.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    min_keep: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    suppress_tokens: tuple[int, ...] = ()  # never drawn; the model file's
    samplers: tuple[str, ...] = CHAIN
    n_probs: int = 0
    post_sampling_probs: bool = False

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is float:
                _check(field.name, value, *RANGES.get(field.name, (-MAX_FLOAT, MAX_FLOAT, "a finite number")))
            elif field.type is int:
                _check(field.name, value, *RANGES.get(field.name, WHOLE))
                if not hasattr(value, "__index__"):
                    raise UsageError(f"{field.name} is {value}; it takes a whole number")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise UsageError(f"seed is {self.seed}; it takes a whole number from 0 to {MAX_SEED}")
        for token, bias in self.logit_bias:
            if token < 0 or math.isnan(bias) or bias > MAX_FLOAT:
                raise UsageError(f"logit_bias has {token}: {bias}; it takes tokens and numbers")
        object.__setattr__(self, "samplers", tuple(map(sampler_name, self.samplers)))

    @classmethod
    def from_gguf(cls, kv, **given) -> "Params":
        """What a file recommends (its `general.sampling.*`) over the defaults; `given` fields go over both.

        kv: the file's `Header.kv`. Raises as the class does, and Refused for a file that asks for mirostat.
        """
        found = _recommended(kv) | given
        if (mirostat := _whole(kv, "mirostat", 0)) and found.get("temperature", cls.temperature) > 0:
            raise Refused(f"general.sampling.mirostat is {mirostat}; {MISSING['mirostat']}")
        try:
            return cls(**found)
        except UsageError as error:
            raise error if set(found) <= set(given) else Refused(f"general.sampling: {error}") from None


WHOLE = (0, MAX_COUNT, f"a whole number from 0 to {MAX_COUNT}")
_FRACTION = (0, 1, "a number from 0 to 1")
RANGES = {name: _FRACTION for name in ("top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold")} | {
    "repeat_penalty": (2.0**-128 + 2.0**-149, MAX_FLOAT, "a finite number above 0"),  # so that 1/x is finite
    "top_k": (-(2**31), MAX_COUNT, f"a whole number up to {MAX_COUNT}"),
    "dry_base": (1, MAX_FLOAT, "a finite number from 1 up"),
}


def _check(name, value, low, high, what):
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}; it takes {what}")


def sampler_name(text: str) -> str:
    """The name of a sampler as in CHAIN, however it is written: top_k, top-k, topk. Raises UsageError or Refused."""
    plain = text.lower()
    known = {name.replace("_", mark): name for name in (*CHAIN, *MISSING) for mark in ("_", "-", "")}
    name = (known | _OTHER_NAMES).get(plain)
    if name in MISSING:
        raise Refused(f"samplers has {text!r}; {MISSING[name]}")
    if name is None:
        raise UsageError(f"samplers has {text!r}; it takes {', '.join(CHAIN)}")
    return name


def _recommended(kv) -> dict:
    """The fields that a file sets; where a value beyond the range means the same as its end, that end."""
    found = {}
    sequence = _text(kv, "sequence", 512)
    if sequence:
        found["samplers"] = tuple(name for name in sequence.split(";") if _is_sampler(name))
    for name, field, read, low, high in (
        ("top_k", "top_k", _whole, 0, MAX_COUNT),
        ("top_p", "top_p", _number, 0.0, 1.0),
        ("min_p", "min_p", _number, 0.0, math.inf),
        ("xtc_probability", "xtc_probability", _number, 0.0, 1.0),
        ("xtc_threshold", "xtc_threshold", _number, -math.inf, 1.0),
        ("temp", "temperature", _number, 0.0, math.inf),
        ("penalty_last_n", "repeat_last_n", _whole, 0, MAX_COUNT),
        ("penalty_repeat", "repeat_penalty", _number, -math.inf, math.inf),
    ):
        value = read(kv, name, None)
        if value is not None:
            found[field] = value if math.isnan(value) else min(max(value, low), high)
    key = "tokenizer.ggml.suppress_tokens"
    if key in kv:
        if kv.kind(key) != "arr[i32]":
            raise Refused(f"{key} is {kv.kind(key)}, not an array of i32")
        found["suppress_tokens"] = tuple(token for token in kv[key].tolist() if token >= 0)
    return found


def _is_sampler(name):
    """The reference leaves names out that it does not know."""
    try:
        sampler_name(name)
    except UsageError:
        return False
    return True


def _text(kv, name, size):
    """A value as the reference prints it into `size` characters before it reads it again; None for an array."""
    value = kv.get(f"general.sampling.{name}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value)[: size - 1]
    return f"{value:f}" if isinstance(value, float) else None  # six decimals


def _whole(kv, name, otherwise):
    """The 32 bits of what C's `strtol` reads."""
    found = re.match(r"[ \t-\r]*([+-]?[0-9]+)", _text(kv, name, 64) or "")
    if not found:
        return otherwise
    value = min(max(int(found[1]), -(2**63)), 2**63 - 1)
    return (value + 2**31) % 2**32 - 2**31


def _number(kv, name, otherwise):
    """What C's `strtof` reads, hexadecimals apart."""
    pattern = r"[ \t-\r]*([+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf|nan))"
    found = re.match(pattern, _text(kv, name, 128) or "", re.IGNORECASE)
    return float(found[1]) if found else otherwise
