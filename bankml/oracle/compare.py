"""Bits of two runs compared as integers; knows neither the engine nor the reference, only rows with names."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import zip_longest

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The first unequal value of a stage: its row and column, and the bits on both sides (hex)."""

    row: int
    column: int
    expected: str
    got: str


@dataclass
class Stage:
    """How many of a stage's rows are equal, and its first difference; `run` says which run it belongs to."""

    name: str
    equal: int = 0
    total: int = 0
    first_difference: Difference | None = None
    run: str = ""

    @property
    def same(self) -> bool:
        """True if every row is equal."""
        return self.equal == self.total

    def as_dict(self) -> dict:
        """The stage as `oracle check --json` prints it."""
        return asdict(self)


def compare(expected: Iterable, got: Iterable) -> list[Stage]:
    """Compare two iterators of (name, float32 rows (n, width)) pair by pair; equal names add up to one stage.

    Values are compared as uint32. A side that ends early, another name or another shape is a ValueError: the two
    sides must be runs of the same work.
    """
    stages: dict[str, Stage] = {}
    for want, have in zip_longest(expected, got):
        if want is None or have is None or want[0] != have[0]:
            raise ValueError(f"the runs differ in their stages: {_name(want)} against {_name(have)}")
        stage = stages.setdefault(want[0], Stage(want[0]))
        add_rows(stage, want[1], have[1])
    return list(stages.values())


def add_rows(stage: Stage, want: np.ndarray, have: np.ndarray):
    """Count the rows of `want` and `have`, float32 (n, width), into `stage`."""
    if want.shape != have.shape:
        raise ValueError(f"{stage.name}: {want.shape} rows expected, {have.shape} came")
    unequal = bits(want) != bits(have)
    rows = unequal.any(axis=1)
    if stage.first_difference is None and rows.any():
        row = int(np.flatnonzero(rows)[0])
        column = int(np.flatnonzero(unequal[row])[0])
        sides = (f"0x{int(bits(side)[row, column]):08x}" for side in (want, have))
        stage.first_difference = Difference(stage.total + row, column, *sides)
    stage.total += len(rows)
    stage.equal += len(rows) - int(rows.sum())


def bits(rows: np.ndarray) -> np.ndarray:
    """float32 as uint32, without a copy where it can be: -0.0 differs from 0.0, and a NaN equals itself."""
    return np.ascontiguousarray(rows, np.float32).view(np.uint32)


def _name(pair):
    return "nothing" if pair is None else pair[0]
