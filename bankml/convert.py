"""Rewrite a model with every matrix as F16, Q1_0 or Q2_0: the file llama_model_quantize writes with `pure` and
`allow_requantize`, byte for byte, keys and order of tensors too.
"""

import re
import shutil
import signal
import struct
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bankml import blocks, progress
from bankml.errors import BankmlError, NeedMore, Refused, UsageError, naming
from bankml.files import appearing
from bankml.gguf import Header, Tensor, check_spans, read_header
from bankml.gguf_values import SCALARS, STRING, printable
from bankml.plan import Arch
from bankml.quantizers import FROM_FLOAT, finite, from_float, to_float

FILE_TYPES = {blocks.F16: 1, blocks.Q1_0: 40, blocks.Q2_0: 41}  # enum llama_ftype
QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION
U32 = 4
CHUNK = 1 << 19  # weights at a time: a few MB of buffers, which stay in the cache
SPARE = 16 << 20  # bytes a disk should have left over
DROPPED = (b"general.quantization_version", b"general.file_type", b"split.no", b"split.count", b"split.tensors.count")


@dataclass(frozen=True)
class Output:
    """One tensor of the new file: `source` as it is, or its weights in another type; `offset` is in the data part."""

    source: Tensor
    type: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of its data, without padding."""
        block = blocks.TYPES[self.type]
        return self.source.rows * block.row_bytes(_width(self.source))


def convert(source, target, kind, label=None) -> tuple[int, int]:
    """Write the model at path `source` to path `target` with its matrices as `kind` ("F16", "Q1_0" or "Q2_0").

    Returns how many matrices the file has of that type, and its size in bytes. The file appears at the end, by rename;
    an error or an interruption leaves what was there before. Raises UsageError, Refused or NeedMore.
    """
    source, target = Path(source), Path(target)
    wanted = {blocks.TYPES[i].name.upper(): i for i in FROM_FLOAT}.get(kind)
    if wanted is None:
        raise UsageError(f"cannot convert to {kind}; to F16, Q1_0 or Q2_0")
    header = read_header(source)
    _check_target(target, header)
    outputs = _outputs(header, wanted)
    head = _head(header, outputs, wanted)
    size = len(head) + sum(_pad(output.nbytes, header.alignment) for output in outputs)
    ensure_space(target.parent, size, f"writing {target.name}")
    check_spans(header)
    with (
        ending_cleanly(),
        ExitStack() as sources,
        appearing(target) as file,
        progress.bar(label or f"converting to {kind}", size) as bar,
    ):
        parts = [sources.enter_context(open(path, "rb")) for path in header.paths]
        file.write(head)
        for output in outputs:
            _write(file, parts[output.source.part], output)
            file.write(bytes(-output.nbytes % header.alignment))
            bar.to(file.tell())
    return sum(output.type == wanted for output in outputs), size


def ensure_space(folder, need, purpose):
    """Raises BankmlError unless `folder`'s disk has `need` bytes, and a little more, left."""
    free = shutil.disk_usage(folder).free
    if free < need + SPARE:
        wants = f"{purpose} takes {need / 1e6:.0f} MB"
        raise BankmlError(
            f"{wants}, and the disk of {folder} has {free / 1e6:.0f} MB left; free some, or choose another"
        )


def _check_target(target, header):
    """The target may be new, or a regular file that is no part of the source."""
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent}: no such folder")
    if not target.exists():
        return
    if not target.is_file():
        raise UsageError(f"{target}: not a regular file")
    if any(target.samefile(part) for part in header.paths):
        raise UsageError(f"{target}: would be written over what it is made from; name another file")


@contextmanager
def ending_cleanly():
    """While it lasts, SIGTERM and SIGHUP end the process as an exception would, so that half-made files go."""

    def leave(number, _):
        raise SystemExit(128 + number)

    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in ours:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _outputs(header: Header, wanted) -> list[Output]:
    """The new file's tensors in its order, with their types. Raises Refused with every reason there is."""
    if header.arch not in tuple(Arch):
        raise Refused(
            f"{header.path}: the architecture is {printable(str(header.arch)[:64])}; bankml converts {', '.join(Arch)}"
        )
    outputs, reasons, offset = [], [], 0
    for tensor in sorted(header.tensors.values(), key=_place):
        kind = wanted if _is_matrix(tensor) else tensor.type
        if reason := _obstacle(tensor, kind):
            reasons.append(f"{header.path}: tensor '{tensor.name}' {reason}")
            continue
        output = Output(tensor, kind, offset)
        offset += _pad(output.nbytes, header.alignment)
        outputs.append(output)
    if reasons:
        more = f" (and {len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
        raise Refused(reasons[0] + more)
    return outputs


def _obstacle(tensor, kind):
    """Why `tensor` cannot become `kind`; None if it can."""
    if kind == tensor.type:
        return None
    block = blocks.TYPES[kind]
    if tensor.type not in blocks.CONVERTIBLE:
        return f"is {tensor.block}, which convert does not read; it reads {blocks.names(blocks.CONVERTIBLE)}"
    if len(tensor.dims) > 3 and tensor.dims[3] > 1:
        return "has four dimensions"
    if _width(tensor) % block.block_size:
        name = block.name.upper()
        return f"has rows of {_width(tensor)} weights, not a multiple of {name}'s group of {block.block_size}"
    return None


def _place(tensor):
    """The reference's order: layer by layer, tensors of no layer first; in each by name."""
    layer = re.match(r"blk\.\s*([+-]?\d+)", tensor.name)
    return int(layer[1]) if layer else -1, tensor.name.encode()


def _is_matrix(tensor):
    """Whether the reference quantizes this tensor (`tensor_allows_quantization`, for the architectures above)."""
    return (
        any(size > 1 for size in tensor.dims[1:])
        and tensor.name.endswith("weight")
        and "_norm.weight" not in tensor.name
        and "ffn_gate_inp.weight" not in tensor.name
    )


def _head(header: Header, outputs, wanted) -> bytes:
    """All that comes before the data, padded."""
    records = _records(header)
    kept = [raw for key, raw in records if key not in DROPPED]
    kept.append(_u32_record(b"general.quantization_version", QUANTIZATION_VERSION))
    kept.append(_u32_record(b"general.file_type", FILE_TYPES[wanted]))
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(outputs), len(kept)), *kept]
    for output in outputs:
        dims = _trimmed(output.source.dims)
        name = output.source.name.encode()
        form = f"<Q{len(name)}sI{len(dims)}QIQ"
        head.append(struct.pack(form, len(name), name, len(dims), *dims, output.type, output.offset))
    raw = b"".join(head)
    return raw + bytes(-len(raw) % header.alignment)


def _u32_record(key, value):
    return struct.pack(f"<Q{len(key)}sII", len(key), key, U32, value)


def _records(header: Header) -> list[tuple[bytes, bytes]]:
    """(key, its whole record) of the first file, verbatim. The header has been read, so every length holds."""
    with open(header.path, "rb") as file:
        raw = file.read(header.data_offset)
    at, records = 24, []
    for _ in range(struct.unpack_from("<Q", raw, 16)[0]):
        start = at
        (size,) = struct.unpack_from("<Q", raw, at)
        key = raw[at + 8 : at + 8 + size]
        at = _after_value(raw, at + 8 + size)
        records.append((key, raw[start:at]))
    return records


def _after_value(raw, at):
    """Where the value whose type stands at `at` ends."""
    (kind,) = struct.unpack_from("<I", raw, at)
    at, count = at + 4, 1
    if kind not in SCALARS and kind != STRING:
        kind, count = struct.unpack_from("<IQ", raw, at)
        at += 12
    if kind != STRING:
        return at + count * struct.calcsize(SCALARS[kind][1])
    for _ in range(count):
        at += 8 + struct.unpack_from("<Q", raw, at)[0]
    return at


def _read(part, size):
    """The next `size` bytes of a source as uint8; it is read, not mapped, so that one cut meanwhile is no SIGBUS."""
    with naming(part.name):
        data = part.read(size)
    if len(data) < size:
        raise NeedMore(f"{part.name}: the file ends {size - len(data)} bytes early; was it cut while it was read?")
    return np.frombuffer(data, np.uint8)


def _write(file, part, output):
    """Write one tensor's data, read from the open file `part`."""
    tensor, kind = output.source, output.type
    part.seek(tensor.offset)
    step = max(1, CHUNK // max(1, _width(tensor)))
    for start in range(0, tensor.rows, step):
        chunk = _read(part, min(step, tensor.rows - start) * tensor.row_bytes)
        if tensor.type in blocks.CONVERTIBLE:
            chunk = chunk.view(tensor.block.dtype)
            if not finite(tensor.type, chunk):
                raise Refused(f"tensor '{tensor.name}' holds a NaN or an infinity")
        if kind != tensor.type:
            chunk = from_float(kind, to_float(tensor.type, chunk))
            if not finite(kind, chunk):
                raise Refused(f"tensor '{tensor.name}' has weights too large for {blocks.TYPES[kind].name.upper()}")
        file.write(chunk)


def _width(tensor):
    return tensor.dims[0] if tensor.dims else 1


def _trimmed(dims):
    """Dimensions without the ones at the end, as ggml_n_dims counts them; one at least."""
    count = max([i for i, size in enumerate(dims) if size > 1], default=0) + 1
    return (dims or (1,))[:count]


def _pad(size, alignment):
    return -(-size // alignment) * alignment
