"""The engine's own expf, logf, sinf, cosf and powf against the C library's, on bits.

    python testing/check_libm.py [--only expf,sinf] [--every N]

All 2^32 arguments of expf and logf; every float32 up to 100,000 in magnitude for sinf and cosf; 10^8 pairs in RoPE's
range for powf; or every Nth of them. The C library must be a glibc whose functions are those of Arm's
optimized-routines (2.28 and later), on a CPU with FMA. At the level of BANKML_CPU. Exit 2 on a difference.
"""

import argparse
import ctypes
import sys
import time

import numpy as np
from numba.core import types

from bankml.cpu.compile import entry, inner
from bankml.cpu.exponential import emit_expf
from bankml.cpu.floats import bits_to_f32, f32_to_bits, load_f32, store_f32
from bankml.cpu.logarithm import emit_logf, emit_powf
from bankml.cpu.simd import f32, vec, vector
from bankml.cpu.trigonometry import emit_sinf_cosf

BLOCK, LANES = 4096, 16
ADDRESS, FLOAT = types.int64, types.float32
LARGEST = int(np.float32(100_000).view("u4"))
BASES, EXPONENTS = 10_000, 10_000  # pairs for powf


def _lanes_of(name, emit):
    """An intrinsic (x, y, out, units): `emit` of `units` times LANES float32 values."""
    wide = vec(f32, LANES)

    def lanes(b, x, y, out, units):
        def one(i, carried):
            offset = b.mul(i, 4 * LANES)
            given = [b.load(b.pointer(side, offset), wide) for side in (x, y)]
            b.store(emit(b, *given), b.pointer(out, offset))
            return carried

        b.loop(units, [], one)

    lanes.__name__ = name
    return vector(lanes)


_expf = _lanes_of("expf_lanes", lambda b, x, y: emit_expf(b, x))
_logf = _lanes_of("logf_lanes", lambda b, x, y: emit_logf(b, x))
_sinf = _lanes_of("sinf_lanes", lambda b, x, y: emit_sinf_cosf(b, x)[0])
_cosf = _lanes_of("cosf_lanes", lambda b, x, y: emit_sinf_cosf(b, x)[1])
_powf = _lanes_of("powf_lanes", emit_powf)

_libm_expf, _libm_logf, _libm_sinf, _libm_cosf = (
    types.ExternalFunction(name, FLOAT(FLOAT)) for name in ("expf", "logf", "sinf", "cosf")
)
_libm_powf = types.ExternalFunction("powf", FLOAT(FLOAT, FLOAT))


@inner
def _fill(first, step, buffer):
    for i in range(BLOCK):
        store_f32(buffer + 4 * i, bits_to_f32(first + i * step))


@inner
def _differs(found, want, got, at):
    """found, or `at` where none was found before and the bits differ."""
    return at if found < 0 and f32_to_bits(want) != f32_to_bits(load_f32(got)) else found


def _compared(name, ours, theirs):
    """An entry (first, step, count, buffer): the bits of the first argument on which the two differ, or -1."""

    def compared(first, step, count, buffer):
        found, results = -1, buffer + 4 * BLOCK
        for start in range(0, count, BLOCK):
            _fill(first + start * step, step, buffer)
            ours(buffer, buffer, results, BLOCK // LANES)
            for i in range(min(BLOCK, count - start)):
                x = load_f32(buffer + 4 * i)
                found = _differs(found, theirs(x), results + 4 * i, first + (start + i) * step)
        return found

    compared.__name__ = name
    return entry(types.int64, ADDRESS, ADDRESS, ADDRESS, ADDRESS)(compared)


_OF_ONE = {
    "expf": _compared("expf", _expf, _libm_expf),
    "logf": _compared("logf", _logf, _libm_logf),
    "sinf": _compared("sinf", _sinf, _libm_sinf),
    "cosf": _compared("cosf", _cosf, _libm_cosf),
}


@entry(types.int64, ADDRESS, ADDRESS, ADDRESS, ADDRESS)
def _pairs(x, y, count, results):
    """The first of `count` pairs on which powf differs, or -1."""
    found = -1
    _powf(x, y, results, (count + LANES - 1) // LANES)
    for i in range(count):
        want = _libm_powf(load_f32(x + 4 * i), load_f32(y + 4 * i))
        found = _differs(found, want, results + 4 * i, i)
    return found


def check(name: str, every: int = 1) -> tuple[int, str]:
    """How many arguments of a function were compared, and the first that differs (or nothing)."""
    if name == "powf":
        return _check_powf(every)
    run = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)(_OF_ONE[name].address)
    buffer = np.empty(8 * BLOCK, np.uint8)
    spans = [(0, 2**32)] if name in ("expf", "logf") else [(0, LARGEST + 1), (2**31, 2**31 + LARGEST + 1)]
    compared = 0
    for first, end in spans:
        count = -(-(end - first) // every)
        found = run(first, every, count, buffer.ctypes.data)
        compared += count
        if found >= 0:
            return compared, f"{name}({np.array(found, 'u4').view('f4')}), bits {found:#010x}"
    return compared, ""


def _check_powf(every):
    """Bases from 1 to 10^8 to powers of -10^-4 to -1, RoPE's -2/size among them, even in their logarithms."""
    run = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)(_pairs.address)
    bases = np.concatenate([np.float32([1e4, 5e5, 1e6, 5e6]), np.geomspace(1, 1e8, BASES - 4)]).astype(np.float32)
    sizes = np.float32(-2) / np.arange(2, 514, 2, dtype=np.float32)
    powers = np.concatenate([sizes, -np.geomspace(1, 1e-4, EXPONENTS - len(sizes))]).astype(np.float32)
    results, compared = np.empty(EXPONENTS + LANES, np.float32), 0
    for base in bases[::every]:
        x = np.full(EXPONENTS, base)
        at = run(x.ctypes.data, powers.ctypes.data, EXPONENTS, results.ctypes.data)
        compared += EXPONENTS
        if at >= 0:
            return compared, f"powf({base}, {powers[at]})"
    return compared, ""


FUNCTIONS = (*_OF_ONE, "powf")


def main() -> int:
    """Print a line per function."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(FUNCTIONS))
    parser.add_argument("--every", type=int, default=1)
    args, differ = parser.parse_args(), False
    for name in args.only.split(","):
        start = time.perf_counter()
        compared, found = check(name, args.every)
        differ |= bool(found)
        print(
            f"{name}: {compared:,} compared, {found or 'all equal'} ({time.perf_counter() - start:.0f} s)", flush=True
        )
    return 2 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
