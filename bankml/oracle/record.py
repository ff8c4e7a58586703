"""Recordings of what the reference computed: hashes of its rows, stamped with what made them, as JSON."""

import hashlib
import json
import os
import platform
from pathlib import Path

import numpy as np

from bankml.errors import BankmlError

DIGITS = 16  # hex digits kept of a SHA-256


def digest(*arrays: np.ndarray) -> str:
    """The first 16 hex digits of the SHA-256 of the arrays' bytes."""
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()[:DIGITS]


def row_digests(rows: np.ndarray) -> str:
    """The digests of every row (n, width), one after the other, in one string."""
    return "".join(digest(row) for row in rows)


def unequal_rows(recorded: str, rows: np.ndarray) -> list[int]:
    """The rows whose digest is not the recorded one; a missing or surplus row counts too."""
    have = row_digests(rows)
    starts = range(0, max(len(recorded), len(have)), DIGITS)
    return [at // DIGITS for at in starts if recorded[at : at + DIGITS] != have[at : at + DIGITS]]


def of_stages(stages) -> dict[str, str]:
    """The entry of a run, from its (stage, rows): one digest for all rows of a layer, one a row for the others."""
    rows: dict[str, list] = {}
    for stage, part in stages:
        rows.setdefault(stage, []).append(part)
    joined = {stage: np.concatenate(parts) for stage, parts in rows.items()}
    layer = {stage: digest(part) for stage, part in joined.items() if stage.startswith("l_out")}
    return layer | {stage: row_digests(part) for stage, part in joined.items() if stage not in layer}


def stamp(reference) -> dict:
    """What made a recording: the reference's build and hashes (`library.Reference`), the C library and the CPU."""
    return {
        "reference": "llama.cpp b11192",
        "variant": reference.variant,
        "sha256": reference.sha256,
        "glibc": " ".join(platform.libc_ver()),
        "cpu": _cpu(),
    }


def _cpu() -> dict:
    """Model name and the flags that decide which code runs, of the first CPU."""
    with open("/proc/cpuinfo") as file:
        lines = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines())
    lines = {key.strip(): value.strip() for key, value in lines.items()}
    deciding = ("avx", "fma", "f16c", "bmi", "gfni", "sse4", "amx")
    flags = [flag for flag in lines["flags"].split() if flag.startswith(deciding)]
    return {"model": lines["model name"], "flags": " ".join(sorted(flags))}


def write(path, recording: dict):
    """Write a recording, whole or not at all; one case a line, so that a change shows in a diff."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for key, value in recording.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    partial = path.with_name(f".{path.name}.part")
    partial.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    os.replace(partial, path)


def read(path) -> dict:
    """Read a recording; BankmlError where it is not there or not whole."""
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise BankmlError(f"{path}: no recording to compare with ({error})") from error
