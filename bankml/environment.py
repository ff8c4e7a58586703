"""Environment variables whose owners are more than one module: read, checked, and refused with the accepted values.

The others are read where they belong: BANKML_THREADS in cpu/pool.py, BANKML_CPU in cpu/level.py, BANKML_LLAMA_THREADS
in forward.py, BANKML_CACHE_TYPE in kv_cache.py, BANKML_REFERENCE in oracle/library.py. An empty value counts as none.
"""

import math
import os
import stat
import tempfile
from pathlib import Path

from bankml.errors import UsageError

CACHE_RAM = 8192  # MiB
GPU_OFF = ("off", "none", "cpu")
GPU_TAKES = "auto, off, none, cpu, or devices by index or name with commas between"


def home() -> Path | None:
    """bankml's folder: BANKML_HOME, else `bankml` in the user's data folder; None where the user has no home."""
    if chosen := os.environ.get("BANKML_HOME"):
        return _expanded("BANKML_HOME", chosen)
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):
        return Path(data, "bankml")
    try:
        return Path.home() / ".local" / "share" / "bankml"
    except RuntimeError:  # no HOME, and the user id has no entry
        return None


def own_temporary_folder(make=True) -> Path | None:
    """A folder among the temporary files that nobody else can have prepared or can write to, or None."""
    try:
        root = Path(tempfile.gettempdir(), f"bankml-{os.getuid()}")
        if make:
            root.mkdir(mode=0o700, exist_ok=True)
        about = root.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return root if ours else None


def _expanded(name, folder) -> Path:
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"{name} is {folder!r}; there is no such user's home") from None


def gpu(asked: str | None = None, name: str = "--gpu") -> str | list[int | str]:
    """Which devices to use: "auto", "off", or a list of indices and names; `asked`, else `BANKML_GPU`, else "auto"."""
    if asked is None:
        asked, name = os.environ.get("BANKML_GPU", ""), "BANKML_GPU"
    words = [word.strip() for word in asked.split(",")]
    if words in ([""], ["auto"]):
        return "auto"
    if len(words) == 1 and words[0] in GPU_OFF:
        return "off"
    if any(not _is_device(word) for word in words):
        raise UsageError(f"{name} is {asked!r}; it takes {GPU_TAKES}")
    return [int(word) if word.isdigit() else word for word in words]


def _is_device(word):
    if word.isdigit():
        return word.isascii() and len(word) < 5
    return word.isprintable() and word[:1].isalpha() and word not in ("auto", *GPU_OFF)


def gpu_share() -> float | None:
    """`BANKML_GPU_SHARE`: the part of each matrix the cards take, 0 to 0.95; None where calibration decides."""
    text = os.environ.get("BANKML_GPU_SHARE", "")
    value = _number(text) if text else None
    if value is not None and not 0 <= value <= 0.95:
        raise UsageError(f"BANKML_GPU_SHARE is {text!r}; it takes a number from 0 to 0.95")
    return value


def gpu_limit() -> float:
    """`BANKML_GPU_LIMIT`: the most of a card's time that may be used, clamped to 0.05-1; default 0.8."""
    text = os.environ.get("BANKML_GPU_LIMIT", "")
    value = _number(text) if text else 0.8
    if math.isnan(value):
        raise UsageError(f"BANKML_GPU_LIMIT is {text!r}; it takes a number (0.05 to 1)")
    return min(1.0, max(0.05, value))


def cache_ram() -> int:
    """`BANKML_CACHE_RAM` in MiB, for the host prompt cache: -1 has no limit, 0 switches it off.

    The default is llama-server's 8192, but no more than a quarter of the machine's memory.
    """
    text = os.environ.get("BANKML_CACHE_RAM", "")
    if not text:
        return min(CACHE_RAM, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20) // 4)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and -1 <= int(text) < 2**31):
        raise UsageError(f"BANKML_CACHE_RAM is {text!r}; it takes mebibytes, 0 for no cache, or -1 for no limit")
    return int(text)


def api_key() -> str | None:
    """`BANKML_API_KEY`: what a server asks its clients for, and `bankml top` tells it; unlike an argument, no other
    user of the machine sees it."""
    return os.environ.get("BANKML_API_KEY") or None


def _number(text):
    """A float, NaN where the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def check():
    """Refuse a bad value of any of these, whether or not it will be used. Raises UsageError."""
    gpu()
    gpu_share()
    gpu_limit()
    cache_ram()
