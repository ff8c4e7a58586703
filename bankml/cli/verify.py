"""`bankml verify FILE`: the structure and every tensor's extent, then the SHA-256, printed as "HEX  FILE".

A file whose matrices bankml can only convert passes: this is how a download is checked before `bankml convert`.
"""

import hashlib
import re
import sys

from bankml.blocks import CONVERTIBLE
from bankml.cli import flags
from bankml.errors import Refused, UsageError, naming
from bankml.gguf import Header, check_spans
from bankml.guard import guard
from bankml.plan import Arch

# Files known by their names: the SHA-256 that each must have.
PINS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
CHUNK = 1 << 22


def arguments(parser):
    parser.add_argument("file", type=flags.text, metavar="FILE", help="a GGUF model; of a split one, its first part")
    parser.add_argument("--sha256", metavar="HEX", help="the hash that the file must have (default: the known one)")


def run(args) -> int:
    if args.sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", args.sha256):
        raise UsageError(f"--sha256 {args.sha256}: a SHA-256 has 64 hexadecimal digits")
    verdict = guard(args.file)
    header, reasons = (verdict if verdict.header else verdict.check()).header, verdict.reasons
    check_spans(header)
    _check_scope(header, reasons)
    if reasons:
        print(f"bankml: note: whole, but not to be played as it is: {'; '.join(reasons)}", file=sys.stderr)
    if args.sha256 and len(header.paths) > 1:
        raise UsageError(f"--sha256: {args.file} has {len(header.paths)} parts, each with a hash of its own")
    for path, size in zip(header.paths, header.sizes, strict=True):
        digest = _sha256(path, size)
        want = (args.sha256 or PINS.get(path.name, digest)).lower()
        if digest != want:
            raise Refused(f"{path}: SHA-256 is {digest}, expected {want}")
        print(f"{digest}  {path}")
    return 0


def _check_scope(header: Header, reasons: list[str]):
    """Refuse an architecture, or a type, that bankml neither runs nor converts; a file that names none passes."""
    foreign = header.arch is not None and header.arch not in tuple(Arch)
    if foreign or any(tensor.type not in CONVERTIBLE for tensor in header.tensors.values()):
        raise Refused(*reasons)


def _sha256(path, size: int) -> str:
    """The file's hash; on a terminal, the share done stands on stderr meanwhile."""
    digest, done, shown = hashlib.sha256(), 0, sys.stderr.isatty()
    with naming(path), open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if shown:
                print(f"\r{path}: {100 * done // max(size, 1)} %", end="", file=sys.stderr, flush=True)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return digest.hexdigest()
