"""What is measured of a running engine at one moment: the dashboard draws it, the server sends it as JSON.

Every value was measured or counted; None (or an empty series) says that it is not known, and nothing is drawn for it.
"""

import math
import types
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from bankml.errors import UsageError

LOADING, PROMPT, DECODE, IDLE = "loading", "prompt", "decode", "idle"  # the values of `state`


@dataclass(frozen=True)
class Prompt:
    """A prompt on its way through the model, in tokens.

    done: through all layers; of a micro-batch that is under way, as many as its layers so far make up. cached: taken
    over from an earlier prompt and not computed. rate: tokens/s. left_s: seconds to the end at that rate.
    """

    total: int
    done: float
    cached: int | None = None
    rate: float | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class Device:
    """One that computes rows of the products. rows: so far, each times the tokens it was computed for.

    share: of the rows of the last second, 0 to 1. busy: the part of the time that it computed. limit: the part that the
    limiter leaves it (BANKML_GPU_LIMIT). resting: the limiter holds it back now. bytes, bytes_limit: of memory that it
    takes, and that it may take. note: what else there is to say, as why it was dropped.
    """

    name: str
    rows: int | None = None
    share: float | None = None
    busy: float | None = None
    limit: float | None = None
    resting: bool | None = None
    bytes: int | None = None
    bytes_limit: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class Cache:
    """The K/V cache: cells in use of those there are; bytes of all layers; kind is "f16" or "q8_0"."""

    cells: int
    capacity: int
    bytes: int | None = None
    kind: str | None = None


@dataclass(frozen=True)
class PromptCache:
    """Prompts that found their beginning computed already: hits of lookups, and how many tokens that spared in all.

    entries, bytes: of the prompts kept in memory beside the slot's own.
    """

    hits: int
    lookups: int
    tokens: int
    entries: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """An engine at one moment. Times are in seconds.

    rate: tokens/s generated now, over the last second or so. rates: of each half second of the last minute, oldest
    first. rate_minute: over the last minute, as far as tokens were generated in it. first_token_s: from the request to
    its first token. tokens: of the answer under way, max_tokens at most. budget: kind of work -> seconds of a token's
    time; budget_of is "prompt" or "decode". threads: what part of the time each CPU thread was busy, 0 to 1.
    queue: requests that wait. answer: its text, or the end of it; for views that show it.
    """

    model: str | None = None
    state: str | None = None
    rate: float | None = None
    rate_minute: float | None = None
    rates: tuple[float, ...] = ()
    first_token_s: float | None = None
    tokens: int | None = None
    max_tokens: int | None = None
    prompt: Prompt | None = None
    budget: dict[str, float] = field(default_factory=dict)
    budget_of: str | None = None
    threads: tuple[float, ...] = ()
    devices: tuple[Device, ...] = ()
    cache: Cache | None = None
    prompt_cache: PromptCache | None = None
    queue: int | None = None
    answer: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: what is not known is left out."""
        return _known(asdict(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Snapshot":
        """The other way; unknown keys (of a newer server) are passed over. UsageError names a value that is none."""
        return _read(cls, values, "snapshot")


def _known(value):
    """Without what is None, and without empty series."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items() if item not in (None, (), {})}
    if isinstance(value, list | tuple):
        return [_known(item) for item in value]
    return value


def _read(kind, value, where):
    """`value`, which came out of JSON, as one of the type `kind`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _read(inner[0], value, where)
    if is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        known = {
            f.name: _read(hints[f.name], value[f.name], f"{where}.{f.name}") for f in fields(kind) if f.name in value
        }
        try:
            return kind(**known)
        except TypeError:
            raise UsageError(f"{where} lacks some of its values") from None
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(inner[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {str(key): _read(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise UsageError(f"{where} is not what a snapshot holds")
