"""The header of one GGUF file: a parser that trusts no length.

Accepts what `gguf_init_from_file` of llama.cpp b11192 accepts, except for metadata beyond the caps below, which no
model has and which would only cost time and memory. Nothing is allocated from a count before the bytes that must
follow it are known to be there. What a file lacks is `NeedMore`, what is wrong with it `Refused`.
"""

import math
import mmap
import os
import stat
import struct
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bankml.blocks import Q2_0, RUNNABLE, TYPES, BlockType, names
from bankml.errors import NeedMore, Refused, UsageError
from bankml.gguf_values import ARRAY, SCALARS, STRING, Strings, Text, Values, printable

MAX_COUNT = 1 << 14  # tensors, and keys, of one file
MAX_KEY = (1 << 16) - 1  # bytes of a key, as the format's description has it
MAX_KEYS_BYTES = 1 << 24  # bytes of all keys together
MAX_TEXT = 1 << 24  # bytes of one string value that is not in an array
MAX_STRING = 1 << 30  # bytes of a string, elements of an array: the reference's own caps
MAX_STRINGS = 1 << 21  # strings in arrays, all together
MAX_STRINGS_BYTES = 1 << 26  # bytes of one array's strings
MAX_NAME = 64  # a tensor's name is shorter than this
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
KEY_BYTES, TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8  # the least that one key, or one tensor, takes in a file

G128_HINT = "group-128 file; get the g64 or Q1_0 build"
_U64 = struct.Struct("<Q").unpack_from


@dataclass(frozen=True)
class Tensor:
    """One tensor as announced; `dims[0]` is the row length in weights, `offset` counts from its file's first byte."""

    name: str
    dims: tuple[int, ...]
    type: int
    offset: int
    nbytes: int
    part: int = 0

    @property
    def block(self) -> BlockType:
        return TYPES[self.type]

    @property
    def rows(self) -> int:
        return math.prod(self.dims[1:])

    @property
    def row_bytes(self) -> int:
        return self.block.row_bytes(self.dims[0] if self.dims else 1)


@dataclass
class Header:
    """What a model file (all its parts) says of itself. `paths`, `sizes` and `data_offsets` have one entry per part."""

    version: int
    kv: Values
    tensors: dict[str, Tensor]
    alignment: int
    data_offset: int
    paths: list[Path]
    sizes: list[int]
    data_offsets: list[int] = field(default_factory=list)

    @property
    def arch(self) -> str | None:
        """`general.architecture`, None where it is missing or not a string."""
        return self.kv["general.architecture"] if self.kv.kind("general.architecture") == "str" else None

    @property
    def path(self) -> Path:
        return self.paths[0]


class _Cursor:
    """Reads one file from its start; knows what is left, and says so instead of reading past it."""

    def __init__(self, buffer, name):
        self.buffer, self.name = buffer, name
        self.at, self.end = 0, len(buffer)
        self.strings = self.key_bytes = 0

    def need(self, count: int, what: str):
        if count > self.end - self.at:
            raise NeedMore(
                f"{self.name}: the header ends early: {what} needs {count} bytes at byte {self.at}, "
                f"the file has {self.end - self.at} more"
            )

    def scalar(self, form: str, what: str):
        self.need(struct.calcsize(form), what)
        (value,) = struct.unpack_from(form, self.buffer, self.at)
        self.at += struct.calcsize(form)
        return value

    def refuse(self, reason: str):
        raise Refused(f"{self.name}: {reason}")

    def size(self, cap: int, what: str) -> int:
        """A u64 length or count, refused above `cap`."""
        count = self.scalar("<Q", what)
        if count > cap:
            self.refuse(f"{what} claims a length of {count}; {cap} is the most")
        return count

    def text(self, cap: int, what: str) -> bytes:
        size = self.size(cap, what)
        self.need(size, what)
        self.at += size
        return self.buffer[self.at - size : self.at]


def _read_array(cur: _Cursor, label: str):
    """One array value: (kind, Strings or a read-only NumPy view)."""
    kind = cur.scalar("<i", f"key {label}")
    if kind != STRING and kind not in SCALARS:
        what = "an array of arrays" if kind == ARRAY else f"an array of unknown value type {kind}"
        cur.refuse(f"key {label} is {what}")
    count = cur.size(MAX_STRING, f"the array {label}")
    if kind == STRING:
        return "arr[str]", _read_strings(cur, label, count)
    name, _, dtype = SCALARS[kind]
    dtype = np.dtype(dtype)
    cur.need(count * dtype.itemsize, f"the array {label}")
    values = (
        np.frombuffer(cur.buffer, "u1" if name == "bool" else dtype, count, cur.at) if count else np.empty(0, dtype)
    )
    cur.at += count * dtype.itemsize
    return f"arr[{name}]", values != 0 if name == "bool" else values


def _read_strings(cur: _Cursor, label: str, count: int) -> Strings:
    cur.need(8 * count, f"the array {label}")
    cur.strings += count
    if cur.strings > MAX_STRINGS:
        cur.refuse(f"the array {label} brings the strings to {cur.strings}; {MAX_STRINGS} is the most")
    starts, buffer, at = array("Q"), cur.buffer, cur.at
    add = starts.append
    try:
        for _ in range(count):
            add(at)
            at += 8 + _U64(buffer, at)[0]
        add(at)
    except (struct.error, OverflowError):
        at = cur.end + 1
    if at > cur.end:
        _strings_beyond(cur, label, starts)
    if at - cur.at > MAX_STRINGS_BYTES:
        cur.refuse(f"the array {label} has {at - cur.at} bytes of strings; {MAX_STRINGS_BYTES} is the most")
    cur.at = at
    return Strings(buffer, starts)


def _strings_beyond(cur: _Cursor, label: str, starts: array):
    """Tell of the string that leads past the end of the file: absurd, or cut."""
    while starts[-1] > cur.end - 8:
        starts.pop()
    cur.at = starts[-1]
    what = f"string {len(starts) - 1} of the array {label}"
    cur.size(MAX_STRING, what)
    raise NeedMore(f"{cur.name}: the header ends early: at or after {what}")


def _read_values(cur: _Cursor, count: int) -> Values:
    """All keys and their values."""
    kv = Values()
    for i in range(count):
        raw = cur.text(MAX_KEY, f"key {i}")
        cur.key_bytes += len(raw)
        if not raw:
            cur.refuse(f"key {i} is empty")
        if cur.key_bytes > MAX_KEYS_BYTES:
            cur.refuse(f"the keys take more than {MAX_KEYS_BYTES} bytes")
        key, label = raw.decode("utf-8", "backslashreplace"), f"'{printable(raw[:80])}'"
        if key in kv:
            cur.refuse(f"duplicate key {label}")
        kind = cur.scalar("<i", f"key {label}")
        if kind == ARRAY:
            kv.add(key, *_read_array(cur, label))
        elif kind == STRING:
            size = cur.size(MAX_TEXT, f"the string {label}")
            cur.need(size, f"the string {label}")
            kv.add(key, "str", Text(cur.buffer, cur.at, size))
            cur.at += size
        elif kind in SCALARS:
            name, form, _ = SCALARS[kind]
            kv.add(key, name, cur.scalar(form, f"key {label}"))
        else:
            cur.refuse(f"key {label} has the unknown value type {kind}")
    return kv


def _alignment(cur: _Cursor, kv: Values) -> int:
    kind, value = kv.kind("general.alignment"), kv.get("general.alignment", 32)
    if kind not in (None, "u32"):
        cur.refuse(f"general.alignment must be u32, not {kind}")
    if value == 0 or value & (value - 1):
        cur.refuse(f"general.alignment is {value}, which is not a power of two")
    if value > MAX_ALIGNMENT:
        cur.refuse(f"general.alignment is {value}; {MAX_ALIGNMENT} is the most")
    return value


def _read_tensor(cur: _Cursor, i: int, part: int) -> Tensor:
    """One tensor's announcement; its offset still counts from the start of the data."""
    raw = cur.text(MAX_STRING, f"the name of tensor {i}")
    name = printable(raw[:MAX_NAME])
    if len(raw) >= MAX_NAME:
        cur.refuse(f"the name of tensor {i} has {len(raw)} bytes, {MAX_NAME - 1} is the most: '{name}...'")
    if b"\0" in raw:
        cur.refuse(f"the name of tensor {i} holds a zero byte: '{name}'")
    n_dims = cur.scalar("<I", f"tensor '{name}'")
    if n_dims > MAX_DIMS:
        cur.refuse(f"tensor '{name}' has {n_dims} dimensions, {MAX_DIMS} is the most")
    dims = tuple(cur.scalar("<q", f"tensor '{name}'") for _ in range(n_dims))
    kind = cur.scalar("<i", f"tensor '{name}'")
    offset = cur.scalar("<Q", f"tensor '{name}'")
    if any(d < 0 for d in dims):
        cur.refuse(f"tensor '{name}' has a negative dimension: {list(dims)}")
    elements = math.prod(dims)
    if elements >= 2**63 - 1:
        cur.refuse(f"tensor '{name}' has {elements} elements: {list(dims)}")
    if kind not in TYPES:
        cur.refuse(f"tensor '{name}' has the unknown type id {kind}; bankml runs {names(RUNNABLE)}")
    block = TYPES[kind]
    if block.block_size == 0:
        cur.refuse(f"tensor '{name}' has the type {block}, which ggml has removed; bankml runs {names(RUNNABLE)}")
    width = dims[0] if dims else 1
    if width % block.block_size:
        cur.refuse(
            f"tensor '{name}' is {block}; its rows of {width} weights are no multiple of the block, {block.block_size}"
        )
    nbytes = elements // block.block_size * block.block_bytes
    if nbytes >= 2**63:
        cur.refuse(f"tensor '{name}' takes {nbytes} bytes: {list(dims)}")
    return Tensor(name, dims, kind, offset, nbytes, part)


def pad(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def group_128(tensor: Tensor) -> int:
    """Bytes the tensor takes in the old ternary layout: type 42 with one scale per 128 weights."""
    return math.prod(tensor.dims) // 128 * 34 if tensor.type == Q2_0 else tensor.nbytes


def _read_tensors(cur: _Cursor, count: int, alignment: int, part: int) -> tuple[dict[str, Tensor], int]:
    """All tensors with absolute offsets, and where the data starts. They must follow one another without a gap."""
    announced = [_read_tensor(cur, i, part) for i in range(count)]
    data = pad(cur.at, alignment) if count else cur.at
    tensors, expected, old = {}, 0, 0
    for tensor in announced:
        if tensor.name in tensors:
            cur.refuse(f"duplicate tensor '{tensor.name}'")
        if tensor.offset != expected:
            hint = f": {G128_HINT}" if tensor.offset == old else ""
            cur.refuse(f"tensor '{tensor.name}' is at offset {tensor.offset} where {expected} was expected{hint}")
        expected += pad(tensor.nbytes, alignment)
        old += pad(group_128(tensor), alignment)
        tensors[tensor.name] = Tensor(tensor.name, tensor.dims, tensor.type, data + tensor.offset, tensor.nbytes, part)
    if data > cur.end:
        raise NeedMore(f"{cur.name}: the data starts at byte {data}, the file has {cur.end} bytes")
    return tensors, data


def _version(cur: _Cursor) -> int:
    version = cur.scalar("<I", "the version")
    if version & 0xFFFF == 0 and version:
        cur.refuse("wrong byte order: a big-endian GGUF file")
    if version not in (2, 3):
        cur.refuse(f"GGUF version {version}; bankml reads 2 and 3")
    return version


def map_file(path: Path) -> mmap.mmap:
    """The whole file, read-only. The file must be a regular one, and must not be empty."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _check_regular(path: Path) -> int:
    """The file's size in bytes; UsageError where there is no regular file."""
    try:
        info = os.stat(path)
    except (OSError, ValueError) as error:  # a ValueError for a zero byte in the name
        raise UsageError(f"{path}: {getattr(error, 'strerror', error)}") from None
    if not stat.S_ISREG(info.st_mode):
        raise UsageError(f"{path}: not a regular file")
    return info.st_size


def read_part(path: Path, part: int) -> Header:
    """One file's header."""
    size = _check_regular(path)
    if size < 4:
        raise NeedMore(f"{path}: {size} bytes; a GGUF file starts with 4 bytes 'GGUF'")
    try:
        buffer = map_file(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    cur = _Cursor(buffer, path)
    magic, cur.at = buffer[:4], 4
    if magic != b"GGUF":
        cur.refuse(f"not GGUF; starts with '{printable(magic)}'")
    version = _version(cur)
    n_tensors = cur.scalar("<Q", "the tensor count")
    n_values = cur.scalar("<Q", "the key count")
    for count, what in ((n_tensors, "tensors"), (n_values, "keys")):
        if count > MAX_COUNT:
            cur.refuse(f"claims {count} {what}; {MAX_COUNT} is the most")
    cur.need(n_values * KEY_BYTES + n_tensors * TENSOR_BYTES, f"{n_values} keys and {n_tensors} tensors")
    kv = _read_values(cur, n_values)
    alignment = _alignment(cur, kv)
    tensors, data = _read_tensors(cur, n_tensors, alignment, part)
    return Header(version, kv, tensors, alignment, data, [path], [cur.end], [data])
