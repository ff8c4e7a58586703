"""The stages of expf, logf, sinf, cosf and powf: the engine's own against glibc's, all arguments."""

from testing import check_libm
from testing.stages.stage import Count, Given, Stage

ARGUMENTS = {
    "expf": "all 2^32 arguments",
    "logf": "all 2^32 arguments",
    "sinf": "every float32 up to 100,000",
    "cosf": "every float32 up to 100,000",
    "powf": "10^8 pairs in RoPE's range",
}
SECONDS = {"expf": 30, "logf": 30, "sinf": 20, "cosf": 20, "powf": 5}
LEAST = {"expf": 2**32, "logf": 2**32, "sinf": 2 * 10**9, "cosf": 2 * 10**9, "powf": 10**8}
EVERY = 1001  # argument of a quick run


def of(name):
    """The stage of one function."""

    def run(given: Given) -> Count:
        compared, first = check_libm.check(name, EVERY if given.quick else 1)
        return Count(compared - bool(first), compared, first)

    return run


STAGES = tuple(
    Stage(f"libm: {name}", f"glibc: {what}", "values", of(name), SECONDS[name], LEAST[name])
    for name, what in ARGUMENTS.items()
)
