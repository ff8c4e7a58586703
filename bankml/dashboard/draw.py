"""What pictures are made of: lines of styled text, of an exact width in terminal cells. A block is a list of lines."""

import unicodedata
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style

Line = list[Segment]
Block = list[Line]

PLAIN, BOLD, FAINT, FRAME = Style(), Style(bold=True), Style(dim=True), Style(color="bright_black")
ACCENT, GOOD, BUSY, ALERT = (Style(color=name) for name in ("cyan", "green", "yellow", "red"))
EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"
COLD, HOT = (38, 139, 210), (42, 201, 148)  # low and high values of a chart
DIGITS = {
    "0": ("█▀█", "█ █", "▀▀▀"),
    "1": ("▀█ ", " █ ", "▀▀▀"),
    "2": ("▀▀█", "█▀▀", "▀▀▀"),
    "3": ("▀▀█", " ▀█", "▀▀▀"),
    "4": ("█ █", "▀▀█", "  ▀"),
    "5": ("█▀▀", "▀▀█", "▀▀▀"),
    "6": ("█▀▀", "█▀█", "▀▀▀"),
    "7": ("▀▀█", "  █", "  ▀"),
    "8": ("█▀█", "█▀█", "▀▀▀"),
    "9": ("█▀█", "▀▀█", "▀▀▀"),
    ".": (" ", " ", "▀"),
}
_between = {
    step: Style(color="#" + "".join(f"{round(a + (b - a) * step / 8):02x}" for a, b in zip(COLD, HOT, strict=True)))
    for step in range(9)
}


def clean(text: str) -> str:
    """Text that a terminal shows and does not obey: control characters, and what turns text around, become U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) in ("Zs", "Co") else "\ufffd" for c in text)


def words(*parts) -> Line:
    """A line of texts, or of (text, style) pairs."""
    pairs = (part if isinstance(part, tuple) else (part, PLAIN) for part in parts)
    return [Segment(clean(text), style) for text, style in pairs if text]


def length(line: Line) -> int:
    """Cells that a line takes."""
    return sum(segment.cell_length for segment in line)


def fit(line: Line, width: int) -> Line:
    """The line cut or filled up to `width` cells."""
    room = width - length(line)
    if room > 0:
        return [*line, Segment(" " * room)]
    return line if room == 0 else Segment.adjust_line_length(line, max(0, width))


def crop(line: Line, width: int) -> Line:
    """The line in `width` cells, with an ellipsis where something is cut off."""
    room = width - length(line)
    if room > 0:
        return [*line, Segment(" " * room)]
    return line if room == 0 else [*Segment.adjust_line_length(line, width - 1), Segment("…", FAINT)]


def ends(left: Line, right: Line, width: int) -> Line:
    """One text at each end of a line; the left one gives way."""
    room = width - length(right) - 1
    return [*crop(left, room), Segment(" "), *right] if room > 0 else crop(right, width)


def flow(label: Line, parts: list[Line], width: int) -> Block:
    """Parts side by side, two cells apart, behind a label; those that do not fit go on in further lines below."""
    indent = length(label)
    lines, room = [list(label)], width - indent
    for part in parts:
        first = room == width - indent
        cells = length(part) + (0 if first else 2)
        if cells > room and not first:
            lines.append([Segment(" " * indent)])
            first, cells, room = True, length(part), width - indent
        lines[-1] += part if first else [Segment("  "), *part]
        room -= cells
    return lines


def beside(blocks: list[Block], gap: int = 0) -> Block:
    """Blocks of equal height, from left to right."""
    space = [Segment(" " * gap)] if gap else []
    return [
        [s for i, line in enumerate(row) for s in (*(space if i else []), *line)] for row in zip(*blocks, strict=True)
    ]


def box(title: str, lines: Block, width: int, height: int, note: str = "") -> Block:
    """Lines in a frame of `width` x `height` cells with a title, and a note at its right."""
    if width < 4 or height < 2:
        return [fit([], width) for _ in range(height)]
    head = words(("╭─ ", FRAME), (title, BOLD), (" ", FRAME))
    tail = words((f" {note} " if note else "", FAINT), ("─╮", FRAME))
    rest = width - length(head) - length(tail)
    if rest < 0:
        tail, rest = words(("╮", FRAME)), width - length(head) - 1
    top = [*head, Segment("─" * rest, FRAME), *tail] if rest >= 0 else [*fit(head, width - 1), Segment("╮", FRAME)]
    side, inner = Segment("│", FRAME), width - 4
    body = [*lines[: height - 2], *([[]] * (height - 2 - len(lines)))]
    rows = [[side, Segment(" "), *crop(line, inner), Segment(" "), side] for line in body]
    return [top, *rows, [Segment(f"╰{'─' * (width - 2)}╯", FRAME)]]


def bar(share: float, width: int, style: Style = ACCENT) -> Line:
    """A bar that fills `share` (0 to 1) of `width` cells, to an eighth of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * 8 * width)
    full, part = divmod(eighths, 8)
    drawn = "█" * full + (EIGHTHS[part] if part else "")
    return [Segment(drawn, style), Segment("·" * (width - len(drawn)), FRAME)]


@lru_cache(maxsize=8)  # it changes more rarely than it is drawn
def chart(values: tuple[float, ...], width: int, height: int) -> Block:
    """The last `width` values as columns, over `height` rows, the highest value filling them."""
    values = values[-width:]
    top = max(values, default=0.0) or 1.0
    eighths = [round(8 * height * value / top) for value in values]
    rows = []
    for row in range(height):  # from the top
        low = 8 * (height - 1 - row)
        style = _between[round(8 * (height - row) / height)]
        drawn = "".join(HEIGHTS[min(max(n - low, 0), 8)] for n in eighths)
        rows.append(fit([Segment(drawn, style)], width))
    return rows


def large(number: str, style: Style = ACCENT) -> Block:
    """A number in digits three rows high."""
    return [[Segment(" ".join(DIGITS[digit][row] for digit in number), style)] for row in range(3)]
