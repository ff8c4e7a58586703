"""GGUF models: the header of all their parts, whether the data is all there, and the read-only map of the weights."""

import mmap
import os
import re
from pathlib import Path

import numpy as np

from bankml.blocks import F32, Q2_0
from bankml.errors import NeedMore, Refused, UsageError
from bankml.gguf_header import G128_HINT, Header, Tensor, group_128, map_file, pad, read_part
from bankml.gguf_values import Strings, Values, printable

__all__ = ["Header", "Map", "Strings", "Tensor", "Values", "check_spans", "printable", "read_header"]

_PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def read_header(path) -> Header:
    """The header of the model at `path`, all parts of a split one joined.

    Raises UsageError (no such file, or not a regular one), NeedMore (a cut header, a missing part) or Refused. It does
    not look at the data: `check_spans` does.
    """
    path = Path(os.fsdecode(path))
    header = read_part(path, 0)
    count = header.kv.get("split.count", 1)
    if header.kv.kind("split.count") not in (None, "u16"):
        raise Refused(f"{path}: split.count must be u16, not {header.kv.kind('split.count')}")
    return header if count <= 1 else _join(header, count)


def _split_number(header: Header, name: str) -> int:
    """A part's `split.no` or `split.count`, both u16."""
    key, kind = f"split.{name}", header.kv.kind(f"split.{name}")
    if kind != "u16":
        raise Refused(
            f"{header.path}: {key} is missing" if kind is None else f"{header.path}: {key} is {kind}, not u16"
        )
    return header.kv[key]


def _join(first: Header, count: int) -> Header:
    """The whole model of a first part: the others' tensors join its own; `split.no` counts from 0, names from 1."""
    path, number = first.path, _split_number(first, "no")
    name = _PART_NAME.fullmatch(path.name)
    if number:
        start = f"...-00001-of-{count:05d}.gguf" if name is None else f"{name[1]}-00001-of-{count:05d}.gguf"
        raise Refused(f"{path}: part {number + 1} of {count}; start from {start}")
    _refuse_glued(first, count)
    if name is None or (int(name[2]), int(name[3])) != (1, count):
        raise Refused(f"{path}: part 1 of {count} by split.count; its name must end in -00001-of-{count:05d}.gguf")
    for i in range(1, count):
        _add_part(first, path.with_name(f"{name[1]}-{i + 1:05d}-of-{count:05d}.gguf"), i, count)
    _check_tensor_count(first)
    return first


def _add_part(first: Header, path: Path, i: int, count: int):
    if not path.exists():
        raise NeedMore(f"{path} is missing: part {i + 1} of {count} of {first.path.name}")
    part = read_part(path, i)
    for key, want in (("no", i), ("count", count)):
        if (got := _split_number(part, key)) != want:
            raise Refused(f"{path}: split.{key} is {got} where {want} was expected; the parts disagree")
    for name in part.tensors:
        if name in first.tensors:
            raise Refused(f"{path}: duplicate tensor '{name}', also in {first.paths[first.tensors[name].part].name}")
    first.tensors.update(part.tensors)
    first.paths += part.paths
    first.sizes += part.sizes
    first.data_offsets += part.data_offsets


def _check_tensor_count(header: Header):
    key, kind = "split.tensors.count", header.kv.kind("split.tensors.count")
    if kind != "i32":
        raise Refused(f"{header.path}: {key} is {kind or 'missing'}; a split model has it as i32")
    if header.kv[key] != len(header.tensors):
        raise Refused(f"{header.path}: {key} is {header.kv[key]}, the parts have {len(header.tensors)}; parts disagree")


def _refuse_glued(first: Header, count: int):
    """Refuse a first part that the next part's bytes follow: the reference would look for the others all the same."""
    last = max(first.tensors.values(), key=lambda t: t.offset + t.nbytes, default=None)
    end = first.data_offset if last is None else last.offset + last.nbytes
    data = map_file(first.path)
    for at in (end, pad(end - first.data_offset, first.alignment) + first.data_offset):
        if data[at : at + 4] == b"GGUF":
            raise Refused(
                f"{first.path}: another GGUF file follows at byte {at}: parts joined with cat; "
                f"keep the {count} parts apart, or merge them with llama-gguf-split"
            )


def check_spans(header: Header):
    """Check that every tensor's bytes are in its file: NeedMore names the first that does not fit, and both sizes."""
    for tensor in header.tensors.values():
        end, size = tensor.offset + tensor.nbytes, header.sizes[tensor.part]
        if end <= size:
            continue
        path = header.paths[tensor.part]
        if tensor.type == Q2_0 and _fits_group_128(header, tensor):
            raise Refused(f"{path}: tensor '{tensor.name}' needs {end} bytes, the file has {size}: {G128_HINT}")
        raise NeedMore(f"{path}: tensor '{tensor.name}' needs the file to have {end} bytes, it has {size}")


def _fits_group_128(header: Header, tensor: Tensor) -> bool:
    """Whether the file ends just where the old 128-weight groups would end: then it is not cut, but old."""
    end = tensor.offset + group_128(tensor)
    padded = pad(end - header.data_offsets[tensor.part], header.alignment) + header.data_offsets[tensor.part]
    return header.sizes[tensor.part] in (end, padded)


class Map:
    """The weights of a checked header, mapped read-only from all parts; nothing is copied.

    Use as a context manager, or `close()` it; arrays handed out keep their file's map alive.
    """

    def __init__(self, header: Header):
        check_spans(header)
        self._tensors = header.tensors
        self._maps = [map_file(path) for path in header.paths]
        for path, part, size in zip(header.paths, self._maps, header.sizes, strict=True):
            if len(part) < size:
                raise NeedMore(f"{path}: the file has shrunk from {size} bytes to {len(part)}")
            part.madvise(mmap.MADV_WILLNEED)
        self._bytes = [np.frombuffer(part, np.uint8) for part in self._maps]

    def _tensor(self, name: str) -> Tensor:
        if not self._bytes:
            raise UsageError("the model's map is closed")
        if name not in self._tensors:
            raise UsageError(f"the model has no tensor '{name}'")
        return self._tensors[name]

    def _span(self, name: str) -> tuple[Tensor, np.ndarray]:
        tensor = self._tensor(name)
        return tensor, self._bytes[tensor.part][tensor.offset : tensor.offset + tensor.nbytes]

    def tensor(self, name: str) -> np.ndarray:
        """The tensor's bytes as they lie in the file: uint8 (rows, row_bytes), read-only."""
        tensor, span = self._span(name)
        return span.reshape(tensor.rows, tensor.row_bytes)

    def f32(self, name: str) -> np.ndarray:
        """An F32 tensor: float32 in the tensor's shape, the row length last; read-only where it could be mapped."""
        tensor, span = self._span(name)
        if tensor.type != F32:
            raise TypeError(f"{name} is {tensor.block}, not f32")
        values = span.view("<f4") if span.ctypes.data % 4 == 0 else np.frombuffer(span.tobytes(), "<f4")
        return values.reshape(tensor.dims[::-1])

    def address(self, name: str) -> int:
        """Where the tensor's first byte is in memory, for as long as the map is open."""
        tensor = self._tensor(name)
        return self._bytes[tensor.part].ctypes.data + tensor.offset

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def largest_part(self) -> np.ndarray:
        """The bytes of the largest file, uint8, read-only: what a read of the weights is measured on."""
        return max(self._bytes, key=len)

    def close(self):
        """Let go of the maps; a file still in use by an array stays mapped until that array goes."""
        self._bytes = []
        while self._maps:
            try:
                self._maps.pop().close()
            except BufferError:
                continue

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
