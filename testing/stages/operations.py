"""The stages of single operations: each case of tests/inputs.py, live on the reference and by the kernels."""

import itertools
from dataclasses import replace

import numpy as np

from testing.stages import engine, expected
from testing.stages.stage import Count, Given, Stage, rows, stages, total, values
from tests import inputs, models
from tests.cpu.test_norm import rows_on_the_edge

KINDS = ("q1_0", "q2_0", "f16")
SMALL = [name for name, shape in models.MODELS.items() if shape.layers > 1 and shape.vocab < 100_000]
HEAD = 128  # values
PROMPT = 28  # tokens, positions 0 to 27
FAR = np.linspace(7, 63_214, 140).astype(np.int64)  # positions


def _cases(cases, count=rows) -> Count:
    """Every case asked of both sides."""
    with engine.Operations() as ours:
        return total(count(str(case), inputs.expected(case), ours.answer(case)) for case in cases)


def _thinned(cases, given: Given, step=5):
    return list(cases)[::step] if given.quick else cases


def _models(given: Given):
    """(name, path) of the small models; two of a quick run."""
    for name in SMALL[::5] if given.quick else SMALL:
        yield name, expected.model_file(name, given.folder)


def embed_and_norm(given: Given) -> Count:
    """Embedding rows of the three types, norms of every width, and the first norm of whole graphs."""
    counts = _cases(case for kind in KINDS for case in inputs.get_rows_cases(kind))
    counts += _cases(inputs.norm_cases()) + _cases(_norms_on_the_edge())
    return counts + _pieces(given, ("inp_embd", "attn_norm"), layer=0)


def _norms_on_the_edge():
    """Rows whose mean square lies where the order of adding the squares decides how it is rounded."""
    for width in (64, 70, 128, 576, 1000):
        yield _norm_case(f"edge-{width}", rows_on_the_edge(width))
    x = np.zeros((2, 64), np.float32)
    x[:, :2], x[:, 2:4] = 8, 2.0**-9  # 64 * (2 + 2^-23): in the middle between two float32
    x[0, 4], x[1, 4:] = 2.0**-22, 2.0**-24  # above it by the last bit; above it only if added to each other first
    yield _norm_case("middle", x)


def _norm_case(name, x):
    weight = inputs.Source(name).bell(x.shape[1])
    return inputs.Case("rms_norm_mul", name, lambda source: {"x": x, "weight": weight, "eps": 0.0})


def _pieces(given, names, layer) -> Count:
    """Tensors of a layer in whole graphs: a prompt of 28 tokens."""
    counts = Count()
    for name, path in _models(given):
        shape = models.MODELS[name]
        tokens = models.prompt(name, PROMPT, shape.vocab)
        with expected.reference_model(path, n_ctx=256) as model:
            want = expected.pieces(model, tokens, shape, layer)
        with engine.opened(path) as weights:
            got = engine.pieces(weights, tokens, layer)
        counts += total(rows(f"{name}: {piece}", want[piece], got[piece]) for piece in names)
    return counts


def qkv_and_rope(given: Given) -> Count:
    """Q, K and V of whole graphs at positions 0 to 27; matrix, head norm and RoPE at positions 7 to 63,214."""
    counts = _pieces(given, ("Q", "K", "V"), layer=0) + _pieces(given, ("Q", "K", "V"), layer=1)
    return counts + _cases(_thinned(inputs.rope_cases(), given)) + _far_positions()


def _far_positions() -> Count:
    """Rows through a matrix, a head norm and RoPE at positions far from the start, by type, mode and scaling."""
    counts = Count()
    with engine.Operations() as ours:
        for kind, mode, factor in itertools.product(KINDS, ("neox", "norm"), (0.0, 4.0)):
            name = f"{kind} {mode} factor {factor:g}"
            source = inputs.Source(name)
            weights, x = source.weights(kind, "random", 2 * HEAD, 256), source.bell(len(FAR), 256)
            norm = source.bell(HEAD) / np.float32(4) + np.float32(1)
            rope = {"mode": mode, "freq_base": 1e6, "n_ctx_orig": 16384}
            if factor:
                rope |= {"freq_scale": 1 / factor, "ext_factor": 1.0}
            given = (kind, weights, x, norm, 1e-6, FAR, rope)
            counts += rows(name, expected.projected(*given), ours.projected(*given))
    return counts


def swiglu_sweep(given: Given) -> Count:
    """Gates from -128 to 128 in steps of 1/192, the ends of its exp, widths that are no whole vectors."""
    return _cases(inputs.swiglu_cases(), values)


def attention(kernel):
    """The stage of one kernel: the shapes for which the reference takes it, then l_out of whole graphs."""

    def run(given: Given) -> Count:
        return _cases(_thinned(inputs.attention_cases(kernel), given)) + _l_out(given, kernel)

    return run


_RUNS = {  # kernel -> runs of whole graphs that go through it
    "reference": (models.Run(PROMPT, "all"),),
    "tiled": (models.Run(150, "all"),),
    "split": (models.Run(256, "none", 14, 3), models.Run(986, "none", 14, 4)),
}
_SPLIT_MODELS = [name for name in models.MODELS if name.startswith("split-")]


def _l_out(given, kernel) -> Count:
    """Every layer's rows of whole graphs through the kernel; the split ones are small, for more threads than cores."""
    named = [(name, expected.model_file(name, given.folder)) for name in _SPLIT_MODELS]
    counts = Count()
    for name, path in named if kernel == "split" else _models(given):
        with expected.reference_model(path, n_ctx=models.CONTEXT) as model, engine.opened(path) as weights:
            for run in _RUNS[kernel]:
                tokens = run.tokens(name)
                want = models.joined(expected.run_stages(model, *tokens, run))
                got = models.joined(engine.run_stages(weights, *tokens, run))
                counts += stages(f"{name}, {run}", want.items(), ((stage, got[stage]) for stage in want))
    return counts


def products(kind):
    """The stage of a weight type: every shape a product may have, then single dots with any quants."""

    def run(given: Given) -> Count:
        cases = inputs.product_cases(kind, large=not given.quick)
        return _cases(_thinned(cases, given), values) + _cases(inputs.dot_cases(kind), values)

    return run


def q8_0_kernels(given: Given) -> Count:
    """Rows to q8_0 and products of q8_0 rows: any float, any quants, saturating ones among them; then the cases."""
    x, a, b = expected.any_rows(), *(expected.any_blocks(side) for side in "ab")
    k = x.shape[1]
    with engine.Operations() as ours:
        quantized = rows("any rows", expected.quantized(x), ours.quantize(x))
        dots = rows("any blocks", expected.row_pairs(a, b, k)[:, None], engine.row_pairs(a, b, k)[:, None])
        for case in inputs.quantize_cases():
            given_rows, want = case.inputs()["x"], inputs.expected(case)
            quantized += rows(str(case), want, ours.quantize(given_rows))
            quantized += rows(f"{case} as an activation", want, ours.quantized_activation(given_rows))
    dots += _cases(inputs.dot_cases("q8_0"), values)
    return (quantized + dots).told(rows=quantized.total, dots=dots.total)


def q8_0_attention(given: Given) -> Count:
    """Hadamard rotations, and attention over q8_0 cells."""
    return _cases(inputs.fwht_cases()) + _cases(_thinned(inputs.rotated_attention_cases(), given))


def _stage(name, what, run, least=1, unit="rows", **more) -> Stage:
    return Stage(name, f"shipped library: {what}", unit, run, 5, least, **more)


SPLIT = "flash_attn_ext, one row of 257 to 1,100 cells, 1 to 4 threads; l_out of graphs"
STAGES = (
    _stage("embed and norm", "get_rows, rms_norm, mul; inp_embd and attn_norm of graphs", embed_and_norm, 300),
    _stage("q, k, v and rope", "Q, K, V of graphs at 0 to 27; rope_ext, positions to 63,214", qkv_and_rope, 140),
    _stage("swiglu sweep", "swiglu_split, gates from -128 to 128", swiglu_sweep, 24_600, "values"),
    _stage("attention reference", "flash_attn_ext, 1 to 63 rows; l_out of graphs", attention("reference"), 112),
    _stage("attention tiled", "flash_attn_ext, 64 rows or more; l_out of graphs", attention("tiled"), 150),
    replace(_stage("attention split", SPLIT, attention("split"), 14, alone=True), seconds=30),
    *(_stage(f"{kind} products", "mul_mat, vec_dot with any quants", products(kind), unit="values") for kind in KINDS),
    _stage("q8_0 kernels", "quantize_row, vec_dot; saturating ones", q8_0_kernels, 8_000, "rows and dots"),
    _stage("q8_0 attention", "Hadamard rotation, flash_attn_ext over q8_0 cells", q8_0_attention),
)
