"""DRY, "don't repeat yourself": what a token loses for going on with a repetition (llama-sampler.cpp of b11192)."""

from collections import defaultdict, deque
from weakref import WeakKeyDictionary

import numpy as np

MAX_BREAKER, MAX_TAIL = 40, 20  # bytes of a breaker, tokens after its first; the reference cuts there
MAX_KNOWN = 8
_KNOWN = WeakKeyDictionary()  # tokenizer -> texts -> heads
LARGEST_EXPONENT = np.float32(88.7228391)  # of e, in float32


def breakers(tokenizer, texts: tuple[str, ...]) -> dict[int, list[list[int]]]:
    """Where repetitions end: first token of a breaker -> all tails that complete it ([] where nothing is missing).

    A breaker may begin anywhere inside a token; what is left of it is tokenized. The last few are remembered, for it
    takes a look at every token.
    """
    known = _KNOWN.setdefault(tokenizer, {})
    if texts not in known:
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[texts] = _breakers(tokenizer, texts)
    return known[texts]


def _breakers(tokenizer, texts):
    found = defaultdict(list)
    pieces = [tokenizer.piece(token, True) for token in range(tokenizer.n_vocab)]
    for text in texts:
        raw = text.encode("utf-8", "surrogateescape")[:MAX_BREAKER]
        if not raw:
            continue
        for token, piece in enumerate(pieces):
            if raw in piece:
                found[token].append([])
            elif len(raw) > 1 and raw[:1] in piece:
                for tail in _tails(tokenizer, raw, piece):
                    if tail not in found[token]:
                        found[token].append(tail)
    return {token: tails for token, tails in found.items() if tails}


def _tails(tokenizer, raw, piece):
    """The rest of a breaker, as tokens, for each of its beginnings that ends the piece."""
    for size in range(min(len(raw) - 1, len(piece)), 0, -1):
        if piece.endswith(raw[:size]):
            yield tokenizer.encode(raw[size:], parse_special=False)[:MAX_TAIL]


class Dry:
    """The window DRY looks at: `accept` what comes, `losses` says what the next token may lose."""

    def __init__(self, params, heads: dict[int, list[list[int]]]):
        self.multiplier, self.base = np.float32(params.dry_multiplier), np.float32(params.dry_base)
        self.allowed, self.heads = params.dry_allowed_length, heads
        self._seen = deque(maxlen=params.dry_penalty_last_n)
        self._most = int(LARGEST_EXPONENT / np.log(self.base)) if self.base > np.float32(1.000001) else 0

    def accept(self, token: int):
        """Note a token of the prompt or the answer."""
        self._seen.append(token)

    def losses(self) -> dict[int, np.float32] | None:
        """token -> what its logit loses; None where the window gives no reason to look."""
        if len(self._seen) <= self.allowed:
            return None
        recent = list(reversed(self._seen))
        limit = self._limit(recent)
        if limit < self.allowed:
            return None
        longest = {}
        for start, length in enumerate(repeats(recent, limit)):
            if start and length >= self.allowed:  # the token that came after this repetition would prolong it
                token = recent[start - 1]
                longest[token] = max(longest.get(token, 0), length)
        return {token: self._loss(length) for token, length in longest.items() if [] not in self.heads.get(token, ())}

    def _loss(self, length):
        exponent = length - self.allowed
        if self._most > 0:
            exponent = min(exponent, self._most)
        with np.errstate(over="ignore"):
            return np.float32(float(self.multiplier) * np.float64(self.base) ** exponent)

    def _limit(self, recent) -> int:
        """How far back a repetition may reach: up to the last breaker, or all of the window."""
        for i, token in enumerate(recent):
            fits = [len(tail) for tail in self.heads.get(token, ()) if len(tail) <= i and _is_tail(recent, i, tail)]
            if fits:
                return i - max(fits)
        return len(recent)


def _is_tail(recent, i, tail):
    return all(token == recent[i - 1 - offset] for offset, token in enumerate(tail))


def repeats(recent: list[int], limit: int) -> list[int]:
    """For each place of a reversed text: how many tokens from there on equal its beginning, `limit` at most.

    The Z algorithm with the reference's twist: what was cut to `limit` is reused as cut.
    """
    n, lengths = len(recent), [0] * len(recent)
    left = right = 0  # the stretch furthest on that is known to equal the beginning, both ends inclusive
    for k in range(1, n):
        known = lengths[k - left] if k <= right else 0
        if k <= right and known < right - k + 1:
            lengths[k] = min(known, limit)
            continue
        end = right + 1 if k <= right else k
        while end < n and recent[end] == recent[end - k]:
            end += 1
        lengths[k] = min(end - k, limit)
        if k <= right or end > k:
            left, right = k, end - 1
    return lengths
