"""How kernels are compiled: the one float policy, the C calling convention of a step, and the on-disk cache.

A *step* is one operation of the graph over one micro-batch, compiled to `void step(int64 record, int64 thread,
int64 threads)`: every thread of the pool calls it, and it does its share. Its arguments lie as int64 words in the
record (see `pool.py`). Functions marked `inner` are compiled into the steps that call them.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

import numba
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc

from bankml.cpu.level import level
from bankml.environment import home, own_temporary_folder

POLICY = {"nogil": True, "fastmath": False, "error_model": "numpy"}
inner = njit(**POLICY)

STEP_SIGNATURE = ((types.int64, types.int64, types.int64), types.void)
KEPT_CACHES = 6


@cache
def source_digest() -> str:
    """Digest of everything a compiled kernel depends on: Numba does not see an edited intrinsic in another file."""
    digest = hashlib.sha256(f"{numba.__version__} {level()} {sys.version_info[:2]}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_homes():
    if os.environ.get("BANKML_HOME"):
        yield home() / "kernels"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):  # no home folder at all
        yield (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "bankml" / "kernels"
    if own := own_temporary_folder():
        yield own / "kernels"


def _usable(folder: Path) -> bool:
    """Whether files can be written there and nobody else owns it (compiled code is loaded from it)."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=folder).close()
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


@cache
def cache_folder() -> Path | None:
    """Where compiled kernels are kept; None when no folder can be written, and then they are compiled anew."""
    for folder in _cache_homes():
        if _usable(folder) and _usable(folder / source_digest()):
            _forget_old(folder)
            return folder / source_digest()
    return None


def _forget_old(caches: Path):
    """Keep the newest few caches: one is left behind by every version and level."""
    with contextlib.suppress(OSError):
        folders = sorted((p for p in caches.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True)
        for folder in folders[KEPT_CACHES:]:
            shutil.rmtree(folder, ignore_errors=True)


class _StepCache(FunctionCache):
    """Numba's cache in our own folder; a truncated or unreadable entry counts as absent, a failed save as no save."""

    def load_overload(self, sig, target_context):
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever a damaged pickle raises
            self._discard()
            return None

    def save_overload(self, sig, data):
        try:
            super().save_overload(sig, data)
        except Exception:
            self._discard()

    def _discard(self):
        with contextlib.suppress(OSError):
            os.unlink(self._cache_file._index_path)


class _Told:
    """Says once, on stderr, that kernels are being compiled."""

    told = False

    @classmethod
    def once(cls):
        if not cls.told:
            cls.told = True
            print("bankml: compiling kernels (first run only)", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _signals_put_off():
    """Let Python's signal handlers wait until a kernel is through.

    An exception that one raises in the midst of Numba or LLVM can be lost there, or end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    came = []
    for number in handlers:
        signal.signal(number, lambda *about: came.append(about))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for about in came[:1]:
            handlers[about[0]](*about)


class Entry:
    """A function compiled to C on first use; `.address` is its int64 entry point."""

    def __init__(self, function, signature):
        self.function, self.name, self.signature = function, function.__name__, signature
        self._compiled = None

    @property
    def compiled(self) -> CFunc:
        """Numba's C callback, loaded from the cache or compiled."""
        if self._compiled is None:
            with _signals_put_off():
                self._compiled = self._compile()
        return self._compiled

    def _compile(self) -> CFunc:
        arguments, result = self.signature
        callback = CFunc(self.function, (arguments, result), {}, dict(POLICY))
        folder = cache_folder()
        if folder is not None:
            before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
            try:
                callback._cache = _StepCache(self.function)
            finally:
                numba.config.CACHE_DIR = before
        original = callback._compile_uncached
        callback._compile_uncached = lambda: (_Told.once(), original())[1]
        callback.compile()
        return callback

    @property
    def address(self) -> int:
        """The entry point, as an integer."""
        return self.compiled.address

    def assembly(self) -> str:
        """The machine code, as text."""
        return self.compiled._library.get_asm_str()

    def __repr__(self):
        return f"<entry {self.name}>"


def step(function) -> Entry:
    """Mark `function(record, thread, threads)` as a step of the graph."""
    return Entry(function, STEP_SIGNATURE)


def entry(result, *arguments):
    """Mark a function that Python calls through ctypes, with Numba types."""
    return lambda function: Entry(function, (arguments, result))
