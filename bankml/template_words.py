"""The filters and methods of chat templates with the meaning the reference's engine gives them (llama.cpp b11192,
`common/jinja`).

Where it and Python differ, it counts: ASCII white space and case, lengths in bytes, JSON floats of six digits, a
missing value that counts as empty text.
"""

import json

import jinja2
from jinja2.runtime import ChainableUndefined, Undefined

from bankml.errors import UsageError
from bankml.template_budget import budget

SPACES = " \t\n\r\v\f"


class Missing(ChainableUndefined):
    """A missing value; so is everything in it."""


def text_of(value) -> str:
    """A value as the reference's engine prints it."""
    if isinstance(value, str):
        return value
    if isinstance(value, Undefined):
        return ""
    if isinstance(value, float):
        text = f"{value:f}".rstrip("0")
        return text + "0" if text.endswith(".") else text
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_shown, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(part)}" for key, part in value.items()) + "}"
    return str(value) if value is None or isinstance(value, (bool, int)) else f"<{type(value).__name__}>"


def printed(value) -> str:
    """What `{{ value }}` writes: texts and numbers, the items of a list one after the other, nothing for the rest."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return "".join(map(printed, value))
    return text_of(value) if isinstance(value, (bool, int, float)) else ""


def _shown(value) -> str:
    if isinstance(value, str):
        return to_json(value) if "'" in value else f"'{value}'"
    return text_of(value)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """The `tojson` filter: floats have six digits, and white space is the reference's."""
    if sort_keys:
        raise UsageError("the chat template sorts the keys of tojson, which the reference has not")
    if indent is not None:
        budget.ask((indent + 1) * 4 * budget.weigh(value))
    comma, colon = separators or ((", " if indent is None else ","), ": ")
    budget.ask(budget.weigh(value) * (len(comma) + len(colon) + 6))

    def quote(text):
        """A text in quotes; DEL stays as it is, which Python's encoder would escape."""
        parts = (json.dumps(part, ensure_ascii=ensure_ascii)[1:-1] for part in text.split("\x7f"))
        return '"' + "\x7f".join(parts) + '"'

    def write(part, level):
        if isinstance(part, str):
            return quote(part)
        if isinstance(part, bool):
            return "true" if part else "false"
        if isinstance(part, float):
            return f"{part:g}"
        if isinstance(part, int):
            return str(part)
        if isinstance(part, dict) and part:
            return block("{}", [quote(text_of(k)) + colon + write(v, level + 1) for k, v in part.items()], level)
        if isinstance(part, (list, tuple)) and part:
            return block("[]", [write(item, level + 1) for item in part], level)
        return "{}" if isinstance(part, dict) else "[]" if isinstance(part, (list, tuple)) else "null"

    def block(ends, items, level):
        if indent is None:
            return ends[0] + comma.join(items) + ends[1]
        pad = " " * (indent * level)
        inner = f"{comma}\n".join(pad + " " * indent + item for item in items)
        return f"{ends[0]}\n{inner}\n{pad}{ends[1]}"

    return write(value, 0)


def _ascii(change):
    """A change of case for ASCII letters only."""
    table = {ord(a): change(a) for a in map(chr, range(128))}
    return lambda text: text_of(text).translate(table)


_upper, _lower = _ascii(str.upper), _ascii(str.lower)


def _title(text):
    text, out, fresh = text_of(text), [], True
    for character in text:
        space = character in SPACES
        out.append(character if space else _upper(character) if fresh else _lower(character))
        fresh = space
    return "".join(out)


def _strip(text, chars=SPACES):
    return text_of(text).strip(chars)


def _replace(text, old, new, count=None):
    text, old, new = text_of(text), text_of(old), text_of(new)
    budget.ask(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
    return text.replace(old, new)


def _split(text, separator=" ", maxsplit=-1):
    return text.split(separator, maxsplit)


def _rsplit(text, separator=" ", maxsplit=-1):
    return text.rsplit(separator, maxsplit)


def _format(text, *values):
    parts = text.split("{}")
    if any("{" in part for part in parts) or len(parts) - 1 > len(values):
        raise ValueError("format() has simple {} places only")
    values = [*map(text_of, values), ""]
    budget.ask(len(text) + sum(map(len, values)))
    return "".join(part + value for part, value in zip(parts, values, strict=False))


def _indent(text, width=4, first=False, blank=False):
    """The reference's: empty lines at the start vanish unless `first`."""
    pad = width if isinstance(width, str) else " " * budget.asked(max(width, 0))
    lines = text.split("\n")
    budget.ask(len(text) + len(lines) * len(pad))
    ends = len(lines) > 1 and not lines[-1]
    result = ""
    for line in lines if lines[-1] else lines[:-1]:
        fresh = not result
        result += ("" if fresh else "\n") + (pad if (first if fresh else line or blank) else "") + line
    return result + ("\n" + (pad if blank else "") if ends else "")


def _join(values, d="", attribute=None):
    texts = [text_of(_attribute(value, attribute)) for value in values]
    budget.ask(sum(map(len, texts)) + len(texts) * len(d))
    return text_of(d).join(texts)


def _attribute(value, name, default=None):
    if name is None:
        return value
    try:
        return value[name]
    except (LookupError, TypeError):
        return Missing(name=str(name)) if default is None else default


def _map(values, *rest, attribute=None, default=None):
    if rest or attribute is None:
        raise ValueError("map() has attribute= only")
    return [_attribute(value, attribute, default) for value in values]


def _length(value):
    return len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else len(value)


def _default(value, other="", boolean=False):
    missing = isinstance(value, Undefined) or value is None or (boolean and not value)
    return other if missing else value


def _chosen(keep):
    """select, reject and their attr forms: (values, [attribute,] [test, argument])."""

    @jinja2.pass_environment
    def choose(environment, values, *rest, by_attribute=keep[1]):
        name, *test = rest if by_attribute else (None, *rest)
        check = (lambda value: environment.call_test(test[0], value, test[1:])) if test else bool
        return [value for value in values if bool(check(_attribute(value, name))) is keep[0]]

    return choose


def _sort(values, reverse=False, case_sensitive=True, attribute=None):
    return sorted(values, key=lambda value: _attribute(value, attribute), reverse=reverse)


def _dictsort(value, case_sensitive=True, by="key", reverse=False):
    return dict(sorted(value.items(), key=lambda item: item[by == "value"], reverse=reverse))


def _number(kind):
    def convert(value, default=0, base=10):
        try:
            return int(value, base) if kind is int and isinstance(value, str) else kind(value)
        except (ValueError, TypeError, OverflowError):
            return kind(default)

    return convert


TEXT_METHODS = {
    "upper": _upper,
    "lower": _lower,
    "title": _title,
    "capitalize": lambda text: _upper(text_of(text)[:1]) + _lower(text_of(text)[1:]),
    "strip": _strip,
    "lstrip": lambda text, chars=SPACES: text.lstrip(chars),
    "rstrip": lambda text, chars=SPACES: text.rstrip(chars),
    "startswith": lambda text, start: text.startswith(start),
    "endswith": lambda text, end: text.endswith(end),
    "split": _split,
    "rsplit": _rsplit,
    "replace": _replace,
    "format": _format,
    "indent": _indent,
    "length": _length,
}
DICT_METHODS = {
    "get": lambda value, key, default=None: value.get(key, default),
    "keys": list,
    "values": lambda value: list(value.values()),
    "items": lambda value: list(value.items()),
}
FILTERS = {
    **{name: TEXT_METHODS[name] for name in TEXT_METHODS if name not in ("startswith", "endswith")},
    "trim": _strip,
    "count": _length,
    "default": _default,
    "d": _default,
    "string": lambda value: (
        to_json(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else text_of(value)
    ),
    "safe": text_of,
    "tojson": to_json,
    "join": _join,
    "map": _map,
    "select": _chosen((True, False)),
    "reject": _chosen((False, False)),
    "selectattr": _chosen((True, True)),
    "rejectattr": _chosen((False, True)),
    "sort": _sort,
    "dictsort": _dictsort,
    "items": lambda value: [] if isinstance(value, Undefined) else list(value.items()),
    "list": list,
    "first": lambda values: next(iter(values), Missing()),
    "last": lambda values: values[-1] if values else Missing(),
    "reverse": lambda values: values[::-1],
    "min": lambda values: min(values, default=Missing()),
    "max": lambda values: max(values, default=Missing()),
    "abs": abs,
    "int": _number(int),
    "float": _number(float),
}
OWN_TESTS = dict.fromkeys(("iterable", "sequence"), lambda value: isinstance(value, (list, tuple, str, Undefined)))
TESTS = (
    *("boolean", "callable", "odd", "even", "false", "true", "divisibleby", "string", "integer", "float", "number"),
    *("mapping", "lower", "upper", "none", "defined", "undefined", "in", "test", "sameas", "filter"),
    *("eq", "equalto", "==", "ge", ">=", "gt", "greaterthan", ">", "lt", "lessthan", "<", "le", "<=", "ne", "!="),
)
