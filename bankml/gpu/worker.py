"""Cards at work beside the CPU: each takes some rows of every matrix of a group of products, the caller takes the rest.

    started = worker.begin("blk.0.qkv", matrices, activation)    # one submission per card; returns at once
    ... compute `started.left` on the CPU, and the rows `started.checks` again
    joined, lost = worker.finish(started, checked)               # one wait per card
    ... put the joined rows into place, compute the lost ones on the CPU

Whole rows only, so no element is split and no bit can move. A matrix that does not fit a card, or any product that
comes while a card rests, is left to the CPU. What a card gets wrong, or fails to do, is in `lost`, and the card is
dropped for the session.
"""

import itertools
import random
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from bankml.gpu.calibrate import Shape, Shares, shape_of
from bankml.gpu.card import Card, Piece, Task, Work
from bankml.gpu.program import takes

CHECKED = 8  # adjacent rows of each matrix that the CPU computes again, at a place drawn anew each time


class Started(NamedTuple):
    """What `begin` began: the cards' tasks, the rows left to the CPU, and those that it computes again."""

    tasks: list[tuple[Card, Task]]
    left: list[Piece]
    checks: list[tuple[int, int, Piece]]  # task, column of the first row in its values, rows
    key: object  # the same for the same `left`


class _Plan(NamedTuple):
    works: list[tuple[Card, Work]]
    left: list[Piece]
    key: int


class Worker:
    """Proved cards over the matrices of one model. One caller at a time.

    shares: who takes how much; see calibrate.py. checked: how many adjacent rows the CPU computes again.
    """

    def __init__(self, cards: list[Card], wtype: int, shares: Shares, checked: int = CHECKED):
        self.cards, self.wtype, self.shares, self.checked = cards, wtype, shares, checked
        self.version = 0  # of what `takes` says
        self.total_rows = 0  # of all products, times columns; what the cards did not compute was the CPU's
        self._random = random.Random(len(cards))
        self._plans: dict = {}
        self._shapes: dict[str, Shape] = {}
        self._measuring = False
        self._number = itertools.count()

    @property
    def on(self) -> bool:
        """Whether any card takes work."""
        return any(card.on for card in self.cards)

    @property
    def resting(self) -> bool:
        """Whether the limiter holds a card back now."""
        return any(card.on and card.time.resting() for card in self.cards)

    def takes(self, name: str, matrices, columns: int) -> bool:
        """Whether a card has a share of this group, so that `begin` is worth the call."""
        return self.on and any(self.shares.of(self._shape(name, matrices), columns))

    def begin(self, name, matrices, activation, shares=None) -> Started:
        """Start the cards on their rows of a group of products over one activation.

        matrices: (name, uint8 (rows, row_bytes)) of each. activation: contiguous arrays of `columns` rows, as
        `gpu.program` takes them; they must stay as they are until `finish`. shares: each card's, instead of the known.
        """
        columns, width = activation[0].shape
        if shares is None:
            shares = self.shares.of(self._shape(name, matrices), columns)
        plan = self._plan(name, matrices, columns, width, shares)
        tasks = [(card, card.start(work, activation)) for card, work in plan.works]
        return Started(tasks, plan.left, self._checks(plan), plan.key)

    def finish(self, started: Started, checked=()) -> tuple[list, list[Piece]]:
        """Wait for the cards. checked: float32 (columns, rows) of each of `started.checks`, by the CPU.

        Returns (piece, float32 (columns, rows)) of what the cards computed, and the pieces that the CPU must compute.
        """
        failures = {}
        for at, (card, task) in enumerate(started.tasks):
            try:
                task.wait()
                failures[at] = task.error and describe(task.error)
            except TimeoutError as error:
                failures[at] = str(error)
            else:
                card.time.took(task.seconds)
        for (at, column, piece), want in zip(started.checks, checked, strict=False):
            if not failures[at]:
                got = started.tasks[at][1].values[:, column : column + piece.last - piece.first]
                if not np.array_equal(got.view(np.uint32), want.view(np.uint32)):
                    failures[at] = f"wrong bits in the spot check of rows {piece.first} to {piece.last - 1}"
                    started.tasks[at][0].distrust()
        joined, lost = [], []
        for at, (card, task) in enumerate(started.tasks):
            if failures[at]:
                card.drop(failures[at])
                self.version += 1
                lost += task.work.pieces
                self._plans.clear()
                continue
            columns, column = len(task.values), 0
            card.rows += columns * task.work.rows
            for piece in task.work.pieces:
                count = piece.last - piece.first
                joined.append((piece, task.values[:, column : column + count]))
                column += count
        return joined, lost

    def forget(self, names):
        """Take matrices off the cards."""
        self._plans.clear()
        for card in self.cards:
            if card.on:
                card.forget(names)

    def measure(self, name, matrices, columns: int, time):
        """Find the shares of groups like this one, unless they are known; see `Shares.measure`."""
        shape = self._shape(name, matrices)
        if self.on and not self.shares.known(shape, columns):
            self.shares.measure(shape, columns, time)
            self.version += 1

    @contextmanager
    def measuring(self):
        """While it lasts the cards do not rest, and what they compute is not counted."""
        rows, self._measuring = [card.rows for card in self.cards], True
        try:
            yield
        finally:
            self._measuring = False
            for card, count in zip(self.cards, rows, strict=True):
                card.rows = count

    def none_for_tokens(self, but: str):
        """Single columns are the CPU's alone from now on, except in the group of that name."""
        self.shares.none_for_tokens(self._shapes.get(but))
        self.version += 1

    def close(self):
        """End the cards' threads."""
        for card in self.cards:
            card.end(patience=5.0)

    def report(self) -> dict:
        """What the cards and the CPU have done, for --json and the statistics."""
        return {
            "cpu_rows": self.total_rows - sum(card.rows for card in self.cards),
            "shares": self.shares.report(),
            "cards": [
                {
                    "name": card.name,
                    "rows": card.rows,
                    "bytes": card.memory.used,
                    "bytes_limit": card.memory.most,
                    "limit": card.time.limit,
                    "busy_s": round(card.time.busy_s, 6),
                    "skipped": card.time.skipped,
                    "resting": card.on and card.time.rests,
                    "dropped": card.note,
                }
                for card in self.cards
            ],
        }

    def _shape(self, name, matrices) -> Shape:
        shape = self._shapes.get(name)
        if shape is None:
            shape = self._shapes[name] = shape_of(self.wtype, matrices)
        return shape

    def _plan(self, name, matrices, columns, width, shares) -> _Plan:
        """Who computes which rows now; the same again for the same question."""
        ready = []
        for card, share in zip(self.cards, shares, strict=True):
            resting = share > 0 and card.on and not self._measuring and card.time.resting()
            card.time.skipped += resting
            ready.append(share if card.on and not resting else 0.0)
        key = (name, (columns - 1).bit_length(), tuple(shares), tuple(map(bool, ready)))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make_plan(matrices, columns, width, shares, ready)
        return plan

    def _make_plan(self, matrices, columns, width, shares, ready):
        names, memories = (list(part) for part in zip(*matrices, strict=True))
        works, taken = [], [[] for _ in matrices]
        for at, card in enumerate(self.cards):
            pieces = self._pieces(memories, width, sum(shares[:at]), sum(shares[: at + 1])) if ready[at] else []
            if not pieces or not card.make_room(columns, width, sum(piece.last - piece.first for piece in pieces)):
                continue
            held = [card.hold(names[n], memories[n].shape[1], first, last) for n, first, last in pieces]
            pieces = [piece for piece, rows in zip(pieces, held, strict=True) if rows]
            if pieces:
                rows = sum(piece.last - piece.first for piece in pieces)
                works.append((card, Work(names, memories, pieces, [rows for rows in held if rows], rows)))
            for piece in pieces:
                taken[piece.matrix].append(piece)
        left = [gap for number, memory in enumerate(memories) for gap in _gaps(number, len(memory), taken[number])]
        return _Plan(works, left, next(self._number))

    def _pieces(self, memories, width, low, high) -> list[Piece]:
        """The rows from part `low` to part `high` of each matrix."""
        if not takes(self.wtype, width):
            return []
        spans = [(round(len(memory) * low), round(len(memory) * high)) for memory in memories]
        return [Piece(number, first, last) for number, (first, last) in enumerate(spans) if first < last]

    def _checks(self, plan):
        checks = []
        for at, (_, work) in enumerate(plan.works):
            column = 0
            for number, first, last in work.pieces:
                count = self.checked if last - first >= self.checked else min(4, last - first)  # few are dear
                start = first + self._random.randrange(last - first - count + 1)
                checks.append((at, column + start - first, Piece(number, start, start + count)))
                column += last - first
        return checks


def _gaps(number, rows, taken) -> list[Piece]:
    """The rows of a matrix that nobody has taken."""
    gaps, first = [], 0
    for piece in taken:
        if piece.first > first:
            gaps.append(Piece(number, first, piece.first))
        first = piece.last
    return [*gaps, Piece(number, first, rows)] if first < rows else gaps


def describe(error: Exception) -> str:
    """A driver's error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
