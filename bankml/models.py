"""Where models live, which ones are there, and the default one, fetched on first use."""

import os
from collections import Counter
from pathlib import Path

from bankml.environment import home, own_temporary_folder
from bankml.errors import BankmlError, Refused, UsageError
from bankml.gguf import check_spans, read_header
from bankml.plan import plan
from bankml.pull import KNOWN, SMOLLM2, fetch, say


def models_folder() -> Path:
    """The folder new models go to, made if need be.

    Where the default one cannot be written, a folder of the user's own among the temporary files serves, and one line
    says so; a BANKML_HOME that cannot be written is an error.
    """
    chosen = home()
    try:
        if chosen is None:
            raise OSError("there is no home folder")
        return _writable(chosen / "models")
    except OSError as error:
        reason = f"{chosen / 'models'}: {error.strerror}" if chosen else str(error)
        if os.environ.get("BANKML_HOME"):
            raise UsageError(
                f"cannot write to BANKML_HOME ({reason}); set it to a folder that can be written"
            ) from None
    folder = _fallback()
    if folder is None:
        raise UsageError(f"no folder for models ({reason}); set BANKML_HOME to one that can be written")
    say(f"bankml: {reason}; models go to {folder} (BANKML_HOME names another place)")
    return folder


def _writable(folder):
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied")
    return folder


def _fallback(make=True) -> Path | None:
    """The models folder among the temporary files, or None where there can be none."""
    root = own_temporary_folder(make)
    try:
        return _writable(root / "models") if root and make else root and root / "models"
    except OSError:
        return None


def folders() -> list[Path]:
    """The folders models are looked for in; nothing is made."""
    chosen = home()
    places = [chosen / "models"] if chosen else []
    if not os.environ.get("BANKML_HOME"):
        places.append(_fallback(make=False))
    return [place for place in places if place is not None and os.access(place, os.R_OK | os.X_OK)]


def at_hand() -> list[Path]:
    """The model files in the model folders, by name; a later part of a split model stands under its first one."""
    files = [path for folder in folders() for path in folder.glob("*.gguf") if not path.name.startswith(".")]
    return sorted(files, key=lambda path: (path.name.lower(), str(path)))


def find(name) -> Path | None:
    """The model file called `name`, with or without `.gguf`, in the model folders; None if there is none."""
    name = str(name)
    if not name or os.sep in name or "\0" in name:
        return None
    candidates = [folder / spelled for folder in folders() for spelled in (name, f"{name}.gguf")]
    return next((path for path in candidates if path.is_file()), None)


def pull(name, kind="F16") -> Path:
    """The path of the known model `name` as F16 or Q2_0, fetched first if it is not there. Raises UsageError."""
    known = _known(name)
    if known is None:
        raise UsageError(f"no model called {name} to pull; known: {_names()}")
    if kind not in known.kinds:
        raise UsageError(f"{known.name} comes as {' or '.join(known.kinds)}, not {kind}")
    return find(known.file(kind)) or fetch(known, models_folder(), kind)


def default_model() -> Path:
    """The path of SmolLM2-135M-Instruct as F16, fetched on first use."""
    return pull(SMOLLM2.name)


def resolve(name) -> Path:
    """The model file meant by a path, the name of a file in the model folders, or a known name (pulled on demand)."""
    path = Path(name)
    if path.is_file():
        return path
    if found := find(name):
        return found
    if _known(name):
        return pull(name)
    if os.path.lexists(name):
        return path  # a folder, a pipe, a link that leads nowhere: opening it says so
    names = ", ".join(path.name for path in at_hand()) or "none"
    raise UsageError(f"{name}: no such file, and no model of that name; at hand: {names}; to pull: {_names()}")


def describe(path) -> dict:
    """What a list of models says of the file at `path`: name, path, bytes, type, arch, error (None if it will run)."""
    about = {"name": path.name, "path": str(path), "bytes": None, "type": None, "arch": None, "error": None}
    try:
        about["bytes"] = path.stat().st_size
        header = read_header(path)
        about |= {"bytes": sum(header.sizes), "arch": header.arch, "type": _types(header)}
        check_spans(header)
        plan(header)
    except Refused as refused:
        about["error"] = refused.reasons[0].removeprefix(f"{path}: ")
    except BankmlError as error:
        about["error"] = str(error).removeprefix(f"{path}: ")
    except OSError as error:
        about["error"] = error.strerror
    return about


def _types(header):
    """The types of a model's matrices, the one with the most bytes first: "F16", "Q4_1+Q8_0"; None without any."""
    sizes = Counter()
    for tensor in header.tensors.values():
        if len(tensor.dims) > 1:
            sizes[tensor.block.name.upper()] += tensor.nbytes
    return "+".join(name for name, _ in sizes.most_common()) or None


def _known(name):
    wanted = str(name).lower()
    return next((known for known in KNOWN if wanted in (known.alias, known.name.lower())), None)


def _names():
    return ", ".join(f"{known.alias} ({known.name})" for known in KNOWN)
