"""From logits to a token, as the reference's default chain does: top-k, top-p, min-p, temperature, a seeded draw.

Reproduces llama-sampler.cpp of b11192: float32 softmax in the reference's order, glibc's `expf`, std::mt19937 and
libstdc++'s uniform draw. NumPy only.
"""

import ctypes
import math
import os
import random
from collections.abc import Callable

import numpy as np

from bankml import tie_order
from bankml.errors import BankmlError
from bankml.params import MAX_SEED, Params

BUCKETS, BUCKET_SCALE, BUCKET_SHIFT = 128, np.float32(6.4), np.float32(64)  # the reference's, over logits -10..10
HEAP_SORTED = 128  # up to here the reference takes the largest with a heap, beyond with buckets
SMALL_TOP_P, FIRST_TOP_P = 1024, 256  # top-p over more unsorted candidates than this first tries the largest ones
GREEDY = 1e-30  # no temperature: logits over less than this would overflow


class MersenneTwister:
    """std::mt19937 seeded with one 32-bit number."""

    def __init__(self, seed: int):
        state = [seed]
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
        self._random = random.Random()
        self._random.setstate((3, (*state, 624), None))  # Python's own generator is the same one, seeded otherwise

    def uniform(self) -> float:
        """std::uniform_real_distribution<double>(0, 1): two outputs, the first one the low part."""
        low, high = self._random.getrandbits(32), self._random.getrandbits(32)
        drawn = (float(low) + float(high) * 2.0**32) / 2.0**64
        return drawn if drawn < 1.0 else math.nextafter(1.0, 0.0)


class Candidates:
    """What is left of the vocabulary: `logits` float32 (n,), and whether they are `sorted`, largest first.

    The order among equal logits is worked out only when a token is asked for and a tie decides it.
    """

    def __init__(self, logits: np.ndarray, ids: np.ndarray | None = None):
        self.logits, self.sorted = logits, False
        self._ids = ids  # of each logit; None: all of the vocabulary, in its order
        self._keys = None  # the logits that were sorted by, in their order before
        self._exact: Callable[[], list[int]] | None = None

    def __len__(self):
        return len(self.logits)

    def keep(self, chosen):
        """Keep a slice, or the indices given, in their order."""
        self.logits = self.logits[chosen]
        if not self.sorted:
            self._ids = np.flatnonzero(chosen) if self._ids is None else self._ids[chosen]

    def sort(self, count: int, by_buckets: bool | None = None, order: np.ndarray | None = None):
        """Keep the `count` largest, sorted; `by_buckets` is the reference's way to do it (None: by `count`).

        `order` is what `largest` gave for them, if it is known.
        """
        if by_buckets is None:
            by_buckets = count > HEAP_SORTED
        self._keys, self._order = self.logits, largest(self.logits, count) if order is None else order
        exact = _bucket_order if by_buckets else _heap_order
        self._exact = lambda keys=self._keys: exact(keys, count)
        self.logits, self.sorted = self.logits[self._order], True

    def token(self, i: int) -> int:
        """The token of candidate `i`."""
        if self.sorted:
            place = self._order[i]
            if np.count_nonzero(self._keys == self._keys[place]) > 1:
                place = self._exact()[i]
        else:
            place = i
        return int(place if self._ids is None else self._ids[place])


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest values, largest first; equal ones in any order."""
    chunk = 64
    if count * chunk < len(values):
        # A chunk holds at least its maximum, so the count-th largest value is at least the count-th largest maximum.
        whole = len(values) // chunk * chunk
        tops = values[:whole].reshape(-1, chunk).max(axis=1)
        if len(tops) > count:
            bound = np.partition(tops, len(tops) - count)[len(tops) - count]
            near = np.flatnonzero(values >= bound)
            return near[np.argsort(-values[near])[:count]]
    return np.argsort(-values)[:count]


def _heap_order(keys, count):
    order = list(range(len(keys)))
    tie_order.partial_sort(order, keys.tolist(), 0, count, len(keys))
    return order[:count]


def _bucket_order(keys, count):
    """The reference's bucket sort: whole buckets from the top are sorted, the last one as far as needed."""
    scaled = np.maximum(BUCKET_SCALE * keys + BUCKET_SHIFT, np.float32(-1))  # float32, rounded twice
    buckets = np.clip(scaled.astype(np.int64), 0, BUCKETS - 1)
    keys, order, first = keys.tolist(), [], 0
    for bucket in range(BUCKETS - 1, -1, -1):
        order += np.flatnonzero(buckets == bucket).tolist()
        if len(order) >= count:
            tie_order.partial_sort(order, keys, first, count - first, len(order))
            break
        tie_order.sort(order, keys, first, len(order))
        first = len(order)
    return order[:count]


def _libm():
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:
        return ctypes.CDLL(None)


_expf, _logf = _libm().expf, _libm().logf
for _function in (_expf, _logf):
    _function.argtypes, _function.restype = [ctypes.c_float], ctypes.c_float


def expf(x: np.ndarray) -> np.ndarray:
    """The C library's `expf` of float32 values up to 0.

    A correctly rounded result is the library's too unless it lies near the middle between two floats (its error is
    under 0.502 units in the last place) or is denormal; only those are asked of the library one by one.
    """
    if len(x) <= 64:
        return np.array([_expf(value) for value in x.tolist()], np.float32)
    exact = np.exp(x.astype(np.float64))
    result = exact.astype(np.float32)
    below = exact.view(np.int64) & (2**29 - 1)  # what rounding to 24 bits drops
    doubtful = (np.abs(below - 2**28) < 2**29 // 100) | ((x < -87) & (x > -105))
    for i in np.flatnonzero(doubtful).tolist():
        result[i] = _expf(float(x[i]))
    return result


def softmax(logits: np.ndarray, top: np.float32) -> np.ndarray:
    """float32 probabilities, summed one by one in float32; equals llama_sampler_softmax_impl."""
    p = expf(logits - top)
    return p / np.cumsum(p, dtype=np.float32)[-1]


def top_k(candidates: Candidates, params: Params):
    """Keep the k largest; equals llama_sampler_top_k_impl."""
    if params.top_k > 0:
        candidates.sort(min(params.top_k, len(candidates)))


def top_p(candidates: Candidates, params: Params):
    """Keep the fewest of the largest whose probabilities reach p; equals llama_sampler_top_p_apply."""
    if params.top_p >= 1:
        return
    n, by_buckets = len(candidates), None
    top = candidates.logits[0] if candidates.sorted else candidates.logits.max()
    p = softmax(candidates.logits, top)
    if not candidates.sorted:
        by_buckets = n > SMALL_TOP_P or None
        order = largest(candidates.logits, FIRST_TOP_P if by_buckets else n)
        if by_buckets and np.cumsum(p[order], dtype=np.float32)[-1] < np.float32(params.top_p):
            order = largest(candidates.logits, n)
        p = p[order]
        candidates.sort(len(order), by_buckets, order)
    reached = np.cumsum(p, dtype=np.float32) >= np.float32(params.top_p)
    candidates.keep(slice(int(np.argmax(reached)) + 1 if reached.any() else len(candidates)))


def min_p(candidates: Candidates, params: Params):
    """Drop what is less likely than min_p times the likeliest; equals llama_sampler_min_p_apply."""
    if params.min_p <= 0:
        return
    top = candidates.logits[0] if candidates.sorted else candidates.logits.max()
    enough = candidates.logits >= top + np.float32(_logf(params.min_p))
    candidates.keep(slice(int(np.count_nonzero(enough))) if candidates.sorted else enough)


def temperature(candidates: Candidates, params: Params):
    """Divide the logits by the temperature."""
    candidates.logits = candidates.logits / np.float32(params.temperature)


def draw(candidates: Candidates, rng: MersenneTwister) -> int:
    """A token by its probability: float32 exponentials summed in double; equals llama_sampler_dist_apply."""
    drawn = rng.uniform()  # also where only one candidate is left
    if len(candidates) == 1:
        return candidates.token(0)
    top = candidates.logits[0] if candidates.sorted else candidates.logits.max()
    running = np.cumsum(expf(candidates.logits - top), dtype=np.float64)
    return candidates.token(min(int(np.searchsorted(running, running[-1] * drawn)), len(candidates) - 1))


CHAIN = (top_k, top_p, min_p, temperature)  # the reference's default order; each takes (candidates, params)


class Sampler:
    """Draws tokens with one seed. `.seed` is the one in use, `.accept(token)` tells what was generated."""

    def __init__(self, params: Params | None = None):
        self.params = Params() if params is None else params
        given = self.params.seed
        self.seed = int.from_bytes(os.urandom(4), "little") % (MAX_SEED + 1) if given is None else given
        self.rng = MersenneTwister(self.seed)
        self.accepted: list[int] = []

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken; then nothing is drawn."""
        return self.params.temperature <= GREEDY

    def accept(self, token: int):
        """Note a token of the answer, for samplers that look back."""
        self.accepted.append(token)

    def sample(self, logits: np.ndarray) -> int:
        """The next token for float32 (n_vocab,) logits, which are left as they are."""
        logits = np.asarray(logits, np.float32)
        likeliest = int(np.argmax(logits))  # the first of equals; NaN counts as the largest
        if not np.isfinite(logits[likeliest]):
            raise BankmlError("the model gives logits that are not finite; its file is damaged or not what it says")
        if self.greedy:
            return likeliest
        candidates = Candidates(logits)
        for step in CHAIN:
            step(candidates, self.params)
        return draw(candidates, self.rng)
