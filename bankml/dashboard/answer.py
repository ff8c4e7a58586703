"""The end of a long text, wrapped at words for a panel."""

from functools import lru_cache

from rich.cells import cell_len

from bankml.dashboard.draw import PLAIN, Block, Segment, clean


def tail(text: str, width: int, height: int) -> Block:
    """The last `height` lines of the text in lines of `width` cells; nothing where there is no room."""
    if width < 2 or height < 1:
        return []
    rows: list[str] = []
    end = len(text)
    while len(rows) < height and end >= 0:
        start = text.rfind("\n", 0, end) + 1
        rows = [*_wrapped(text[start:end], width, height), *rows]
        end = start - 1
    return [[Segment(row, PLAIN)] for row in rows[-height:]]


def _wrapped(paragraph: str, width: int, height: int) -> tuple[str, ...]:
    """The rows of a paragraph; of a very long one the last that are sure to fill the panel."""
    most = 4 * width * (height + 2)
    return _wrap(paragraph[-most:] if len(paragraph) > 2 * most else paragraph, width)


@lru_cache(maxsize=512)
def _wrap(paragraph: str, width: int) -> tuple[str, ...]:
    rows, row, room = [], "", width
    for word in _words(clean(paragraph.replace("\t", "    ").removesuffix("\r"))):
        cells = cell_len(word)
        if word.isspace() and row and cells > room:  # the row ends here, and the next one begins with a word
            row, room = row + word[:room], 0
            continue
        if cells > room and row and cells <= width:
            rows.append(row)
            row, room = "", width
        for piece in [word] if cells <= room else _pieces(word, room, width):
            if cell_len(piece) > room:
                rows.append(row)
                row, room = "", width
            row, room = row + piece, room - cell_len(piece)
    return (*rows, row)


def _words(text):
    """Words, each with the spaces behind it as a word of its own."""
    start = 0
    for at in range(1, len(text)):
        if (text[at] == " ") != (text[at - 1] == " "):
            yield text[start:at]
            start = at
    yield text[start:]


def _pieces(word, room, width):
    """A word too long for the rest of a row, in pieces that fit: the first into `room`, the others into `width`."""
    piece, cells = "", 0
    for character in word:
        own = cell_len(character)
        if cells + own > room and piece:
            yield piece
            piece, cells, room = "", 0, width
        piece, cells = piece + character, cells + own
    yield piece
