"""Kept verdicts: a card that has proved itself with these kernels, on this driver, need not at every start.

Only passed ones are kept, one small file each. A file that is missing, cut, unreadable or somebody else's counts as
none; one that cannot be written is not.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

from bankml.blocks import TYPES
from bankml.environment import home, own_temporary_folder
from bankml.errors import BankmlError
from bankml.gpu import program
from bankml.gpu.devices import Device
from bankml.version import __version__


def key(device: Device, wtype: int, cpu_version: str) -> str:
    """Of driver, device, weight type, and the kernels on both sides."""
    said = (device.identity, TYPES[wtype].name, program.digest(), cpu_version, __version__)
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]


def _folder() -> Path | None:
    with contextlib.suppress(BankmlError):
        folder = home() or own_temporary_folder()
        return folder and folder / "cards"
    return None


def read(key: str) -> bool | None:
    """Whether the card passed with the software fma; None where it has not passed."""
    folder = _folder()
    try:
        path = folder / f"{key}.json"
        if path.stat().st_uid != os.getuid() or path.stat().st_size > 4096:
            return None
        said = json.loads(path.read_bytes())
        return said["software_fma"] if said["key"] == key and isinstance(said["software_fma"], bool) else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def forget(key: str):
    """Of a card that has given a wrong bit after all: it must prove itself again."""
    with contextlib.suppress(OSError, TypeError):
        (_folder() / f"{key}.json").unlink(missing_ok=True)


def write(key: str, device: Device, software_fma: bool):
    """Keep a passed verdict, in one step."""
    folder = _folder()
    said = {
        "key": key,
        "software_fma": software_fma,
        "device": device.identity,
        "date": time.strftime("%Y-%m-%d"),
    }
    with contextlib.suppress(OSError, TypeError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{key}", delete=False) as file:
            file.write(json.dumps(said).encode())
        try:
            os.replace(file.name, folder / f"{key}.json")
        except OSError:
            os.unlink(file.name)
