"""PyOpenCL as bankml wants it: loaded late, without its caches, and with nothing from the environment in a build."""

import os
import threading
import warnings
from contextlib import contextmanager

_lock = threading.Lock()


@contextmanager
def _environment(**values):
    """Set variables (None: unset) for a while."""
    before = {name: os.environ.get(name) for name in values}
    try:
        for name, value in values.items():
            _set(name, value)
        yield
    finally:
        for name, value in before.items():
            _set(name, value)


def _set(name, value):
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def load():
    """The pyopencl module. Raises ImportError (also where its library does not load).

    Drivers keep caches of their own; PyOpenCL's would only add files that can be stale, truncated or unwritable.
    """
    with _lock, _environment(PYOPENCL_NO_CACHE="1"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pyopencl

    return pyopencl


def build(context, device, source: str, options: list[str]):
    """A built cl.Program. Raises cl.Error, whose text holds the compiler's log.

    PyOpenCL would append PYOPENCL_BUILD_OPTIONS (-cl-fast-relaxed-math, say), and warn of any word the compiler says.
    """
    cl = load()
    with _lock, _environment(PYOPENCL_BUILD_OPTIONS=None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cl.Program(context, source).build(options, [device])
