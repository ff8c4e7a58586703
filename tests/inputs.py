"""The inputs of every comparison with the reference: live tests, golden tests and recorders build the same cases here.

A `Case` names one operation and makes its arrays from its own name, with exact arithmetic only (integers, powers of
two, single roundings), so that they are the same bytes on every machine. `expected(case)` asks the reference;
`testing/record_kernels.py` keeps its answer's hash for the tests that run without the library.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bankml.oracle.record import digest

BLOCKS = {"q8_0": (32, 34), "q1_0": (128, 18), "q2_0": (64, 18), "f16": (1, 2)}  # values and bytes of a block
DATA = ("random", "wide", "zero", "denormal", "ties")
LARGEST_POSITION = 63_000


class Source:
    """Seeded numbers from a name; the stream is NumPy's frozen one."""

    def __init__(self, name: str):
        seed = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint32)
        self.state = np.random.RandomState(seed)

    def integers(self, low: int, high: int, shape) -> np.ndarray:
        """int64 in [low, high)."""
        return self.state.randint(low, high, shape, dtype=np.int64)

    def raw(self, *shape) -> np.ndarray:
        """Random bytes."""
        return self.state.randint(0, 256, shape, dtype=np.uint8)

    def bell(self, *shape) -> np.ndarray:
        """float32 of mean 0 and deviation 1, near enough to normal: the sum of four 16-bit integers."""
        total = self.state.randint(0, 65536, (4, *shape), dtype=np.int64).sum(0) - 131070
        return total.astype(np.float32) / np.float32(37837)

    def values(self, data: str, *shape) -> np.ndarray:
        """float32 activations of a kind of DATA."""
        x = self.bell(*shape)
        if data == "wide":
            return np.ldexp(x, self.integers(-24, 13, shape)).astype(np.float32)
        if data == "zero":  # whole zero blocks of 32, then zeros of both signs inside others
            x[..., : max(1, shape[-1] // 2) // 32 * 32] = 0
            return np.where(self.integers(0, 3, shape) == 0, np.copysign(np.float32(0), x), x)
        if data == "denormal":  # f32 denormals and what becomes an f16 denormal, beside values that are neither
            return np.ldexp(x, self.integers(-149, -10, shape)).astype(np.float32)
        if data == "ties":  # halves that a quantizer must round to even: the first of each 32 is 127
            x = self.integers(-254, 255, shape).astype(np.float32) / np.float32(2)
            x[..., ::32] = 127
        return x

    def scales(self, data: str, *shape) -> np.ndarray:
        """float16 block scales of a kind of DATA, some negative where data is wide."""
        d = np.abs(self.bell(*shape)) * np.float32(0.0625) + np.float32(0.0078125)
        if data == "wide":
            d = np.ldexp(self.bell(*shape), self.integers(-16, 5, shape))
        d = d.astype(np.float16)
        if data == "zero":
            d[self.integers(0, 2, shape) == 0] = 0
        if data == "denormal":
            d = self.integers(0, 1024, shape).astype(np.uint16).view(np.float16)
        return d

    def weights(self, kind: str, data: str, rows: int, k: int) -> np.ndarray:
        """uint8 (rows, bytes): weight rows of k values of type `kind`, of a kind of DATA."""
        values, size = BLOCKS[kind]
        assert k % values == 0
        if kind == "f16":
            return self.values(data, rows, k).astype(np.float16).view(np.uint8).reshape(rows, -1)
        blocks = self.raw(rows, k // values, size)
        blocks[..., :2] = self.scales(data, rows, k // values)[..., None].view(np.uint8)
        return blocks.reshape(rows, -1)

    def minus_128(self, rows: int, k: int) -> np.ndarray:
        """uint8 (rows, bytes): q8_0 rows that hold -128, which the quantizer makes only beside a zero scale."""
        blocks = self.weights("q8_0", "random", rows, k).reshape(rows, k // 32, 34)
        blocks[..., 2:][self.integers(0, 3, (rows, k // 32, 32)) == 0] = 128
        return blocks.reshape(rows, -1)


@dataclass(frozen=True)
class Case:
    """One comparison: `operation` on what `build` makes of a Source seeded with the case's name."""

    operation: str
    name: str
    build: Callable[[Source], dict] = field(repr=False, compare=False)

    def __str__(self):
        return f"{self.operation}-{self.name}"

    def inputs(self) -> dict:
        """The operation's arguments by name: arrays and numbers."""
        return self.build(Source(str(self)))


def input_digest(case: Case) -> str:
    """A digest of everything a case hands to its operation."""
    inputs = case.inputs()
    parts = [f"{name}={value}".encode() for name, value in inputs.items() if not isinstance(value, np.ndarray)]
    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    return digest(np.frombuffer(b" ".join(parts), np.uint8), *arrays)


def expected(case: Case) -> np.ndarray:
    """The reference's answer to a case, on the live library."""
    from bankml.oracle import graph, kernels

    inputs = case.inputs()
    modules = (kernels, graph)
    return next(getattr(module, case.operation) for module in modules if hasattr(module, case.operation))(**inputs)


# -- kernels --------------------------------------------------------------------------------------------------------


def quantize_cases() -> Iterator[Case]:
    """float32 rows -> q8_0: `x` (5, k)."""
    for data in DATA:
        for k in (32, 128, 576, 2048, 12288):
            yield Case("quantize", f"q8_0-{data}-{k}", lambda s, data=data, k=k: {"x": s.values(data, 5, k)})


def dot_cases(kind: str) -> Iterator[Case]:
    """Single vec_dots: `weights` (7, bytes), `activations` (3, bytes) as q8_0 (halves for f16), `k`."""
    ks = {"q1_0": (128, 256, 2048), "f16": (32, 64, 100, 31, 576, 2048)}.get(kind, (64, 128, 576, 2048))
    for data in (*DATA, *([] if kind == "f16" else ["minus128"])):
        for k in (*ks, 12288):
            yield Case("dot", f"{kind}-{data}-{k}", lambda s, data=data, k=k: _dot_inputs(s, kind, data, k))


def _dot_inputs(source, kind, data, k):
    weights = source.weights(kind, "random" if data == "minus128" else data, 7, k)
    if data == "minus128":
        activations = source.minus_128(3, k)
    else:
        activations = source.weights("f16" if kind == "f16" else "q8_0", data, 3, k)
    return {"kind": kind, "weights": weights, "activations": activations, "k": k}


# rows, columns, k of the products every weight type is tried with; a type takes those whose k is whole blocks
_SHAPES = (
    *((rows, columns, 256) for rows in range(1, 41) for columns in (1, 3)),
    *((40, columns, 256) for columns in (2, *range(4, 18), 33, 64, 65)),
    *((32, columns, k) for k in (128, 384, 576, 1024, 1536, 2048, 6144, 12288) for columns in (1, 2, 9)),
    (4099, 1, 256),
    (4099, 2, 576),
    (4099, 3, 256),
    (4100, 2, 256),
)
_LARGE = ((151_669, 1, 128), (151_669, 2, 128))


def product_cases(kind: str, *, large: bool = True) -> Iterator[Case]:
    """Matrix products: `weights` (rows, bytes) of type `kind` times float32 `activations` (columns, k)."""
    for rows, columns, k in (*_SHAPES, *(_LARGE if large else ())):
        if k % BLOCKS[kind][0] == 0:
            yield _product_case(kind, "random", rows, columns, k)
    for data in DATA[1:]:
        for rows, columns, k in ((40, 1, 256), (40, 5, 256), (19, 1, 2048), (19, 12, 2048)):
            yield _product_case(kind, data, rows, columns, k)
    if kind == "f16":  # k with a tail
        for k in (8, 24, 40, 100, 31):
            for columns in (1, 2, 5):
                yield _product_case(kind, "random", 16, columns, k)


def _product_case(kind, data, rows, columns, k):
    def build(source):
        weights = source.weights(kind, data, rows, k)
        return {"kind": kind, "weights": weights, "activations": source.values(data, columns, k)}

    return Case("mul_mat", f"{kind}-{data}-{rows}x{columns}x{k}", build)


def get_rows_cases(kind: str) -> Iterator[Case]:
    """Embedding rows: `table` (rows, bytes), `ids`, `k`."""
    for data in ("random", "denormal", "wide"):
        yield Case(
            "get_rows",
            f"{kind}-{data}",
            lambda s, data=data: {
                "kind": kind,
                "table": s.weights(kind, data, 40, 384),
                "ids": s.integers(0, 40, 60).astype(np.int32),
                "k": 384,
            },
        )


def half_cases() -> Iterator[Case]:
    """f16 conversions: all 65,536 halves, and float32 of every exponent (ties and NaN left out)."""
    yield Case("from_f16", "all", lambda s: {"halves": np.arange(65536, dtype=np.uint16)})
    yield Case("to_f16", "all", lambda s: {"x": np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)})
    yield Case("to_f16", "ties", lambda s: {"x": _half_ties()})
    yield Case("to_f16", "any", lambda s: {"x": _not_nan(s.raw(1 << 18).view(np.float32))})


def _half_ties():
    """float32 exactly between two neighbouring finite halves, both signs."""
    halves = np.arange(0x7BFF, dtype=np.uint16)
    low, high = (bits.view(np.float16).astype(np.float32) for bits in (halves, halves + np.uint16(1)))
    middle = (low + high) / np.float32(2)
    return np.concatenate([middle, -middle])


def _not_nan(x):
    return np.where(np.isnan(x), np.float32(1), x)


# -- operations -----------------------------------------------------------------------------------------------------


def norm_cases() -> Iterator[Case]:
    """RMS norm times weight: `x` (rows, n), `weight` (n,), `eps`."""
    for n in (64, 128, 256, 576, 2048, 4096, 12288):
        for data in DATA:
            for eps in (1e-5, 1e-6):
                yield Case(
                    "rms_norm_mul",
                    f"{data}-{n}-{eps:g}",
                    lambda s, n=n, data=data, eps=eps: {
                        "x": s.values(data, 6, n),
                        "weight": s.bell(n) / np.float32(4) + np.float32(1),
                        "eps": eps,
                    },
                )


def rope_cases() -> Iterator[Case]:
    """Rotary embedding: `x` (tokens, heads, head size), `positions`, and the parameters of graph.rope."""
    positions = {
        "first": np.arange(28),
        "far": np.arange(7, LARGEST_POSITION + 1, 499),
        "last": np.arange(LARGEST_POSITION - 20, LARGEST_POSITION + 1),
    }
    yarns = {"plain": None, "yarn4": (4.0, 16384), "yarn2.5": (2.5, 1024)}
    for mode in ("neox", "norm"):
        for size in (64, 128, 32):
            for base in (1e4, 1e6):
                for label, yarn in yarns.items():
                    for where, places in positions.items():
                        name = f"{mode}-{size}-{base:g}-{label}-{where}"
                        yield Case("rope", name, lambda s, a=(mode, size, base, yarn, places): _rope_inputs(s, *a))


def _rope_inputs(source, mode, size, base, yarn, positions):
    inputs = {"x": source.bell(len(positions), 3, size), "positions": positions.astype(np.int32), "mode": mode}
    inputs["freq_base"] = base
    if yarn:
        factor, context = yarn
        inputs |= {"freq_scale": float(np.float32(1) / np.float32(factor)), "ext_factor": 1.0, "n_ctx_orig": context}
    return inputs


def swiglu_cases() -> Iterator[Case]:
    """silu(gate) * up: `gate` and `up` (rows, n); the sweep has 49,152 gates from -128 to 128, and the ends of exp."""
    sweep = (np.arange(49152, dtype=np.float32) - np.float32(24576)) / np.float32(192)
    yield Case("swiglu", "sweep", lambda s: {"gate": sweep.reshape(48, 1024), "up": s.bell(48, 1024)})
    for data in DATA:
        for n in (1024, 37, 8, 3):
            yield Case(
                "swiglu", f"{data}-{n}", lambda s, d=data, n=n: {"gate": s.values(d, 5, n), "up": s.values(d, 5, n)}
            )
    ends = np.array([88, 87.33, 104, 103.97, 126, 192, 1000, 3e38, 1e-45, 1e-38, 0], np.float32)
    gates = np.concatenate([side * np.nextafter(ends, way) for side in (1, -1) for way in np.float32([0, 1e3])])
    yield Case("swiglu", "ends", lambda s: {"gate": gates[None], "up": s.bell(1, len(gates))})


def attention_cases(kernel: str) -> Iterator[Case]:
    """Flash attention: `q` (tokens, heads, size), `k` and `v` f16 bits (cells, kv heads, size), `threads`.

    kernel: "reference", "tiled" or "split"; each lists the shapes for which the reference takes that one.
    """
    for ratio in range(1, 9):
        for size in (64, 128):
            for tokens, cells, threads in dict.fromkeys(_ATTENTION[kernel](ratio)):
                yield _attention_case(kernel, "random", tokens, cells, ratio, size, threads)
    for tokens, cells, threads in dict.fromkeys(_ATTENTION[kernel](1)):
        yield _attention_case(kernel, "peaked", tokens, cells, 2, 64, threads)


_ATTENTION = {  # kernel -> GQA ratio -> (tokens, cells, threads), small for most ratios
    "reference": lambda ratio: (
        *((1, 1 + 31 * ratio, 1), (2, 255 + ratio, 1), (5, 300, 1)),
        *([(1, 1, 1), (1, 256, 1), (2, 2, 1), (63, 63, 1), (63, 700, 1), (20, 1100, 1)] if ratio in (1, 3) else []),
    ),
    "tiled": lambda ratio: (
        (64, 63 + ratio, 1),
        (65, 200 + 13 * ratio, 1),
        *([(64, 64, 1), (100, 513, 1), (257, 257, 1), (128, 1100, 1)] if ratio in (1, 3) else []),
    ),
    "split": lambda ratio: (
        *((1, 257, 1), (1, 500 + 31 * ratio, 1 + ratio % 4)),
        *([(1, cells, threads) for cells in (257, 512, 513, 1100) for threads in (1, 2, 3, 4)] if ratio == 1 else []),
    ),
}


def _attention_case(kernel, data, tokens, cells, ratio, size, threads):
    def build(source):
        gain = np.float32(1 if data == "random" else 6)
        sides = [source.bell(cells, 2, size).astype(np.float16).view(np.uint16) for _ in "kv"]
        return {"q": source.bell(tokens, 2 * ratio, size) * gain, "k": sides[0], "v": sides[1], "threads": threads}

    return Case("attention", f"{kernel}-{data}-{tokens}of{cells}-gqa{ratio}-{size}-t{threads}", build)


def fwht_cases() -> Iterator[Case]:
    """Walsh-Hadamard transforms: `x` (rows, width) in blocks of `n`."""
    for data in DATA:
        for n in (64, 128, 256, 512):
            yield Case("fwht", f"{data}-{n}", lambda s, d=data, n=n: {"x": s.values(d, 5, 3 * n), "n": n})


_ROTATIONS = {32: (0, 0), 64: (64, 64), 96: (0, 0), 128: (128, 64), 192: (64, 64), 256: (256, 64)}  # head size -> K, V


def rotated_attention_cases() -> Iterator[Case]:
    """Attention over q8_0 cells: `q` (tokens, heads, size), `k`, `v` bytes (cells, kv heads, ..), the rotations."""
    for ratio in range(1, 9):
        for size in (64, 128):
            for tokens, cells in (
                (1, 1 + 61 * ratio),
                (3, 255 + ratio),
                *([(66, 520), (1, 1100)] if ratio < 4 else []),
            ):
                yield _rotated_attention_case("random", tokens, cells, ratio, size)
    for size in (32, 96, 192, 256):
        for tokens, cells, ratio in ((1, 1, 1), (2, 64, 2), (1, 65, 1), (5, 700, 3)):
            yield _rotated_attention_case("random", tokens, cells, ratio, size)
    for data in ("peaked", "wide", "denormal", "zero", "minus128"):
        for tokens, cells, ratio, size in ((1, 300, 2, 64), (4, 130, 1, 128), (2, 129, 3, 32)):
            yield _rotated_attention_case(data, tokens, cells, ratio, size)


def _rotated_attention_case(data, tokens, cells, ratio, size):
    def build(source):
        gain = np.float32(6 if data == "peaked" else 1)
        cached = [_q8_0_cells(source, data, cells, size) for _ in "kv"]
        q = source.bell(tokens, 2 * ratio, size) * gain
        return {"q": q, "k": cached[0], "v": cached[1], "rot_k": _ROTATIONS[size][0], "rot_v": _ROTATIONS[size][1]}

    return Case("rotated_attention", f"q8_0-{data}-{tokens}of{cells}-gqa{ratio}-{size}", build)


def _q8_0_cells(source, data, cells, size):
    """uint8 (cells, 2 KV heads, bytes); scales near 1/64, so that values are near 1."""
    if data == "minus128":
        rows = source.minus_128(2 * cells, size)
    else:
        rows = source.weights("q8_0", "random" if data == "peaked" else data, 2 * cells, size)
    blocks = rows.reshape(2 * cells, -1, 34)
    if data in ("random", "peaked"):
        d = source.scales("random", 2 * cells, size // 32) / np.float16(4)
        blocks[..., :2] = d[..., None].view(np.uint8)
    return blocks.reshape(cells, 2, -1)


def all_cases() -> Iterator[Case]:
    """Every kernel and operation case."""
    yield from quantize_cases()
    yield from half_cases()
    for kind in ("q1_0", "q2_0", "q8_0", "f16"):
        yield from dot_cases(kind)
    for kind in ("q1_0", "q2_0", "f16"):
        yield from product_cases(kind)
        yield from get_rows_cases(kind)
    yield from norm_cases()
    yield from rope_cases()
    yield from swiglu_cases()
    for kernel in _ATTENTION:
        yield from attention_cases(kernel)
    yield from fwht_cases()
    yield from rotated_attention_cases()
