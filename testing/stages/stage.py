"""What a stage of the gate is: a name, what it compares with what, and a function that counts what is equal."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from bankml.oracle import compare


@dataclass(frozen=True)
class Count:
    """How many of a stage's rows, values, tokens or files are equal; counts add up.

    first: the first difference, in words. facts: what the record tells beside the counts, by name; of two counts that
    are added, numbers are summed, and of other facts the later one stays.
    """

    equal: int = 0
    total: int = 0
    first: str = ""
    facts: dict = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """True if everything is equal, and there was something."""
        return self.equal == self.total > 0

    def __add__(self, other: "Count") -> "Count":
        facts = self.facts | other.facts
        for name in self.facts.keys() & other.facts.keys():
            if isinstance(facts[name], int | float):
                facts[name] = self.facts[name] + other.facts[name]
        return Count(self.equal + other.equal, self.total + other.total, self.first or other.first, facts)

    def told(self, **facts) -> "Count":
        """The same count with these facts."""
        return replace(self, facts=self.facts | facts)


@dataclass(frozen=True)
class Given:
    """How the gate was called.

    folder: where models are made, for all stages of a run. own: a folder of the stage's own. model: a user's file.
    """

    folder: Path
    own: Path
    quick: bool = False
    model: Path | None = None


@dataclass(frozen=True)
class Stage:
    """One line of the record.

    what: the two sides, in a phrase. unit: what is counted. least: how many there must be in a full run. seconds: about
    how long it takes on two cores. alone: it wants both cores, so that no other stage runs beside it. quick: it has
    part in a quick run. server: it asks llama-server. run(given) does the work; it runs in a process of its own.
    """

    name: str
    what: str
    unit: str
    run: Callable[[Given], Count]
    seconds: float
    least: int = 1
    alone: bool = False
    quick: bool = True
    server: bool = False


def total(counts: Iterable[Count]) -> Count:
    """The sum of counts."""
    return sum(counts, Count())


def rows(name: str, want: np.ndarray, got: np.ndarray) -> Count:
    """Count equal rows (along the last axis), compared as integers of the values' size."""
    return _counted(name, want, got, lambda unequal: unequal.reshape(-1, unequal.shape[-1]).any(axis=1))


def values(name: str, want: np.ndarray, got: np.ndarray) -> Count:
    """Count equal values, compared as integers of their size."""
    return _counted(name, want, got, np.ravel)


def _counted(name, want, got, by) -> Count:
    if want.shape != got.shape or want.dtype.itemsize != got.dtype.itemsize:
        return Count(0, len(want), f"{name}: {got.dtype} {got.shape}, not {want.dtype} {want.shape}")
    unsigned = np.dtype(f"u{want.dtype.itemsize}")
    a, b = (np.ascontiguousarray(side).view(unsigned) for side in (want, got))
    unequal = a != b
    wrong = by(unequal)
    first = ""
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(unequal)[0])
        first = f"{name} at {at}: {int(b[at]):#x}, not {int(a[at]):#x}"
    return Count(int(len(wrong) - wrong.sum()), len(wrong), first)


def items(name: str, want: Iterable, got: Iterable) -> Count:
    """Count equal items of two lists; a missing or surplus one counts too."""
    equal, count, first = 0, 0, ""
    for a, b in itertools.zip_longest(want, got):
        count += 1
        equal += a == b
        if a != b and not first:
            first = f"{name}, item {count - 1}: {str(b)[:200]}, not {str(a)[:200]}"
    return Count(equal, count, first)


def answer(name: str, want: list, got: list) -> Count:
    """Count the equal tokens of an answer: [prompt tokens, tokens] of both sides; none is where the prompts differ."""
    if want[0] != got[0]:
        return Count(0, len(want[1]), f"{name}: a prompt of {got[0]} tokens, not {want[0]}", {"answers": 1})
    return items(name, want[1], got[1]).told(answers=1)


def stages(name: str, want: Iterable, got: Iterable) -> Count:
    """Count the equal rows of two runs of a model, each an iterator of (stage, rows)."""
    counts = Count()
    for stage in compare.compare(want, got):
        first = "" if stage.same else f"{name}: {asdict(stage)}"
        counts += Count(stage.equal, stage.total, first)
    return counts
