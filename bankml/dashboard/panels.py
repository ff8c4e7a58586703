"""The dashboard's panels: what a snapshot holds on one matter, as lines. What is not known makes no line."""

from bankml.dashboard import draw, figures
from bankml.dashboard.draw import ACCENT, ALERT, BOLD, BUSY, FAINT, GOOD, Block, Line, words
from bankml.snapshot import DECODE, IDLE, LOADING, PROMPT, Device, Snapshot

STATES = {
    LOADING: ("loading", BUSY),
    PROMPT: ("reading the prompt", BUSY),
    DECODE: ("decoding", GOOD),
    IDLE: ("idle", FAINT),
    "reference": ("running the reference", ACCENT),
}
# Kinds of work by the names of the reference's graph, as people know them.
WORK = {
    "qkv": "q, k, v",
    "attn_out": "attn output",
    "ffn_gate_up": "ffn gate, up",
    "ffn_down": "ffn down",
    "logits": "logits",
}
COLOURS = [draw.Style(color=name) for name in ("cyan", "blue", "magenta", "green", "yellow", "red")]
OTHER = "other"
LABEL, NAME = 11, 18  # cells of a line's label; characters of a device's name, at most


def title(s: Snapshot, width: int) -> Line:
    """The first line: the program and the model, then what it is doing."""
    left = words((" bankml ", BOLD + ACCENT), (s.model or "", BOLD))
    parts = []
    if s.state:
        text, style = STATES.get(s.state, (s.state, BOLD))
        parts += [("● ", style), (text, style)]
    if s.tokens:
        limit = f" of {figures.count(s.max_tokens)}" if s.max_tokens else ""
        parts.append((f"  {figures.count(s.tokens)}{limit} tokens", FAINT))
    if s.queue:
        parts.append((f"  {figures.count(s.queue)} waiting", BUSY))
    return draw.ends(left, words(*parts, " "), width)


def speed(s: Snapshot, width: int, height: int) -> Block:
    """Tokens/s now and over the last minute, the sparkline in what room is left, the first token's time."""
    head = words((figures.rate(s.rate), BOLD + ACCENT), (" tokens/s now", FAINT)) if s.rate is not None else []
    minute = words(figures.rate(s.rate_minute), (" last minute", FAINT)) if s.rate_minute is not None else []
    first = words(("first token ", FAINT), figures.seconds(s.first_token_s)) if s.first_token_s is not None else []
    lines = [draw.ends(head, minute, width)] if head or minute else []
    if height >= 10 and s.rate is not None:
        digits = draw.large(figures.rate(s.rate))
        lines = [*draw.beside([digits, [[], [], words((" tokens/s", FAINT))]]), []]
        lines[2] = draw.ends(lines[2], minute, width)
    last = []
    if s.rates:
        top = max(s.rates)
        label = words((f"peak {figures.rate(top)}", FAINT)) if top > 0 else []
        last = [draw.ends(label, first, width)]
        lines += draw.chart(_spread(s.rates, width), width, max(1, height - len(lines) - 1))
    elif first:
        last = [first]
    return [*lines, *last]


def _spread(rates, width):
    """The series for so many columns: neighbours averaged where there are too many of them."""
    if len(rates) <= width:
        return rates
    parts = -(-len(rates) // width)
    odd = len(rates) % parts
    rates = rates[odd:]
    return tuple(sum(rates[i : i + parts]) / parts for i in range(0, len(rates), parts))


def prompt(s: Snapshot, width: int, label: str = "") -> Block:
    """How far the prompt is, at what rate, and how long it will take."""
    p = s.prompt
    if p is None or p.total <= 0:
        return []
    parts = [words(f"{figures.count(p.done)} of {figures.count(p.total)} tokens")]
    if p.cached:
        parts.append(words((f"{figures.count(p.cached)} from cache", GOOD)))
    if p.rate is not None:
        parts.append(words((f"{figures.rate(p.rate)} tokens/s", ACCENT)))
    if p.left_s is not None and p.done < p.total:
        parts.append(words((f"{figures.seconds(p.left_s)} left", BUSY)))
    return _with_bar(label, p.done / p.total, GOOD if p.done >= p.total else ACCENT, parts, width)


def _with_bar(label, share, style, parts, width) -> Block:
    """A label, a bar and texts, the bar on a line of its own where it must be."""
    name = words((label, FAINT))
    text = draw.flow([], parts, width)
    room = min(40, width - draw.length(name) - draw.length(text[0]) - 1)
    if len(text) == 1 and room >= 6:
        return [[*name, *draw.bar(share, room, style), draw.Segment(" "), *text[0]]]
    bar = draw.bar(share, max(0, width - draw.length(name)), style)
    return [[*name, *bar], *draw.flow([draw.Segment(" " * draw.length(name))], parts, width)]


def budget(s: Snapshot, width: int, height: int) -> Block:
    """The time of a token by kind of work, largest first; what there is no line for is added up."""
    kinds = sorted(((t, kind) for kind, t in s.budget.items() if kind != OTHER and t > 0), reverse=True)
    rest = s.budget.get(OTHER, 0.0)
    room = height - 1 if len(kinds) >= height or rest > 0 else height
    rest += sum(t for t, _ in kinds[max(0, room) :])
    rows = [(WORK.get(kind, kind), t, COLOURS[i % len(COLOURS)]) for i, (t, kind) in enumerate(kinds[: max(0, room)])]
    rows += [(OTHER, rest, FAINT)] if rest > 0 and height > 0 else []
    whole, largest = sum(s.budget.values()), max((t for _, t, _ in rows), default=0.0)
    lines = []
    for name, t, style in rows:
        right = words((f" {figures.milliseconds(t):>6}", draw.PLAIN), (f"{figures.percent(t / whole):>5}", FAINT))
        room = max(0, width - 13 - draw.length(right))
        lines.append([*draw.fit(words(name), 13), *draw.bar(t / largest, room, style), *right])
    return lines


def budget_title(s: Snapshot) -> tuple[str, str]:
    """What the panel of `budget` is called, and its note."""
    return "time of a prompt token" if s.budget_of == PROMPT else "time of a token", "ms"


def threads(s: Snapshot, width: int, rows: int) -> Block:
    """How busy each CPU thread is, as many side by side as there must be."""
    if not s.threads or rows < 1:
        return []
    label = words((f"{f'{len(s.threads)} threads' if len(s.threads) > 1 else '1 thread':<{LABEL}}", FAINT))
    width, busy = width - draw.length(label), s.threads
    across = -(-len(busy) // rows)
    cell = width // across
    if cell < 12:  # too many for bars: a digit's height each
        tops = "".join(draw.HEIGHTS[round(8 * min(max(part, 0.0), 1.0))] for part in busy)
        return [[*label, *words((tops, GOOD), (f" {figures.percent(sum(busy) / len(busy))} busy", draw.PLAIN))]]
    lines = []
    for first in range(0, len(busy), across):
        line = list(label) if not first else [draw.Segment(" " * draw.length(label))]
        for part in busy[first : first + across]:
            line += [*draw.bar(part, cell - 6, GOOD), *words(f"{figures.percent(part):>5} ")]
        lines.append(line)
    return lines


def devices(s: Snapshot, width: int) -> Block:
    """Each device: its rows and share, and what the limiter does."""
    column = max([LABEL, *(min(len(d.name), NAME) + 1 for d in s.devices)])
    return [line for device in s.devices for line in draw.flow(*_device(device, column), width)]


def _device(d: Device, column) -> tuple[Line, list[Line]]:
    """Its name, cut if it is long, and what is known of it."""
    name = d.name if len(d.name) <= NAME else f"{d.name[: NAME - 1]}…"
    parts = []
    if d.share is not None:
        parts.append(words((figures.percent(d.share), ACCENT), (" of the rows", FAINT)))
    if d.rows is not None:
        parts.append(words(figures.short(d.rows), ("" if d.share is not None else " rows", FAINT)))
    if d.busy is not None:
        limit = f" of {figures.percent(d.limit)}" if d.limit is not None else ""
        parts.append(words(f"busy {figures.percent(d.busy)}", (limit, FAINT)))
    elif d.limit is not None:
        parts.append(words((f"limit {figures.percent(d.limit)}", FAINT)))
    if d.resting is not None:
        parts.append(words(("resting", BUSY) if d.resting else ("at work", GOOD)))
    if d.bytes is not None:
        most = f" of {figures.size(d.bytes_limit)}" if d.bytes_limit is not None else ""
        parts.append(words(figures.size(d.bytes), (most, FAINT)))
    if d.note:
        parts.append(words((d.note, ALERT)))
    return draw.fit(words((name, BOLD)), column), parts


def caches(s: Snapshot, width: int) -> Block:
    """The K/V cache, and what the prompt cache has spared."""
    lines = []
    if c := s.cache:
        parts = [words(f"{figures.count(c.cells)} of {figures.count(c.capacity)} cells")]
        if c.bytes is not None:
            parts.append(words(figures.size(c.bytes), (f" {c.kind}" if c.kind else "", FAINT)))
        elif c.kind:
            parts.append(words((c.kind, FAINT)))
        lines += _with_bar(f"{'cache':<{LABEL}}", c.cells / max(1, c.capacity), ACCENT, parts, width)
    if p := s.prompt_cache:
        parts = [words((f"{p.hits} of {p.lookups} prompts", GOOD if p.hits else draw.PLAIN))]
        parts.append(words(f"{figures.count(p.tokens)} tokens"))
        parts += [words((f"{p.entries} kept", FAINT))] if p.entries else []
        parts += [words((figures.size(p.bytes), FAINT))] if p.bytes else []
        lines += draw.flow(words((f"{'reused':<{LABEL}}", FAINT)), parts, width)
    return lines
