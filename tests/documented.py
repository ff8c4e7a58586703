"""The JSON schemas of docs/cli.md: read, and held against what a command prints."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def schema(command: str):
    """The JSON block under the heading "### `COMMAND`"."""
    found = re.search(rf"^### `{re.escape(command)}`\n+```json\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no schema of {command}"
    return json.loads(found[1])


def misfit(value, want, at="$") -> str | None:
    """Where and how `value` differs from a schema, None if it fits.

    A string names types, "|" between; other words are the strings allowed. [x] is an array of x; {"*": x} an object
    with any keys; [x, null] means x or null.
    """
    if isinstance(want, list) and len(want) == 2 and want[1] is None:
        return None if value is None else misfit(value, want[0], at)
    if isinstance(want, str):
        words = want.split("|")
        fits = any(isinstance(value, TYPES[word]) for word in words if word in TYPES)
        if isinstance(value, bool) and "boolean" not in words:
            fits = False
        return None if fits or value in words else f"{at} is {value!r}, not {want}"
    if type(value) is not type(want):
        return f"{at} is {type(value).__name__}, not {type(want).__name__}"
    if isinstance(want, list):
        wrong = [misfit(item, want[0], f"{at}[{i}]") for i, item in enumerate(value)]
    elif "*" in want:
        wrong = [misfit(item, want["*"], f"{at}.{key}") for key, item in value.items()]
    elif value.keys() != want.keys():
        return f"{at} has the keys {list(value)}, not {list(want)}"
    else:
        wrong = [misfit(item, want[key], f"{at}.{key}") for key, item in value.items()]
    return next(filter(None, wrong), None)


def check(value, command: str):
    """Assert that `value` fits the command's schema."""
    wrong = misfit(value, schema(command))
    assert wrong is None, f"{command}: {wrong}"
