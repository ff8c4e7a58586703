"""The slot: one conversation's caches, and which token lies in each of their cells."""

from dataclasses import dataclass

import numpy as np

from bankml.forward import Outputs


@dataclass(frozen=True)
class State:
    """A copy of a slot: `tokens` int32 (n,), `paths` uint8 (n,) of exact.py, each layer's K and V, uint8 (n, bytes)."""

    tokens: np.ndarray
    paths: np.ndarray
    layers: list[tuple[np.ndarray, np.ndarray]]


class Slot:
    """`tokens` are those whose cells the caches hold; `paths` tells how each cell was computed (see exact.py).

    A call that is interrupted may leave a token too many in the list: `settle` takes it out, and begins every turn.
    """

    def __init__(self, weights, caches):
        self.weights, self.caches = weights, caches
        self.tokens: list[int] = []
        self.paths = bytearray()

    def __len__(self):
        return len(self.caches[0])

    def settle(self):
        """No more tokens than cells."""
        n = len(self)
        del self.tokens[n:], self.paths[n:]

    def keep(self, n: int):
        """Keep the first `n` cells."""
        for cache in self.caches:
            cache.truncate(n)
        self.settle()

    def prefill(self, tokens, last: bool):
        """One micro-batch behind what is there; of the `last`, result_norm of its last token, float32 (n_embd,)."""
        outputs = Outputs.LAST if last else Outputs.NONE
        self._append(tokens)
        rows = self.weights.prefill_with(self.caches, tokens, outputs, n_ubatch=len(tokens))
        return rows[-1] if last else None

    def decode(self, token: int) -> np.ndarray:
        """One token behind what is there: its result_norm, float32 (n_embd,)."""
        self._append((token,))
        return self.weights.decode(self.caches, token)

    def path(self, rows: int, cells: int) -> int:
        """How a micro-batch of `rows` whose own cells are the last of `cells` is computed."""
        return self.weights.path(rows, cells, self.caches[0].kind)

    def _append(self, tokens):
        self.tokens += tokens
        self.paths += bytes([self.path(len(tokens), len(self) + len(tokens))]) * len(tokens)

    def state(self) -> State:
        """A copy of all there is."""
        layers = [tuple(part.copy() for part in cache.raw()) for cache in self.caches]
        return State(np.array(self.tokens, np.int32), np.frombuffer(bytes(self.paths), np.uint8), layers)

    def load(self, state: State):
        """Hold what a copy holds, and nothing else."""
        self.keep(0)
        for cache, (k, v) in zip(self.caches, state.layers, strict=True):
            cache.fill(k, v)
        self.tokens, self.paths = state.tokens.tolist(), bytearray(state.paths.tobytes())
