"""Files written whole or not at all, and their hashes."""

import hashlib
import os
import secrets
from contextlib import contextmanager
from pathlib import Path

from bankml.errors import UsageError, naming

CHUNK = 1 << 22


@contextmanager
def appearing(target: Path):
    """A new binary file, written under a temporary name beside `target`, that takes its name once all is on disk."""
    part = target.parent / f".bankml-{os.getpid()}-{secrets.token_hex(4)}.part"
    try:
        try:
            file = open(part, "xb")  # noqa: SIM115 - so that what fails within is not taken for this
        except OSError as error:
            raise UsageError(f"{target.parent}: cannot write there ({error.strerror})") from None
        with naming(target), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with naming(target):
            os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sha256(paths) -> str:
    """The SHA-256 of the files' bytes, one after the other, in hex."""
    digest = hashlib.sha256()
    for path in paths:
        with naming(path), open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
