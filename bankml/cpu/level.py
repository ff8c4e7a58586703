"""Which instruction set the kernels are compiled for: `avx512`, `avx2` or `generic`. All levels give the same bits.

Must be settled before Numba is imported, for a forced level is a compiler target (`NUMBA_CPU_NAME`); nothing here
imports Numba.
"""

import os
from functools import cache
from pathlib import Path

from bankml.errors import Refused, UsageError

# What a level needs, and the compiler target that stands for it when it is forced below the machine's own.
NEEDS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c", "bmi2"},
    "avx2": {"avx2", "fma", "f16c", "bmi2"},
    "generic": set(),
}
TARGETS = {"avx2": "haswell", "generic": "x86-64"}
EXTRAS = {"avx512_vnni": "avx512", "gfni": "avx512", "avx_vnni": "avx2"}  # used at that level where they are there


@cache
def cpu_flags() -> frozenset[str]:
    """The machine's CPU feature names, as Linux spells them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    return frozenset(lines[0].split(":", 1)[1].split()) if lines else frozenset()


@cache
def level() -> str:
    """The level in force: `BANKML_CPU`, else the best the machine has.

    Raises UsageError for an unknown name and Refused for a level that the machine lacks.
    """
    best = next(name for name, needs in NEEDS.items() if needs <= cpu_flags())
    asked = os.environ.get("BANKML_CPU", "") or best
    if asked not in NEEDS:
        raise UsageError(f"BANKML_CPU is {asked!r}; it takes {', '.join(NEEDS)}")
    missing = sorted(NEEDS[asked] - cpu_flags())
    if missing:
        raise Refused(f"BANKML_CPU asks for {asked}, but this CPU lacks {', '.join(missing)}; it can do {best}")
    return asked


@cache
def has(extra: str) -> bool:
    """Whether an optional feature (one of EXTRAS) may be used at the level in force."""
    return EXTRAS[extra] == level() and extra in cpu_flags()


def set_compiler_target():
    """Point Numba at the level: call before the first import of Numba."""
    os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")
    target = TARGETS.get(level())
    if target and (level() == "generic" or NEEDS["avx512"] <= cpu_flags() or "BANKML_CPU" in os.environ):
        os.environ["NUMBA_CPU_NAME"] = target
        os.environ["NUMBA_CPU_FEATURES"] = "+avxvnni" if has("avx_vnni") else ""
