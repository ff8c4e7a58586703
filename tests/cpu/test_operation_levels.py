"""The operations' tests again at the other CPU levels; the recordings stand for the reference there, to save time."""

from pathlib import Path

import pytest

from tests.cpu.levels import OTHER_LEVELS, rerun_at

FILES = [
    str(Path(__file__).parent / f"test_{name}.py") for name in ("norm", "rope", "swiglu", "embed", "attention", "libm")
]


@pytest.mark.parametrize("level", OTHER_LEVELS)
def test_same_bits_at_level(level):
    rerun_at(level, *FILES, "-k", "not live")
