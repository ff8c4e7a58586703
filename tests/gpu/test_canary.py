"""The self-test finds every mistake that it was made for, and nothing on the drivers at hand."""

import time

import numpy as np
import pytest

from bankml.blocks import F16, Q1_0, Q2_0, RUNNABLE, TYPES
from bankml.errors import Refused
from bankml.gpu import canary, canary_data, program, verdicts
from bankml.oracle import kernels

# A fault in the kernels' text: (what stands there, what is put there instead) of each change.
SOFTWARE_LAST = "return top + as_float(bits);"
FUSED = "#define fused(a, b, c) fma(a, b, c)"
UNFUSED = "inline float fused(float a, float b, float c)\n{\n    volatile float p = a * b;\n    return p + c;\n}\n"
DOUBLE = """#pragma OPENCL EXTENSION cl_khr_fp64 : enable
inline float fused(float a, float b, float c)
{
    return (float)((double)a * (double)b + (double)c);
}
"""
FUSED_OFF = [(FUSED, UNFUSED), (SOFTWARE_LAST, "volatile float p = a * b;\n    return p + c;")]
FAULTS = {
    "unfused": (FUSED_OFF, "q1_0 tie rows"),
    "unfused in q2_0": (FUSED_OFF, "q2_0 tie rows"),
    "fma via double": (
        [(FUSED, DOUBLE), (SOFTWARE_LAST, "return (float)((double)a * (double)b + (double)c);")],
        "q1_0 tie rows",
    ),
    "fma via double in q2_0": (
        [(FUSED, DOUBLE), (SOFTWARE_LAST, "return (float)((double)a * (double)b + (double)c);")],
        "q2_0 tie rows",
    ),
    "no rounding to odd": ([(FUSED, UNFUSED), ("if (lost != 0.0f &&", "if (false &&")], "q1_0 tie rows"),
    "no rounding to odd in q2_0": ([(FUSED, UNFUSED), ("if (lost != 0.0f &&", "if (false &&")], "q2_0 tie rows"),
    "q1_0 denormal scales to zero": ([("? as_uint(denormal)", "? 0u")], "q1_0 denormal scales"),
    "q2_0 denormal scales to zero": ([("? as_uint(denormal)", "? 0u")], "q2_0 denormal scales"),
    "f16 denormals to zero": ([("? as_uint(denormal)", "? 0u")], "f16 denormal scales"),
    "-128 does not wrap": (
        [
            (
                "return ((int)v.x + (int)v.y) + ((int)v.z + (int)v.w);",
                "int4 q = convert_int4(*quants), m = convert_int4(as_char4(negate));\n"
                "    int4 s = (q ^ m) - m;\n    return (s.x + s.y) + (s.z + s.w);",
            )
        ],
        "q1_0 extreme",
    ),
    "q1_0 lanes added in another order": (
        [("((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5])", "((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6])")],
        "q1_0 random",
    ),
    "f16 lanes added in another order": (
        [("((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6])", "((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5])")],
        "f16 random",
    ),
    "f16 chains added in another order": ([("(a0 + a2) + (a1 + a3)", "(a0 + a1) + (a2 + a3)")], "f16 random"),
    "32-blocks in another order": (
        [
            ("float sum = d[0] * (float)signed_sum(signs[0], (__global const char4 *)q);", "float sum = 0.0f;"),
            (
                "for (uint k = 1; k < 4u; k++) {\n                sum",
                "for (uint k = 3; k < 4u; k--) {\n                sum",
            ),
        ],
        "q1_0 wide scales",
    ),
    **{
        f"{name} results are -0": (
            [("acc[c] = 0.0f", "acc[c] = -0.0f"), ("? 0u :", "? 0x80000000u :")],
            f"{name} zeros",
        )
        for name in ("q1_0", "q2_0", "f16")
    },
}


def faulty(changes) -> str:
    text = program.source()
    for there, instead in changes:
        assert there in text, there
        text = text.replace(there, instead)
    return text


def type_of(name: str) -> int:
    return next(wtype for wtype in RUNNABLE if name.startswith(TYPES[wtype].name + " "))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_caught(fault, pocl, expected):
    """By the check that is there for it: no earlier one fails, in the software-fma build neither."""
    changes, catcher = FAULTS[fault]
    verdict = canary.prove(*pocl, expected, wtypes=(type_of(catcher),), shapes=(), text=faulty(changes))
    failed = [(check.build, check.name) for check in verdict.checks if not check.ok]
    if "-0" in fault and verdict.program:  # the software fma adds its zeros in another way
        assert failed == [("fma()", catcher)]
        return
    assert failed == [("fma()", catcher), ("software fma", catcher)], verdict.reason
    assert verdict.program is None and catcher in verdict.reason and "differ" in verdict.reason


def test_a_card_without_a_true_fma_gets_the_software_one(pocl, expected):
    """The fma() build fails, the other passes, and it is the one that is used."""
    text = faulty([(FUSED, UNFUSED)])
    verdict = canary.prove(*pocl, expected, wtypes=(Q2_0,), shapes=canary_data.SHAPES[:2], text=text)
    assert verdict.program.software_fma and verdict.reason == ""
    assert [check.name for check in verdict.checks if not check.ok] == ["q2_0 tie rows"]


def test_kernels_that_do_not_build_are_a_failed_check(pocl, expected):
    verdict = canary.prove(*pocl, expected, text=faulty([(FUSED, "nonsense")]) + "\n#error no")
    assert verdict.program is None
    assert [check.name for check in verdict.checks] == ["it builds", "it builds"]
    assert "error" in verdict.reason and "\n" not in verdict.reason


def test_a_kernel_that_writes_too_much_is_caught(pocl, expected):
    """A result may be right while the one beside it is gone."""
    changes = [("if (row < rows && first + c <= last) {", "if (first + c <= last) {")]
    verdict = canary.prove(*pocl, expected, wtypes=(Q1_0,), shapes=((63, 128),), text=faulty(changes))
    assert verdict.program is None and "writes past its rows" in verdict.reason


def test_drivers_pass(each_driver, expected):
    """The whole self-test, on every driver at hand, in good time: 20 s of two cores, CPU kernels compiled."""
    for wtype in RUNNABLE:
        first = next(canary_data.hard_cases(wtype))
        expected(wtype, first.weights, first.activation)
    begun = time.process_time()
    verdict = canary.prove(*each_driver, expected)
    assert time.process_time() - begun < 40
    assert verdict.program is not None, verdict.reason
    names = {check.name for check in verdict.checks}
    assert {"q1_0 tie rows", "q2_0 tie rows", "f16 extreme", "f16 12288x4096 times 6", "q2_0 64x128 times 1"} <= names


def test_drivers_pass_with_the_software_fma(each_driver, expected):
    device, context = each_driver
    checks = canary._ask(device, context, expected, True, (Q1_0, Q2_0), ((64, 128),), None)
    assert [str(check) for _, check in checks if not check.ok] == []


@pytest.mark.parametrize("wtype", RUNNABLE, ids=lambda wtype: TYPES[wtype].name)
def test_the_hard_cases_by_the_reference(wtype, expected, reference):
    """The expected side itself: the CPU's products of the hard cases are the reference's, column by column."""
    for case in canary_data.hard_cases(wtype):
        weights = case.weights[:-1] if wtype == F16 else case.weights  # rows % 4 != 0: no tile
        if wtype == F16:
            columns = case.activation[0].astype(np.float16)
        else:
            quants, scales = case.activation
            columns = np.empty((case.columns, case.width // 32, 34), np.uint8)
            columns[..., :2] = scales.astype(np.float16)[..., None].view(np.uint8)
            columns[..., 2:] = quants.view(np.uint8).reshape(case.columns, -1, 32)
        want = kernels.dot(TYPES[wtype].name, weights, columns, case.width)
        got = expected(wtype, weights, case.activation)
        assert (got.view(np.uint32) == want.view(np.uint32)).all(), case.name
        assert np.isfinite(want).all() and (np.count_nonzero(want) > 0.5 * want.size) == ("zeros" not in case.name)
        assert not np.signbit(want[want == 0]).any()


@pytest.mark.parametrize("wtype", [Q1_0, Q2_0], ids=lambda wtype: TYPES[wtype].name)
def test_tie_rows_are_ties(wtype, expected):
    """By exact arithmetic: each diagonal result is M*2^35 + A*B rounded once, up to one common power of two."""
    case = next(canary_data.hard_cases(wtype))
    got = np.diag(expected(wtype, case.weights, case.activation)).astype(np.float64)
    for i, (a, b, m) in enumerate(canary_data._factors() * 2):
        exact = m * 2**35 + a * b  # in units of 2^-34: 4 * M/2, and A*2^-10 * B*2^-24
        once = (exact >> 35) + (exact % 2**35 > 2**34)
        assert m != once or exact % 2**35 < 2**34
        assert abs(got[i]) == once * 2.0, (i, got[i])
        assert (got[i] > 0) == (i < canary_data.TIES // 2)
        assert np.float32(np.float64(m) * 2**35 + np.float64(a * b)) != np.float32(once * 2.0**35)  # via double: wrong


def test_a_verdict_is_kept(pocl, expected, tmp_path, monkeypatch):
    """The second time nothing is asked; another driver, kernel or CPU kernel asks again."""
    monkeypatch.setenv("BANKML_HOME", str(tmp_path))
    asked = []

    def counted(*given):
        asked.append(given)
        return expected(*given)

    for cpu, more in (("1", True), ("1", False), ("2", True), ("2", False)):
        before = len(asked)
        assert not canary.admit(*pocl, Q2_0, counted, cpu).software_fma
        assert (len(asked) > before) == more
    kept = verdicts.key(pocl[0], Q2_0, "1")
    assert verdicts.read(kept) is False
    assert kept != verdicts.key(pocl[0], Q1_0, "1")
    monkeypatch.setattr(program, "digest", lambda: "other kernels")
    assert verdicts.key(pocl[0], Q2_0, "1") != kept


@pytest.mark.parametrize("harm", ["cut", "nonsense", "other key", "a folder", "no folder", "read only", "deep"])
def test_a_broken_cache_stops_nothing(harm, pocl, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("BANKML_HOME", str(tmp_path))
    key = verdicts.key(pocl[0], Q2_0, "1")
    verdicts.write(key, pocl[0], True)
    path = tmp_path / "cards" / f"{key}.json"
    assert verdicts.read(key) is True
    texts = {"cut": path.read_text()[:20], "nonsense": "\0" * 100, "deep": "[" * 4000}
    texts["other key"] = path.read_text().replace(key[:8], "0" * 8)
    path.unlink()
    if harm in texts:
        path.write_text(texts[harm])
    elif harm == "a folder":
        path.mkdir()
    elif harm == "read only":
        (tmp_path / "cards").rmdir()
        (tmp_path / "cards").write_text("")
    else:
        monkeypatch.setenv("BANKML_HOME", "/proc/nothing")
    assert verdicts.read(key) is None
    assert not canary.admit(*pocl, Q2_0, expected, "1").software_fma
    if harm in texts:
        assert verdicts.read(key) is False  # written anew


def test_a_card_that_fails_is_refused_by_name(pocl, tmp_path, monkeypatch):
    monkeypatch.setenv("BANKML_HOME", str(tmp_path))
    with pytest.raises(Refused, match=r"pthread.* is refused: fma\(\) build: q2_0 tie rows: .*software fma"):
        canary.admit(*pocl, Q2_0, lambda _, weights, act: np.zeros((len(act[0]), len(weights)), np.float32), "1")
    assert list(tmp_path.rglob("*.json")) == []
