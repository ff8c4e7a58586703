"""Single operations of the reference, each run as a graph on its CPU backend: NumPy arrays in, NumPy arrays out.

Shapes are NumPy's (the reference's dimensions, reversed). `threads` is the reference's own thread count: leave it at 1
(its barriers spin) but where the bits depend on it, as in the split-KV attention.
"""

import ctypes

import numpy as np

from bankml.errors import BankmlError
from bankml.oracle import bindings, library
from bankml.oracle.kernels import as_bytes

TYPES = {"f32": bindings.F32, "f16": bindings.F16, "q8_0": bindings.Q8_0, "q1_0": bindings.Q1_0, "q2_0": bindings.Q2_0}
ROPE_MODES = {"norm": bindings.ROPE_NORM, "neox": bindings.ROPE_NEOX}
KV_PADDING = 256  # the reference looks at its cache in steps of so many cells


class Graph:
    """A graph over NumPy arrays: add leaves, then operations; `run` gives the last one's values."""

    def __init__(self):
        self.api = library.load().api
        self.context = self.api.ggml_init(bindings.InitParams(1 << 20, None, True))
        self.alive = []  # arrays that the context points into

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.api.ggml_free(self.context)

    def leaf(self, array: np.ndarray, kind: str = "f32", k: int | None = None):
        """A tensor over `array` (up to four axes); for blocks, the last axis holds k values."""
        array = np.ascontiguousarray(array)
        shape = array.shape if k is None else (*array.shape[:-1], k)
        tensor = self.api.ggml_new_tensor_4d(self.context, TYPES[kind], *_dimensions(shape))
        assert self.api.ggml_nbytes(tensor) == array.nbytes, (shape, kind, array.nbytes)
        return self._place(tensor, array)

    def indices(self, array):
        """A one-dimensional int32 tensor."""
        array = np.ascontiguousarray(array, np.int32)
        return self._place(self.api.ggml_new_tensor_4d(self.context, bindings.I32, len(array), 1, 1, 1), array)

    def operation(self, name: str, *arguments):
        """The tensor of ggml_<name>(context, *arguments), with memory of its own."""
        tensor = getattr(self.api, f"ggml_{name}")(self.context, *arguments)
        return self._place(tensor, np.zeros(self.api.ggml_nbytes(tensor), np.uint8))

    def permute(self, tensor, *axes):
        """A view of `tensor` with its axes (the reference's, innermost first) moved."""
        return self.api.ggml_permute(self.context, tensor, *axes)

    def run(self, tensor, threads: int) -> np.ndarray:
        """Compute `tensor` (float32); returns it flat."""
        graph = self.api.ggml_new_graph(self.context)
        self.api.ggml_build_forward_expand(graph, tensor)
        plan = self.api.ggml_graph_plan(graph, threads, None)
        work = np.empty(plan.work_size + 64, np.uint8)
        plan.work_data = work.ctypes.data + -work.ctypes.data % 64
        if status := self.api.ggml_graph_compute(graph, ctypes.byref(plan)):
            raise BankmlError(f"the reference's graph failed with status {status}")
        return next(array for held, array in self.alive if held is tensor).view(np.float32)

    def _place(self, tensor, array):
        tensor.contents.data = array.ctypes.data
        self.alive.append((tensor, array))
        return tensor


def _dimensions(shape):
    """The reference's four dimensions, innermost first, of a NumPy shape."""
    return *reversed(shape), *[1] * (4 - len(shape))


def mul_mat(kind: str, weights: np.ndarray, activations: np.ndarray, threads: int = 1) -> np.ndarray:
    """weights (rows, ...) of type `kind` times float32 activations (columns, k) -> float32 (columns, rows).

    For f16 the column count decides the kernel: one column takes vec_dot, two or more may take the tiled product.
    """
    columns, k = activations.shape
    with Graph() as graph:
        w = graph.leaf(as_bytes(weights), kind, k)
        product = graph.operation("mul_mat", w, graph.leaf(np.asarray(activations, np.float32)))
        return graph.run(product, threads).reshape(columns, len(weights))


def get_rows(kind: str, table: np.ndarray, ids, k: int) -> np.ndarray:
    """Rows `ids` of a table (rows, ...) of type `kind`, dequantized -> float32 (len(ids), k)."""
    with Graph() as graph:
        rows = graph.operation("get_rows", graph.leaf(as_bytes(table), kind, k), graph.indices(ids))
        return graph.run(rows, 1).reshape(-1, k)


def rms_norm_mul(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm over the last axis of x, float32 (..., n), times weight (n,)."""
    with Graph() as graph:
        normed = graph.operation("rms_norm", graph.leaf(np.asarray(x, np.float32)), eps)
        scaled = graph.operation("mul", normed, graph.leaf(np.asarray(weight, np.float32)))
        return graph.run(scaled, 1).reshape(x.shape)


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b, float32 of one shape."""
    with Graph() as graph:
        total = graph.operation("add", graph.leaf(np.asarray(a, np.float32)), graph.leaf(np.asarray(b, np.float32)))
        return graph.run(total, 1).reshape(a.shape)


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu(gate) * up, float32 (rows, n)."""
    with Graph() as graph:
        pair = [graph.leaf(np.asarray(half, np.float32)) for half in (gate, up)]
        return graph.run(graph.operation("swiglu_split", *pair), 1).reshape(gate.shape)


def rope(
    x: np.ndarray,
    positions,
    *,
    mode: str,
    n_ctx_orig: int = 4096,
    freq_base: float = 1e6,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> np.ndarray:
    """Rotary embedding of x, float32 (tokens, heads, head size), at `positions` (tokens,); mode "norm" or "neox".

    YaRN with factor f is freq_scale = 1/f, ext_factor = 1 and `yarn_attn_factor(f)`.
    """
    with Graph() as graph:
        leaf, places = graph.leaf(np.asarray(x, np.float32)), graph.indices(positions)
        numbers = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
        turned = graph.operation("rope_ext", leaf, places, None, x.shape[-1], ROPE_MODES[mode], n_ctx_orig, *numbers)
        return graph.run(turned, 1).reshape(x.shape)


def yarn_attn_factor(factor: float) -> float:
    """The attn_factor a llama_context passes on for YaRN: its magnitude, divided by what rope_ext multiplies again.

    Both in float32, as llama-context.cpp has them, with libm's logf.
    """
    logf = ctypes.CDLL("libm.so.6").logf
    logf.restype, logf.argtypes = ctypes.c_float, [ctypes.c_float]
    inverse = np.float32(1.0) / (np.float32(1.0) / np.float32(factor))
    tenth, one = np.float32(0.1), np.float32(1.0)
    magnitude = tenth * np.float32(logf(inverse)) + one
    return float(magnitude * (one / (one + tenth * np.float32(logf(inverse)))))


def causal_mask(tokens: int, cells: int) -> np.ndarray:
    """The mask of the last `tokens` of `cells` cells: float16 (tokens, padded cells), 0 where visible, else -inf."""
    visible = np.arange(cells - tokens, cells)[:, None] >= np.arange(padded(cells))[None, :]
    return np.where(visible, np.float16(0), np.float16(-np.inf))


def padded(cells: int) -> int:
    """The cells the reference looks at: a multiple of 256, at least 256."""
    return max(1, -(-cells // KV_PADDING)) * KV_PADDING


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float | None = None,
    threads: int = 1,
    kind: str = "f16",
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Flash attention of the last rows of a sequence, as the llama graph builds it over its cache.

    q float32 (tokens, heads, head size); k and v f16 bits (cells, kv heads, head size), or q8_0 bytes with kind="q8_0";
    the tokens' own cells are the last ones. The cache is padded with zeros to a multiple of 256 cells, and the mask is
    causal unless given. scale: 1/sqrt(head size) if None. Returns float32 (tokens, heads, head size).
    The reference chooses its kernel: split-KV for one token and 512 padded cells or more, one chunk per thread; tiled
    for 64 tokens or more; else the plain one.
    """
    tokens, _, size = q.shape
    mask = causal_mask(tokens, len(k)) if mask is None else mask
    scale = float(np.float32(1.0) / np.sqrt(np.float32(size))) if scale is None else scale
    with Graph() as graph:
        query = graph.permute(graph.leaf(np.asarray(q, np.float32)), 0, 2, 1, 3)
        cache = [_cache_leaf(graph, side, kind, size) for side in (k, v)]
        bits = graph.leaf(np.ascontiguousarray(mask), "f16")
        out = graph.operation("flash_attn_ext", query, *cache, bits, scale, 0.0, 0.0)
        graph.api.ggml_prec_set_acc(out, bindings.PREC_F32)
        return graph.run(out, threads).reshape(q.shape)


def _cache_leaf(graph, side, kind, size):
    """One side of the cache (cells, kv heads, ...), padded, as the graph's (kv heads, cells, head size) view."""
    fill = np.zeros((padded(len(side)) - len(side), *side.shape[1:]), side.dtype)
    cells = np.concatenate([side, fill])
    tensor = graph.leaf(cells, kind, size)
    return graph.permute(tensor, 0, 2, 1, 3)


def fwht(x: np.ndarray, n: int) -> np.ndarray:
    """The Walsh-Hadamard transform of each n values of x, float32: the product that a hint turns into one.

    The matrix is not looked at then, so it is left empty.
    """
    with Graph() as graph:
        rows = graph.leaf(np.asarray(x, np.float32).reshape(-1, n))
        product = graph.operation("mul_mat", graph.leaf(np.zeros((n, n), np.float32)), rows)
        graph.api.ggml_mul_mat_set_hint(product, bindings.HINT_HADAMARD)
        return graph.run(product, 1).reshape(x.shape)


def rotated_attention(q, k, v, *, rot_k: int, rot_v: int, threads: int = 1) -> np.ndarray:
    """`attention` over q8_0 cells that hold rotated K and V: Q is rotated before and the result after, as in the graph.

    rot_k, rot_v: values in a block of the rotations, 0 for none.
    """
    q = fwht(q, rot_k) if rot_k else q
    out = attention(q, k, v, kind="q8_0", threads=threads)
    return fwht(out, rot_v) if rot_v else out
