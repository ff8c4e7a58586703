"""The body of a request: JSON with bounded depth, whose fields are taken one by one with the kind they must have."""

import json
import math
from typing import Any

from starlette.requests import Request

from bankml.serve.errors import ApiError

MAX_DEPTH = 100


async def read(request: Request) -> "Fields":
    """The JSON object of the body. Raises ApiError 400."""
    return parse(await request.body())


def parse(body: bytes) -> "Fields":
    """The JSON object in these bytes; raises ApiError 400 where there is none."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    _check_depth(value)
    return Fields(value)


def _no_number(text):
    raise ValueError(f"{text} is no JSON number")


def _check_depth(value):
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep():
    return ApiError(400, f"the body is nested more than {MAX_DEPTH} deep")


class Fields(dict[str, Any]):
    """A request's fields. A null counts as a field that was not given; one of the wrong kind raises ApiError 400."""

    def text(self, name: str, default=None) -> str | None:
        """A string."""
        return self._of(name, str, "a string", default)

    def flag(self, name: str, default=False) -> bool:
        """true or false."""
        return self._of(name, bool, "true or false", default)

    def array(self, name: str, default=None) -> list | None:
        """An array."""
        return self._of(name, list, "an array", default)

    def object(self, name: str, default=None) -> "Fields | None":
        """An object."""
        value = self._of(name, dict, "an object", default)
        return Fields(value) if value is not None else None

    def whole(self, name: str, default=None, low=-(2**31), high=2**31 - 1) -> int | None:
        """A whole number; 3.0 is one."""
        value = self.number(name, None)
        if value is None:
            return default
        if value != math.floor(value) or not low <= value <= high:
            raise ApiError(400, f"'{name}' is {self[name]!r}; it takes a whole number from {low} to {high}", param=name)
        return int(value)

    def number(self, name: str, default=None) -> float | int | None:
        """A finite number."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            raise self.wrong(name, "a number")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A string, or an array of them."""
        value = self.get(name)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise self.wrong(name, "a string or an array of strings")
        return tuple(items)

    def _of(self, name, kind, what, default):
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.wrong(name, what)
        return value

    def wrong(self, name: str, what: str) -> ApiError:
        """The error for a field of the wrong kind."""
        return ApiError(400, f"'{name}' must be {what}", param=name)
