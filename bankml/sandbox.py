"""Chat templates run as strangers' code: jinja2's immutable sandbox with a budget of time and memory.

Every loop step, operator, filter and call asks the budget, so a template ends within its seconds and what it makes
stays within its bytes, in any thread and without signals. Only what the reference's engine has can be reached, so no
attribute of a Python object is in a template's hands.
"""

import math
import threading
import time
import warnings
from functools import lru_cache, partial, wraps
from typing import ClassVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from bankml.errors import Refused, UsageError
from bankml.template_budget import TooCostly, budget
from bankml.template_words import DICT_METHODS, FILTERS, OWN_TESTS, TESTS, TEXT_METHODS, Missing, printed, text_of

MAX_TEMPLATE = 1 << 18  # characters
MAX_BITS = 1 << 10  # of an integer
_quiet = threading.Lock()  # filters of warnings are the process's


class Raised(Exception):
    """A template's own `raise_exception`."""


def _guarded(function):
    """A filter that asks the budget before and after."""

    @wraps(function)  # keeps jinja2's marks on it
    def run(*args, **kwargs):
        budget.tick()
        return budget.keep(function(*args, **kwargs))

    return run


def _range(*args):
    values = range(*args)
    budget.ask(8 * len(values))
    return list(values)


def _raise_exception(message=""):
    raise Raised(text_of(message))


def _strftime_now(form):
    return time.strftime(form)


class _Steps(list):
    """What a loop runs over; every step asks the budget."""

    def __iter__(self):
        for item in super().__iter__():
            budget.tick()
            yield item


def _pairs(values):
    return _steps(values.items() if isinstance(values, dict) else values)


def _steps(values):
    return _Steps(budget.keep([] if values is None else list(values)))


def _concat(values):
    texts = ["" if value is None else text_of(value) for value in values]
    budget.ask(sum(map(len, texts)))
    return "".join(texts)


# Filters that `_Watch` puts into a template; a template cannot name them.
HIDDEN = {" steps": _steps, " pairs": _pairs, " concat": _guarded(_concat), " keep": budget.keep}


class _Watch(NodeTransformer):
    """Puts the budget where jinja2's sandbox has no hook: loops, comparisons, slices, literals, `~`."""

    def _wrap(self, node, name):
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    def get_visitor(self, node):
        """The method for a node, by the table below; None leaves the node and goes on with its parts."""
        method = self.METHODS.get(type(node))
        return method and partial(method, self)

    def _loop(self, node):
        if node.recursive:
            raise SecurityError("uses a recursive loop")
        self.generic_visit(node)
        node.iter = self._wrap(node.iter, " pairs" if isinstance(node.target, nodes.Tuple) else " steps")
        return node

    def _join(self, node):
        self.generic_visit(node)
        return self._wrap(nodes.Tuple(node.nodes, "load", lineno=node.lineno), " concat")

    def _kept(self, node):
        self.generic_visit(node)
        return self._wrap(node, " keep")

    def _tuple(self, node):
        return self._kept(node) if node.ctx == "load" else self.generic_visit(node)

    def _item(self, node):
        return self._kept(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def _unknown(self, node):
        raise SecurityError(f"uses the statement '{type(node).__name__.lower()}'")

    METHODS: ClassVar = {
        nodes.For: _loop,
        nodes.Concat: _join,
        nodes.Compare: _kept,
        nodes.List: _kept,
        nodes.Dict: _kept,
        nodes.Tuple: _tuple,
        nodes.Getitem: _item,
        **dict.fromkeys((nodes.Extends, nodes.Block, nodes.Include, nodes.Import, nodes.FromImport), _unknown),
    }


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it means nothing."""

    tags = frozenset(("generation",))

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2 for chat templates: see the module's text."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=Missing,
            finalize=lambda value: budget.keep(printed(value)),
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            cache_size=0,
        )
        self.filters = {name: _guarded(function) for name, function in FILTERS.items()} | HIDDEN
        self.tests = {name: self.tests[name] for name in TESTS if name in self.tests} | OWN_TESTS
        self.globals = {
            "range": _range,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "tojson": self.filters["tojson"],
        }

    def _compile(self, source, filename):
        """Without Python's warnings about what a template does to its constants, which would go to stderr."""
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return super()._compile(source, filename)

    def _parse(self, source, name, filename):
        return _Watch().visit(super()._parse(source, name, filename))

    def concat(self, parts):
        """What a template, macro or block wrote, as one text."""
        kept, size = [], 0
        for part in parts:
            size += len(part)
            budget.ask(size)
            kept.append(part)
        return budget.keep("".join(kept))

    def getattr(self, obj, attribute):
        """`obj.attribute`: keys, and the methods that the reference has."""
        if isinstance(obj, dict) and attribute not in DICT_METHODS:
            return obj.get(attribute, Missing(name=attribute))
        if attribute.startswith("_"):
            raise SecurityError(f"reaches for '{attribute}'")
        methods = TEXT_METHODS if isinstance(obj, str) else DICT_METHODS if isinstance(obj, dict) else {}
        if attribute in methods:
            return partial(methods[attribute], obj)
        if isinstance(obj, (LoopContext, Namespace)):
            return super().getattr(obj, attribute)
        return Missing(name=attribute)

    def getitem(self, obj, argument):
        """`obj[argument]`"""
        if isinstance(obj, (dict, list, tuple, str)):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        return self.getattr(obj, argument) if isinstance(argument, str) else Missing(name=str(argument))

    def call(self, context, obj, *args, **kwargs):
        """A call in a template: macros, our own functions, the methods of `getattr`, and two of a loop."""
        budget.tick()
        scope = {key: kwargs.pop(key) for key in ("_loop_vars", "_block_vars") if key in kwargs}
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(obj, Macro):
            return budget.keep(context.call(obj, *args, **kwargs, **scope))
        if isinstance(obj, partial) or obj in self.globals.values():
            return budget.keep(obj(*args, **kwargs))
        if isinstance(owner, LoopContext) and name in ("cycle", "changed"):
            return obj(*args)
        if isinstance(obj, Undefined):
            raise TypeError(f"'{obj._undefined_name}' is no function")
        raise SecurityError("calls what is no function of a template")

    def call_binop(self, context, operator, left, right):
        """Arithmetic; `+` with a text on one side makes text, as the reference does."""
        budget.tick()
        texts = isinstance(left, str), isinstance(right, str)
        if operator == "+" and any(texts):
            return budget.keep(_concat((left, right)))
        if operator == "*" and any(texts):
            text, count = (left, right) if texts[0] else (right, left)
            budget.ask(len(text) * max(0, count))
            return budget.keep(text * count)
        if isinstance(left, (list, tuple)) and operator == "+":
            budget.ask(8 * (len(left) + len(right)))
            return budget.keep(left + right)
        if not all(isinstance(value, (int, float)) for value in (left, right)):
            raise TypeError(f"no operator {operator} between {type(left).__name__} and {type(right).__name__}")
        if operator == "**" and abs(left) > 1 and right * math.log2(abs(left)) > MAX_BITS:
            raise TooCostly("makes too large a number")
        result = self.binop_table[operator](left, right)
        if isinstance(result, int) and result.bit_length() > MAX_BITS:
            raise TooCostly("makes too large a number")
        return result


_sandbox = lru_cache(maxsize=1)(Sandbox)


@lru_cache(maxsize=16)
def _compiled(text):
    return _sandbox().from_string(text)


def _failure(error) -> Refused | UsageError:
    """The error that tells what went wrong: the template's fault is Refused, the messages' UsageError."""
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, Raised):
        return UsageError(f"the chat template says: {said}")
    if isinstance(error, jinja2.TemplateSyntaxError):
        said = " ".join((error.message or said).split())
        return Refused(f"the chat template is broken: {said} (line {error.lineno})")
    if isinstance(error, (SecurityError, TooCostly)):
        return Refused(f"the chat template {said}")
    if isinstance(error, (RecursionError, MemoryError)):
        return Refused("the chat template is nested too deeply")
    return UsageError(f"the chat template fails: {said}")


def run(text: str, variables: dict) -> str:
    """Render a template. Raises Refused where it is broken, hostile or costly, UsageError where it turns input down."""
    try:
        if len(text) > MAX_TEMPLATE:
            raise TooCostly(f"has {len(text)} characters, {MAX_TEMPLATE} is the most")
        with budget.rendering(variables):
            return _compiled(text).render(variables)
    except UsageError:
        raise
    except Exception as error:
        raise _failure(error) from None


def problems(text: str) -> list[str]:
    """What is wrong with a template, without running it: syntax, a reach for Python's inside, unknown statements."""
    try:
        if len(text) > MAX_TEMPLATE:
            return [f"the chat template has {len(text)} characters, {MAX_TEMPLATE} is the most"]
        tree = super(Sandbox, _sandbox())._parse(text, None, None)
        names = [node.attr for node in tree.find_all(nodes.Getattr)]
        names += [node.arg.value for node in tree.find_all(nodes.Getitem) if isinstance(node.arg, nodes.Const)]
        names += [node.args[0].value for node in tree.find_all(nodes.Filter) if _names_attribute(node)]
        dunder = dict.fromkeys(name for name in names if isinstance(name, str) and name.startswith("__"))
        found = [f"the chat template reaches for '{name}'" for name in dunder]
    except Exception as error:
        return [str(_failure(error))]
    try:
        _Watch().visit(tree)
    except SecurityError as error:
        found.append(str(_failure(error)))
    return found


def _names_attribute(node) -> bool:
    return node.name in ("attr", "map") and bool(node.args) and isinstance(node.args[0], nodes.Const)
