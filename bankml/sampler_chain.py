"""The chain of compiled samplers over the room that it works in, and the probabilities that come of it."""

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np

from bankml.cpu import candidates, sampling
from bankml.cpu.order import BUCKETS, HEAP_SORTED, STACK

OVERFLOWS = 1e-30  # a temperature below counts as none: logits over it are infinite

# name -> whether the sampler does anything with these parameters, as float32
ACTIVE = {
    "penalties": lambda p: (
        p.repeat_last_n > 0
        and (_f32(p.repeat_penalty) != 1 or _f32(p.frequency_penalty) != 0 or _f32(p.presence_penalty) != 0)
    ),
    "dry": lambda p: _f32(p.dry_multiplier) != 0 and p.dry_penalty_last_n > 0,
    "top_n_sigma": lambda p: _f32(p.top_n_sigma) > 0,
    "top_k": lambda p: p.top_k > 0,
    "typ_p": lambda p: _f32(p.typical_p) < 1,
    "top_p": lambda p: _f32(p.top_p) < 1,
    "min_p": lambda p: _f32(p.min_p) > 0,
    "xtc": lambda p: _f32(p.xtc_probability) > 0 and _f32(p.xtc_threshold) <= 0.5,
    "temperature": lambda p: _f32(p.temperature) != 1 or _f32(p.dynatemp_range) > 0,
}


def _f32(value) -> float:
    return float(np.float32(value))


def active(params) -> list[str]:
    """The samplers that these parameters put to work, in their order."""
    return [name for name in params.samplers if ACTIVE[name](params)]


@dataclass(frozen=True)
class TokenProbs:
    """A token's probability and those of the likeliest tokens, as llama-server reports them, float32 exactly.

    `value` belongs to `token`, `top` has pairs (token, value). Values are natural logarithms of what the model itself
    gives (`logprob`), or, with `post_sampling_probs`, probabilities after the chain (`prob`).
    """

    token: int
    value: float
    top: list[tuple[int, float]]


def _at(array) -> int:
    return array.__array_interface__["data"][0]


@cache
def _call(entry):
    """A compiled entry as a function of Python."""
    kinds = {"int64": ctypes.c_int64, "float64": ctypes.c_double, "float32": ctypes.c_float, "none": None}
    arguments, result = entry.signature
    return ctypes.CFUNCTYPE(kinds[str(result)], *(kinds[str(kind)] for kind in arguments))(entry.address)


class Chain:
    """The samplers of `params` over a vocabulary of n tokens."""

    def __init__(self, params, n: int):
        self.n, self.params, self.token, self.used_chance = n, params, None, False
        self._w = np.zeros(candidates.N_WORDS, np.int64)
        self._words = _at(self._w)
        self._p, self._ints, self._floats = (
            np.empty(n, np.float32),
            np.empty((3, n), np.int32),
            np.empty((2, n), np.float32),
        )
        self._stack, self._lists = np.empty(STACK + BUCKETS, np.int64), {}
        self._set(N=n, MIN_KEEP=params.min_keep, P=_at(self._p), STACK=_at(self._stack))
        self._set(**{name: _at(self._ints[i]) for i, name in enumerate(("IDS", "ORDER", "SPARE_IDS"))})
        self._set(**{name: _at(self._floats[i]) for i, name in enumerate(("LOGITS", "SPARE"))})
        self._steps = [getattr(self, f"_{name}") for name in active(params)]
        self._begins_with_top_k = self._steps[:1] == [self._top_k] and params.top_k <= HEAP_SORTED
        self._temperature_used = params.temperature if params.temperature >= OVERFLOWS else 0.0
        self._default = self._default_numbers(active(params))
        if self._default:
            self._run_default = _call(sampling.default_chain)

    def _default_numbers(self, steps):
        """The numbers of `default_chain` if it can do these steps, those left out switched off; else None."""
        p, default = self.params, [name for name in ("top_k", "top_p", "min_p", "temperature") if name in steps]
        if not self._begins_with_top_k or steps != default or _f32(p.dynatemp_range) > 0:
            return None
        return (
            min(p.top_k, self.n),
            p.top_p if "top_p" in steps else 1.0,
            p.min_p if "min_p" in steps else 0.0,
            self._temperature_used if "temperature" in steps else 1.0,
        )

    def _set(self, **words):
        for name, value in words.items():
            self._w[getattr(candidates, name)] = value

    def run(self, row, uniform: float, chance: float, counts: dict, losses: dict | None) -> int:
        """The token drawn from logits, float32 (n,); -1 if they are not finite.

        uniform: the draw in [0, 1); chance: XTC's, `used_chance` says whether it was needed; counts: how often each
        token was seen lately; losses: what DRY takes from tokens, None if nothing is said.
        """
        self._w[candidates.ROW] = _at(row)
        if self._default:
            self.token = self._run_default(self._words, *self._default, uniform)
            return self.token
        self._chance, self._counts, self._losses, self.used_chance = chance, counts, losses, False
        if self._begins_with_top_k:
            finite, steps = _call(sampling.fill_largest)(self._words, min(self.params.top_k, self.n)), self._steps[1:]
        else:
            finite, steps = _call(sampling.fill)(self._words), self._steps
        if not finite:
            return -1
        for step in steps:
            step()
        self.token = _call(sampling.draw)(self._words, uniform)
        return self.token

    def largest(self, row, count: int, from_the_row=False) -> list[int]:
        """The tokens of the `count` largest logits, largest first (for tests), by way of all candidates or at once."""
        self._w[candidates.ROW] = _at(row)
        if from_the_row:
            _call(sampling.fill_largest)(self._words, count)
        else:
            _call(sampling.fill)(self._words)
            self._keep_largest(count)
        return self._ints[0, :count].tolist()

    @property
    def _size(self):
        return int(self._w[candidates.SIZE])

    def _keep_largest(self, count):
        _call(sampling.keep_largest)(self._words, count)

    def _sorted(self):
        if not self._w[candidates.SORTED]:
            self._keep_largest(self._size)

    def _list(self, tokens, numbers, count, pairs):
        """Hand over token -> number."""
        keys = np.array(sorted(pairs), np.int32)
        values = np.array([pairs[token] for token in keys.tolist()], np.float32)
        self._lists[tokens] = keys, values
        self._set(**{tokens: _at(keys), numbers: _at(values), count: len(keys)})

    def _penalties(self):
        self._list("SEEN", "SEEN_COUNTS", "N_SEEN", self._counts)
        p = self.params
        _call(sampling.penalties)(self._words, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)

    def _dry(self):
        if self._losses is not None:
            self._list("LOSING", "LOSSES", "N_LOSING", self._losses)
            _call(sampling.dry)(self._words)

    def _top_n_sigma(self):
        _call(sampling.top_n_sigma)(self._words, self.params.top_n_sigma)

    def _top_k(self):
        count = min(self.params.top_k, self._size)
        if self._w[candidates.SORTED]:
            self._w[candidates.SIZE] = count
        else:
            self._keep_largest(count)

    def _typ_p(self):
        self._sorted()
        _call(sampling.typical_p)(self._words, self.params.typical_p)

    def _top_p(self):
        entry = sampling.top_p if self._w[candidates.SORTED] else sampling.top_p_unsorted
        _call(entry)(self._words, self.params.top_p)

    def _min_p(self):
        if not _call(sampling.min_p)(self._words, self.params.min_p):
            self._sorted()
            _call(sampling.min_p)(self._words, self.params.min_p)

    def _xtc(self):
        if self._size >= 2:
            self.used_chance = True
            if self._chance <= _f32(self.params.xtc_probability):
                self._sorted()
                _call(sampling.xtc)(self._words, self.params.xtc_threshold)

    def _temperature(self):
        p = self.params
        value = self._temperature_used
        if _f32(p.dynatemp_range) <= 0:
            _call(sampling.temperature)(self._words, value)
        elif self._size > 1:
            self._sorted()
            _call(sampling.dynamic_temperature)(self._words, value, p.dynatemp_range, p.dynatemp_exponent)

    def probs(self, count: int) -> TokenProbs:
        """The probabilities that the last run ended with: of its token, and the first `count`, up to one of 0."""
        _call(sampling.sort_by_probability)(self._words)
        ids, p = self._ints[0, : self._size], self._p[: self._size]
        top = list(zip(ids[:count].tolist(), p[:count].tolist(), strict=True))
        until = next((i for i, (_, value) in enumerate(top) if value == 0), len(top))
        return TokenProbs(self.token, float(p[ids == self.token][0]), top[:until])


def log_probs(row: np.ndarray, token: int, count: int) -> TokenProbs:
    """Logarithms of the probabilities of `token` and of the `count` likeliest (one at least is looked for).

    row: float32 (n_vocab,) logits, contiguous.
    """
    found = max(count, 1)
    order, out = np.empty(len(row), np.int32), np.empty(found + 1, np.float32)
    _call(sampling.log_probabilities)(_at(row), len(row), token, found, _at(order), _at(out))
    return TokenProbs(token, float(out[0]), list(zip(order[:count].tolist(), out[1 : count + 1].tolist(), strict=True)))
