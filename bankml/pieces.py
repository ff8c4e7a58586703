"""The layer pieces, one by one over NumPy arrays: what tests and the curious call; `forward.py` runs them fused.

Each runs the same steps as a whole run, on the pool. All arrays are float32 unless said otherwise.
"""

import numpy as np

from bankml.cpu import pool, products
from bankml.cpu.attention import Kernel


class Pieces:
    """Mixin of `Weights`: needs `pool`, `map`, `plan`, `shape` and `_layers_of`."""

    def embed(self, tokens) -> np.ndarray:
        """Rows of token_embd (inp_embd) for int tokens (n,): (n, n_embd)."""
        tokens = self._ids(tokens)
        return self._run(len(tokens), [(-1, "inp_embd")], "x", tokens=tokens)

    def norm(self, x, name) -> np.ndarray:
        """RMS norm of x (n, n_embd) times the weight `name`, "blk.0.attn_norm" say: (n, n_embd)."""
        layer = int(name.split(".")[1]) if name.startswith("blk.") else self.shape.n_layer
        group, out = {"attn_norm": ("attn_norm", "normed"), "ffn_norm": ("ffn_norm", "normed")}.get(
            name.split(".")[-1], ("result_norm", "result")
        )
        return self._run(len(x), [(layer, group)], out, x=x)

    def quantize(self, x):
        """q8_0 form of x (n, k), k a multiple of 32: int8 (n, k) and float32 scales (n, k/32)."""
        x = np.ascontiguousarray(x, np.float32)
        activation = products.Activation(self.plan.wtype, *x.shape, self.threads)
        ((fill, wait, words),) = activation.fill(x.ctypes.data, x.shape[1], x.strides[0])
        self.pool.run(pool.program((fill, wait, [len(x), *words[1:]])))
        return tuple(part.copy() for part in activation.q8(*x.shape))

    def mv(self, name, x) -> np.ndarray:
        """The matrix `name` times x (k,), by the one-column path: (rows,)."""
        return products.mv(self.pool, self.plan.wtype, self.map.tensor(name), np.ascontiguousarray(x, np.float32))

    def mv_many(self, names, x) -> list[np.ndarray]:
        """`mv` of several matrices."""
        return [self.mv(name, x) for name in names]

    def mm(self, name, x) -> np.ndarray:
        """The matrix `name` times each row of x (n, k), as one product of n columns: (n, rows)."""
        return products.mm(self.pool, self.plan.wtype, self.map.tensor(name), np.ascontiguousarray(x, np.float32))

    def qkv(self, il, caches, normed) -> np.ndarray:
        """Q of layer `il` for normed rows (n, n_embd) at the caches' next positions, heads normed and rotated.

        K and V rows are written behind the cells of the layer's cache, whose length stays. Returns (n, heads * size).
        """
        groups = [(-1, "rope_table"), (il, "attn_norm_q8"), (il, "qkv"), (il, "heads")]
        return self._run(len(normed), groups, "q", caches=caches, normed=normed)

    def attention(self, il, caches, q, kernel: Kernel) -> np.ndarray:
        """Attention of rows q (n, heads * size), of which row i sees the cells up to len(cache) + i: the same shape."""
        return self._run(len(q), [(il, "attention")], "attended", kernel=kernel, caches=caches, q=q)

    def ffn(self, il, x) -> np.ndarray:
        """x (n, n_embd) plus the feed-forward block of its norm: l_out, (n, n_embd)."""
        names = ("ffn_norm", "ffn_norm_q8", "ffn_gate_up", "swiglu", "swiglu_q8", "ffn_down")
        return self._run(len(x), [(il, name) for name in names], "x", x=x)

    def _run(self, n, groups, out, *, kernel=None, caches=None, tokens=None, **given):
        with self._lock:
            layers = self._layers_of(n)
            buffers = layers.buffers
            for name, rows in given.items():
                getattr(buffers, name)[:n] = rows
            program = layers.program(kernel or Kernel.reference())
            position = len(caches[0]) if caches else 0
            buffers.ids[:n] = 0 if tokens is None else tokens
            program.set(n, position, n, caches)
            for il, name in groups:
                self.pool.run(program.group(il, name))
            return getattr(buffers, out)[:n].copy()

    def _ids(self, tokens):
        return np.asarray(tokens, np.int64).reshape(-1)
