"""What Ollama's interface tells of models: /api/tags, /api/ps, /api/show."""

import hashlib
import math
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from bankml.blocks import TYPES
from bankml.chat import Template
from bankml.errors import BankmlError
from bankml.gguf import read_header
from bankml.guard import TEMPLATE_KEY
from bankml.params import Params
from bankml.serve.errors import ApiError

LATEST = ":latest"
FAR = datetime(9999, 12, 31, tzinfo=UTC)  # when one expires that stays


def find(names, name: str) -> Path:
    """The path of a model by its name, with or without `:latest`. Raises ApiError in Ollama's words."""
    if not name:
        raise ApiError(400, "model is required")
    try:
        return names.find(name.removesuffix(LATEST))
    except ApiError:
        raise ApiError(404, f"model '{name}' not found") from None


def instant(at: float) -> str:
    """Seconds since 1970 as Ollama writes a time."""
    moment = FAR if at >= FAR.timestamp() else datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def entry(path: Path) -> dict:
    """One model of /api/tags. digest: of the file's name, size and time, not of its content, which may be large."""
    stat = path.stat()
    facts = f"{path.name} {stat.st_size} {stat.st_mtime_ns}"
    return {
        "name": path.stem + LATEST,
        "model": path.stem + LATEST,
        "modified_at": instant(stat.st_mtime),
        "size": stat.st_size,
        "digest": hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest(),
        "details": details(path),
    }


def entries(paths) -> list[dict]:
    """Those of all models that are still there."""
    found = []
    for path in paths:
        with suppress(OSError):
            found.append(entry(path))
    return found


def details(path: Path) -> dict:
    """Format, family, parameters and types; empty where the file cannot be read."""
    header = _header(path, path.stat().st_mtime_ns)
    if header is None:
        return _details("", "", "")
    count = sum(math.prod(tensor.dims) for tensor in header.tensors.values())
    return _details(header.arch or "", _rounded(count), _kind(header))


def _details(family, size, kind) -> dict:
    about = {"parent_model": "", "format": "gguf", "family": family, "families": [family] if family else []}
    return about | {"parameter_size": size, "quantization_level": kind}


def thinks(path: Path) -> bool:
    """Whether the model's template knows reasoning."""
    header = _header(path, path.stat().st_mtime_ns)
    return header is not None and Template.of(header).thinks


def shown(path: Path, verbose: bool) -> dict:
    """What /api/show tells. Arrays of the header only where they are asked for, as in Ollama."""
    header = _header(path, path.stat().st_mtime_ns)
    if header is None:
        raise ApiError(400, f"{path.stem} is not a model that bankml can read")
    kv = header.kv
    parameters = _parameters(kv)
    lines = [f"PARAMETER {line}" for line in parameters]
    license_text, template = kv.get("general.license"), kv.get(TEMPLATE_KEY)
    return {
        "license": license_text if isinstance(license_text, str) else "",
        "modelfile": "\n".join([f"FROM {path.name}", *lines]) + "\n",
        "parameters": "\n".join(parameters),
        "template": template if isinstance(template, str) else "",
        "details": details(path),
        "model_info": {key: _value(kv[key], verbose) for key in kv if key != TEMPLATE_KEY},
        "capabilities": ["completion"],
        "modified_at": instant(path.stat().st_mtime),
    }


def _parameters(kv) -> list[str]:
    """What the file recommends, where it is not the default."""
    try:
        found, usual = Params.from_gguf(kv), Params()
    except BankmlError:
        return []
    names = ("temperature", "top_k", "top_p", "min_p", "repeat_last_n", "repeat_penalty")
    return [f"{name} {getattr(found, name):g}" for name in names if getattr(found, name) != getattr(usual, name)]


def _value(value, verbose):
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str | int | float):
        return value
    if not verbose:
        return None
    return [_value(item, True) for item in (value.tolist() if hasattr(value, "tolist") else value)]


@lru_cache(16)
def _header(path, mtime_ns):
    try:
        return read_header(path)
    except (BankmlError, OSError):
        return None


def _rounded(count) -> str:
    """134515008 -> 134.52M, as Ollama rounds."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= unit:
            return f"{count / unit:.1f}{letter}" if unit == 1e9 else f"{count / unit:.2f}{letter}"
    return str(count)


def _kind(header) -> str:
    tensor = header.tensors.get("token_embd.weight")
    return TYPES[tensor.type].name.upper() if tensor is not None and tensor.type in TYPES else "unknown"
