"""The whole picture: which panels there are, and where, at a given size."""

from dataclasses import dataclass

from bankml.dashboard import answer, draw, panels
from bankml.dashboard.draw import Block, box
from bankml.snapshot import Snapshot

SMALL_WIDTH, SMALL_HEIGHT = 60, 16  # below, there are no frames
WIDE_WIDTH, WIDE_HEIGHT = 140, 30  # from there on, the answer stands beside the rest
TALLEST = 18  # rows of the speed's panel, at most, where it stands beside the answer
ANSWER = 5  # rows at least that the answer's panel takes


@dataclass(frozen=True)
class View:
    """A picture as lines, each of the full width; rich prints it."""

    lines: Block

    def __rich_console__(self, console, options):
        for line in self.lines:
            yield from line
            yield draw.Segment.line()


def render(snapshot: Snapshot, width: int, height: int, heading: str = "answer", note: str = "") -> View:
    """A snapshot in `width` x `height` cells. heading: of the text's panel; note: for the last line, if not empty."""
    if height < 1 or width < 1:
        return View([])
    rows = height - bool(note)
    if width < SMALL_WIDTH or height < SMALL_HEIGHT:
        lines = [draw.fit(line, width) for line in _small(snapshot, width, rows)]
    else:
        arrange = _wide if width >= WIDE_WIDTH and height >= WIDE_HEIGHT else _narrow
        lines = [panels.title(snapshot, width), *arrange(snapshot, width, rows - 1, heading)]
    lines = [*lines[:rows], *([draw.fit([], width)] * (rows - len(lines)))]
    if note:
        lines.append(draw.crop(draw.words((f" {note}", draw.FAINT)), width))
    return View(lines)


def _small(s, width, height) -> Block:
    """A few lines without frames, then the answer's end."""
    lines = [panels.title(s, width), *panels.speed(s, width, 3), *panels.prompt(s, width)]
    room = height - len(lines)
    if room >= 6:
        lines += [*panels.caches(s, width), *panels.threads(s, width, 1)][: room - 4]
    lines = lines[: max(1, height - 2)]
    text = answer.tail(s.answer, width, height - len(lines)) if s.answer is not None else []
    return [*lines, *text]


def _narrow(s, width, height, heading) -> Block:
    """Speed and budget side by side, the machine below them, then the answer."""
    machine = _machine(s, width - 4, 1 if len(s.threads) <= 4 else 2)
    below = len(machine) + 2 if machine else 0
    top = height - below if s.answer is None else min(max(6, height - below - ANSWER), 6 + height // 8)
    if not s.rates and not s.budget:
        top = min(top, 2 + len(panels.speed(s, width - 4, 1)))
    blocks = [_top(s, width, top)] if _has_top(s) else []
    if machine:
        blocks.append(box("machine", machine, width, len(machine) + 2))
    return _with_answer(s, blocks, width, height, heading)


def _with_answer(s, blocks, width, height, heading) -> Block:
    """Blocks one below another, and the answer in what is left."""
    lines = [line for block in blocks for line in block]
    room = height - len(lines)
    if s.answer is not None and room >= 3:
        lines += box(heading, answer.tail(s.answer, width - 4, room - 2), width, room)
    return lines


def _has_top(s) -> bool:
    return s.rate is not None or bool(s.rates) or s.first_token_s is not None or bool(s.budget)


def _top(s, width, height) -> Block:
    """Speed, and the budget beside it if it is known."""
    if not s.budget:
        return box("speed", panels.speed(s, width - 4, height - 2), width, height)
    left = width // 2
    name, note = panels.budget_title(s)
    right = panels.budget(s, width - left - 4, height - 2)
    speed = box("speed", panels.speed(s, left - 4, height - 2), left, height)
    return draw.beside([speed, box(name, right, width - left, height, note)])


def _machine(s, width, rows) -> Block:
    """Prompt, threads (in up to so many rows), caches and devices."""
    prompt = panels.prompt(s, width, f"{'prompt':<{panels.LABEL}}")
    return [*prompt, *panels.threads(s, width, rows), *panels.caches(s, width), *panels.devices(s, width)]


def _wide(s, width, height, heading) -> Block:
    """A column of figures, and the answer beside it."""
    left = min(96, width * 2 // 5) if s.answer is not None else width
    inner = left - 4
    parts, machine = [], _machine(s, inner, min(4, max(1, -(-len(s.threads) // 2))))
    used = len(machine) + 2 if machine else 0
    name, note = panels.budget_title(s)
    kinds = len([t for t in s.budget.values() if t > 0])
    if kinds:
        room = min(kinds + 2, max(6, height - used - 12))
        parts.insert(0, box(name, panels.budget(s, inner, room - 2), left, room, note))
        used += room
    if _has_top(s) and height - used >= 5:
        room = min(height - used, TALLEST) if s.rates else 2 + len(panels.speed(s, inner, 1))
        parts.insert(0, box("speed", panels.speed(s, inner, room - 2), left, room))
    if machine:
        parts.append(box("machine", machine, left, height - sum(map(len, parts))))
    column = [line for part in parts for line in part]
    column = [*column, *([draw.fit([], left)] * (height - len(column)))][:height]
    if s.answer is None:
        return column
    text = box(heading, answer.tail(s.answer, width - left - 4, height - 2), width - left, height)
    return draw.beside([column, text])
