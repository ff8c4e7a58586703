"""A slot's cells in a file: written whole or not at all, and read back only for the model that made them.

    "bankml slot 1\\n" | u32 size of JSON | JSON | tokens int32 | paths uint8 | K, V of each layer | SHA-256 of all this

The JSON holds `model` (SHA-256 of its files), `kind`, `layers`, `row_bytes`, `cells` and `llama_threads`.
"""

import hashlib
import json
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bankml.errors import Refused, UsageError, naming
from bankml.exact import without_split
from bankml.files import appearing
from bankml.slot import Slot, State

MAGIC = b"bankml slot 1\n"
MAX_JSON = 4096


class Stored(NamedTuple):
    """What a slot file holds."""

    tokens: int
    bytes: int


@dataclass(frozen=True)
class Maker:
    """What made the cells; a file fits a slot that agrees in all but the thread count of the llama.cpp to match."""

    model: str
    kind: str
    layers: int
    row_bytes: int
    llama_threads: int

    @classmethod
    def of(cls, slot: Slot, model: str) -> "Maker":
        """The one of this slot; `model` is the hash of the model's files."""
        first = slot.caches[0]
        return cls(model, first.kind.value, len(slot.caches), first.row_bytes, slot.weights.llama_threads)


def write(path, slot: Slot, model: str) -> Stored:
    """Store a slot that no answer is using."""
    path, slot_cells = Path(path), len(slot)
    head = json.dumps(asdict(Maker.of(slot, model)) | {"cells": slot_cells}).encode()
    digest = hashlib.sha256()
    with appearing(path) as file:

        def put(data):
            digest.update(data)
            file.write(data)

        put(MAGIC + struct.pack("<I", len(head)) + head)
        put(np.array(slot.tokens, np.int32).data)
        put(bytes(slot.paths))
        for cache in slot.caches:
            for part in cache.raw():
                put(part.data)
        file.write(digest.digest())
        size = file.tell()
    return Stored(slot_cells, size)


def read(path, slot: Slot, model: str, n_ctx: int, n_vocab: int) -> tuple[State, Stored]:
    """What a file holds for such a slot. Raises UsageError (no such file, context too small) or Refused."""
    path = Path(path)
    try:
        file = open(path, "rb")  # noqa: SIM115 - so that what fails within is not taken for this
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    with naming(path), file:
        size, digest = os.fstat(file.fileno()).st_size, hashlib.sha256()

        def take(count):
            data = file.read(count)
            digest.update(data)
            return data

        maker, cells = _head(path, take)
        _check_maker(path, maker, Maker.of(slot, model))
        if cells > n_ctx:
            raise UsageError(f"{path}: it holds {cells} tokens, the context only {n_ctx}")
        rest = cells * (4 + 1 + 2 * maker.layers * maker.row_bytes) + digest.digest_size
        if size != file.tell() + rest:
            raise Refused(
                f"{path}: it has {size} bytes where {file.tell() + rest} were expected; it was cut, or added to"
            )
        tokens = np.frombuffer(take(4 * cells), np.int32)
        paths = np.frombuffer(take(cells), np.uint8)
        shape = (cells, maker.row_bytes)
        layers = [
            tuple(np.frombuffer(take(cells * maker.row_bytes), np.uint8).reshape(shape) for _ in "KV")
            for _ in range(maker.layers)
        ]
        if file.read() != digest.digest():
            raise Refused(f"{path}: its checksum does not fit; the file is damaged")
    if cells and not (tokens.min() >= 0 and tokens.max() < n_vocab):
        raise Refused(f"{path}: it holds tokens that this model does not have")
    if maker.llama_threads != slot.weights.llama_threads:
        paths = without_split(paths)
    return State(tokens, paths, layers), Stored(cells, size)


def _head(path, take) -> tuple[Maker, int]:
    """The maker and the number of cells that a file names."""
    if take(len(MAGIC)) != MAGIC:
        raise Refused(f"{path}: not a slot that bankml has stored")
    try:
        (length,) = struct.unpack("<I", take(4))
        values = json.loads(take(min(length, MAX_JSON)))
        cells = values.pop("cells")
        maker = Maker(**values)
        kinds = {name: type(value) for name, value in asdict(maker).items()} | {"cells": type(cells)}
        if kinds != Maker.__annotations__ | {"cells": int} or cells < 0:
            raise ValueError
    except (struct.error, ValueError, TypeError, KeyError, AttributeError):
        raise Refused(f"{path}: its head is damaged") from None
    return maker, cells


def _check_maker(path, found: Maker, want: Maker):
    if found.model != want.model:
        raise Refused(f"{path}: another model made it (SHA-256 {found.model[:12]}, this one is {want.model[:12]})")
    if found.kind != want.kind:
        raise Refused(f"{path}: its cells are {found.kind}, this cache's {want.kind}; BANKML_CACHE_TYPE decides")
    if (found.layers, found.row_bytes) != (want.layers, want.row_bytes):
        raise Refused(f"{path}: it holds {found.layers} layers of {found.row_bytes} bytes, not this model's")
