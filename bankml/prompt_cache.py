"""The host prompt cache: copies of conversations that left the slot, kept and chosen by llama-server's rules.

Reproduces `server_prompt_cache` and `get_available_slot` of b11192 (tools/server): what is compared are 32-bit ratios.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bankml.slot import State

MIB = 1 << 20
SIMILAR = np.float32(0.1)  # a slot that shares no more of the new prompt than this is given up
HALF, QUARTER = np.float32(0.5), np.float32(0.25)


def common(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two int32 arrays have in common at their beginning."""
    n = min(len(a), len(b))
    unequal = np.flatnonzero(a[:n] != b[:n])
    return int(unequal[0]) if len(unequal) else n


def state_bytes(cells: int, caches: Sequence) -> int:
    """The reference's size of a copied sequence: its marks, its cells' positions, and the rows of every layer."""
    rows = sum(2 * (12 + cells * cache.row_bytes) for cache in caches)
    return 24 + 12 * cells + rows


def gives_up(held: np.ndarray, prompt: np.ndarray) -> bool:
    """Whether so little of what a slot holds goes on in the prompt that it is put aside, and a better one sought."""
    similar = _share(common(held, prompt), len(prompt)) if len(held) else np.float32(0)
    if not similar > SIMILAR:
        return True
    return bool(similar * np.float32(len(prompt)) / np.float32(len(held)) < HALF)


def _share(part, whole):
    return np.float32(part) / np.float32(whole)


class PromptCache:
    """Oldest first. limit_mib: of all copies; -1 has no limit. limit_tokens: the context, which bounds the tokens where
    their bytes do not."""

    def __init__(self, limit_mib: int, limit_tokens: int):
        self.limit = max(limit_mib, 0) * MIB
        self.limit_tokens = limit_tokens
        self.entries: list[tuple[State, int]] = []  # and what each takes

    @property
    def bytes(self) -> int:
        """What all entries take."""
        return sum(size for _, size in self.entries)

    @property
    def tokens(self) -> int:
        """Of all entries."""
        return sum(len(state.tokens) for state, _ in self.entries)

    def save(self, tokens: np.ndarray, size: int, copy: Callable[[], State]):
        """Keep a slot's `tokens`, which takes `size` bytes; `copy` is called only where it is to be kept."""
        if any(common(state.tokens, tokens) == len(tokens) for state, _ in self.entries):
            return
        if self.limit and size > self.limit:
            return
        self.entries = [
            (state, taken) for state, taken in self.entries if common(state.tokens, tokens) < len(state.tokens)
        ]
        while self.limit and self.entries and self.bytes + size > self.limit:
            del self.entries[0]
        try:
            self.entries.append((copy(), size))
        except MemoryError:
            self.limit = max(1, int(0.4 * self.bytes))
            self.trim()

    def take(self, prompt: np.ndarray, held: np.ndarray) -> State | None:
        """The entry, taken out, that goes on in `prompt` for longer than what the slot holds, and wastes less."""
        same = common(held, prompt)
        keep = _share(same, len(held)) if len(held) else np.float32(-1)
        similar, best = _share(same, len(prompt)), None
        for i, (state, _) in enumerate(self.entries):
            same = common(state.tokens, prompt)
            its_keep, its_similar = _share(same, len(state.tokens)), _share(same, len(prompt))
            if its_keep >= QUARTER and keep < its_keep and similar < its_similar:
                keep, similar, best = its_keep, its_similar, i
        return None if best is None else self.entries.pop(best)[0]

    def trim(self):
        """Drop the oldest entries beyond the limits: of bytes, and of tokens where those would fit in fewer bytes."""
        while self.limit and self.entries and self.bytes > self.limit:
            del self.entries[0]
        per_token = max(np.float32(1), _share(self.bytes, max(1, self.tokens)))
        most = max(self.limit_tokens, int(np.float32(self.limit) / per_token)) if self.limit else self.limit_tokens
        while self.entries and self.tokens > most:
            del self.entries[0]
