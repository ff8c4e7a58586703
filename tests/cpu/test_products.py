"""Matrix products: fast == plain twin == reference, on bits, at every level."""

import numpy as np
import pytest

from bankml.blocks import F16, Q1_0, Q1_0_BLOCK, Q2_0, Q2_0_BLOCK
from bankml.cpu import f16, products, q1_0, q2_0
from bankml.cpu.pool import ARGUMENTS, Pool, program
from tests import inputs
from tests.cpu.levels import OTHER_LEVELS, rerun_at, rerun_without_extras

KINDS = {"q1_0": Q1_0, "q2_0": Q2_0, "f16": F16}
PRODUCTS = [case for kind in KINDS for case in inputs.product_cases(kind, large=False)]
LARGE = [case for kind in KINDS for case in inputs.product_cases(kind) if "151669x" in case.name]
DOTS = [case for kind in KINDS for case in inputs.dot_cases(kind)]


@pytest.fixture(scope="module")
def pool():
    pool = Pool(2)
    yield pool
    pool.close()


def same(got, want):
    """Whether two float32 arrays have the same bits."""
    return got.shape == want.shape and (got.view("u4") == want.view("u4")).all()


def quants_and_scales(rows):
    """uint8 (n, bytes) of q8_0 -> int8 (n, k), float32 (n, k/32)."""
    blocks = rows.reshape(len(rows), -1, 34)
    d = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0].astype(np.float32)
    return np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(len(rows), -1), d


def dots(pool, kind, weights, activations, k):
    """What the single vec_dots of a case should give, by the mat-vec kernels: float32 (columns, rows)."""
    if kind == "f16":
        columns = activations.view("<f2").astype(np.float32)
        return np.stack([products.mv(pool, F16, weights, column) for column in columns])
    q, d = quants_and_scales(activations)
    single = [products.mm(pool, KINDS[kind], weights, (q[c : c + 1], d[c : c + 1]))[0] for c in range(len(q))]
    assert same(products.mm(pool, KINDS[kind], weights, (q, d)), np.stack(single))  # the tile gives the same bits
    return np.stack(single)


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products(case, pool, check):
    given = case.inputs()
    check(case, products.mm(pool, KINDS[given["kind"]], given["weights"], given["activations"]))


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_products(case, pool, check):
    given = case.inputs()
    check(case, products.mm(pool, KINDS[given["kind"]], given["weights"], given["activations"]))


@pytest.mark.parametrize("case", DOTS, ids=str)
def test_dots(case, pool, check):
    """Any quants, -128 beside a scale that is not zero among them."""
    check(case, dots(pool, **case.inputs()))


@pytest.mark.parametrize("case", [case for case in DOTS if int(case.name.split("-")[-1]) <= 256], ids=str)
def test_dots_are_their_plain_twins(case, pool):
    given = case.inputs()
    kind, weights, activations = given["kind"], given["weights"], given["activations"]
    want = np.empty((len(activations), len(weights)), np.float32)
    for c in range(len(activations)):
        for r in range(len(weights)):
            if kind == "f16":
                column = activations[c].view("<f2").astype(np.float32)
                want[c, r] = f16.dot_f16_plain(weights[r].view("<u2"), column)
            else:
                q, d = quants_and_scales(activations[c : c + 1])
                plain, block = PLAIN[kind]
                want[c, r] = plain(weights[r].view(block), q[0], d[0])
    assert same(dots(pool, **given), want)


PLAIN = {"q1_0": (q1_0.dot_q1_0_q8_0_plain, Q1_0_BLOCK), "q2_0": (q2_0.dot_q2_0_q8_0_plain, Q2_0_BLOCK)}


@pytest.mark.parametrize("data", inputs.DATA)
def test_the_f16_tile_is_its_plain_twin(data, pool):
    source = inputs.Source(f"tile {data}")
    weights, x = source.weights("f16", data, 8, 200), source.values(data, 2, 200).astype(np.float16).astype(np.float32)
    want = [[f16.tile_f16_plain(row.view("<u2"), column) for row in weights] for column in x]
    assert same(products.mm(pool, F16, weights, x), np.array(want, np.float32))


@pytest.mark.parametrize("n", [1, 32])
def test_every_finite_half_is_widened(n, pool):
    """All of them as weights, picked one by one with unit columns."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    weights = halves[np.isfinite(halves)].reshape(-1, 32)
    units = np.eye(32, dtype=np.float32)
    columns = [products.mm(pool, F16, weights.view(np.uint8), units[i : i + n]) for i in range(0, 32, n)]
    assert (weights.astype(np.float32) == np.concatenate(columns).T).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [3, 8, 33, 44])
@pytest.mark.parametrize("n", [1, 5])
def test_the_residual_is_added_once_and_in_place(kind, rows, n, pool):
    source = inputs.Source("residual")
    weights, x = source.weights(kind, "random", rows, 256), source.bell(n, 256)
    residual = source.bell(n, rows)
    want = products.mm(pool, KINDS[kind], weights, x) + residual
    assert same(products.mm(pool, KINDS[kind], weights, x, residual), want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_products_share_a_filling_and_n_is_patched(kind, threads):
    """Three matrices over one activation without a barrier; the program is built once, for up to 20 rows."""
    source, pool, wtype = inputs.Source("shared"), Pool(threads, shares=threads), KINDS[kind]
    x, shapes = source.bell(20, 512), (96, 32, 36)
    matrices = [source.weights(kind, "random", rows, 512) for rows in shapes]
    outs = [np.zeros((20, rows + 3), np.float32) for rows in shapes]
    activation = products.Activation(wtype, 20, 1024, threads)
    steps = activation.fill(x.ctypes.data, 512, x.strides[0])
    for w, out in zip(matrices, outs, strict=True):
        row_bytes, n_rows = w.shape[1], len(w)
        target = (out.ctypes.data, out.strides[0])
        code, words = products.product(wtype, w.ctypes.data, row_bytes, n_rows, 512, activation, *target)
        steps.append((code, False, words))
    whole = program(*steps)
    for n in (20, 1, 9, 2, 1, 20):
        whole[:, ARGUMENTS] = n
        pool.run(whole)
        for w, out in zip(matrices, outs, strict=True):
            assert same(np.ascontiguousarray(out[:n, : len(w)]), products.mm(pool, wtype, w, x[:n]))
            assert (out[:, len(w) :] == 0).all()
    pool.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 4])
def test_a_part_of_a_matrix(kind, n, pool):
    """Some rows of a matrix get the bits that the whole matrix gives them, whatever their number."""
    source, wtype = inputs.Source("part"), KINDS[kind]
    for rows in (48, 51):
        weights, x = source.weights(kind, "random", rows, 256), source.bell(n, 256)
        whole = products.mm(pool, wtype, weights, x)
        for first, last in ((0, 17), (5, 40), (46, 48)):
            activation, out = products.Activation(wtype, n, 256, pool.threads), np.zeros((n, rows), np.float32)
            part = weights[first:last]
            target = (out.ctypes.data + 4 * first, out.strides[0])
            code, words = products.product(
                wtype, part.ctypes.data, part.shape[1], len(part), 256, activation, *target, matrix_rows=rows
            )
            steps = program(*activation.fill(x.ctypes.data, 256, x.strides[0]), (code, True, words))
            steps[:, ARGUMENTS] = n
            pool.run(steps)
            assert same(np.ascontiguousarray(out[:, first:last]), np.ascontiguousarray(whole[:, first:last]))
            assert (out[:, :first] == 0).all() and (out[:, last:] == 0).all()


@pytest.mark.parametrize("name", OTHER_LEVELS)
def test_other_levels(name):
    rerun_at(name, __file__, "-k", "not other_levels and not large and not plain_twin")


@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_other_levels_without_vnni_and_gfni(tmp_path, name):
    rerun_without_extras(tmp_path, __file__, "-k", "test_dots and golden and not f16", at=name)
