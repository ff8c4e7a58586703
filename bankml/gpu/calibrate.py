"""How much of a matrix each card takes: measured, for every shape of a group of products, in the real pipeline.

The card alone, the CPU alone and a few splits are timed on matrices of several layers in turn, so that no cache holds
them longer than in a run; medians decide, and the CPU alone wins unless a split is clearly faster. What was found holds
for the session. While tokens are generated, a trial then lets cards and CPU alone take turns and keeps the faster.
"""

from statistics import median
from typing import NamedTuple

from bankml.blocks import TYPES

MOST = 0.95  # the CPU always has rows of its own, to be checked by
CLEARLY = 0.97  # of the CPU's time: slower than that is a tie
HOPELESS = 8.0  # times slower than the CPU: such a card's part would be lost in its overhead
SPLITS = (0.0, -0.12, 0.12)  # around the share that would let both end together
ROUNDS, QUICK_S, MOST_S = 5, 0.02, 1.0  # samples per way; fewer where they are slow
TURNS = 4  # tokens of each side in a trial, the first of which does not count


class Shape(NamedTuple):
    """A group of products over one activation: its type, the rows of each matrix, and their width in bytes."""

    wtype: int
    rows: tuple[int, ...]
    row_bytes: int

    def __str__(self):
        block = TYPES[self.wtype]
        return f"{'+'.join(map(str, self.rows))}x{self.row_bytes // block.block_bytes * block.block_size}"


def shape_of(wtype, matrices) -> Shape:
    """The shape of a group, (name, uint8 (rows, row_bytes)) of each matrix."""
    return Shape(wtype, tuple(len(memory) for _, memory in matrices), matrices[0][1].shape[1])


def columns_class(columns: int) -> int:
    """Micro-batches that one measurement stands for, by their least columns: 1, 2 or 32."""
    return 1 if columns == 1 else 2 if columns < 32 else 32


class Shares:
    """Each card's share by shape and columns. fixed: of all cards together, instead of what would be measured; how
    several cards divide it is measured still.
    """

    def __init__(self, n_cards: int, fixed: float | None = None):
        self.n_cards, self.fixed = n_cards, fixed
        self._found: dict[tuple[Shape, int], tuple[float, ...]] = {}

    def known(self, shape: Shape, columns: int) -> bool:
        """Whether nothing needs to be measured for it."""
        return (shape, columns_class(columns)) in self._found or (self.fixed is not None and self.n_cards == 1)

    def of(self, shape: Shape, columns: int) -> tuple[float, ...]:
        """Each card's share; none where it is not known."""
        if self.fixed is not None and self.n_cards == 1:
            return (self.fixed,)
        return self._found.get((shape, columns_class(columns)), (0.0,) * self.n_cards)

    def measure(self, shape: Shape, columns: int, time):
        """Find the shares by time(shares) -> seconds of one sample in the pipeline, on another layer each time."""
        self._found[shape, columns_class(columns)] = choose(time, self.n_cards, self.fixed)

    def none_for_tokens(self, but: Shape | None):
        """Single columns are the CPU's alone from now on, but for one shape."""
        for shape, columns in self._found:
            if columns == 1 and shape != but:
                self._found[shape, columns] = (0.0,) * self.n_cards

    def report(self) -> dict[str, list[float]]:
        """Shape and columns -> each card's share."""
        if self.fixed is not None and self.n_cards == 1:
            return {"all": [self.fixed]}
        label = {1: "1 column", 2: "2-31 columns", 32: "32 columns or more"}
        return {
            f"{shape}, {label[columns]}": [round(s, 4) for s in found]
            for (shape, columns), found in self._found.items()
        }


def choose(time, n_cards: int, fixed: float | None = None) -> tuple[float, ...]:
    """The shares with the least time(shares); the CPU alone where no others are clearly faster."""
    nobody = (0.0,) * n_cards
    if fixed == 0:
        return nobody
    alone = [tuple(float(at == card) for at in range(n_cards)) for card in range(n_cards)]
    seconds = sample(time, [nobody, *alone])
    rates = [1 / seconds[shares] for shares in alone]
    if fixed is not None:
        return _divided(fixed, [max(rate, max(rates) / HOPELESS) for rate in rates])
    cpu = seconds[nobody]
    rates = [rate if rate * cpu * HOPELESS > 1 else 0.0 for rate in rates]
    if not any(rates):
        return nobody
    even = sum(rates) / (sum(rates) + 1 / cpu)
    tries = {_divided(min(MOST, max(0.05, even + step)), rates) for step in SPLITS}
    seconds = sample(time, [nobody, *sorted(tries)])
    best = min(seconds, key=seconds.get)
    return best if seconds[best] < CLEARLY * seconds[nobody] else nobody


def _divided(share, rates) -> tuple[float, ...]:
    return tuple(share * rate / sum(rates) for rate in rates)


def sample(time, ways) -> dict:
    """The median seconds of each way, the ways taking turns; the first turn warms up and does not count."""
    for way in ways:
        time(way)
    taken, spent = {way: [] for way in ways}, 0.0
    for turn in range(ROUNDS):
        for way in ways:
            taken[way].append(time(way))
            spent += taken[way][-1]
        if spent > MOST_S or (turn >= 2 and spent > QUICK_S * len(ways) * (turn + 1)):
            break
    return {way: median(times) for way, times in taken.items()}


class Trial:
    """Whether the cards make tokens faster: they and the CPU alone take turns, and the medians decide.

    Bits are the same either way, so a trial costs no token.
    """

    def __init__(self):
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    @property
    def over(self) -> bool:
        """Whether it is decided."""
        return len(self.seconds[False]) >= TURNS

    @property
    def cards_next(self) -> bool:
        """Whether the next token is the cards'."""
        return len(self.seconds[True]) <= len(self.seconds[False])

    @property
    def cards_won(self) -> bool:
        """The verdict, once it is over."""
        cards, cpu = (median(self.seconds[side][1:]) for side in (True, False))
        return cards < CLEARLY * cpu

    def took(self, cards: bool, seconds: float):
        """A token of one side took so long."""
        self.seconds[cards].append(seconds)
