"""The layer pieces, one by one over NumPy arrays: what tests and the curious call; `forward.py` runs them fused.

Each runs the same steps as a whole run, on the pool. All arrays are float32 unless said otherwise. Names, layers and
shapes that the model does not have raise UsageError.
"""

import numpy as np

from bankml.blocks import F16, TYPES
from bankml.cpu import pool, products
from bankml.cpu.attention import Kernel
from bankml.errors import UsageError


def rows_of(x, width: int) -> np.ndarray:
    """x as float32 (n, width), contiguous; UsageError where it has another shape. A single row may come alone."""
    x = np.ascontiguousarray(x, np.float32)
    x = x[None] if x.shape == (width,) else x
    if x.ndim != 2 or x.shape[1] != width:
        raise UsageError(f"an array of shape {x.shape}; it takes rows of {width} values")
    return x


class Pieces:
    """Mixin of `Weights`: needs `pool`, `map`, `plan`, `shape`, `_layers_of`, `_alone` and `_room`."""

    def embed(self, tokens) -> np.ndarray:
        """Rows of token_embd (inp_embd) for int tokens (n,): (n, n_embd)."""
        tokens = self._ids(tokens)
        return self._run(len(tokens), [(-1, "inp_embd")], "x", ids=tokens)

    def norm(self, x, name) -> np.ndarray:
        """RMS norm of x (n, n_embd) times the weight `name`, "blk.0.attn_norm" say: (n, n_embd)."""
        groups = {
            f"blk.{il}.{kind}": (il, kind, "normed")
            for il in range(self.shape.n_layer)
            for kind in ("attn_norm", "ffn_norm")
        } | {"output_norm": (self.shape.n_layer, "result_norm", "result")}
        if name not in groups:
            raise UsageError(f"no norm is called {name}; there are {', '.join(list(groups)[:2])}, ... output_norm")
        il, group, out = groups[name]
        x = rows_of(x, self.shape.n_embd)
        return self._run(len(x), [(il, group)], out, x=x)

    def quantize(self, x):
        """q8_0 form of x (n, k), k a multiple of the weights' block: int8 (n, k) and float32 scales (n, k/32)."""
        x, block = np.ascontiguousarray(x, np.float32), TYPES[self.plan.wtype].block_size
        if self.plan.wtype == F16:
            raise UsageError("an F16 model's activations are not quantized")
        if x.ndim != 2 or not x.size or x.shape[1] % block:
            raise UsageError(f"an array of shape {x.shape}; it takes rows of a multiple of {block} values")
        activation = products.Activation(self.plan.wtype, *x.shape, self.threads)
        ((fill, wait, words),) = activation.fill(x.ctypes.data, x.shape[1], x.strides[0])
        with self._alone():
            self.pool.run(pool.program((fill, wait, [len(x), *words[1:]])))
        return tuple(part.copy() for part in activation.q8(*x.shape))

    def mv(self, name, x) -> np.ndarray:
        """The matrix `name` times x (k,), by the one-column path: (rows,)."""
        return self.mm(name, np.asarray(x, np.float32)[None])[0]

    def mv_many(self, names, x) -> list[np.ndarray]:
        """`mv` of several matrices."""
        return [self.mv(name, x) for name in names]

    def mm(self, name, x) -> np.ndarray:
        """The matrix `name` times each row of x (n, k), as one product of n columns: (n, rows)."""
        tensor = self.header.tensors.get(name)
        if tensor is None or tensor.type != self.plan.wtype or len(tensor.dims) != 2:
            raise UsageError(f"this model has no matrix {name}")
        x = rows_of(x, tensor.dims[0])
        with self._alone():
            return products.mm(self.pool, self.plan.wtype, self.map.tensor(name), x)

    def qkv(self, il, caches, normed) -> np.ndarray:
        """Q of layer `il` for normed rows (n, n_embd) at the caches' next positions, heads normed and rotated.

        K and V rows are written behind the cells of the layer's cache, whose length stays. Returns (n, heads * size).
        """
        self._check_layer(il)
        normed = rows_of(normed, self.shape.n_embd)
        groups = [(-1, "rope_table"), (il, "attn_norm_q8"), (il, "qkv"), (il, "heads")]
        return self._run(len(normed), groups, "q", caches=caches, normed=normed)

    def attention(self, il, caches, q, kernel: Kernel) -> np.ndarray:
        """Attention of rows q (n, heads * size), of which row i sees the cells up to len(cache) + i: the same shape."""
        self._check_layer(il)
        q = rows_of(q, self.shape.n_head * self.shape.head_dim)
        return self._run(len(q), [(il, "attention")], "attended", kernel=kernel, caches=caches, q=q)

    def ffn(self, il, x) -> np.ndarray:
        """x (n, n_embd) plus the feed-forward block of its norm: l_out, (n, n_embd)."""
        self._check_layer(il)
        x = rows_of(x, self.shape.n_embd)
        names = ("ffn_norm", "ffn_norm_q8", "ffn_gate_up", "swiglu", "swiglu_q8", "ffn_down")
        return self._run(len(x), [(il, name) for name in names], "x", x=x)

    def _run(self, n, groups, out, *, kernel=None, caches=None, **given):
        """Copy what is `given` into the buffers of those names, run the groups, and copy a buffer's n rows out."""
        if not n:
            raise UsageError("no rows to run")
        with self._alone():
            position = 0 if caches is None else self._room(caches, n)
            layers = self._layers_of(n)
            buffers = layers.buffers
            for name, rows in given.items():
                getattr(buffers, name)[:n] = rows
            program = layers.program(kernel or Kernel.reference(), caches[0].kind.value if caches else "f16")
            program.set(n, position, n, caches)
            for il, name in groups:
                self.pool.run(program.group(il, name))
            return getattr(buffers, out)[:n].copy()

    def _check_layer(self, il):
        if il not in range(self.shape.n_layer):
            raise UsageError(f"no layer {il}; this model has {self.shape.n_layer} layers, counted from 0")

    def _ids(self, tokens) -> np.ndarray:
        """Token ids as an int64 array (n,). Raises UsageError unless there are some, all in the vocabulary."""
        single = tokens[0] if type(tokens) is tuple and len(tokens) == 1 else None
        if type(single) is int and 0 <= single < self.shape.n_vocab:
            return np.array(tokens, np.int64)
        ids = np.asarray(tokens)
        if not ids.size:
            raise UsageError("no tokens to run")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise UsageError(f"tokens of shape {ids.shape} and type {ids.dtype}; it takes a list of whole numbers")
        outside = ids[(ids < 0) | (ids >= self.shape.n_vocab)]
        if len(outside):
            raise UsageError(f"token {outside[0]} is outside the vocabulary of {self.shape.n_vocab}")
        return ids.astype(np.int64)
